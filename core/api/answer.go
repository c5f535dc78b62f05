package api

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/strata-engine/strata/core/engine"
	"github.com/strata-engine/strata/core/template"
	"github.com/strata-engine/strata/core/tokenizer"
)

// answer turns the tokens of one choice into reasoning and content.
type answer struct {
	tokenizer *tokenizer.Tokenizer
	stream    *tokenizer.Stream
	reasoning *template.ReasoningSplitter // nil where all is content
	stops     stops
	logProbs  bool
	// reasoned says that there was reasoning.
	reasoned bool

	// tokens counts all tokens, thought those inside the reasoning.
	tokens, thought int
	// made and sent count bytes of content: what the model wrote, and what left
	// the stop strings' hands.
	made, sent int
	// characters counts what the model wrote in characters.
	characters int
	// pending are the probabilities of tokens of which nothing was sent yet.
	pending []pendingProb
}

// pendingProb waits until the content beyond start is sent.
type pendingProb struct {
	start int
	prob  tokenLogProb
}

// piece is what became certain by one token.
type piece struct {
	reasoning, content string
	logProbs           []tokenLogProb
	// stopped says that a stop string was found: the answer ends here.
	stopped bool
}

func (p *piece) empty() bool {
	return p.reasoning == "" && p.content == "" && len(p.logProbs) == 0 && !p.stopped
}

// newAnswer starts an answer to a prompt.
func newAnswer(t *tokenizer.Tokenizer, p *prompt, stopStrings []string, logProbs bool) *answer {
	a := &answer{
		tokenizer: t,
		stream:    t.NewStream(false),
		stops:     stops{strings: stopStrings},
		logProbs:  logProbs,
	}
	if p.split {
		a.reasoned, a.reasoning = p.thinking, template.NewReasoningSplitter(p.thinking)
	}
	return a
}

// push adds a token.
func (a *answer) push(t engine.Token) piece {
	a.tokens++
	if a.inReasoning() {
		a.thought++
	}
	start, offset := a.made, a.characters
	text := a.stream.Push(t.ID)
	thought, content := a.split(text)
	a.made += len(content)
	a.characters += utf8.RuneCountInString(content)
	if a.inReasoning() {
		a.reasoned = true
		a.pending = a.pending[:0] // what was undecided until now is an opening tag
	} else if a.logProbs {
		// The closing tag and the white space behind it are not content. A token
		// without text may be the first part of a character that is.
		between := a.reasoned && a.made == 0 && text != ""
		if !between {
			a.pending = append(a.pending, pendingProb{start, a.prob(t, offset)})
		}
	}
	certain, hit := a.stops.push(content)
	return a.deliver(thought, certain, hit, false)
}

func (a *answer) inReasoning() bool { return a.reasoning != nil && a.reasoning.InReasoning() }

func (a *answer) split(text string) (thought, content string) {
	if a.reasoning == nil {
		return "", text
	}
	return a.reasoning.Push(text)
}

// flush ends the answer and returns what was held back.
func (a *answer) flush() piece {
	thought, content := a.split(a.stream.Flush())
	if a.reasoning != nil {
		th, c := a.reasoning.Flush()
		thought, content = thought+th, content+c
	}
	a.made += len(content)
	certain, hit := a.stops.push(content)
	if !hit {
		certain += a.stops.flush()
	}
	return a.deliver(thought, certain, hit, !hit)
}

// deliver adds to the text the probabilities that go with it: those of tokens of
// which a byte has been sent, or all at the end of an uncut answer.
func (a *answer) deliver(thought, content string, hit, all bool) piece {
	a.sent += len(content)
	p := piece{reasoning: thought, content: content, stopped: hit}
	n := 0
	for n < len(a.pending) && (all || a.pending[n].start < a.sent) {
		p.logProbs = append(p.logProbs, a.pending[n].prob)
		n++
	}
	a.pending = a.pending[n:]
	return p
}

// prob writes the log-probabilities of a token whose text begins at offset.
func (a *answer) prob(t engine.Token, offset int) tokenLogProb {
	out := tokenLogProb{offset: offset, tokenProb: a.tokenProb(t.ID, t.LogProb), TopLogProbs: []tokenProb{}}
	for _, alt := range t.Top {
		out.TopLogProbs = append(out.TopLogProbs, a.tokenProb(alt.ID, alt.LogProb))
	}
	return out
}

// leastLogProb stands for a token that cannot be chosen: JSON has no infinity.
const leastLogProb = -9999

func (a *answer) tokenProb(id int32, logProb float32) tokenProb {
	b := a.tokenizer.Decode([]int32{id})
	p := tokenProb{Token: b, LogProb: max(logProb, leastLogProb), Bytes: byteSeq(b)}
	if !utf8.ValidString(b) {
		// Part of a character: bytes as the OpenAI API spells them.
		var out strings.Builder
		out.WriteString("bytes:")
		for _, c := range []byte(b) {
			fmt.Fprintf(&out, `\x%02x`, c)
		}
		p.Token = out.String()
	}
	return p
}
