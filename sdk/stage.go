package sdk

import (
	"fmt"

	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
)

// stage is what the executor knows of the loaded stage: enough to check windows.
type stage struct {
	bounds  wire.Bounds
	context int
	draft   bool
	// seen finds a sequence that occurs twice; reused.
	seen map[uint64]struct{}
}

// newStage checks a load request and returns what it asks for.
func newStage(req *pb.LoadStageRequest) (*stage, error) {
	model, part := req.GetModel(), req.GetStage()
	if model.GetHyper() == nil || part == nil {
		return nil, fmt.Errorf("%w: model, its hyper-parameters or stage are missing", ErrInvalid)
	}
	h := model.Hyper
	if h.Vocab < 1 || h.Width < 1 || h.Layers < 1 || h.Streams < 0 || int64(h.Width)*int64(max(h.Streams, 1)) > 1<<24 {
		return nil, fmt.Errorf("%w: a model with %d layers, width %d, %d streams, vocabulary %d",
			ErrInvalid, h.Layers, h.Width, h.Streams, h.Vocab)
	}
	if part.First < 0 || part.Last <= part.First || part.Last > h.Layers {
		return nil, fmt.Errorf("%w: layers [%d, %d) of %d", ErrInvalid, part.First, part.Last, h.Layers)
	}
	if part.Embed != (part.First == 0) {
		return nil, fmt.Errorf("%w: the embedding belongs to the stage with layer 0, not to layers [%d, %d)",
			ErrInvalid, part.First, part.Last)
	}
	if part.Head != (part.Last == h.Layers) {
		return nil, fmt.Errorf("%w: the head belongs to the stage with layer %d, not to layers [%d, %d)",
			ErrInvalid, h.Layers-1, part.First, part.Last)
	}
	if part.Draft && (!part.Head || h.DraftLayers < 1) {
		return nil, fmt.Errorf("%w: a draft block needs the head, and a model that has one", ErrInvalid)
	}
	if req.Context < 1 || req.MaxSequences < 1 || req.MaxRows < 1 || req.MaxLogitRows < 1 {
		return nil, fmt.Errorf("%w: bounds must be positive: context %d, sequences %d, rows %d, logits rows %d",
			ErrInvalid, req.Context, req.MaxSequences, req.MaxRows, req.MaxLogitRows)
	}
	return &stage{
		bounds: wire.Bounds{
			MaxSequences: int(req.MaxSequences),
			MaxRows:      int(req.MaxRows),
			MaxLogitRows: int(req.MaxLogitRows),
			Width:        int(h.Width) * int(max(h.Streams, 1)),
			Vocab:        int(h.Vocab),
			Embed:        part.Embed,
			Head:         part.Head,
		},
		context: int(req.Context),
		draft:   part.Draft,
		seen:    make(map[uint64]struct{}),
	}, nil
}

// fits reports whether every window within the bounds fits the slots of a
// segment, so that a load fails and not the first long step.
func (s *stage) fits(g shm.Geometry) error {
	request, result, err := s.bounds.SlotBytes()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if request > g.RequestBytes || result > g.ResultBytes {
		return fmt.Errorf("%w: the data segment has slots of %d and %d bytes, the stage's bounds need %d and %d",
			ErrInvalid, g.RequestBytes, g.ResultBytes, request, result)
	}
	return nil
}

// check reports whether a window suits the stage. What it promises is documented
// at StepRequest.Segments.
func (s *stage) check(w *wire.Window) error {
	if len(w.Segments) == 0 {
		return fmt.Errorf("%w: the window is empty", ErrInvalid)
	}
	if rows := w.Rows(); rows > s.bounds.MaxRows {
		return fmt.Errorf("%w: %d rows, the stage was loaded for %d", ErrInvalid, rows, s.bounds.MaxRows)
	}
	if n := w.LogitRows(); n > s.bounds.MaxLogitRows {
		return fmt.Errorf("%w: %d logits rows, the stage was loaded for %d", ErrInvalid, n, s.bounds.MaxLogitRows)
	}
	if s.bounds.Embed && w.Width != 0 {
		return fmt.Errorf("%w: a residual input for the stage with the embedding", ErrInvalid)
	}
	if !s.bounds.Embed && w.Width != s.bounds.Width {
		return fmt.Errorf("%w: residual rows of %d values, the stage takes %d", ErrInvalid, w.Width, s.bounds.Width)
	}
	clear(s.seen)
	for i := range w.Segments {
		if err := s.checkSegment(&w.Segments[i]); err != nil {
			return fmt.Errorf("%w: segment %d: %w", ErrInvalid, i, err)
		}
		if len(w.Segments) > 1 {
			s.seen[w.Segments[i].Sequence] = struct{}{}
		}
	}
	if len(w.Segments) > 1 && len(s.seen) != len(w.Segments) {
		return fmt.Errorf("%w: a sequence occurs twice", ErrInvalid)
	}
	return nil
}

func (s *stage) checkSegment(g *wire.Segment) error {
	if len(g.Tokens) == 0 {
		return fmt.Errorf("no tokens")
	}
	if g.Pos > s.context-len(g.Tokens) {
		return fmt.Errorf("positions %d to %d, the stage was loaded for %d", g.Pos, g.Pos+len(g.Tokens)-1, s.context)
	}
	for i, token := range g.Tokens {
		if token < 0 || int(token) >= s.bounds.Vocab {
			return fmt.Errorf("token %d is %d, the vocabulary has %d", i, token, s.bounds.Vocab)
		}
	}
	last := int32(-1)
	for _, at := range g.Logits {
		if at <= last || int(at) >= len(g.Tokens) {
			return fmt.Errorf("logits index %d after %d in %d tokens", at, last, len(g.Tokens))
		}
		last = at
	}
	return nil
}

// decodeRun is the longest segment that still counts as decoding: one token, or
// the rows of a speculative verify.
const decodeRun = 16

// tokens splits the rows of a window into those of prompts and those of
// decoding. A decode segment wants the logits of all its rows.
func tokens(w *wire.Window) (prefill, decode int) {
	for i := range w.Segments {
		n := len(w.Segments[i].Tokens)
		if n <= decodeRun && len(w.Segments[i].Logits) == n {
			decode += n
		} else {
			prefill += n
		}
	}
	return prefill, decode
}
