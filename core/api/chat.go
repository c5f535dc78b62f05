package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/strata-engine/strata/core/template"
)

// chat answers POST /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	body, err := s.readBody(w, r)
	if err != nil {
		fromEngine(err).write(w)
		return
	}
	req, refused := parseChat(body)
	if refused != nil {
		refused.write(w)
		return
	}
	s.generate(w, r, req)
}

func (req *chatRequest) common() *options { return &req.options }
func (req *chatRequest) prefix() string   { return "chatcmpl-" }
func (req *chatRequest) subject() string  { return "messages" }

// prompts writes the conversation as the model's template has it and tokenizes
// it.
func (req *chatRequest) prompts(ctx context.Context, m *Model) ([]prompt, error) {
	conversation := req.conversation
	level, think, err := m.Template.Effort(req.effort)
	if err != nil {
		return nil, refuse(req.effortFrom, "invalid_value", "Invalid value for '%s': %v.", req.effortFrom, err)
	}
	if req.effort != "" {
		conversation.ReasoningEffort, conversation.EnableThinking = level, think
	}
	conversation.Messages = m.Template.Normalize(conversation.Messages)
	rendered, err := m.Template.Render(ctx, conversation)
	var failed *template.Error
	switch {
	case errors.As(err, &failed):
		return nil, refuse("messages", "template_error", "The model's chat template cannot render the conversation: %s.", strings.TrimSuffix(failed.Message, "."))
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, refuse("", "invalid_value", "The conversation cannot be rendered: %v.", err)
	}
	return []prompt{{ids: m.Tokenizer.EncodePrompt(rendered.Parts...), split: true, thinking: rendered.Thinking}}, nil
}

// whole is the object of an answer that does not stream.
func (req *chatRequest) whole(run *run) any {
	out := completion{
		ID: run.id, Object: "chat.completion", Created: run.created.Unix(), Model: run.model.ID,
		SystemFingerprint: run.model.fingerprint(),
		Choices:           []choice{},
		Usage:             run.total(), Timings: run.timings(),
	}
	for _, c := range run.choices {
		out.Choices = append(out.Choices, choice{
			Index: c.index,
			Message: message{
				Role: "assistant", Content: c.content.String(), ReasoningContent: c.reasoning.String(),
			},
			LogProbs: req.logProbsOf(c.logProbs), FinishReason: c.finish,
		})
	}
	return out
}

// logProbsOf are the log-probabilities of tokens, where they were asked for.
func (req *chatRequest) logProbsOf(list []tokenLogProb) *logProbs {
	if req.logProbs < 0 {
		return nil
	}
	if list == nil {
		list = []tokenLogProb{}
	}
	return &logProbs{Content: list}
}

// open sends every choice's role.
func (req *chatRequest) open(out *eventStream, run *run) {
	for _, c := range run.choices {
		out.data(req.chunk(run, c, delta{Role: "assistant", Content: new(string)}))
	}
}

// event sends reasoning before content, and the end of a choice in a chunk of its
// own.
func (req *chatRequest) event(out *eventStream, run *run, e event, last *timings) {
	if e.piece.reasoning != "" {
		out.data(req.chunk(run, e.choice, delta{ReasoningContent: &e.piece.reasoning}))
	}
	if e.piece.content != "" || len(e.piece.logProbs) > 0 {
		c := req.chunk(run, e.choice, delta{Content: &e.piece.content})
		c.Choices[0].LogProbs = req.logProbsOf(e.piece.logProbs)
		out.data(c)
	}
	if e.last {
		c := req.chunk(run, e.choice, delta{})
		c.Choices[0].FinishReason, c.Timings = &e.choice.finish, last
		out.data(c)
	}
}

func (req *chatRequest) progress(out *eventStream, run *run, c *runChoice, p promptProgress) {
	chunk := req.chunk(run, c, delta{})
	chunk.PromptProgress = &p
	out.data(chunk)
}

func (req *chatRequest) usage(out *eventStream, run *run, last *timings) {
	u := run.total()
	c := req.head(run)
	c.Choices, c.Usage, c.Timings = []chunkChoice{}, &optionalUsage{&u}, last
	out.data(c)
}

func (req *chatRequest) head(run *run) *chunk {
	c := &chunk{
		ID: run.id, Object: "chat.completion.chunk", Created: run.created.Unix(), Model: run.model.ID,
		SystemFingerprint: run.model.fingerprint(),
	}
	if req.includeUsage {
		c.Usage = &optionalUsage{}
	}
	return c
}

func (req *chatRequest) chunk(run *run, c *runChoice, d delta) *chunk {
	out := req.head(run)
	out.Choices = []chunkChoice{{Index: c.index, Delta: d}}
	return out
}
