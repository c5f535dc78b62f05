package api

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/strata-engine/strata/core/engine"
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
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	m, err := s.wait(ctx)
	if err != nil {
		fromEngine(err).write(w)
		return
	}
	run, err := begin(ctx, m, req)
	if err != nil {
		fromEngine(err).write(w)
		return
	}
	defer run.end(cancel)
	if req.stream {
		s.streamChat(ctx, w, run)
	} else {
		s.wholeChat(w, run)
	}
	s.report(run)
}

// readBody reads a request's body within its time and size.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (string, error) {
	var body strings.Builder
	if r.ContentLength > 0 {
		body.Grow(int(min(r.ContentLength, int64(s.cfg.MaxBody), 1<<20)))
	}
	_, err := io.Copy(&body, r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return "", invalidRequest(http.StatusRequestEntityTooLarge, "request_too_large", "The body of your request is larger than %v.", s.cfg.MaxBody)
	case err != nil:
		w.Header().Set("Connection", "close") // and do not wait for the rest
		return "", invalidRequest(http.StatusRequestTimeout, "request_incomplete", "The body of your request did not arrive whole within %v.", s.cfg.BodyTimeout)
	}
	// From here on the connection is only watched for the client's leaving.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return body.String(), nil
}

// chatRun is a request being answered.
type chatRun struct {
	req     *chatRequest
	model   *Model
	id      string
	created time.Time
	prompt  int // tokens
	choices []*chatChoice
	events  chan event
	// stopped is closed when nobody reads events any more.
	stopped chan struct{}
	running sync.WaitGroup
}

// chatChoice is one of the answers to a request. Its goroutine owns answer until
// it has sent the last event.
type chatChoice struct {
	index      int
	generation Generation
	answer     *answer
	finish     string
	tokens     int
}

// event is something that a choice has to say.
type event struct {
	choice *chatChoice
	piece  piece
	last   bool // the choice has ended; its finish and tokens are set
	err    error
}

// begin renders and tokenizes the conversation and queues a generation per
// choice. Either all are queued or none.
func begin(ctx context.Context, m *Model, req *chatRequest) (*chatRun, error) {
	prompt, thinking, err := render(ctx, m, req)
	if err != nil {
		return nil, err
	}
	run := &chatRun{
		req: req, model: m, id: "chatcmpl-" + rand.Text(), created: time.Now(), prompt: len(prompt),
		events: make(chan event, 8*req.choices), stopped: make(chan struct{}),
	}
	sampling := req.sampling
	if !req.seeded {
		sampling.Seed = randomSeed()
	}
	for id := range sampling.LogitBias {
		if int(id) >= m.Spec.Hyper.Vocab {
			return nil, refuse("logit_bias", "invalid_value", "Invalid value for 'logit_bias': the model has no token %d; its ids go to %d.", id, m.Spec.Hyper.Vocab-1)
		}
	}
	ends := m.Tokenizer.Stops()
	if req.ignoreEOS {
		ends = nil
	}
	for i := range req.choices {
		g, err := m.Engine.Start(ctx, engine.Request{
			Prompt:    prompt,
			MaxTokens: req.maxTokens,
			Sampler:   sampling,
			Choice:    i,
			Stop:      ends,
			LogProbs:  req.logProbs,
		})
		if err != nil {
			for _, c := range run.choices {
				c.generation.Close()
			}
			return nil, err
		}
		run.choices = append(run.choices, &chatChoice{
			index: i, generation: g, answer: newAnswer(m.Tokenizer, thinking, req.stop, req.logProbs >= 0),
		})
	}
	for _, c := range run.choices {
		run.running.Go(func() { run.follow(ctx, c) })
	}
	return run, nil
}

