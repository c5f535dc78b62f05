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
	"github.com/strata-engine/strata/core/telemetry"
)

// prompt is what one of a request's answers goes on from.
type prompt struct {
	ids []int32
	// text is what the answer's text begins with; empty unless it was asked for.
	text string
	// split says that the answer has reasoning apart from its content, thinking
	// that the prompt ended inside the reasoning.
	split, thinking bool
}

// generative is a request for text, and how its answer is written.
type generative interface {
	// common returns what all such requests have.
	common() *options
	// prompts returns what the model reads.
	prompts(ctx context.Context, m *Model) ([]prompt, error)
	// prefix is what the ids of answers begin with, subject the parameter that
	// holds the prompts.
	prefix() string
	subject() string
	// whole is the answer when everything is there.
	whole(run *run) any
	// open writes what a stream begins with.
	open(out *eventStream, run *run)
	// event writes what a choice has to say; last, where set, belongs to the
	// stream's last chunk.
	event(out *eventStream, run *run, e event, last *timings)
	// progress writes how far a choice's prompt was read.
	progress(out *eventStream, run *run, c *runChoice, p promptProgress)
	// usage writes the chunk that ends a stream whose usage was asked for.
	usage(out *eventStream, run *run, last *timings)
}

// run is a request being answered.
type run struct {
	*options
	model   *Model
	metrics *telemetry.Metrics
	id      string
	created time.Time
	choices []*runChoice
	events  chan event
	// stopped is closed when nobody reads events any more.
	stopped chan struct{}
	running sync.WaitGroup
}

// runChoice is one of the answers to a request. Its goroutine owns answer until
// it has sent the last event.
type runChoice struct {
	index      int
	prompt     *prompt
	first      bool // of the answers to its prompt
	generation Generation
	answer     *answer

	// Once the choice has ended: why, after how many tokens, and what it took.
	finish string
	tokens int
	stats  engine.Stats

	// What all events said; filled for whole answers only.
	content, reasoning strings.Builder
	logProbs           []tokenLogProb
	// reported is how much of the prompt the last report of progress spoke of, -1
	// before the first.
	reported int
}

// event is something that a choice has to say.
type event struct {
	choice *runChoice
	piece  piece
	last   bool // the choice has ended
	err    error
}

// generate answers a request for text.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, req generative) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var out *liveStream
	if req.common().stream {
		out = s.newLiveStream(w)
		defer out.stop()
	}
	m, err := s.wait(ctx, out)
	if err != nil {
		out.fail(w, fromEngine(err))
		return
	}
	run, err := s.begin(ctx, m, req)
	if err != nil {
		out.fail(w, fromEngine(err))
		return
	}
	defer run.end(cancel)
	if out != nil {
		s.stream(out, run, req)
	} else {
		s.whole(w, run, req)
	}
	s.report(run)
}

// begin queues a generation per choice. Either all are queued or none.
func (s *Server) begin(ctx context.Context, m *Model, req generative) (*run, error) {
	o := req.common()
	prompts, err := req.prompts(ctx, m)
	if err != nil {
		return nil, err
	}
	if n := len(prompts) * o.choices; n > maxChoices {
		return nil, refuse("n", "invalid_value", "%d prompts with %d choices each are too many: a request may have at most %d answers.", len(prompts), o.choices, maxChoices)
	}
	run := &run{
		options: o, model: m, metrics: s.metrics, id: req.prefix() + rand.Text(), created: time.Now(),
		events: make(chan event, 8*len(prompts)*o.choices), stopped: make(chan struct{}),
	}
	sampling := o.sampling
	for id := range sampling.LogitBias {
		if int(id) >= m.Spec.Hyper.Vocab {
			return nil, refuse("logit_bias", "invalid_value", "Invalid value for 'logit_bias': the model has no token %d; its ids go to %d.", id, m.Spec.Hyper.Vocab-1)
		}
	}
	ends := m.Tokenizer.Stops()
	if o.ignoreEOS {
		ends = nil
	}
	for i := range len(prompts) * o.choices {
		p := &prompts[i/o.choices]
		if !o.seeded && i%o.choices == 0 {
			sampling.Seed = randomSeed() // so that equal prompts have different answers
		}
		g, err := m.Engine.Start(ctx, engine.Request{
			Prompt:    p.ids,
			MaxTokens: o.maxTokens,
			Sampler:   sampling,
			Choice:    i % o.choices,
			Follows:   i > 0,
			Stop:      ends,
			LogProbs:  o.logProbs,
		})
		if err != nil {
			for _, c := range run.choices {
				c.generation.Close()
			}
			var overflow *engine.ContextError
			if errors.As(err, &overflow) {
				err = tooLong(req.subject(), overflow)
			}
			return nil, err
		}
		run.choices = append(run.choices, &runChoice{
			index: i, prompt: p, first: i%o.choices == 0, generation: g, reported: -1,
			answer: newAnswer(m.Tokenizer, p, o.stop, o.logProbs >= 0),
		})
	}
	for _, c := range run.choices {
		run.running.Go(func() { run.follow(ctx, c) })
	}
	return run, nil
}

func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.LittleEndian.Uint64(b[:])
}

