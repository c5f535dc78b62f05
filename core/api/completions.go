package api

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"

	"github.com/strata-engine/strata/core/tokenizer"
)

// textRequest is a request for text completions: what follows a text, without a
// chat template.
type textRequest struct {
	options
	// texts or ids are the prompts.
	texts []string
	ids   [][]int32
	echo  bool // answers begin with their prompts
}

var unsupportedInText = []limited{
	{"suffix", func(n *node) bool { return n.kind == kindString && n.text == "" }, "text cannot be inserted before a suffix"},
}

// complete answers POST /v1/completions.
func (s *Server) complete(w http.ResponseWriter, r *http.Request) {
	body, err := s.readBody(w, r)
	if err != nil {
		fromEngine(err).write(w)
		return
	}
	req, refused := parseText(body)
	if refused != nil {
		refused.write(w)
		return
	}
	s.generate(w, r, req)
}

// parseText reads the body of a request for text completions.
func parseText(body string) (*textRequest, *apiError) {
	p, e := parseBody(body)
	if e == nil {
		e = refuseUnsupported(p, constraints, unsupportedInText)
	}
	if e != nil {
		return nil, e
	}
	req := &textRequest{options: parseOptions(p), echo: p.boolean("echo", false)}
	req.logProbs = int(p.whole("logprobs", 0, maxTopLogProbs, -1))
	if best := p.whole("best_of", 1, maxChoices, int64(req.choices)); best != int64(req.choices) {
		p.fail(refuse("best_of", "unsupported_value", "Unsupported value for 'best_of': all choices are returned, so it must equal 'n'."))
	}
	if req.echo && req.logProbs >= 0 {
		p.fail(refuse("echo", "unsupported_value", "Unsupported value for 'echo': it cannot be combined with 'logprobs', since the log-probabilities of a prompt are not computed."))
	}
	parsePrompts(p, req)
	if p.err != nil {
		return nil, p.err
	}
	return req, nil
}

// parsePrompts reads the prompts: a string, token ids, or an array of either.
func parsePrompts(p *params, req *textRequest) {
	const want = "a string, an array of strings, an array of token ids, or an array of arrays of token ids"
	n := p.get("prompt")
	switch {
	case n == nil:
		p.fail(refuse("prompt", "missing_required_parameter", "Missing required parameter: 'prompt'."))
	case n.kind == kindString:
		req.texts = []string{n.text}
	case n.kind != kindArray:
		p.fail(wrongType("prompt", want, n))
	case len(n.items) == 0:
		p.fail(refuse("prompt", "empty_array", "Invalid 'prompt': empty array. Expected an array with minimum length 1, but got an empty array instead."))
	case n.items[0].kind == kindNumber:
		req.ids = append(req.ids, parseIDs(p, "prompt", n))
	default:
		for i := range n.items {
			item, path := &n.items[i], fmt.Sprintf("prompt[%d]", i)
			switch {
			case item.kind != n.items[0].kind || item.kind != kindString && item.kind != kindArray:
				p.fail(wrongType(path, "as the whole of 'prompt' "+want, item))
				return
			case len(n.items) > maxChoices:
				p.fail(refuse("prompt", "array_above_max_length", "Invalid 'prompt': array too long. Expected an array with maximum length %d, but got an array with length %d instead.", maxChoices, len(n.items)))
				return
			case item.kind == kindString:
				req.texts = append(req.texts, item.text)
			default:
				req.ids = append(req.ids, parseIDs(p, path, item))
			}
		}
	}
}

// parseIDs reads an array of token ids. That the model has them is checked later.
func parseIDs(p *params, path string, n *node) []int32 {
	ids := make([]int32, 0, len(n.items))
	for i := range n.items {
		item := &params{object: &node{kind: kindObject, names: []string{"id"}, items: n.items[i : i+1]}}
		if item.object.items[0].kind != kindNumber {
			p.fail(wrongType(fmt.Sprintf("%s[%d]", path, i), "a token id", &n.items[i]))
			return nil
		}
		ids = append(ids, int32(item.whole("id", 0, math.MaxInt32, 0)))
		if item.err != nil {
			p.fail(refuse(path, "invalid_value", "Invalid value for '%s[%d]': expected a token id, but got %s instead.", path, i, n.items[i].text))
			return nil
		}
	}
	return ids
}

// known refuses ids that the model does not have.
func (m *Model) known(param string, ids []int32) error {
	for _, id := range ids {
		if int(id) >= m.Tokenizer.Size() {
			return refuse(param, "invalid_value", "Invalid value for '%s': the model has no token %d; its ids go to %d.", param, id, m.Tokenizer.Size()-1)
		}
	}
	return nil
}

// text is what tokens stand for, control tokens included, as well-formed UTF-8.
func (m *Model) text(ids []int32) string {
	var out strings.Builder
	stream := m.Tokenizer.NewStream(true)
	for _, id := range ids {
		out.WriteString(stream.Push(id))
	}
	out.WriteString(stream.Flush())
	return out.String()
}

func (req *textRequest) common() *options { return &req.options }
func (req *textRequest) prefix() string   { return "cmpl-" }
func (req *textRequest) subject() string  { return "prompt" }

