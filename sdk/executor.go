package sdk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

// errStopping: the process is about to end.
var errStopping = errors.New("backend is stopping")

// errPrecondition: the call comes at the wrong moment.
var errPrecondition = errors.New("wrong moment")

// executor owns the goroutine on which everything runs that must not overlap:
// loads, steps, drafts, checkpoints. Its work comes from the submission ring and
// from jobs; steps of the gRPC stream are jobs, so that both transports share
// all code behind the decoding of an entry.
type executor struct {
	backend Backend
	// data is nil where steps come over the stream only.
	data   *shm.Data
	vitals *shm.VitalsWriter
	log    hclog.Logger
	events *events
	// ctx ends when the executor shall; it carries what ReportLayer needs.
	ctx  context.Context
	stop context.CancelFunc
	jobs chan job
	done chan struct{}

	// The rest belongs to the executor's goroutine.

	// stage is nil while none is loaded.
	stage *stage
	// draining: steps are refused.
	draining bool
	decoder  wire.WindowDecoder
	rows     []RowFlags
	ids      []int32
	logProbs []float32
}

// job is a call that runs between steps.
type job struct {
	run  func()
	done chan struct{}
}

func newExecutor(backend Backend, data *shm.Data, vitals *shm.VitalsWriter, log hclog.Logger, events *events) *executor {
	ctx, stop := context.WithCancel(context.WithValue(context.Background(), vitalsKey{}, vitals))
	x := &executor{
		backend: backend,
		data:    data,
		vitals:  vitals,
		log:     log,
		events:  events,
		ctx:     ctx,
		stop:    stop,
		jobs:    make(chan job, 16),
		done:    make(chan struct{}),
	}
	go x.run()
	return x
}

type vitalsKey struct{}

// ReportLayer publishes that a step has reached a layer of the model, so that
// the host can tell a slow step from a stuck one. ctx is the one given to Step;
// with any other it does nothing. It costs tens of nanoseconds.
func ReportLayer(ctx context.Context, layer int) {
	if v, ok := ctx.Value(vitalsKey{}).(*shm.VitalsWriter); ok {
		v.SetLayer(layer)
	}
}

// run is the executor's goroutine.
func (x *executor) run() {
	defer close(x.done)
	ring := x.data != nil
	var entry shm.Entry
	for x.ctx.Err() == nil {
		if !ring {
			select {
			case j := <-x.jobs:
				j.do()
			case <-x.ctx.Done():
			}
			continue
		}
		select {
		case j := <-x.jobs:
			j.do()
			continue
		default:
		}
		err := x.data.Submissions().Pop(x.ctx, &entry)
		if err == nil {
			err = x.serve(&entry)
		}
		if err != nil && !errors.Is(err, shm.ErrInterrupted) && x.ctx.Err() == nil {
			// The host cannot be answered over this ring any more. Its waiters learn of
			// it by the poison; the control plane stays up for the post-mortem.
			x.log.Error("data segment is unusable", "error", err)
			x.vitals.SetError("data segment: " + err.Error())
			x.data.Poison()
			ring = false
		}
	}
}

func (j job) do() {
	defer close(j.done)
	j.run()
}

// call runs f between steps and waits for it. Where ctx ends before its turn, f
// is not run.
func (x *executor) call(ctx context.Context, f func() error) error {
	var err error
	j := job{done: make(chan struct{}), run: func() {
		if err = ctx.Err(); err == nil {
			err = f()
		}
	}}
	select {
	case x.jobs <- j:
	case <-ctx.Done():
		return ctx.Err()
	case <-x.done:
		return errStopping
	}
	if x.data != nil {
		x.data.Submissions().Interrupt()
	}
	select {
	case <-j.done:
		return err
	case <-x.done:
		return errStopping
	}
}

// guard calls the author's code and turns a panic into an error. The stack goes
// to the log, not to the host's client.
func (x *executor) guard(what string, f func() error) (err error) {
	defer func() { x.caught(what, recover(), &err) }()
	return f()
}

func (x *executor) caught(what string, v any, err *error) {
	if v == nil {
		return
	}
	x.log.Error("backend panicked", "call", what, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	x.events.publish("panic", what)
	*err = fmt.Errorf("%s: backend panicked: %v", what, v)
}

// serve answers one entry of the submission ring. An error means that the ring
// is of no more use.
func (x *executor) serve(entry *shm.Entry) error {
	sub, err := wire.ParseSubmission(entry)
	if err != nil {
		return err
	}
	payload, err := x.data.RequestSlot(sub.Slot)
	if err != nil {
		return err
	}
	result, err := x.data.ResultSlot(sub.Slot)
	if err != nil {
		return err
	}
	if sub.Bytes > len(payload) {
		return fmt.Errorf("%w: a payload of %d bytes in a slot of %d", shm.ErrCorrupt, sub.Bytes, len(payload))
	}
	completion := x.execute(sub, payload[:sub.Bytes], slotResult(result))
	completion.Put(entry)
	return x.data.Completions().Push(entry)
}

// results gives the memory for the payload of a completion.
type results interface {
	// take returns n bytes that start at a multiple of 64, or nil where there are
	// not so many. A later call replaces what an earlier one returned.
	take(n int) []byte
}

// slotResult is a result slot.
type slotResult []byte

func (s slotResult) take(n int) []byte {
	if n > len(s) {
		return nil
	}
	return s[:n]
}

// bufferResult is memory for a message of the stream; it grows.
type bufferResult struct{ mem []byte }

func (b *bufferResult) take(n int) []byte {
	if n > math.MaxInt32-(1<<16) {
		// More than a gRPC message can hold.
		return nil
	}
	if n > len(b.mem) {
		b.mem = shm.AlignedBytes(n)
	}
	return b.mem[:n]
}

// execute does what a submission asks for, whichever transport brought it. The
// completion's payload is what out gave last.
func (x *executor) execute(sub wire.Submission, payload []byte, out results) wire.Completion {
	begin := time.Now()
	ctx := x.ctx
	if sub.Remaining > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, sub.Remaining)
		defer cancel()
	}
	var n int
	var err error
	switch {
	case x.draining:
		err = fmt.Errorf("%w: the backend is draining", errPrecondition)
	case x.stage == nil:
		err = fmt.Errorf("%w: no stage is loaded", errPrecondition)
	case sub.Kind == wire.KindDraft:
		n, err = x.draft(ctx, payload, out)
	default:
		n, err = x.step(ctx, payload, out)
	}
	c := wire.Completion{Number: sub.Number, Generation: sub.Generation, Slot: sub.Slot, Status: wire.StatusOK}
	if err != nil {
		c.Status = statusOf(err)
		text := err.Error()
		n = min(len(text), wire.MinResultBytes)
		n = wire.PutError(out.take(n), text)
		if c.Status == wire.StatusInternal {
			x.vitals.SetError(text)
		}
	}
	c.Bytes, c.Busy = n, time.Since(begin)
	return c
}