// render writes the conversation as the model's template has it and tokenizes it.
func render(ctx context.Context, m *Model, req *chatRequest) (prompt []int32, thinking bool, err error) {
	conversation := req.conversation
	level, think, err := m.Template.Effort(req.effort)
	if err != nil {
		return nil, false, refuse(req.effortFrom, "invalid_value", "Invalid value for '%s': %v.", req.effortFrom, err)
	}
	if req.effort != "" {
		conversation.ReasoningEffort, conversation.EnableThinking = level, think
	}
	conversation.Messages = m.Template.Normalize(conversation.Messages)
	rendered, err := m.Template.Render(ctx, conversation)
	var failed *template.Error
	switch {
	case errors.As(err, &failed):
		return nil, false, refuse("messages", "template_error", "The model's chat template cannot render the conversation: %s.", strings.TrimSuffix(failed.Message, "."))
	case ctx.Err() != nil:
		return nil, false, context.Cause(ctx)
	case err != nil:
		return nil, false, refuse("", "invalid_value", "The conversation cannot be rendered: %v.", err)
	}
	return m.Tokenizer.EncodePrompt(rendered.Parts...), rendered.Thinking, nil
}

func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.LittleEndian.Uint64(b[:])
}

// follow turns the tokens of a choice into events.
func (run *chatRun) follow(ctx context.Context, c *chatChoice) {
	for {
		token, err := c.generation.Next(ctx)
		if err != nil && err != io.EOF {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			run.send(event{choice: c, err: err})
			return
		}
		if err == io.EOF {
			c.finish, c.tokens = c.generation.Finish(), c.generation.Stats().Generated
			p := c.answer.flush()
			if p.stopped {
				c.finish = engine.FinishStop
			}
			run.send(event{choice: c, piece: p, last: true})
			return
		}
		p := c.answer.push(token)
		if p.stopped {
			c.generation.Close()
			c.finish, c.tokens = engine.FinishStop, c.answer.tokens
			run.send(event{choice: c, piece: p, last: true})
			return
		}
		if !p.empty() && !run.send(event{choice: c, piece: p}) {
			return
		}
	}
}

// send hands an event over; false where nobody reads any more.
func (run *chatRun) send(e event) bool {
	select {
	case run.events <- e:
		return true
	case <-run.stopped:
		return false
	}
}

// end stops what still runs and waits for it.
func (run *chatRun) end(cancel func()) {
	close(run.stopped)
	cancel()
	run.running.Wait()
}

// usage adds up the choices, all of which have ended.
func (run *chatRun) usage() usage {
	u := usage{PromptTokens: run.prompt}
	for _, c := range run.choices {
		u.CompletionTokens += c.tokens
		u.CompletionTokensDetails.ReasoningTokens += c.answer.thought
	}
	u.PromptTokensDetails.CachedTokens = run.choices[0].generation.Stats().Cached
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// wholeChat answers when everything is there.
func (s *Server) wholeChat(w http.ResponseWriter, run *chatRun) {
	out := completion{
		ID: run.id, Object: "chat.completion", Created: run.created.Unix(), Model: run.model.ID,
		SystemFingerprint: run.model.fingerprint(),
		Choices:           make([]choice, len(run.choices)),
	}
	texts := make([]struct{ content, reasoning strings.Builder }, len(run.choices))
	for i := range out.Choices {
		out.Choices[i] = choice{Index: i, Message: message{Role: "assistant"}}
		if run.req.logProbs >= 0 {
			out.Choices[i].LogProbs = &logProbs{Content: []tokenLogProb{}}
		}
	}
	for open := len(run.choices); open > 0; {
		e := <-run.events
		if e.err != nil {
			s.failed(e.err)
			s.deadline(w)
			fromEngine(e.err).write(w)
			return
		}
		i := e.choice.index
		texts[i].content.WriteString(e.piece.content)
		texts[i].reasoning.WriteString(e.piece.reasoning)
		if lp := out.Choices[i].LogProbs; lp != nil {
			lp.Content = append(lp.Content, e.piece.logProbs...)
		}
		if e.last {
			open--
			out.Choices[i].FinishReason = e.choice.finish
		}
	}
	for i := range out.Choices {
		out.Choices[i].Message.Content = texts[i].content.String()
		out.Choices[i].Message.ReasoningContent = texts[i].reasoning.String()
	}
	out.Usage = run.usage()
	s.deadline(w)
	writeJSON(w, http.StatusOK, out)
}

// deadline bounds the write of a whole response.
func (s *Server) deadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.WriteTimeout))
}

