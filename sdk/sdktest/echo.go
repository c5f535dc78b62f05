// Package sdktest helps to test both halves of the process boundary: a small
// deterministic backend, and a server within the test's process.
package sdktest

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk"
)

// Echo is a backend that computes simple arithmetic instead of a model, so that
// a test can predict every value: the state of a sequence is a hash of its
// tokens, a residual row repeats the hash, scaled by the layers that it has
// passed, and a logits row favours the token that the hash selects. A stage
// without the embedding mixes its input in, so a wrong residual shows.
//
// It implements every optional ability. Its fields are set before use.
type Echo struct {
	// OnStep, if set, runs before every step: it may fail, panic or hang.
	OnStep func(ctx context.Context, req *sdk.StepRequest) error
	// OnLoad, if set, runs in Load.
	OnLoad func(ctx context.Context, req sdk.LoadRequest) error
	// Version is reported by Info.
	Version string

	// mu protects the rest.
	mu        sync.Mutex
	stage     *sdk.LoadRequest
	sequences map[uint64]*echoState
	tokens    uint64
}

var (
	_ sdk.BackendWithDraft   = (*Echo)(nil)
	_ sdk.BackendWithState   = (*Echo)(nil)
	_ sdk.BackendWithExperts = (*Echo)(nil)
)

type echoState struct {
	tokens int
	hash   uint32
}

// echoStateKind is the kind of Echo's only state section.
const echoStateKind = 5

// Info implements sdk.Backend.
func (e *Echo) Info() sdk.Info {
	return sdk.Info{Name: "echo", Version: e.Version, Capabilities: []string{sdk.CapInvariant}}
}

// Probe implements sdk.Backend.
func (e *Echo) Probe(_ context.Context, _ sdk.ProbeRequest, resp *sdk.ProbeResponse) error {
	resp.Devices = []sdk.Device{{ID: "echo0", Name: "Echo", MemoryTotal: 1 << 30, MemoryFree: 1 << 29, Threads: 1}}
	return nil
}

// Load implements sdk.Backend.
func (e *Echo) Load(ctx context.Context, req sdk.LoadRequest, resp *sdk.LoadResponse) error {
	for name := range req.Options {
		return fmt.Errorf("%w: unknown option %q", sdk.ErrInvalid, name)
	}
	if req.Device != "" && req.Device != "echo0" {
		return fmt.Errorf("%w: unknown device %q", sdk.ErrInvalid, req.Device)
	}
	for i, phase := range []string{"open", "map", "read", "prepare", "warm"} {
		req.Progress(phase, int64(i+1)*200, 1000)
	}
	if e.OnLoad != nil {
		if err := e.OnLoad(ctx, req); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stage, e.sequences, e.tokens = &req, map[uint64]*echoState{}, 0
	*resp = sdk.LoadResponse{
		LayoutID:              fmt.Sprintf("echo-%s-%d-%d", req.Model.Hash, req.First, req.Last),
		WeightBytes:           1000,
		MappedBytes:           1000,
		StateBytesPerSequence: 8,
	}
	return nil
}

// OpenSequence implements sdk.Backend.
func (e *Echo) OpenSequence(_ context.Context, req sdk.OpenSequenceRequest, _ *sdk.OpenSequenceResponse) error {
	return e.open(req.Sequence, echoState{})
}

func (e *Echo) open(id uint64, state echoState) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stage == nil {
		return fmt.Errorf("%w: no stage is loaded", sdk.ErrInvalid)
	}
	if _, ok := e.sequences[id]; ok {
		return fmt.Errorf("%w: sequence %d is open", sdk.ErrInvalid, id)
	}
	if len(e.sequences) == e.stage.MaxSequences {
		return fmt.Errorf("%w: %d sequences are open", sdk.ErrOutOfState, len(e.sequences))
	}
	e.sequences[id] = &state
	return nil
}

// CloseSequence implements sdk.Backend.
func (e *Echo) CloseSequence(_ context.Context, req sdk.CloseSequenceRequest, _ *sdk.CloseSequenceResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sequences, req.Sequence)
	return nil
}

