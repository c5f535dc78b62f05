package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/sampler"
	"github.com/strata-engine/strata/core/sched"
)

// controlTimeout bounds opening and closing a sequence on a stage: bookkeeping,
// not work.
const controlTimeout = 5 * time.Second

// running is an admitted request. Only the loop touches it.
type running struct {
	*Generation
	id       core.SequenceID
	executed int // tokens executed by every stage
	total    int // tokens decided
}

// loop owns every running sequence until the engine is closed.
func (e *Engine) loop() {
	defer close(e.idle)
	var (
		waiting   []*Generation
		active    []*running
		sequences []sched.Sequence
		picks     []sched.Pick
		window    core.Window
	)
	limits := sched.Limits{Rows: e.cfg.Rows, Chunk: e.cfg.Chunk}
	for e.ctx.Err() == nil {
		started := time.Now()
		waiting = e.take(waiting)
		active = slices.DeleteFunc(active, func(r *running) bool {
			return r.closed() && e.finish(r, "", context.Canceled)
		})
		waiting, active = e.admit(waiting, active)
		e.stats.set(len(waiting), len(active))

		sequences = sequences[:0]
		for _, r := range active {
			sequences = append(sequences, sched.Sequence{ID: r.id, Pending: r.total - r.executed})
		}
		picks = sched.Next(sequences, limits, picks)
		if len(picks) == 0 {
			e.deliver()
			select {
			case <-e.wake:
			case <-e.ctx.Done():
			}
			continue
		}
		if err := e.fill(&window, active, picks); err != nil {
			// The store lost a running sequence: a defect of the store. Nothing can
			// be trusted to go on.
			e.fail(&active, err)
			continue
		}
		result, err := e.execute(&window)
		e.deliver() // also where the step never was with the backend
		if err != nil {
			e.fail(&active, err)
			continue
		}
		active = e.settle(active, picks, &window, result)
		result.release()
		if window.Rows() == 1 {
			e.stats.overhead(time.Since(started) - result.busy)
		}
	}
	for _, r := range active {
		e.finish(r, "", ErrClosed)
	}
	for _, g := range e.take(waiting) {
		g.end("", ErrClosed)
	}
	e.stats.set(0, 0)
}

// take moves the inbox into the queue and drops requests that were abandoned.
func (e *Engine) take(waiting []*Generation) []*Generation {
	e.mu.Lock()
	waiting = append(waiting, e.inbox...)
	clear(e.inbox)
	e.inbox = e.inbox[:0]
	e.mu.Unlock()
	return slices.DeleteFunc(waiting, func(g *Generation) bool {
		if !g.closed() {
			return false
		}
		e.leaveQueue()
		g.end("", context.Canceled)
		return true
	})
}

func (e *Engine) leaveQueue() {
	e.mu.Lock()
	e.queued--
	e.mu.Unlock()
}

// admit opens sequences for waiting requests, in order, as far as there is room.
func (e *Engine) admit(waiting []*Generation, active []*running) ([]*Generation, []*running) {
	n := 0
	for _, g := range waiting {
		if len(active) >= e.cfg.Sequences {
			break
		}
		id, err := e.open(g)
		if errors.Is(err, core.ErrOutOfState) && len(active) > 0 {
			break // room comes when a running request ends
		}
		n++
		if err != nil {
			e.leaveQueue()
			g.end("", err)
			continue
		}
		g.admit(time.Now())
		active = append(active, &running{Generation: g, id: id, total: len(g.req.Prompt)})
	}
	return slices.Delete(waiting, 0, n), active
}

// open opens a sequence in the store and on every stage, or nowhere.
func (e *Engine) open(g *Generation) (core.SequenceID, error) {
	if err := e.Down(); err != nil {
		return 0, err
	}
	id, err := e.cfg.KV.Open(g.req.Prompt, g.limit)
	if err != nil {
		return 0, fmt.Errorf("admit request: %w", err)
	}
	ctx, cancel := context.WithTimeout(e.ctx, controlTimeout)
	defer cancel()
	for i, s := range e.cfg.Stages {
		if err := s.Backend.OpenSequence(ctx, id); err != nil {
			e.close(id, i)
			return 0, fmt.Errorf("admit request on %s: %w", s.Device, err)
		}
	}
	return id, nil
}

// close closes a sequence in the store and on the first n stages.
func (e *Engine) close(id core.SequenceID, n int) {
	e.cfg.KV.Close(id)
	ctx, cancel := context.WithTimeout(context.Background(), controlTimeout)
	defer cancel()
	for _, s := range e.cfg.Stages[:n] {
		if err := s.Backend.CloseSequence(ctx, id); err != nil && !errors.Is(err, core.ErrBackendGone) {
			e.log.Warn("close sequence failed", "device", s.Device, "sequence", uint64(id), "error", err)
		}
	}
}

