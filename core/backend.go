package core

import (
	"context"
	"errors"
	"time"
)

// Sentinels that callers branch on.
var (
	// ErrBackendGone: the backend's process has ended or was ended. Everything
	// in flight on it is lost; the caller resumes on another incarnation.
	ErrBackendGone = errors.New("backend is gone")
	// ErrStepDeadline: the step was not answered in time. Whether it ran is not
	// known; the sequence's state on that backend is unusable.
	ErrStepDeadline = errors.New("step deadline exceeded")
	// ErrOutOfState: the backend has no memory left for the state of another
	// sequence or of more tokens. Nothing was executed.
	ErrOutOfState = errors.New("out of sequence state memory")
	// ErrUnknownSequence: the sequence was never opened here, or was closed.
	ErrUnknownSequence = errors.New("unknown sequence")
)

// Backend is a device that executes a stage: a contiguous range of layers, plus
// the embedding and the output head where the stage holds them.
//
// Life cycle: Info and Probe at any time; LoadStage once; then sequences and
// steps; Drain, Unload, Close. All methods are safe for concurrent use, but
// steps execute in the order in which Step was called. Every method returns
// when its context ends; a method that returns because of that leaves the
// backend usable unless it says otherwise.
//
// Optional abilities are further interfaces (BackendWithDraft,
// BackendWithState), found by type assertion and announced in
// Info.Capabilities; no method answers "unsupported".
type Backend interface {
	// Info describes the backend's program.
	Info(ctx context.Context) (Info, error)
	// Probe lists the devices the backend could use on this machine now.
	Probe(ctx context.Context) ([]Device, error)
	// LoadStage makes the backend hold the stage. progress may be nil; it is
	// called from one goroutine and must not block. After an error nothing
	// remains loaded.
	LoadStage(ctx context.Context, req LoadRequest, progress func(LoadProgress)) (LoadResult, error)
	// OpenSequence prepares empty state for a sequence. ErrOutOfState where
	// there is no room.
	OpenSequence(ctx context.Context, seq SequenceID) error
	// CloseSequence frees the sequence's state. Unknown sequences are ignored:
	// closing is idempotent.
	CloseSequence(ctx context.Context, seq SequenceID) error
	// Step executes one window and waits for its outcome. On error nothing of
	// the window counts as executed, and the sequences in it must be closed or
	// restored: their state is undefined.
	Step(ctx context.Context, step *Step) (*Done, error)
	// Drain waits until no step is in flight and accepts no more.
	Drain(ctx context.Context) error
	// Unload frees the stage and every sequence.
	Unload(ctx context.Context) error
	// Events delivers what the backend reports on its own (device warnings,
	// memory pressure). The channel closes when the backend is gone or ctx ends.
	Events(ctx context.Context) (<-chan Event, error)
	// Close ends the backend within a bounded time. It is idempotent.
	Close() error
}

// BackendWithDraft is a backend whose stage holds an MTP block (capability
// CapDraft).
type BackendWithDraft interface {
	Backend
	// Draft proposes up to count tokens that may follow next, where next is the
	// token chosen after the last executed token of seq. The drafts are greedy
	// and only a guess: verify them with a Step. The trunk's state does not
	// change.
	Draft(ctx context.Context, seq SequenceID, next int32, count int) (DraftResult, error)
}

// DraftResult are the tokens an MTP block proposes.
type DraftResult struct {
	// Tokens are the proposals in order; fewer than asked for where a proposal
	// was not finite.
	Tokens []int32
	// LogProbs are the natural log-probabilities of Tokens under the MTP block.
	LogProbs []float32
}

// BackendWithState is a backend that can hand out and take back the state of a
// sequence in the canonical layout (capability CapState). It is what parking,
// failover and moves between backends are built on.
type BackendWithState interface {
	Backend
	// Checkpoint returns the canonical state of seq as of its last executed
	// token.
	Checkpoint(ctx context.Context, seq SequenceID) (*State, error)
	// Restore opens seq with the given state; LayoutID must match the stage.
	// The state is checked whole before anything is changed.
	Restore(ctx context.Context, seq SequenceID, state *State) error
}