// step executes a window and returns the length of the result.
func (x *executor) step(ctx context.Context, payload []byte, out results) (int, error) {
	w, err := x.decoder.Decode(payload)
	if err != nil {
		return 0, err
	}
	if err := x.stage.check(w); err != nil {
		return 0, err
	}
	shape := x.stage.bounds.Shape(w.Rows(), w.LogitRows())
	total, err := shape.Bytes()
	if err != nil {
		return 0, err
	}
	slot := out.take(total)
	if slot == nil {
		return 0, fmt.Errorf("a result of %d bytes does not fit", total)
	}
	matrix, err := wire.ResultMatrix(slot, shape)
	if err != nil {
		return 0, err
	}
	if cap(x.rows) < shape.Rows {
		x.rows = make([]RowFlags, shape.Rows)
	}
	rows := x.rows[:shape.Rows]
	clear(rows)

	req := StepRequest{Segments: w.Segments, Input: w.Input}
	resp := StepResponse{Rows: rows}
	filled := &resp.Output
	if x.stage.bounds.Head {
		filled = &resp.Logits
	}
	*filled = matrix
	prefill, decode := tokens(w)
	phase := shm.PhaseDecode
	if prefill > 0 {
		phase = shm.PhasePrefill
	}
	x.vitals.Begin(phase)
	err = x.guard("step", func() error { return x.backend.Step(ctx, &req, &resp) })
	if err != nil {
		prefill, decode = 0, 0
	}
	x.vitals.End(prefill, decode)
	if err != nil {
		return 0, err
	}
	if !same(resp.Rows, rows) || !same(*filled, matrix) {
		return 0, errors.New("step: the backend replaced a slice of the response instead of filling it")
	}
	return wire.PutResult(slot, shape, rows)
}

// same reports whether two slices are the same memory.
func same[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// draft runs the MTP block and returns the length of the result.
func (x *executor) draft(ctx context.Context, payload []byte, out results) (int, error) {
	backend, ok := x.backend.(BackendWithDraft)
	if !ok || !x.stage.draft {
		return 0, fmt.Errorf("draft: %w: the stage holds no draft block", errors.ErrUnsupported)
	}
	req, err := wire.ParseDraftRequest(payload)
	if err != nil {
		return 0, err
	}
	if req.Next < 0 || int(req.Next) >= x.stage.bounds.Vocab {
		return 0, fmt.Errorf("draft: %w: token %d, the vocabulary has %d", ErrInvalid, req.Next, x.stage.bounds.Vocab)
	}
	resp := DraftResponse{Tokens: x.ids[:0], LogProbs: x.logProbs[:0]}
	x.vitals.Begin(shm.PhaseDraft)
	err = x.guard("draft", func() error {
		return backend.Draft(ctx, &DraftRequest{Sequence: req.Sequence, Next: req.Next, Count: req.Count}, &resp)
	})
	x.vitals.End(0, 0)
	if err != nil {
		return 0, err
	}
	x.ids, x.logProbs = resp.Tokens, resp.LogProbs
	if len(resp.Tokens) > req.Count || len(resp.LogProbs) != len(resp.Tokens) {
		return 0, fmt.Errorf("draft: the backend answered %d tokens and %d log-probabilities for %d proposals",
			len(resp.Tokens), len(resp.LogProbs), req.Count)
	}
	slot := out.take(wire.DraftResultBytes(len(resp.Tokens)))
	return wire.DraftResult{Tokens: resp.Tokens, LogProbs: resp.LogProbs}.Put(slot)
}

// statusOf maps an error to what the host acts on.
func statusOf(err error) wire.Status {
	switch {
	case errors.Is(err, ErrUnknownSequence):
		return wire.StatusUnknownSequence
	case errors.Is(err, ErrOutOfState):
		return wire.StatusOutOfState
	case errors.Is(err, ErrInvalid), errors.Is(err, wire.ErrMalformed):
		return wire.StatusInvalid
	case errors.Is(err, errors.ErrUnsupported):
		return wire.StatusUnimplemented
	case errors.Is(err, context.DeadlineExceeded):
		return wire.StatusDeadline
	case errors.Is(err, context.Canceled), errors.Is(err, errPrecondition):
		return wire.StatusUnavailable
	}
	return wire.StatusInternal
}
