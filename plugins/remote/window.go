package remote

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/sdk/wire"
)

// Step implements core.Backend.
func (b *Backend) Step(ctx context.Context, step *core.Step) (*core.Done, error) {
	bounds := b.stage.Load()
	if bounds == nil {
		if b.life.Err() != nil {
			return nil, b.gone("step")
		}
		return nil, errors.New("step: no stage is loaded")
	}
	deadline := step.Deadline
	if deadline.IsZero() {
		deadline = time.Now().Add(b.cfg.StepTimeout)
	}
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, core.ErrStepDeadline)
	defer cancel()
	sl, err := b.steps.acquire(ctx)
	if err != nil {
		return nil, b.stepError("step", err)
	}
	n, err := b.encode(sl, step, bounds)
	if err != nil {
		b.steps.release(sl)
		return nil, fmt.Errorf("step: %w", err)
	}
	completion, payload, err := b.steps.exchange(ctx, sl, wire.KindStep, n, step.Posted)
	if err != nil {
		return nil, b.stepError("step", err)
	}
	if completion.Status != wire.StatusOK {
		err := statusError(completion.Status, wire.ParseError(payload))
		b.steps.release(sl)
		return nil, fmt.Errorf("step: %w", err)
	}
	rows := step.Window.Rows()
	result, err := wire.ParseResult(payload, bounds.Shape(rows, step.Window.LogitRows()), sl.flags)
	if err != nil {
		b.steps.release(sl)
		return nil, fmt.Errorf("step: %w", b.breach(err))
	}
	sl.flags, sl.rows = result.Rows, sl.rows[:0]
	for _, f := range result.Rows {
		sl.rows = append(sl.rows, core.RowFlags{Residual: f.Residual, Logits: f.Logits, State: f.State, Layer: int(f.Layer)})
	}
	var released atomic.Bool
	done := &core.Done{Rows: sl.rows, Busy: completion.Busy, Release: func() {
		if !released.Swap(true) {
			b.steps.release(sl)
		}
	}}
	if bounds.Head {
		done.Logits = result.Matrix
	} else {
		done.Output = result.Matrix
	}
	return done, nil
}

// encode puts a step into the slot's request and returns its length.
func (b *Backend) encode(sl *slot, step *core.Step, bounds *wire.Bounds) (int, error) {
	w := wire.Window{Input: step.Input}
	if !bounds.Embed {
		w.Width = bounds.Width
	}
	logitRows := step.Window.LogitRows()
	if cap(sl.logits) < logitRows {
		sl.logits = make([]int32, 0, logitRows)
	}
	sl.segments, sl.logits = sl.segments[:0], sl.logits[:0]
	for i := range step.Window.Segments {
		g := &step.Window.Segments[i]
		first := len(sl.logits)
		for _, at := range g.Logits {
			if at < 0 || at > math.MaxInt32 {
				return 0, fmt.Errorf("segment %d: logits of row %d", i, at)
			}
			sl.logits = append(sl.logits, int32(at))
		}
		sl.segments = append(sl.segments, wire.Segment{
			Sequence:   uint64(g.Seq),
			Pos:        g.Pos,
			Tokens:     g.Tokens,
			Logits:     sl.logits[first:],
			Checkpoint: g.Checkpoint,
		})
	}
	w.Segments = sl.segments
	n, err := wire.WindowBytes(len(w.Segments), w.Rows(), logitRows, w.Width)
	if err != nil {
		return 0, err
	}
	memory, err := b.steps.lane.request(sl.index, n)
	if err != nil {
		return 0, err
	}
	return w.Put(memory)
}

// stepError completes what steps says about a submission that was not answered.
func (b *Backend) stepError(what string, err error) error {
	if errors.Is(err, errGone) {
		return b.gone(what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// statusError is the error for an answer that is not StatusOK.
func statusError(status wire.Status, text string) error {
	switch status {
	case wire.StatusUnknownSequence:
		return &reported{text, core.ErrUnknownSequence}
	case wire.StatusOutOfState:
		return &reported{text, core.ErrOutOfState}
	case wire.StatusDeadline:
		return fmt.Errorf("%w: %s", core.ErrStepDeadline, text)
	case wire.StatusUnimplemented:
		return &reported{text, errors.ErrUnsupported}
	}
	return errors.New(text)
}
