// Package sdk is what the author of a Strata backend needs: the interface
// Backend, and Serve, which runs it as a go-plugin process. The SDK does the
// rest by itself: gRPC, shared-memory rings, the vitals page, the lifeline to
// the host, logging, and turning panics into errors.
//
// An author either implements Backend whole, or implements the block operations
// of sdk/ops and lets sdk/stage execute the graphs of sdk/arch on them.
package sdk

import (
	"context"
	"errors"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/wire"
)

// Sentinels that a Backend returns (wrapped) where the host acts on the
// difference.
var (
	// ErrOutOfState: no memory for the state of another sequence or more tokens.
	// Nothing was executed.
	ErrOutOfState = errors.New("out of sequence state memory")
	// ErrUnknownSequence: the sequence was never opened or is closed.
	ErrUnknownSequence = errors.New("unknown sequence")
	// ErrInvalid: the request can never work as it is.
	ErrInvalid = errors.New("invalid request")
)

// Capability names, announced in Info.Capabilities. SharedMemory is added by the
// SDK; the abilities with an interface of their own are announced by
// implementing it.
const (
	CapSharedMemory = "step.shm"
	CapDraft        = "draft"
	CapState        = "state"
	CapExperts      = "experts"
	CapInvariant    = "invariant"
)

// Backend executes a stage of a model on one device. Methods take a request and
// fill a response, so that both can grow. The SDK calls Step from one goroutine,
// never concurrently with Load, Unload or itself; the other methods may be
// called while a Step runs.
//
// Optional abilities: BackendWithDraft, BackendWithState, BackendWithExperts.
type Backend interface {
	// Info describes the program. It answers at once.
	Info() Info
	// Probe lists the devices that could be used now; slow driver
	// initialisation belongs here or in Load, not before Serve.
	Probe(ctx context.Context, req ProbeRequest, resp *ProbeResponse) error
	// Load makes the backend hold a stage. After an error nothing is held.
	Load(ctx context.Context, req LoadRequest, resp *LoadResponse) error
	// OpenSequence prepares empty state; ErrOutOfState where there is no room.
	OpenSequence(ctx context.Context, req OpenSequenceRequest, resp *OpenSequenceResponse) error
	// CloseSequence frees state; unknown sequences are ignored.
	CloseSequence(ctx context.Context, req CloseSequenceRequest, resp *CloseSequenceResponse) error
	// Step executes one window and fills the response's slices in place.
	Step(ctx context.Context, req *StepRequest, resp *StepResponse) error
	// Unload frees the stage and every sequence.
	Unload(ctx context.Context, req UnloadRequest, resp *UnloadResponse) error
}

// BackendWithDraft is a Backend whose stage can hold an MTP block.
type BackendWithDraft interface {
	Backend
	// Draft proposes tokens; it is called like Step, from the same goroutine.
	Draft(ctx context.Context, req *DraftRequest, resp *DraftResponse) error
}

// BackendWithState is a Backend that can hand out and take back canonical state.
// Both methods are called from Step's goroutine, between steps.
type BackendWithState interface {
	Backend
	// Checkpoint returns the canonical state of a sequence as of its last
	// executed token.
	Checkpoint(ctx context.Context, req CheckpointRequest, resp *CheckpointResponse) error
	// Restore opens a sequence with a canonical state, checked whole before
	// anything changes.
	Restore(ctx context.Context, req RestoreRequest, resp *RestoreResponse) error
}

// BackendWithExperts is a Backend that counts how often each expert was chosen.
type BackendWithExperts interface {
	Backend
	// ExpertUses may be called while a Step runs.
	ExpertUses(ctx context.Context, req ExpertUsesRequest, resp *ExpertUsesResponse) error
}

// Info describes a backend program.
type Info struct {
	// Name is the kind used in configuration, e.g. "cpu".
	Name string
	// Version is the program's version.
	Version string
	// Capabilities lists further abilities, e.g. CapInvariant.
	Capabilities []string
}

// ProbeRequest asks for devices.
type ProbeRequest struct{}

// ProbeResponse lists devices.
type ProbeResponse struct {
	// Devices that could be used now, best first.
	Devices []Device
}

// Device is something the backend can execute on.
type Device struct {
	// ID selects the device in LoadRequest; unique within the backend.
	ID string
	// Name is for people.
	Name string
	// MemoryTotal and MemoryFree are bytes of the memory that weights and state
	// would occupy.
	MemoryTotal, MemoryFree int64
	// Threads is the number of hardware threads the process may use, 0 where that
	// means nothing.
	Threads int
}