// BackendWithExperts is a backend that counts how often each expert was chosen
// (capability CapExperts).
type BackendWithExperts interface {
	Backend
	// ExpertUses returns, for every layer of the stage in order, how often each
	// expert was chosen since LoadStage. Counters only grow. It answers without
	// waiting for a step in flight.
	ExpertUses(ctx context.Context) ([][]uint64, error)
}

// Capability names in Info.Capabilities.
const (
	// CapSharedMemory: steps can travel through shared-memory rings.
	CapSharedMemory = "step.shm"
	// CapDraft: BackendWithDraft.
	CapDraft = "draft"
	// CapExperts: BackendWithExperts.
	CapExperts = "experts"
	// CapState: BackendWithState.
	CapState = "state"
	// CapInvariant: a row's result does not depend on the window it ran in.
	CapInvariant = "invariant"
)

// Info describes a backend program.
type Info struct {
	// Name is the kind used in configuration: "cpu", "cuda", "hip", ...
	Name string
	// Version is the program's own version.
	Version string
	// Protocol is the wire protocol spoken, e.g. "v1alpha1".
	Protocol string
	// Capabilities are the abilities the program has (Cap... constants and
	// names of third parties).
	Capabilities []string
	// PID is the process id, 0 for a backend in this process.
	PID int
}

// Device is something a backend can execute on.
type Device struct {
	// ID selects the device in LoadRequest, e.g. "0"; unique within a backend.
	ID string
	// Name is for people, e.g. "AMD Ryzen 9 7950X, AVX-512".
	Name string
	// MemoryTotal and MemoryFree are bytes of the memory that weights and state
	// would occupy.
	MemoryTotal, MemoryFree int64
	// Threads is the number of hardware threads the process may use; 0 where
	// the notion does not apply.
	Threads int
}

// Stage is the part of a model that one backend holds.
type Stage struct {
	// First and Last bound the layers, half open: [First, Last).
	First, Last int
	// Embed and Head say whether the stage holds the token embedding and the
	// final mixer or norm with the output head.
	Embed, Head bool
	// Draft says whether the stage also holds the MTP block; only with Head.
	Draft bool
}

// LoadRequest asks a backend to hold a stage.
type LoadRequest struct {
	// Model is the parsed and validated file.
	Model *ModelSpec
	// Stage is the part to hold.
	Stage Stage
	// Device is a Device.ID, or empty for the backend's choice.
	Device string
	// Context bounds the positions of one sequence, in tokens.
	Context int
	// MaxSequences bounds how many sequences are open at once.
	MaxSequences int
	// MaxRows and MaxLogitRows bound one window.
	MaxRows, MaxLogitRows int
	// Options are the backend's own settings (devices[].options), as written in
	// the configuration; unknown names are an error.
	Options map[string]string
}

// LoadProgress reports how far a load has come. Bytes only ever grow while the
// load advances; a load that moves no bytes for long is stuck.
type LoadProgress struct {
	// Phase is what is being done: "open", "map", "read", "prepare", "warm".
	Phase string
	// Bytes and Total count weight bytes made ready.
	Bytes, Total int64
}

// LoadResult describes a loaded stage.
type LoadResult struct {
	// LayoutID names the layout of the stage's canonical state.
	LayoutID string
	// WeightBytes are the bytes of weights the stage uses, MappedBytes the part
	// that is used in place from the file.
	WeightBytes, MappedBytes int64
	// StateBytesPerToken and StateBytesPerSequence say what a sequence costs:
	// bytes per executed token, and bytes whatever its length.
	StateBytesPerToken, StateBytesPerSequence int64
	// Capabilities are what this stage can do, a subset of Info.Capabilities.
	Capabilities []string
}

// Event is something a backend reports on its own.
type Event struct {
	// Time is when it happened.
	Time time.Time
	// Kind is a short constant name, e.g. "memory-pressure".
	Kind string
	// Message says what happened, in a sentence for an operator.
	Message string
}
