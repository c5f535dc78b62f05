package template

import "strings"

// The tags around reasoning in the model families that have any.
const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// space is what is dropped around the tags.
const space = " \t\r\n"

// ReasoningSplitter separates a model's output into reasoning and content while
// it arrives. The tags, and white space between a tag and the text, belong to
// neither. Where the pieces are cut never shows in the joined results. Not safe
// for concurrent use.
type ReasoningSplitter struct {
	state state
	held  string // text whose place depends on what follows
}

type state int

const (
	beforeOpen   state = iota // nothing but white space so far
	startOfThink              // in reasoning, nothing of it so far
	inThink
	startOfContent // after </think>, nothing of the content so far
	inContent
)

// NewReasoningSplitter starts an output. open says that the prompt ended inside a
// <think> block (Prompt.Thinking); else the output is reasoning only where it
// begins with the tag itself.
func NewReasoningSplitter(open bool) *ReasoningSplitter {
	if open {
		return &ReasoningSplitter{state: startOfThink}
	}
	return &ReasoningSplitter{state: beforeOpen}
}

// Push adds output and returns what is certain now.
func (r *ReasoningSplitter) Push(text string) (reasoning, content string) {
	return r.advance(text, false)
}

// Flush ends the output and returns what was held back. Reasoning that was never
// closed stays reasoning.
func (r *ReasoningSplitter) Flush() (reasoning, content string) {
	return r.advance("", true)
}

// InReasoning reports whether the text so far has not left the reasoning.
func (r *ReasoningSplitter) InReasoning() bool {
	return r.state == startOfThink || r.state == inThink
}

func (r *ReasoningSplitter) advance(text string, end bool) (reasoning, content string) {
	s := r.held + text
	r.held = ""
	for {
		switch r.state {
		case beforeOpen:
			trimmed := strings.TrimLeft(s, space)
			switch {
			case strings.HasPrefix(trimmed, thinkOpen):
				r.state = startOfThink
				s = trimmed[len(thinkOpen):]
			case strings.HasPrefix(thinkOpen, trimmed) && !end:
				r.held = s
				return reasoning, content
			default:
				r.state = inContent
			}
		case startOfThink:
			if s = strings.TrimLeft(s, space); s == "" {
				return reasoning, content
			}
			if strings.HasPrefix(thinkOpen, s) && !end {
				r.held = s // a model may repeat the tag that the prompt ended with
				return reasoning, content
			}
			if strings.HasPrefix(s, thinkOpen) {
				s = s[len(thinkOpen):]
				continue
			}
			r.state = inThink
		case inThink:
			before, after, closed := strings.Cut(s, thinkClose)
			if closed {
				r.state = startOfContent
				reasoning += strings.TrimRight(before, space)
				s = after
				continue
			}
			keep := len(s)
			if !end {
				keep -= partial(s, thinkClose)
				keep = len(strings.TrimRight(s[:keep], space))
			}
			r.held = s[keep:]
			return reasoning + s[:keep], content
		case startOfContent:
			if s = strings.TrimLeft(s, space); s == "" {
				return reasoning, content
			}
			r.state = inContent
		case inContent:
			return reasoning, content + s
		}
	}
}

// partial returns the length of the longest proper prefix of tag that s ends with.
func partial(s, tag string) int {
	for n := min(len(s), len(tag)-1); n > 0; n-- {
		if strings.HasSuffix(s, tag[:n]) {
			return n
		}
	}
	return 0
}
