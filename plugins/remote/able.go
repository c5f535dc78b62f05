package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/strata-engine/strata/core"
	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/wire"
)

// Able returns the backend with the interfaces of the given capabilities, those
// of a LoadResult, and no others: what a type assertion finds is what the loaded
// stage can do.
func (b *Backend) Able(capabilities []string) core.Backend {
	draft := slices.Contains(capabilities, core.CapDraft)
	state := slices.Contains(capabilities, core.CapState)
	experts := slices.Contains(capabilities, core.CapExperts)
	d, s, e := drafter{b}, stateful{b}, counter{b}
	switch {
	case draft && state && experts:
		return struct {
			*Backend
			drafter
			stateful
			counter
		}{b, d, s, e}
	case draft && state:
		return struct {
			*Backend
			drafter
			stateful
		}{b, d, s}
	case draft && experts:
		return struct {
			*Backend
			drafter
			counter
		}{b, d, e}
	case state && experts:
		return struct {
			*Backend
			stateful
			counter
		}{b, s, e}
	case draft:
		return struct {
			*Backend
			drafter
		}{b, d}
	case state:
		return struct {
			*Backend
			stateful
		}{b, s}
	case experts:
		return struct {
			*Backend
			counter
		}{b, e}
	}
	return b
}

// drafter adds core.BackendWithDraft.
type drafter struct{ b *Backend }

// Draft implements core.BackendWithDraft. It travels like a step, and behind
// those posted before it.
func (d drafter) Draft(ctx context.Context, seq core.SequenceID, next int32, count int) (core.DraftResult, error) {
	b := d.b
	ctx, cancel := context.WithDeadlineCause(ctx, time.Now().Add(b.cfg.StepTimeout), core.ErrStepDeadline)
	defer cancel()
	sl, err := b.steps.acquire(ctx)
	if err != nil {
		return core.DraftResult{}, b.stepError("draft", err)
	}
	memory, err := b.steps.lane.request(sl.index, wire.MinResultBytes) // far more than a draft needs
	var n int
	if err == nil {
		n, err = wire.DraftRequest{Sequence: uint64(seq), Next: next, Count: count}.Put(memory)
	}
	if err != nil {
		b.steps.release(sl)
		return core.DraftResult{}, fmt.Errorf("draft: %w", err)
	}
	completion, payload, err := b.steps.exchange(ctx, sl, wire.KindDraft, n, nil)
	if err != nil {
		return core.DraftResult{}, b.stepError("draft", err)
	}
	defer b.steps.release(sl)
	if completion.Status != wire.StatusOK {
		return core.DraftResult{}, fmt.Errorf("draft: %w", statusError(completion.Status, wire.ParseError(payload)))
	}
	result, err := wire.ParseDraftResult(payload, count)
	if err != nil {
		return core.DraftResult{}, fmt.Errorf("draft: %w", b.breach(err))
	}
	return core.DraftResult{Tokens: result.Tokens, LogProbs: result.LogProbs}, nil
}

// counter adds core.BackendWithExperts.
type counter struct{ b *Backend }

// ExpertUses implements core.BackendWithExperts.
func (c counter) ExpertUses(ctx context.Context) ([][]uint64, error) {
	ctx, stop := c.b.join(ctx)
	defer stop()
	resp, err := c.b.rpc.ExpertUses(ctx, &pb.ExpertUsesRequest{})
	if err != nil {
		return nil, c.b.fail(ctx, "expert uses", err)
	}
	uses := make([][]uint64, 0, len(resp.Layers))
	for _, l := range resp.Layers {
		uses = append(uses, l.GetUses())
	}
	return uses, nil
}

// stateful adds core.BackendWithState.
type stateful struct{ b *Backend }

// Checkpoint implements core.BackendWithState.
func (s stateful) Checkpoint(ctx context.Context, seq core.SequenceID) (*core.State, error) {
	ctx, stop := s.b.join(ctx)
	defer stop() // ends the stream also where it is not read to its end
	stream, err := s.b.rpc.Checkpoint(ctx, &pb.CheckpointRequest{Sequence: uint64(seq)})
	if err != nil {
		return nil, s.b.fail(ctx, "checkpoint", err)
	}
	state, err := receiveState(stream.Recv)
	switch {
	case errors.Is(err, errBadState):
		return nil, fmt.Errorf("checkpoint: %w", s.b.breach(err))
	case err != nil:
		return nil, s.b.fail(ctx, "checkpoint", err)
	}
	return state, nil
}

// Restore implements core.BackendWithState.
func (s stateful) Restore(ctx context.Context, seq core.SequenceID, state *core.State) error {
	ctx, stop := s.b.join(ctx)
	defer stop()
	stream, err := s.b.rpc.Restore(ctx)
	if err != nil {
		return s.b.fail(ctx, "restore", err)
	}
	// Where the backend refuses the state early, sending fails and the answer
	// says why.
	_ = sendState(stream.Send, seq, state)
	if _, err := stream.CloseAndRecv(); err != nil {
		return s.b.fail(ctx, "restore", err)
	}
	return nil
}