// Step implements sdk.Backend.
func (e *Echo) Step(ctx context.Context, req *sdk.StepRequest, resp *sdk.StepResponse) error {
	if e.OnStep != nil {
		if err := e.OnStep(ctx, req); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, segment := range req.Segments {
		state, ok := e.sequences[segment.Sequence]
		if !ok {
			return fmt.Errorf("%w: %d", sdk.ErrUnknownSequence, segment.Sequence)
		}
		if state.tokens != segment.Pos {
			return fmt.Errorf("%w: sequence %d is at position %d, not %d",
				sdk.ErrInvalid, segment.Sequence, state.tokens, segment.Pos)
		}
	}
	hyper := e.stage.Model.Hyper
	width := int(hyper.Width) * int(max(hyper.Streams, 1))
	vocab := int(hyper.Vocab)
	row, logits := 0, resp.Logits
	for _, segment := range req.Segments {
		state := e.sequences[segment.Sequence]
		wanted := segment.Logits
		for i, token := range segment.Tokens {
			state.hash = echoHash(state.hash, token)
			state.tokens++
			value := echoValue(state.hash)
			if req.Input != nil {
				value += req.Input[row*width+i%width]
			}
			resp.Rows[row].Layer = int32(e.stage.Last)
			if resp.Output != nil {
				fill(resp.Output[row*width:(row+1)*width], value)
			}
			if resp.Logits != nil && len(wanted) > 0 && int(wanted[0]) == i {
				fill(logits[:vocab], value)
				logits[int(state.hash)%vocab] = value + 1000
				logits, wanted = logits[vocab:], wanted[1:]
			}
			row++
		}
	}
	e.tokens += uint64(row)
	sdk.ReportLayer(ctx, e.stage.Last-1)
	return nil
}

// Draft implements sdk.BackendWithDraft.
func (e *Echo) Draft(_ context.Context, req *sdk.DraftRequest, resp *sdk.DraftResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	state, ok := e.sequences[req.Sequence]
	if !ok {
		return fmt.Errorf("%w: %d", sdk.ErrUnknownSequence, req.Sequence)
	}
	token, hash := req.Next, state.hash
	for range req.Count {
		hash = echoHash(hash, token)
		token = int32(hash % uint32(e.stage.Model.Hyper.Vocab))
		resp.Tokens = append(resp.Tokens, token)
		resp.LogProbs = append(resp.LogProbs, -echoValue(hash))
	}
	return nil
}

// Checkpoint implements sdk.BackendWithState.
func (e *Echo) Checkpoint(_ context.Context, req sdk.CheckpointRequest, resp *sdk.CheckpointResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	state, ok := e.sequences[req.Sequence]
	if !ok {
		return fmt.Errorf("%w: %d", sdk.ErrUnknownSequence, req.Sequence)
	}
	resp.State = sdk.State{LayoutID: e.layout(), Tokens: state.tokens}
	for layer := e.stage.First; layer < e.stage.Last; layer++ {
		resp.State.Sections = append(resp.State.Sections, sdk.StateSection{
			Layer: layer,
			Kind:  echoStateKind,
			Data:  binary.LittleEndian.AppendUint32(nil, state.hash),
		})
	}
	return nil
}

// Restore implements sdk.BackendWithState.
func (e *Echo) Restore(_ context.Context, req sdk.RestoreRequest, _ *sdk.RestoreResponse) error {
	e.mu.Lock()
	layout, first, last := e.layout(), e.stage.First, e.stage.Last
	e.mu.Unlock()
	if req.State.LayoutID != layout {
		return fmt.Errorf("%w: layout %q, this stage has %q", sdk.ErrInvalid, req.State.LayoutID, layout)
	}
	if len(req.State.Sections) != last-first {
		return fmt.Errorf("%w: %d sections, want %d", sdk.ErrInvalid, len(req.State.Sections), last-first)
	}
	state := echoState{tokens: req.State.Tokens}
	for i, section := range req.State.Sections {
		if section.Layer != first+i || section.Kind != echoStateKind || len(section.Data) != 4 {
			return fmt.Errorf("%w: section %d does not belong here", sdk.ErrInvalid, i)
		}
		state.hash = binary.LittleEndian.Uint32(section.Data)
	}
	return e.open(req.Sequence, state)
}

// layout is called with mu held.
func (e *Echo) layout() string {
	return fmt.Sprintf("echo-%s-%d-%d", e.stage.Model.Hash, e.stage.First, e.stage.Last)
}

// ExpertUses implements sdk.BackendWithExperts: every token uses the one expert
// of every layer.
func (e *Echo) ExpertUses(_ context.Context, _ sdk.ExpertUsesRequest, resp *sdk.ExpertUsesResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stage == nil {
		return fmt.Errorf("%w: no stage is loaded", sdk.ErrInvalid)
	}
	for range e.stage.Last - e.stage.First {
		resp.Uses = append(resp.Uses, []uint64{e.tokens})
	}
	return nil
}

// Unload implements sdk.Backend.
func (e *Echo) Unload(context.Context, sdk.UnloadRequest, *sdk.UnloadResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stage, e.sequences = nil, nil
	return nil
}

// EchoNext is the token that a whole Echo model (one stage, or a chain of them)
// favours after the given tokens.
func EchoNext(tokens []int32, vocab int) int32 {
	hash := uint32(0)
	for _, t := range tokens {
		hash = echoHash(hash, t)
	}
	return int32(hash % uint32(vocab))
}

// EchoLogit is the value that every other logit of that row has, where stages is
// the number of stages of the chain.
func EchoLogit(tokens []int32, stages int) float32 {
	hash := uint32(0)
	for _, t := range tokens {
		hash = echoHash(hash, t)
	}
	return float32(stages) * echoValue(hash)
}

// echoHash is FNV-1a over the bytes of the tokens.
func echoHash(hash uint32, token int32) uint32 {
	for shift := 0; shift < 32; shift += 8 {
		hash = (hash ^ (uint32(token)>>shift)&0xff) * 16777619
	}
	return hash + 1
}

// echoValue is an integer of 0 to 255, so that sums of a few are exact.
func echoValue(hash uint32) float32 { return float32(hash >> 24) }

func fill(row []float32, value float32) {
	for i := range row {
		row[i] = value
	}
}

// Model returns a model description that Echo loads.
func Model(layers, width, streams, vocab int) *pb.ModelSpec {
	return &pb.ModelSpec{
		Architecture: "echo",
		Name:         "echo",
		Hash:         "00",
		Hyper: &pb.Hyper{
			Layers:      int32(layers),
			DraftLayers: 1,
			Context:     math.MaxInt32,
			Width:       int32(width),
			Streams:     int32(streams),
			Vocab:       int32(vocab),
		},
	}
}
