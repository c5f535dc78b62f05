// Package engine is the decode loop: it admits requests, puts their tokens into
// windows, runs the windows through the stages in order, samples, and hands the
// tokens to whoever waits for them.
//
// One goroutine, the loop, owns all running sequences and is the only caller of
// the stages. Requests reach it through an inbox; their results leave through
// Generation. A slow reader never holds up the loop.
package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/sampler"
)

// Sentinels and errors that callers branch on.
var (
	// ErrBusy: the queue is full; try again later.
	ErrBusy = errors.New("the queue is full")
	// ErrClosed: the engine is shutting down.
	ErrClosed = errors.New("the engine is closed")
)

// ContextError says that a prompt does not fit the context.
type ContextError struct {
	// Prompt is the prompt's length in tokens, Context the most that a prompt and
	// its answer may have together.
	Prompt, Context int
}

func (e *ContextError) Error() string {
	return fmt.Sprintf("the prompt has %d tokens and the context holds %d, of which at least one is needed for the answer", e.Prompt, e.Context)
}

// NonFiniteError says that a row of a request's window was not finite: nothing
// was sampled from it and nothing of it was kept.
type NonFiniteError struct {
	// Position is the token position of the row; Layer the first layer where a
	// NaN or an infinity appeared, -1 for the embedding, the number of layers for
	// the head.
	Position, Layer int
}

func (e *NonFiniteError) Error() string {
	return fmt.Sprintf("server error: the numbers at position %d became non-finite, first in layer %d", e.Position, e.Layer)
}

// Stage is a loaded stage and the backend that executes it.
type Stage struct {
	// Device names the device in logs and metrics.
	Device string
	// Backend holds the stage already.
	Backend core.Backend
}

// Config is what an Engine needs.
type Config struct {
	// Stages execute the model, in order.
	Stages []Stage
	// Model describes the model.
	Model *core.ModelSpec
	// KV owns the sequences.
	KV core.KVStore
	// Context is the most tokens of one sequence; it was given to every stage.
	Context int
	// Queue is how many requests may wait beyond those that run.
	Queue int
	// Sequences is how many requests run at once.
	Sequences int
	// Rows and Chunk bound a window: rows in all, and rows of prompts.
	Rows, Chunk int
	// StepTimeout bounds one step of one stage.
	StepTimeout time.Duration
	// Logger may be nil.
	Logger hclog.Logger
}

// Engine runs requests. Its methods are safe for concurrent use.
type Engine struct {
	cfg  Config
	log  hclog.Logger
	wake chan struct{} // capacity 1: something changed in the inbox
	ctx  context.Context
	stop context.CancelFunc
	idle chan struct{} // closed when the loop has ended

	mu     sync.Mutex // protects the fields below
	inbox  []*Generation
	queued int   // requests that have not been admitted, inbox included
	closed bool  // no more requests
	down   error // why the stages cannot be used any more

	// emitted are generations with tokens that nobody was told of yet. Only the
	// loop touches it.
	emitted []*Generation

	stats statistics
}

// New starts an engine. Close ends it; the stages stay the caller's.
func New(cfg Config) (*Engine, error) {
	switch {
	case len(cfg.Stages) == 0:
		return nil, errors.New("start engine: no stages")
	case cfg.Model == nil || cfg.KV == nil:
		return nil, errors.New("start engine: model and KV store are required")
	case cfg.Context < 2 || cfg.Sequences < 1 || cfg.Rows < 1 || cfg.Chunk < 1 || cfg.Queue < 0 || cfg.StepTimeout <= 0:
		return nil, fmt.Errorf("start engine: context %d, sequences %d, rows %d, chunk %d, queue %d and step timeout %v must be positive", cfg.Context, cfg.Sequences, cfg.Rows, cfg.Chunk, cfg.Queue, cfg.StepTimeout)
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Engine{cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1), ctx: ctx, stop: stop, idle: make(chan struct{})}
	go e.loop()
	return e, nil
}

// Request asks for an answer to a prompt.
type Request struct {
	// Prompt are the token ids, at least one.
	Prompt []int32
	// MaxTokens bounds the answer; 0 means the rest of the context.
	MaxTokens int
	// Sampler says how tokens are chosen.
	Sampler sampler.Config
	// Choice numbers the answers to one prompt, so that they differ.
	Choice int
	// Follows says that the answer belongs to a request of which one was queued
	// before: it is queued even where the queue is full, so that a request for many
	// answers is not refused halfway.
	Follows bool
	// Stop are the ids that end the answer. They are not delivered.
	Stop []int32
	// LogProbs is how many alternatives to report per token; -1 for no
	// log-probabilities at all.
	LogProbs int
}

// Start queues a request. The generation ends early when ctx ends or Close is
// called on it. Errors: *ContextError, ErrBusy, ErrClosed, or why the backends
// are gone.
func (e *Engine) Start(ctx context.Context, req Request) (*Generation, error) {
	if len(req.Prompt) == 0 {
		return nil, errors.New("start request: the prompt is empty")
	}
	if len(req.Prompt) >= e.cfg.Context {
		return nil, &ContextError{Prompt: len(req.Prompt), Context: e.cfg.Context}
	}
	for _, id := range req.Prompt {
		if id < 0 || int(id) >= e.cfg.Model.Hyper.Vocab {
			return nil, fmt.Errorf("start request: token id %d is outside the vocabulary of %d", id, e.cfg.Model.Hyper.Vocab)
		}
	}
	limit := e.cfg.Context
	if req.MaxTokens > 0 && req.MaxTokens < limit-len(req.Prompt) {
		limit = len(req.Prompt) + req.MaxTokens
	}
	choose, err := sampler.New(req.Sampler, req.Choice)
	if err != nil {
		return nil, fmt.Errorf("start request: %w", err)
	}
	g := newGeneration(e, req, limit, choose)
	g.detach = context.AfterFunc(ctx, g.Close)
	e.mu.Lock()
	switch {
	case e.closed:
		err = ErrClosed
	case e.down != nil:
		err = e.down
	case !req.Follows && e.queued >= e.cfg.Queue+e.cfg.Sequences:
		err = ErrBusy
	}
	if err != nil {
		e.mu.Unlock()
		g.detach()
		return nil, fmt.Errorf("start request: %w", err)
	}
	e.queued++
	e.inbox = append(e.inbox, g)
	e.mu.Unlock()
	e.poke()
	return g, nil
}

// Close refuses new requests, ends those that are queued or running, and waits
// until the loop has ended or ctx ends.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stop()
	select {
	case <-e.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close engine: %w", ctx.Err())
	}
}

// Drain refuses new requests and waits until none is queued or running, or ctx
// ends.
func (e *Engine) Drain(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		if s := e.Stats(); s.Queued == 0 && s.Running == 0 {
			tick.Stop()
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return fmt.Errorf("drain engine: %w", ctx.Err())
		}
	}
}

// Down returns why the engine can run nothing any more, or nil.
func (e *Engine) Down() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.down
}

// poke wakes the loop.
func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}