// prompts tokenizes the texts. A text never becomes a control token; who wants one
// sends ids.
func (req *textRequest) prompts(_ context.Context, m *Model) ([]prompt, error) {
	var out []prompt
	for _, text := range req.texts {
		out = append(out, prompt{ids: m.Tokenizer.EncodePrompt(tokenizer.Part{Text: text}), text: text})
	}
	for _, ids := range req.ids {
		if err := m.known("prompt", ids); err != nil {
			return nil, err
		}
		p := prompt{ids: ids}
		if req.echo {
			p.text = m.text(ids)
		}
		out = append(out, p)
	}
	for i := range out {
		if len(out[i].ids) == 0 {
			return nil, refuse("prompt", "invalid_value", "Invalid value for 'prompt': it has no tokens, and there is nothing to go on from.")
		}
		if !req.echo {
			out[i].text = ""
		}
	}
	return out, nil
}

// textCompletion is the object of whole answers and of a stream's chunks.
type textCompletion struct {
	ID                string       `json:"id"`
	Object            string       `json:"object"`
	Created           int64        `json:"created"`
	Model             string       `json:"model"`
	SystemFingerprint string       `json:"system_fingerprint"`
	Choices           []textChoice `json:"choices"`
	// The rest is as in a chunk of a chat completion.
	Usage          *optionalUsage  `json:"usage,omitempty"`
	Timings        *timings        `json:"timings,omitempty"`
	PromptProgress *promptProgress `json:"prompt_progress,omitempty"`
}

type textChoice struct {
	Index        int           `json:"index"`
	Text         string        `json:"text"`
	LogProbs     *textLogProbs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

// textLogProbs has an entry per token in each of its lists.
type textLogProbs struct {
	Tokens        []string  `json:"tokens"`
	TokenLogProbs []float32 `json:"token_logprobs"`
	// TopLogProbs are null where no alternatives were asked for. The token itself
	// is always among them.
	TopLogProbs []map[string]float32 `json:"top_logprobs"`
	// TextOffset counts characters from the beginning of the text.
	TextOffset []int `json:"text_offset"`
}

func (req *textRequest) logProbsOf(list []tokenLogProb) *textLogProbs {
	if req.logProbs < 0 {
		return nil
	}
	out := &textLogProbs{Tokens: []string{}, TokenLogProbs: []float32{}, TextOffset: []int{}}
	if req.logProbs > 0 {
		out.TopLogProbs = []map[string]float32{}
	}
	for _, t := range list {
		out.Tokens = append(out.Tokens, t.Token)
		out.TokenLogProbs = append(out.TokenLogProbs, t.LogProb)
		out.TextOffset = append(out.TextOffset, t.offset)
		if req.logProbs == 0 {
			continue
		}
		top := map[string]float32{}
		for _, alternative := range t.TopLogProbs {
			top[alternative.Token] = alternative.LogProb
		}
		top[t.Token] = t.LogProb
		out.TopLogProbs = append(out.TopLogProbs, top)
	}
	return out
}

func (req *textRequest) whole(run *run) any {
	u := run.total()
	out := req.head(run)
	out.Usage, out.Timings = &optionalUsage{&u}, run.timings()
	for _, c := range run.choices {
		out.Choices = append(out.Choices, textChoice{
			Index: c.index, Text: c.prompt.text + c.content.String(), LogProbs: req.logProbsOf(c.logProbs), FinishReason: &c.finish,
		})
	}
	return out
}

// open sends the prompts where they are to be repeated.
func (req *textRequest) open(out *eventStream, run *run) {
	for _, c := range run.choices {
		if c.prompt.text != "" {
			out.data(req.chunk(run, c, c.prompt.text))
		}
	}
}

func (req *textRequest) event(out *eventStream, run *run, e event, last *timings) {
	if e.piece.content != "" || len(e.piece.logProbs) > 0 {
		c := req.chunk(run, e.choice, e.piece.content)
		c.Choices[0].LogProbs = req.logProbsOf(e.piece.logProbs)
		out.data(c)
	}
	if e.last {
		c := req.chunk(run, e.choice, "")
		c.Choices[0].FinishReason, c.Timings = &e.choice.finish, last
		out.data(c)
	}
}

func (req *textRequest) progress(out *eventStream, run *run, c *runChoice, p promptProgress) {
	chunk := req.chunk(run, c, "")
	chunk.PromptProgress = &p
	out.data(chunk)
}

func (req *textRequest) usage(out *eventStream, run *run, last *timings) {
	u := run.total()
	c := req.head(run)
	c.Usage, c.Timings = &optionalUsage{&u}, last
	out.data(c)
}

func (req *textRequest) head(run *run) *textCompletion {
	c := &textCompletion{
		ID: run.id, Object: "text_completion", Created: run.created.Unix(), Model: run.model.ID,
		SystemFingerprint: run.model.fingerprint(), Choices: []textChoice{},
	}
	if req.includeUsage {
		c.Usage = &optionalUsage{}
	}
	return c
}

func (req *textRequest) chunk(run *run, c *runChoice, text string) *textCompletion {
	out := req.head(run)
	out.Choices = []textChoice{{Index: c.index, Text: text}}
	return out
}
