package engine

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/strata-engine/strata/core/sampler"
)

// Token is one token of an answer.
type Token struct {
	// ID is the token id.
	ID int32
	// LogProb is its natural log-probability, and Top the most likely
	// alternatives, where the request asked for them.
	LogProb float32
	Top     []sampler.LogProb
}

// Phase is what a generation is doing.
type Phase string

// The phases in order.
const (
	PhaseQueued  Phase = "queued"
	PhasePrefill Phase = "prefill"
	PhaseDecode  Phase = "decode"
	PhaseDone    Phase = "done"
)

// Progress says how far a generation has come.
type Progress struct {
	// Phase is what it is doing.
	Phase Phase
	// Read of Prompt tokens of the prompt have been executed, Cached of them by an
	// earlier request.
	Read, Prompt, Cached int
	// Prefill is the time since admission, at most up to the first token.
	Prefill time.Duration
}

// Finish reasons, as in the OpenAI API.
const (
	// FinishStop: the model ended its answer.
	FinishStop = "stop"
	// FinishLength: the answer reached its limit or the context is full.
	FinishLength = "length"
)

// Stats are a generation's measurements, complete once it is done.
type Stats struct {
	// Prompt and Cached count the prompt's tokens, and those of them that were
	// not read again; Generated the answer's, the one that ended it included.
	Prompt, Cached, Generated int
	// Queue is the time until admission, Prefill from there to the first token,
	// Decode from the first token to the last.
	Queue, Prefill, Decode time.Duration
}

// Generation is a running request. Next, Close and the other methods may be
// called from different goroutines.
type Generation struct {
	engine *Engine
	req    Request
	limit  int // prompt and answer together
	choose *sampler.Sampler
	detach func() bool // undoes the watch on Start's context
	notify chan struct{}

	mu        sync.Mutex // protects the fields below
	tokens    []Token
	read      int // of tokens, by Next
	cancelled bool
	done      bool
	err       error
	finish    string
	phase     Phase
	executed  int
	stats     Stats
	queuedAt  time.Time
	admitted  time.Time
	first     time.Time
}

func newGeneration(e *Engine, req Request, limit int, choose *sampler.Sampler) *Generation {
	return &Generation{engine: e, req: req, limit: limit, choose: choose, notify: make(chan struct{}, 1), phase: PhaseQueued, queuedAt: time.Now(), stats: Stats{Prompt: len(req.Prompt)}}
}

// Next waits for the next token. After the last it returns io.EOF, after a
// failure the failure: *NonFiniteError, core.ErrBackendGone, context.Canceled
// where the generation was closed. An error from ctx leaves the generation as
// it is.
func (g *Generation) Next(ctx context.Context) (Token, error) {
	for {
		g.mu.Lock()
		if g.read < len(g.tokens) {
			t := g.tokens[g.read]
			g.read++
			g.mu.Unlock()
			return t, nil
		}
		done, err := g.done, g.err
		g.mu.Unlock()
		if done {
			if err == nil {
				err = io.EOF
			}
			return Token{}, err
		}
		select {
		case <-g.notify:
		case <-ctx.Done():
			return Token{}, ctx.Err()
		}
	}
}

// Close ends the generation: it leaves the queue, or stops after the window in
// flight. It is idempotent and does not wait.
func (g *Generation) Close() {
	g.mu.Lock()
	g.cancelled = true
	g.mu.Unlock()
	g.engine.poke()
}

// Progress returns how far the generation has come.
func (g *Generation) Progress() Progress {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := Progress{Phase: g.phase, Read: min(g.executed, len(g.req.Prompt)), Prompt: len(g.req.Prompt), Cached: g.stats.Cached, Prefill: g.stats.Prefill}
	if g.phase == PhasePrefill {
		p.Prefill = time.Since(g.admitted)
	}
	return p
}

// Finish returns why the answer ended, "" before it has or where it failed.
func (g *Generation) Finish() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.finish
}

// Stats returns the measurements so far.
func (g *Generation) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}

// closed reports whether Close was called.
func (g *Generation) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cancelled
}

// admit records that the sequence was opened.
func (g *Generation) admit(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.phase, g.admitted, g.stats.Queue = PhasePrefill, now, now.Sub(g.queuedAt)
}

// advance records that n tokens are executed in all.
func (g *Generation) advance(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.executed = n
}

// emit adds a token; the answer goes on. Whoever waits for it is woken by the
// loop's deliver.
func (g *Generation) emit(t Token, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count(now)
	g.tokens = append(g.tokens, t)
}

// count takes note of a generated token; g.mu is held.
func (g *Generation) count(now time.Time) {
	if g.stats.Generated == 0 {
		g.phase, g.first, g.stats.Prefill = PhaseDecode, now, now.Sub(g.admitted)
	}
	g.stats.Generated++
	g.stats.Decode = now.Sub(g.first)
}

// end finishes the generation with a reason, or with an error.
func (g *Generation) end(finish string, err error) {
	g.mu.Lock()
	g.done, g.finish, g.err, g.phase = true, finish, err, PhaseDone
	g.mu.Unlock()
	g.detach()
	g.signal()
}

func (g *Generation) signal() {
	select {
	case g.notify <- struct{}{}:
	default:
	}
}
