package stage

import (
	"context"
	"fmt"

	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/ops"
)

// Step implements sdk.Backend. It looks at every segment and makes room for all
// of them before anything is executed. Where executing fails, the sequences of
// the window can only be closed; the same goes for a sequence whose residual or
// state was not finite, so that nothing of it is ever executed or saved.
//
// Segment.Checkpoint asks for nothing here: the canonical state of the last
// executed token can be had at any time between steps.
func (b *Backend) Step(ctx context.Context, req *sdk.StepRequest, resp *sdk.StepResponse) error {
	l, used, err := b.begin(req.Segments)
	if err != nil {
		return fmt.Errorf("step: %w", err)
	}
	defer b.done(l, used)
	for i, s := range used {
		if err := l.dev.Reserve(s.state, s.executed+len(req.Segments[i].Tokens)); err != nil {
			return fmt.Errorf("step: sequence %d: %w: %w", req.Segments[i].Sequence, sdk.ErrOutOfState, err)
		}
	}
	w := ops.Window{Segments: l.segments[:0]}
	l.rows = l.rows[:0]
	for i := range req.Segments {
		seg := &req.Segments[i]
		// Every stage is told which logits are wanted, the one with the head answers.
		if l.graph.Head() {
			for _, at := range seg.Logits {
				l.rows = append(l.rows, w.Rows+int(at))
			}
		}
		w.Segments = append(w.Segments, ops.Segment{State: used[i].state, Pos: seg.Pos, Row: w.Rows, Tokens: seg.Tokens})
		w.Rows += len(seg.Tokens)
	}
	l.segments = w.Segments
	// Also where Run panics.
	b.setBroken(used, "an earlier step failed half way")
	if err := l.graph.Run(ctx, &w, req.Input, l.rows, resp.Output, resp.Logits); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	b.setBroken(used, "")
	for i, s := range used {
		seg, good := &w.Segments[i], true
		s.executed += len(seg.Tokens)
		for row := seg.Row; row < seg.Row+len(seg.Tokens); row++ {
			r := &resp.Rows[row]
			var layer int
			r.Residual, r.Logits, r.State, layer = w.Flags.Row(row)
			if r.Residual || r.Logits || r.State {
				r.Layer = int32(layer)
			}
			if good && (r.Residual || r.State) {
				good = false
				b.setBroken(used[i:i+1], fmt.Sprintf("the state was not finite at position %d", seg.Pos+row-seg.Row))
			}
		}
	}
	return nil
}

// begin finds the sequences of a window and marks them busy; on error none is.
func (b *Backend) begin(segments []sdk.Segment) (*loaded, []*sequence, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.loaded
	if l == nil {
		return nil, nil, errNoStage
	}
	var used []*sequence
	fail := func(err error) (*loaded, []*sequence, error) {
		for _, s := range used {
			s.busy = false
		}
		return nil, nil, err
	}
	for i := range segments {
		seg := &segments[i]
		s, err := b.use(seg.Sequence)
		if err != nil {
			return fail(err)
		}
		used = append(used, s)
		switch {
		case len(seg.Tokens) == 0:
			return fail(fmt.Errorf("sequence %d: %w: the segment is empty", seg.Sequence, sdk.ErrInvalid))
		case seg.Pos != s.executed:
			return fail(fmt.Errorf("sequence %d: %w: the segment starts at position %d, but %d tokens are executed", seg.Sequence, sdk.ErrInvalid, seg.Pos, s.executed))
		case len(seg.Tokens) > l.context-seg.Pos:
			return fail(fmt.Errorf("sequence %d: %w: %d tokens at position %d, the stage was loaded for %d", seg.Sequence, sdk.ErrInvalid, len(seg.Tokens), seg.Pos, l.context))
		}
	}
	return l, used, nil
}

// setBroken says why the state of sequences is unusable, or that it is not.
func (b *Backend) setBroken(used []*sequence, broken string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range used {
		s.broken = broken
	}
}

// Draft implements sdk.BackendWithDraft. It proposes no tokens beyond the
// context given to Load. A failed draft leaves the trunk's state as it is: what
// the MTP block wrote lies beyond its valid cells.
func (b *Backend) Draft(ctx context.Context, req *sdk.DraftRequest, resp *sdk.DraftResponse) error {
	b.mu.Lock()
	l := b.loaded
	if l == nil {
		b.mu.Unlock()
		return fmt.Errorf("draft: %w", errNoStage)
	}
	s, err := b.use(req.Sequence)
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("draft: %w", err)
	}
	defer b.done(l, []*sequence{s})
	if req.Count < 1 {
		return fmt.Errorf("draft: %w: %d proposals", sdk.ErrInvalid, req.Count)
	}
	if s.executed < 1 {
		return fmt.Errorf("draft: sequence %d: %w: no token was executed yet", req.Sequence, sdk.ErrInvalid)
	}
	count := min(req.Count, l.context-s.executed)
	if count < 1 {
		return nil
	}
	if err := l.dev.Reserve(s.state, s.executed+count); err != nil {
		return fmt.Errorf("draft: sequence %d: %w: %w", req.Sequence, sdk.ErrOutOfState, err)
	}
	tokens, logProbs, err := l.graph.Draft(ctx, s.state, s.executed, req.Next, count)
	if err != nil {
		return err
	}
	resp.Tokens, resp.LogProbs = append(resp.Tokens[:0], tokens...), append(resp.LogProbs[:0], logProbs...)
	return nil
}
