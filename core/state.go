package core

// State is the state of one sequence on one stage in the canonical layout: the
// same bytes whatever kind of backend wrote them, so that a sequence can be
// shadowed, parked, saved, and moved between devices. sdk/state documents and
// checks the byte layout of the sections.
//
// A State is immutable once built; sections may alias shared memory whose owner
// says how long it stays valid.
type State struct {
	// LayoutID = model hash + layer range + number format + page size. It names
	// no backend. States with different ids are never mixed.
	LayoutID string
	// Tokens is the number of tokens the state covers.
	Tokens int
	// Sections hold the data, one per layer and kind, in layer order.
	Sections []StateSection
}

// StateKind says what a section holds.
type StateKind uint8

// Kinds of state. Paged kinds are append-only and can be shared between
// sequences with a common prefix; the others are snapshots of fixed size.
const (
	// StateKV: attention K, then V, as [page][kv head][token][dim] float16.
	StateKV StateKind = iota + 1
	// StateIndex: raw indexer keys as [page][token][dim] float16 (before norm and
	// rotation).
	StateIndex
	// StateDelta: DeltaNet state as [value head][key][value] float32.
	StateDelta
	// StateConv: convolution history as [tap][channel] float32, oldest first.
	StateConv
	// StatePLE: convolution history of the n-gram layer as [tap][channel]
	// float32, oldest first, then the last NGram-1 token ids as int32, latest
	// first.
	StatePLE
	// StateDraft: the last wide residual of the trunk, float32, which the MTP
	// block needs for the next token.
	StateDraft
)

// StateSection is one piece of a State.
type StateSection struct {
	// Layer is the model's layer index.
	Layer int
	// Kind says what Data holds.
	Kind StateKind
	// Data are the bytes, little endian.
	Data []byte
}