// finish ends a running request. It returns true, for slices.DeleteFunc. The
// request hears of it first: closing a sequence on a backend that hangs takes
// time.
func (e *Engine) finish(r *running, reason string, err error) bool {
	r.end(reason, err)
	e.leaveQueue()
	e.close(r.id, len(e.cfg.Stages))
	return true
}

// deliver wakes those who wait for tokens. Waking takes a while, so it happens
// when the next step is with the backend.
func (e *Engine) deliver() {
	for i, g := range e.emitted {
		g.signal()
		e.emitted[i] = nil
	}
	e.emitted = e.emitted[:0]
}

// fail ends every running request after a step went wrong: the state of their
// sequences is lost. Where a backend is gone, the engine is down.
func (e *Engine) fail(active *[]*running, err error) {
	e.log.Error("step failed", "sequences", len(*active), "error", err)
	if errors.Is(err, core.ErrBackendGone) || errors.Is(err, core.ErrStepDeadline) {
		e.mu.Lock()
		e.down = err
		e.mu.Unlock()
	}
	for _, r := range *active {
		r.end("", err)
	}
	for _, r := range *active {
		e.leaveQueue()
		e.close(r.id, len(e.cfg.Stages))
	}
	*active = (*active)[:0]
}

// fill builds the window from what was picked. Only the last token of a
// sequence's decided tokens needs logits.
func (e *Engine) fill(w *core.Window, active []*running, picks []sched.Pick) error {
	if cap(w.Segments) < len(picks) {
		w.Segments = make([]core.Segment, len(picks))
	}
	w.Segments = w.Segments[:len(picks)]
	for i, p := range picks {
		r := active[p.Index]
		v, ok := e.cfg.KV.Sequence(r.id)
		if !ok {
			return fmt.Errorf("build window: sequence %d: %w", r.id, core.ErrUnknownSequence)
		}
		s := &w.Segments[i]
		s.Seq, s.Pos, s.Tokens, s.Logits = r.id, r.executed, v.Tokens[r.executed:r.executed+p.Rows], s.Logits[:0]
		if r.executed+p.Rows == len(v.Tokens) {
			s.Logits = append(s.Logits, p.Rows-1)
		}
	}
	return nil
}

// settle takes a window's results to the sequences: commits, samples, delivers,
// and drops the requests that are done.
func (e *Engine) settle(active []*running, picks []sched.Pick, w *core.Window, result *windowResult) []*running {
	now := time.Now()
	row, logits := 0, 0
	vocab := e.cfg.Model.Hyper.Vocab
	ended := false
	for i, p := range picks {
		r, s := active[p.Index], &w.Segments[i]
		rows := result.rows[row : row+p.Rows]
		row += p.Rows
		var chosen []float32
		if len(s.Logits) > 0 {
			chosen = result.logits[logits : logits+vocab]
			logits += vocab
		}
		if finish, err := e.progress(r, s, rows, chosen, now); finish != "" || err != nil {
			e.finish(r, finish, err)
			active[p.Index], ended = nil, true
		}
	}
	if ended {
		active = slices.DeleteFunc(active, func(r *running) bool { return r == nil })
	}
	return active
}

// progress applies one segment's result to its request. It returns why the
// request is done, if it is.
func (e *Engine) progress(r *running, s *core.Segment, rows []core.RowFlags, logits []float32, now time.Time) (finish string, err error) {
	for i, f := range rows {
		if !f.Finite() {
			e.stats.nonFinite()
			return "", &NonFiniteError{Position: s.Pos + i, Layer: f.Layer}
		}
	}
	r.executed += len(rows)
	if err := e.cfg.KV.Commit(r.id, r.executed); err != nil {
		return "", err
	}
	prompt := len(r.req.Prompt)
	e.stats.tokens(min(r.executed, prompt)-min(s.Pos, prompt), 0)
	r.advance(r.executed)
	if logits == nil {
		return "", nil
	}
	v, ok := e.cfg.KV.Sequence(r.id)
	if !ok {
		return "", fmt.Errorf("sample: sequence %d: %w", r.id, core.ErrUnknownSequence)
	}
	id, err := r.choose.Sample(logits, r.total, v.Tokens)
	if err != nil {
		return "", fmt.Errorf("sample at position %d: %w", r.total, err)
	}
	e.stats.tokens(0, 1)
	if slices.Contains(r.req.Stop, id) {
		r.mu.Lock()
		r.count(now)
		r.mu.Unlock()
		return FinishStop, nil
	}
	t := Token{ID: id}
	if r.req.LogProbs >= 0 {
		t.LogProb, t.Top = sampler.LogProbs(logits, id, r.req.LogProbs)
	}
	if err := e.cfg.KV.Append(r.id, id); err != nil {
		return "", err
	}
	r.total++
	r.emit(t, now)
	e.emitted = append(e.emitted, r.Generation)
	if r.total == r.limit {
		return FinishLength, nil
	}
	return "", nil
}