// LoadRequest asks for a stage.
type LoadRequest struct {
	// Model is the host's description of the file. Read only.
	Model *pb.ModelSpec
	// First and Last bound the layers, half open.
	First, Last int
	// Embed, Head and Draft say whether the stage holds the token embedding, the
	// output head, and (only with Head) the MTP block.
	Embed, Head, Draft bool
	// Device is a Device.ID or empty.
	Device string
	// Context bounds the positions of one sequence, MaxSequences the open
	// sequences, MaxRows and MaxLogitRows one window.
	Context, MaxSequences, MaxRows, MaxLogitRows int
	// Options are the backend's own settings; unknown names are an error.
	Options map[string]string
	// Progress reports bytes of weights made ready out of total, in a phase:
	// "open", "map", "read", "prepare", "warm". Never nil; it does not block.
	Progress func(phase string, bytes, total int64)
}

// LoadResponse describes a loaded stage.
type LoadResponse struct {
	// LayoutID names the layout of the canonical state.
	LayoutID string
	// WeightBytes are the bytes of weights used, MappedBytes the part used in
	// place from the file.
	WeightBytes, MappedBytes int64
	// StateBytesPerToken and StateBytesPerSequence say what a sequence costs.
	StateBytesPerToken, StateBytesPerSequence int64
	// Capabilities are what this stage can do.
	Capabilities []string
}

// OpenSequenceRequest names a sequence; ids are never reused.
type OpenSequenceRequest struct{ Sequence uint64 }

// OpenSequenceResponse is empty.
type OpenSequenceResponse struct{}

// CloseSequenceRequest names a sequence.
type CloseSequenceRequest struct{ Sequence uint64 }

// CloseSequenceResponse is empty.
type CloseSequenceResponse struct{}

// Segment is a run of consecutive tokens of one sequence within a window.
type Segment = wire.Segment

// StepRequest is one window. Its slices are valid until Step returns; Input
// aliases the request slot.
type StepRequest struct {
	// Segments in row order. The SDK has checked that no sequence occurs twice,
	// that no segment is empty, that token ids are within the vocabulary and the
	// window within the bounds given to Load.
	Segments []Segment
	// Input is the previous stage's residual, [row][residual width]; nil for the
	// stage with the embedding.
	Input []float32
}

// StepResponse is filled in place: the slices have their final lengths, and
// Output and Logits alias the result slot. Rows is clear; the others hold
// whatever was there, so every value is written.
type StepResponse struct {
	// Rows has one entry per row.
	Rows []RowFlags
	// Output is the residual for the next stage; nil for the stage with the head.
	Output []float32
	// Logits are the wanted rows in order, [row][vocabulary]; nil without the
	// head.
	Logits []float32
}

// RowFlags says where a row was not finite.
type RowFlags = wire.RowFlags

// DraftRequest asks the MTP block for proposals.
type DraftRequest struct {
	// Sequence is the sequence's id, Next the token chosen after its last
	// executed token, Count how many proposals to make.
	Sequence uint64
	Next     int32
	Count    int
}

// DraftResponse holds the proposals.
type DraftResponse struct {
	// Tokens are greedy proposals in order, LogProbs their natural
	// log-probabilities. Fewer than asked for where one was not finite.
	Tokens   []int32
	LogProbs []float32
}

// CheckpointRequest names a sequence.
type CheckpointRequest struct{ Sequence uint64 }

// CheckpointResponse is a canonical state. Its data must not change afterwards:
// the SDK sends them while further steps run.
type CheckpointResponse struct{ State State }

// RestoreRequest opens a sequence with a state.
type RestoreRequest struct {
	// Sequence must not be open.
	Sequence uint64
	// State is valid until Restore returns.
	State State
}

// RestoreResponse is empty.
type RestoreResponse struct{}

// State is the canonical state of one sequence on one stage.
type State struct {
	// LayoutID must equal the stage's.
	LayoutID string
	// Tokens is the number of tokens covered.
	Tokens int
	// Sections are in the order of the layout; see sdk/ops.Section for the bytes.
	Sections []StateSection
}

// StateSection is one piece of a State.
type StateSection struct {
	// Layer is the model's layer index, Kind an ops.StateKind.
	Layer int
	Kind  uint8
	// Data are the bytes, little endian.
	Data []byte
}

// ExpertUsesRequest is empty.
type ExpertUsesRequest struct{}

// ExpertUsesResponse holds routing counters.
type ExpertUsesResponse struct {
	// Uses has, per layer of the stage, one counter per expert since Load.
	Uses [][]uint64
}

// UnloadRequest is empty.
type UnloadRequest struct{}

// UnloadResponse is empty.
type UnloadResponse struct{}
