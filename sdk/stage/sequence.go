package stage

import (
	"context"
	"fmt"

	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/ops"
)

// sequence is one open sequence. Who has marked it busy owns state and executed;
// Backend.mu protects the rest.
type sequence struct {
	state ops.State
	// executed is the number of executed tokens.
	executed int
	// busy: something runs on the state, so it must not be freed.
	busy bool
	// closed: it was closed while busy and is freed when that ends.
	closed bool
	// broken says why the state is unusable; empty where it is not.
	broken string
}

// OpenSequence implements sdk.Backend.
func (b *Backend) OpenSequence(_ context.Context, req sdk.OpenSequenceRequest, _ *sdk.OpenSequenceResponse) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.open(req.Sequence, nil); err != nil {
		return fmt.Errorf("open sequence %d: %w", req.Sequence, err)
	}
	return nil
}

// open adds a sequence, empty or with the given state. The caller holds mu.
func (b *Backend) open(id uint64, restore *sdk.State) error {
	l := b.loaded
	if l == nil {
		return errNoStage
	}
	if b.sequences[id] != nil {
		return fmt.Errorf("%w: it is open already", sdk.ErrInvalid)
	}
	if len(b.sequences) >= l.maxSequences {
		return fmt.Errorf("%w: %d sequences are open, the stage was loaded for %d", sdk.ErrOutOfState, len(b.sequences), l.maxSequences)
	}
	state, err := l.dev.NewState(l.graph.Layout())
	if err != nil {
		return fmt.Errorf("%w: %w", sdk.ErrOutOfState, err)
	}
	s := &sequence{state: state}
	if restore != nil {
		if err := l.fill(s, restore); err != nil {
			l.dev.Release(state)
			return err
		}
	}
	b.sequences[id] = s
	return nil
}

// fill puts a canonical state into a new sequence.
func (l *loaded) fill(s *sequence, from *sdk.State) error {
	layout := l.graph.Layout()
	if from.LayoutID != layout.ID {
		return fmt.Errorf("%w: the state's layout is %q, the stage's %q", sdk.ErrInvalid, from.LayoutID, layout.ID)
	}
	if from.Tokens < 0 || from.Tokens > l.context {
		return fmt.Errorf("%w: a state of %d tokens, the stage was loaded for %d", sdk.ErrInvalid, from.Tokens, l.context)
	}
	sections := make([]ops.Section, len(from.Sections))
	for i, section := range from.Sections {
		sections[i] = ops.Section{Layer: section.Layer, Kind: ops.StateKind(section.Kind), Data: section.Data}
	}
	if err := layout.CheckSections(from.Tokens, sections); err != nil {
		return fmt.Errorf("%w: %w", sdk.ErrInvalid, err)
	}
	if err := l.dev.Reserve(s.state, from.Tokens); err != nil {
		return fmt.Errorf("%w: %w", sdk.ErrOutOfState, err)
	}
	if err := l.dev.Import(s.state, from.Tokens, sections); err != nil {
		return err
	}
	s.executed = from.Tokens
	return nil
}

// CloseSequence implements sdk.Backend.
func (b *Backend) CloseSequence(_ context.Context, req sdk.CloseSequenceRequest, _ *sdk.CloseSequenceResponse) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sequences[req.Sequence]
	if s == nil {
		return nil
	}
	delete(b.sequences, req.Sequence)
	if s.busy {
		s.closed = true
		return nil
	}
	b.loaded.dev.Release(s.state)
	return nil
}

// use returns an open sequence that can be used and marks it busy. The caller
// holds mu, and calls done in the end.
func (b *Backend) use(id uint64) (*sequence, error) {
	s := b.sequences[id]
	switch {
	case s == nil:
		return nil, fmt.Errorf("sequence %d: %w", id, sdk.ErrUnknownSequence)
	case s.busy:
		return nil, fmt.Errorf("sequence %d: %w: it is in use, or twice in the window", id, sdk.ErrInvalid)
	case s.broken != "":
		return nil, fmt.Errorf("sequence %d: %w: %s; close it, then restore it or execute its tokens again", id, sdk.ErrInvalid, s.broken)
	}
	s.busy = true
	return s, nil
}

// done ends the use of sequences and frees those that were closed meanwhile.
func (b *Backend) done(l *loaded, sequences []*sequence) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range sequences {
		s.busy = false
		if s.closed {
			l.dev.Release(s.state)
		}
	}
}

// Checkpoint implements sdk.BackendWithState.
func (b *Backend) Checkpoint(_ context.Context, req sdk.CheckpointRequest, resp *sdk.CheckpointResponse) error {
	b.mu.Lock()
	l := b.loaded
	if l == nil {
		b.mu.Unlock()
		return fmt.Errorf("checkpoint: %w", errNoStage)
	}
	s, err := b.use(req.Sequence)
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	defer b.done(l, []*sequence{s})
	sections, err := l.dev.Export(s.state, s.executed)
	if err != nil {
		return fmt.Errorf("checkpoint: sequence %d: %w", req.Sequence, err)
	}
	resp.State = sdk.State{LayoutID: l.graph.Layout().ID, Tokens: s.executed}
	for _, section := range sections {
		resp.State.Sections = append(resp.State.Sections, sdk.StateSection{Layer: section.Layer, Kind: uint8(section.Kind), Data: section.Data})
	}
	return nil
}

// Restore implements sdk.BackendWithState.
func (b *Backend) Restore(_ context.Context, req sdk.RestoreRequest, _ *sdk.RestoreResponse) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.open(req.Sequence, &req.State); err != nil {
		return fmt.Errorf("restore sequence %d: %w", req.Sequence, err)
	}
	return nil
}