// follow turns the tokens of a choice into events.
func (run *run) follow(ctx context.Context, c *runChoice) {
	before, took := run.created, run.metrics.FirstToken
	for {
		token, err := c.generation.Next(ctx)
		if err == nil {
			now := time.Now()
			took(now.Sub(before))
			before, took = now, run.metrics.Token
		}
		if err != nil && err != io.EOF {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			run.send(event{choice: c, err: err})
			return
		}
		var p piece
		if err == io.EOF {
			p = c.answer.flush()
			c.finish, c.stats = c.generation.Finish(), c.generation.Stats()
			c.tokens = c.stats.Generated
		} else if p = c.answer.push(token); p.stopped {
			// The engine may be ahead: what it made beyond the stop string is nobody's.
			c.generation.Close()
			c.stats, c.tokens = c.generation.Stats(), c.answer.tokens
		}
		if p.stopped {
			c.finish = engine.FinishStop
		}
		last := p.stopped || err == io.EOF
		if last || !p.empty() {
			if !run.send(event{choice: c, piece: p, last: last}) || last {
				return
			}
		}
	}
}

// send hands an event over; false where nobody reads any more.
func (run *run) send(e event) bool {
	select {
	case run.events <- e:
		return true
	case <-run.stopped:
		return false
	}
}

// end stops what still runs and waits for it.
func (run *run) end(cancel func()) {
	close(run.stopped)
	cancel()
	run.running.Wait()
}

// total adds up the choices, all of which have ended.
func (run *run) total() usage {
	var u usage
	for _, c := range run.choices {
		u.CompletionTokens += c.tokens
		u.CompletionTokensDetails.ReasoningTokens += c.answer.thought
		if c.first {
			u.PromptTokens += len(c.prompt.ids)
			u.PromptTokensDetails.CachedTokens += c.stats.Cached
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// timings sums up what the choices took, all of which have ended.
func (run *run) timings() *timings {
	var prefill, decode time.Duration
	u := run.total()
	for _, c := range run.choices {
		prefill, decode = max(prefill, c.stats.Prefill), max(decode, c.stats.Decode)
	}
	return newTimings(u.PromptTokensDetails.CachedTokens, u.PromptTokens-u.PromptTokensDetails.CachedTokens, prefill, u.CompletionTokens, decode)
}

// whole answers when everything is there.
func (s *Server) whole(w http.ResponseWriter, run *run, req generative) {
	for open := len(run.choices); open > 0; {
		e := <-run.events
		if e.err != nil {
			s.failed(e.err)
			s.deadline(w)
			fromEngine(e.err).write(w)
			return
		}
		c := e.choice
		c.content.WriteString(e.piece.content)
		c.reasoning.WriteString(e.piece.reasoning)
		c.logProbs = append(c.logProbs, e.piece.logProbs...)
		if e.last {
			open--
		}
	}
	s.deadline(w)
	writeJSON(w, http.StatusOK, req.whole(run))
}

// deadline bounds the write of a whole response.
func (s *Server) deadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.WriteTimeout))
}

// stream answers piece by piece.
func (s *Server) stream(out *liveStream, run *run, req generative) {
	opened := false
	open := func() {
		out.start()
		if !opened {
			opened = true
			req.open(&out.eventStream, run)
		}
	}
	var look <-chan time.Time
	if run.progress {
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		look = ticker.C
	}
	for left := len(run.choices); left > 0 && out.err == nil; {
		select {
		case e := <-run.events:
			if e.err != nil {
				s.failed(e.err)
				out.fail(out.w, fromEngine(e.err))
				return
			}
			open()
			if run.progress {
				run.report(&out.eventStream, e.choice, req)
			}
			if e.last {
				left--
			}
			var last *timings
			if left == 0 && !run.includeUsage {
				last = run.timings()
			}
			req.event(&out.eventStream, run, e, last)
			if len(run.events) > 0 {
				continue // one flush for all that is there
			}
		case <-look:
			reported := false
			for _, c := range run.choices {
				if p := c.generation.Progress(); p.Phase == engine.PhasePrefill && p.Read != c.reported {
					open()
					run.report(&out.eventStream, c, req)
					reported = true
				}
			}
			if !reported {
				continue
			}
		case <-out.hold.C:
			open()
		case <-out.silence.C:
			if !out.started {
				continue
			}
			out.comment("keep-alive")
		}
		out.settle()
	}
	if run.includeUsage && out.err == nil {
		req.usage(&out.eventStream, run, run.timings())
	}
	out.done()
	out.flush()
	if out.err != nil {
		s.log.Info("client left", "id", run.id, "error", out.err)
	}
}

// progressInterval is how often a stream looks how far a prompt was read.
const progressInterval = 100 * time.Millisecond

// report says how far a choice's prompt was read, where that is news.
func (run *run) report(out *eventStream, c *runChoice, req generative) {
	p := c.generation.Progress()
	if p.Read == c.reported {
		return
	}
	c.reported = p.Read
	req.progress(out, run, c, promptProgress{Total: p.Prompt, Cache: p.Cached, Processed: p.Read, TimeMS: p.Prefill.Milliseconds()})
}

// failed logs an error that is not the request's fault.
func (s *Server) failed(err error) {
	if e := fromEngine(err); e.status >= 500 && !errors.Is(err, context.Canceled) && !errors.Is(err, errStopping) {
		s.log.Error("generation failed", "error", err)
	}
}

// report logs what a request took; never what it said.
func (s *Server) report(run *run) {
	for _, c := range run.choices {
		st := c.generation.Stats()
		s.log.Info("completion", "id", run.id, "choice", c.index, "finish", c.generation.Finish(),
			"prompt", st.Prompt, "cached", st.Cached, "generated", st.Generated,
			"queue", st.Queue, "prefill", st.Prefill, "decode", st.Decode)
	}
}