// streamChat answers piece by piece. The headers are held back until the first
// piece, so that a failure before it has a status of its own, but not longer than
// the configured time; after them, silence is broken by comments.
func (s *Server) streamChat(ctx context.Context, w http.ResponseWriter, run *chatRun) {
	out := newEventStream(w, s.cfg.WriteTimeout)
	hold := time.NewTimer(s.cfg.HoldHeaders)
	defer hold.Stop()
	silence := time.NewTicker(s.cfg.KeepAlive)
	defer silence.Stop()
	start := func() {
		if out.started {
			return
		}
		out.start()
		for _, c := range run.choices {
			out.data(run.chunk(c, delta{Role: "assistant", Content: new(string)}, nil, nil))
		}
	}
	for open := len(run.choices); open > 0 && out.err == nil; {
		select {
		case e := <-run.events:
			if e.err != nil {
				s.failed(e.err)
				failure := fromEngine(e.err)
				if !out.started {
					s.deadline(w)
					failure.write(w)
					return
				}
				out.data(struct {
					Error errorBody `json:"error"`
				}{failure.body})
				out.done()
				out.flush()
				return
			}
			start()
			run.write(out, e)
			if e.last {
				open--
			}
			if len(run.events) > 0 {
				continue // one flush for all that is there
			}
		case <-hold.C:
			start()
		case <-silence.C:
			if !out.started {
				continue
			}
			out.comment("keep-alive")
		}
		out.flush()
		silence.Reset(s.cfg.KeepAlive)
	}
	if run.req.includeUsage && out.err == nil {
		u := run.usage()
		c := run.head()
		c.Choices, c.Usage = []chunkChoice{}, &optionalUsage{&u}
		out.data(c)
	}
	out.done()
	out.flush()
	if out.err != nil {
		s.log.Info("client left", "id", run.id, "error", out.err)
	}
}

// write sends the chunks of an event: reasoning before content, and the end of a
// choice in a chunk of its own.
func (run *chatRun) write(out *eventStream, e event) {
	if e.piece.reasoning != "" {
		out.data(run.chunk(e.choice, delta{ReasoningContent: &e.piece.reasoning}, nil, nil))
	}
	if e.piece.content != "" || len(e.piece.logProbs) > 0 {
		var lp *logProbs
		if run.req.logProbs >= 0 {
			lp = &logProbs{Content: e.piece.logProbs}
			if lp.Content == nil {
				lp.Content = []tokenLogProb{}
			}
		}
		out.data(run.chunk(e.choice, delta{Content: &e.piece.content}, lp, nil))
	}
	if e.last {
		out.data(run.chunk(e.choice, delta{}, nil, &e.choice.finish))
	}
}

func (run *chatRun) head() chunk {
	c := chunk{
		ID: run.id, Object: "chat.completion.chunk", Created: run.created.Unix(), Model: run.model.ID,
		SystemFingerprint: run.model.fingerprint(),
	}
	if run.req.includeUsage {
		c.Usage = &optionalUsage{}
	}
	return c
}

func (run *chatRun) chunk(c *chatChoice, d delta, lp *logProbs, finish *string) chunk {
	out := run.head()
	out.Choices = []chunkChoice{{Index: c.index, Delta: d, LogProbs: lp, FinishReason: finish}}
	return out
}

// failed logs an error that is not the request's fault.
func (s *Server) failed(err error) {
	if e := fromEngine(err); e.status >= 500 && !errors.Is(err, context.Canceled) && !errors.Is(err, errStopping) {
		s.log.Error("generation failed", "error", err)
	}
}

// report logs what a request took; never what it said.
func (s *Server) report(run *chatRun) {
	for _, c := range run.choices {
		st := c.generation.Stats()
		s.log.Info("completion", "id", run.id, "choice", c.index, "finish", c.generation.Finish(),
			"prompt", st.Prompt, "cached", st.Cached, "generated", st.Generated,
			"queue", st.Queue, "prefill", st.Prefill, "decode", st.Decode)
	}
}
