// Package ops defines the block operations that a backend implements: about a
// dozen coarse steps over opaque buffers, from which sdk/arch builds the graph
// of every supported architecture. A backend implements Device and Queue; it
// never sees an architecture. Package ops/reference computes every operation in
// float64 from fine operations (norm, matrix product, rotation, softmax,
// top-k): it is the oracle of every other implementation, and a backend can
// embed it and replace one operation at a time.
//
// The operations are coarse on purpose: on a fast device a layer's budget is
// tens of microseconds, so a layer should be ten to fifteen launches.
//
// The mathematics of each operation is stated at its type. Notation: W·x is the
// product of a weight of shape [out][in] with a row; RMS(x) = x / sqrt(mean(x²)
// + eps); σ is the logistic function; silu(x) = x·σ(x).
package ops

import (
	"context"

	"github.com/strata-engine/strata/sdk/quant"
)

// Tensor is the data of one weight as it lies in the model file.
type Tensor struct {
	// Name is the tensor's name in the file, for messages.
	Name string
	// Type is its block format.
	Type quant.Type
	// Dims are the extents, contiguous dimension first: a matrix W[out][in] has
	// {in, out}, stacked experts {in, out, experts}.
	Dims []int64
	// Data are the blocks, little endian, row after row. The slice is a
	// read-only file mapping that outlives the Device; it is used in place.
	Data []byte
}

// Weight is a tensor made ready for a device: a file mapping, a device pointer,
// a cache slot. Opaque to the graph; immutable.
type Weight interface {
	// Dims are the tensor's extents, contiguous dimension first.
	Dims() []int64
}

// Buffer is device memory for float32 activations. Opaque to the graph.
type Buffer interface {
	// Len is the capacity in float32 values.
	Len() int
}

// State is the state of one sequence on a device, as described by a
// StateLayout. Opaque to the graph. A State is used by one Queue at a time.
type State interface {
	// Layout returns the layout that the state was made for.
	Layout() *StateLayout
}

// Device owns memory and weights. Its methods are called from one goroutine at
// a time, but Alloc, NewState and Release may run while a Queue executes.
type Device interface {
	// Alloc returns a buffer for n float32 values; its content is undefined.
	Alloc(n int) (Buffer, error)
	// Write copies src into dst from value index at on. It waits until the copy
	// is done.
	Write(dst Buffer, at int, src []float32) error
	// Read copies from src, starting at value index at, into dst. It waits until
	// the copy is done; the caller has fenced the queue that wrote src.
	Read(dst []float32, src Buffer, at int) error
	// Weight makes a tensor usable. It checks type and length.
	Weight(t Tensor) (Weight, error)
	// NewState makes zero state for one sequence.
	NewState(layout *StateLayout) (State, error)
	// Reserve makes room for positions [0, tokens) in s, so that no operation
	// runs out of memory half way. It returns an error and changes nothing where
	// there is no room.
	Reserve(s State, tokens int) error
	// Export copies the state as of tokens executed tokens into the canonical
	// sections, in the order of the layout.
	Export(s State, tokens int) ([]Section, error)
	// Import replaces the state by canonical sections. They are checked whole
	// before anything changes.
	Import(s State, tokens int, sections []Section) error
	// Release frees a state or a buffer.
	Release(x any)
	// Queue returns the queue on which operations are enqueued.
	Queue() Queue
	// Close frees everything.
	Close() error
}

// Section is one piece of a sequence's canonical state; the byte layouts are
// those of StateKind.
type Section struct {
	// Layer is the model's layer index.
	Layer int
	// Kind says what Data holds.
	Kind StateKind
	// Data are the bytes, little endian.
	Data []byte
}

// StateKind says what a section of canonical state holds. The numbers are part
// of the wire protocol.
type StateKind uint8

// Kinds of canonical state. A page is PageTokens tokens; the last page of a
// section is cut after the last token.
const (
	// StateKV: attention keys of all pages, then values of all pages, each as
	// [page][kv head][token][dim] float16; keys after norm and rotation.
	StateKV StateKind = iota + 1
	// StateIndex: raw indexer keys [page][token][dim] float16, before mean, norm
	// and rotation.
	StateIndex
	// StateDelta: DeltaNet state [value head][key][value] float32.
	StateDelta
	// StateConv: convolution history [tap][channel] float32, oldest first.
	StateConv
	// StatePLE: convolution history [tap][channel] float32, oldest first, then
	// the last NGram-1 token ids as int32, latest first, -1 where there is none.
	StatePLE
	// StateHidden: the trunk's last residual row, float32, for the MTP block.
	StateHidden
)

// PageTokens is the number of tokens in a page of attention state.
const PageTokens = 64

// StateLayout lists what a sequence keeps on a stage, one entry per layer that
// keeps anything, in layer order.
type StateLayout struct {
	// ID names the layout: model hash, layer range, number format, page size.
	ID string
	// Layers are the parts. A layer's PLE entry comes before its mixer's, the
	// MTP block's Hidden entry after its attention's.
	Layers []LayerState
}

// LayerState is what one layer keeps. Exactly one of the parts is set.
type LayerState struct {
	// Layer is the model's layer index and the key by which operations find
	// their state.
	Layer int
	// KV is set for attention layers.
	KV *KVState
	// Delta is set for gated DeltaNet layers.
	Delta *DeltaState
	// PLE is set for n-gram layers; a layer has this beside its mixer's state as
	// an entry of its own.
	PLE *PLEState
	// Hidden is set for the input of the MTP block: the width of the residual.
	Hidden int
}

// KVState describes the state of an attention layer.
type KVState struct {
	// Heads, KeyDim and ValueDim are the key/value heads and their lengths.
	Heads, KeyDim, ValueDim int
	// IndexDim is the length of a raw indexer key, 0 for dense layers;
	// IndexRatio the tokens per block.
	IndexDim, IndexRatio int
	// Lag is how many cells fewer than executed tokens are valid: 0 for trunk
	// layers, 1 for the MTP block, whose row for a token continues the residual
	// of the token before.
	Lag int
}

// DeltaState describes the state of a gated DeltaNet layer.
type DeltaState struct {
	// Heads, KeyDim and ValueDim are the extents of the recurrent state.
	Heads, KeyDim, ValueDim int
	// Taps and Channels are the extents of the convolution history: the kernel's
	// taps minus one, and the channels of q, k and v together.
	Taps, Channels int
}

// PLEState describes the state of an n-gram layer.
type PLEState struct {
	// Taps and Channels are the extents of the convolution history: (kernel-1) x
	// dilation tokens, and streams x width channels.
	Taps, Channels int
	// Tokens is the number of earlier token ids kept: NGram - 1.
	Tokens int
}

// Window is what a queue executes at once: rows of activations that belong to
// segments of one or several sequences.
type Window struct {
	// Segments in row order.
	Segments []Segment
	// Rows is the number of rows of all segments.
	Rows int
	// Flags collects what was not finite. The graph makes it; operations mark
	// it; it is complete after Queue.Fence.
	Flags *Flags
}

// Segment is a run of consecutive tokens of one sequence.
type Segment struct {
	// State is the sequence's state.
	State State
	// Pos is the position of the first row. State beyond Pos is overwritten.
	Pos int
	// Row is the first row in the window, Tokens the token ids of the rows.
	Row    int
	Tokens []int32
}

// Queue executes operations in the order in which they are enqueued.
// Operations return at once or when they are done; results may be read after
// Fence, and nothing that was passed may change before. Row buffers hold
// Window.Rows rows without gaps; R is the residual
// ([row][stream][width], or [row][width] for architectures without
// hyper-connections).
//
// A row's result depends only on its own sequence's earlier tokens: not on the
// other rows of the window nor on how a prompt was cut into windows; an
// implementation that promises this to the last bit announces "invariant".
//
// Each operation marks w.Flags for rows whose residual, logits or stored state
// are not finite.
type Queue interface {
	// Embed writes the residual of the window's tokens.
	Embed(op *Embed, w *Window, r Buffer)
	// PLE adds the n-gram embedding to r.
	PLE(op *PLE, w *Window, r Buffer)
	// HyperMix reads r and writes x ([row][width]) and, where op.Inject is set,
	// gate ([row][stream]).
	HyperMix(op *HyperMix, w *Window, r, x, gate Buffer)
	// HyperInject adds gate[s]·y to every stream s of r.
	HyperInject(op *HyperInject, w *Window, r, gate, y Buffer)
	// Norm writes the RMS norm of r to x.
	Norm(op *Norm, w *Window, r, x Buffer)
	// Add adds y to r.
	Add(op *Add, w *Window, r, y Buffer)
	// DeltaNet is the gated DeltaNet mixer: x to y.
	DeltaNet(op *DeltaNet, w *Window, x, y Buffer)
	// Attention is causal attention, dense or by op.Index sparse: x to y.
	Attention(op *Attention, w *Window, x, y Buffer)
	// MoE is router, routed experts and shared expert: x to y.
	MoE(op *MoE, w *Window, x, y Buffer)
	// Head computes the logits of the given rows (indices into the window, in
	// ascending order) into logits, [len(rows)][vocabulary].
	Head(op *Head, w *Window, r Buffer, rows []int, logits Buffer)
	// Hidden keeps the last residual row of every segment in its state, for the
	// MTP block.
	Hidden(op *Hidden, w *Window, r Buffer)
	// Draft writes the input residual of the MTP block for the window w of draft
	// rows: their tokens are the next tokens, and row i continues residual row
	// from[i] of hidden, or the one kept by Hidden where from[i] is -1.
	Draft(op *Draft, w *Window, hidden Buffer, from []int, r Buffer)
	// Fence waits until everything enqueued is done and returns the first error
	// since the last Fence. Between operations, and not only there, an
	// implementation looks at ctx and stops early with its error; the states of
	// the window are undefined then.
	Fence(ctx context.Context) error
}

// Embed: R[s] = table[token] for every stream s.
type Embed struct {
	// Table is [vocab][width].
	Table Weight
	// Streams is the number of residual streams, at least 1.
	Streams int
	// Width is the length of a table row.
	Width int
}

// PLE is the n-gram hash embedding (model.md 2.3). With E the concatenation of
// one table row per hash head,
//
//	K[s] = RMS((Key·E)[s]) ⊙ NormKey[s];  v = Value·E;  Q[s] = RMS(R[s]) ⊙ NormQuery[s]
//	a[s] = <K[s],Q[s]>/sqrt(width);  a = sign(a)·sqrt(max(|a|,1e-6));  u[s] = σ(a[s])·v
//	c[s] = RMS(u[s]) ⊙ NormConv[s]
//	R += u + silu(Σ_k Conv[ch][k]·c_ch(t-(taps-1-k)·NGram))
//
// The rows: predecessors before the start read as Reset, and once a predecessor
// is Reset it and everything older read as Reset. With 64-bit wrap-around,
// mix_n = xor of token[t-i]·Multipliers[i] for i < n; the heads of n-gram length
// n read row mix_n mod Sizes[h] + Offsets[h].
type PLE struct {
	// Layer is the model's layer index.
	Layer int
	// Streams, Width and RowWidth are residual streams, hidden size and length of
	// a table row.
	Streams, Width, RowWidth int
	// NGram is the longest n-gram, HeadsPerNGram the hash heads per length
	// (lengths 2..NGram in order).
	NGram, HeadsPerNGram int
	// Reset is the token id that ends a context.
	Reset int32
	// Multipliers (NGram), Offsets and Sizes (one per head) are the hash
	// constants.
	Multipliers, Offsets, Sizes []int64
	// Eps is the norms' epsilon.
	Eps float32
	// Table is [rows][RowWidth]; it may be far larger than memory, so only the
	// rows that are needed are touched.
	Table Weight
	// Key is [streams·width][heads·RowWidth], Value [width][heads·RowWidth].
	Key, Value Weight
	// NormKey, NormQuery, NormConv are [streams·width].
	NormKey, NormQuery, NormConv Weight
	// Conv is [streams·width][taps].
	Conv Weight
}

// HyperMix reads the wide residual (model.md 2.1):
//
//	n[s] = RMS(R[s]) ⊙ Norm[s];  lo = silu((Down·n)/streams);  g = σ(Up·lo)
//	x = (1/streams) Σ_s g[s] ⊙ n[s];  gate = 2σ((Inject·n)/streams)
type HyperMix struct {
	// Layer is the model's layer index; the number of layers for the final mixer.
	Layer int
	// Streams, Width, Rank are the extents.
	Streams, Width, Rank int
	// Eps is the norm's epsilon.
	Eps float32
	// Norm is [streams·width], Down [rank][streams·width], Up
	// [streams·width][rank].
	Norm, Down, Up Weight
	// Inject is [streams][streams·width]; nil for a mixer without injection.
	Inject Weight
}

// HyperInject: R[s] += gate[s]·y.
type HyperInject struct {
	// Layer is the model's layer index.
	Layer int
	// Streams and Width are the extents.
	Streams, Width int
}

// Norm: x = RMS(r) ⊙ Weight.
type Norm struct {
	// Layer is the model's layer index; the number of layers for the final norm.
	Layer int
	// Width is the length of a row.
	Width int
	// Eps is the epsilon.
	Eps float32
	// Weight is [width].
	Weight Weight
}

// Add: r += y.
type Add struct {
	// Layer is the model's layer index.
	Layer int
	// Width is the length of a row.
	Width int
}

// GateKind is the activation of an output gate.
type GateKind uint8

// The gates.
const (
	// GateSigmoid: σ(z).
	GateSigmoid GateKind = iota
	// GateSiLU: z·σ(z).
	GateSiLU
)

// DeltaNet is the gated DeltaNet mixer (Yang et al., "Gated Delta Networks",
// 2024; model.md 2.4), in recurrent form per value head:
//
//	q,k,v = silu(causal depthwise convolution of QKV·x);  z = Gate·x
//	q,k ← x / sqrt(Σx² + 1e-6);  q ← q/sqrt(KeyDim)
//	β = σ(Beta·x);  g = A·softplus(Alpha·x + DtBias)
//	S ← exp(g)·S;  d = β·(v - kᵀS);  S ← S + k dᵀ;  o = qᵀS
//	y = Out·concat(RMS(o) ⊙ Norm ⊙ gate(z))
//
// Value head j reads key head j mod KeyHeads, or j/(ValueHeads/KeyHeads) where
// Grouped is set.
type DeltaNet struct {
	// Layer is the model's layer index.
	Layer int
	// Width is the hidden size.
	Width int
	// KeyHeads, ValueHeads, KeyDim, ValueDim and Taps are the extents.
	KeyHeads, ValueHeads, KeyDim, ValueDim, Taps int
	// Grouped selects the order of value heads.
	Grouped bool
	// GateKind is the output gate.
	GateKind GateKind
	// Eps is the norm's epsilon.
	Eps float32
	// QKV is [2·KeyHeads·KeyDim + ValueHeads·ValueDim][width].
	QKV Weight
	// Gate is [ValueHeads·ValueDim][width].
	Gate Weight
	// Beta and Alpha are [ValueHeads][width]. Where BetaAlpha is set they are
	// nil: it is both fused, per key head its value heads' β rows, then their α
	// rows.
	Beta, Alpha, BetaAlpha Weight
	// Conv is [channels][taps], DtBias and A are [ValueHeads], Norm [ValueDim],
	// Out [width][ValueHeads·ValueDim].
	Conv, DtBias, A, Norm, Out Weight
}

// Attention is causal grouped-query attention (model.md 2.5 and 2.7). Query head
// h reads key/value head h/(Heads/KVHeads); scale 1/sqrt(HeadDim).
//
//	q,k ← RMS ⊙ QNorm/KNorm per head, then rotation of the first RopeDim dims
//	y = Out·concat(softmax(q kᵀ·scale) v [⊙ σ(gate)])
//
// Rotation is NeoX style: pair (i, i+RopeDim/2), angle
// pos·RopeBase^(-2i/RopeDim).
type Attention struct {
	// Layer is the model's layer index.
	Layer int
	// Width is the hidden size.
	Width int
	// Heads, KVHeads, HeadDim, ValueDim are the extents.
	Heads, KVHeads, HeadDim, ValueDim int
	// RopeDim and RopeBase describe the rotation.
	RopeDim  int
	RopeBase float64
	// Eps is the norms' epsilon.
	Eps float32
	// Gated says that Q carries an output gate: per head HeadDim query rows, then
	// ValueDim gate rows.
	Gated bool
	// Q, K, V, Out are the projections; QNorm and KNorm are [HeadDim].
	Q, K, V, Out, QNorm, KNorm Weight
	// Index is set where the indexer selects what a query may see.
	Index *Index
}

// Index is the QSA indexer (model.md 2.5). For a query at t with nb =
// (t+1)/Ratio complete blocks of Ratio tokens, the tail [nb·Ratio, t] is always
// visible, and of the blocks the Budget/Ratio with the best score, ties to the
// lower block:
//
//	qi_h = rope(RMS(Q·x)_h ⊙ QNorm, t);  kb_j = rope(RMS(mean of raw keys of block j) ⊙ KNorm, j·Ratio)
//	score_j = Σ_h max(0, <qi_h, kb_j>)
//
// Rotation is that of the Attention it belongs to. A NaN score is a fault
// (the row's state flag), never a comparison.
type Index struct {
	// Heads, Dim, Budget (tokens) and Ratio (tokens per block) are the extents.
	Heads, Dim, Budget, Ratio int
	// Q is [Heads·Dim][width], K [Dim][width]; QNorm and KNorm are [Dim].
	Q, K, QNorm, KNorm Weight
}

// MoE is router, routed experts and shared expert (model.md 2.2):
//
//	p = softmax(Router·x);  the Used largest p, ties to the lower expert, renormalised to sum 1
//	y = Σ w_e·Down_e(silu(Gate_e·x) ⊙ (Up_e·x)) [+ σ(SharedGate·x)·SharedDown(silu(SharedGateProj·x) ⊙ (SharedUp·x))]
//
// A router row that is not finite is a fault (the residual flag), and its
// experts still are valid indices.
type MoE struct {
	// Layer is the model's layer index.
	Layer int
	// Width, Experts, Used, ExpertWidth and SharedWidth are the extents;
	// SharedWidth is 0 without a shared expert.
	Width, Experts, Used, ExpertWidth, SharedWidth int
	// Router is [experts][width].
	Router Weight
	// Gate and Up are [experts][ExpertWidth][width], Down is
	// [experts][width][ExpertWidth]. Where GateUp is set Gate and Up are nil: it
	// is both fused, [experts][2·ExpertWidth][width], gate rows first.
	Gate, Up, Down, GateUp Weight
	// GateScale, UpScale and DownScale are [experts] factors of the projections'
	// outputs (NVFP4 files); nil where the file has none.
	GateScale, UpScale, DownScale Weight
	// SharedGate is [width], SharedGateProj and SharedUp [SharedWidth][width],
	// SharedDown [width][SharedWidth].
	SharedGate, SharedGateProj, SharedUp, SharedDown Weight
	// Uses, where set, counts how often each expert was chosen; the operation
	// adds to it atomically.
	Uses []uint64
}

// Head computes logits: Output·Mix(R), Output·RMS(R), or Output·R where neither
// Mix nor Norm is set.
type Head struct {
	// Layer is the number of trunk layers.
	Layer int
	// Width and Vocab are the extents.
	Width, Vocab int
	// Mix is the final mixer (without injection), Norm the final norm.
	Mix  *HyperMix
	Norm *Norm
	// Output is [vocab][width].
	Output Weight
}

// Hidden keeps the last residual row of every segment in its state.
type Hidden struct {
	// Layer is the layer index of the MTP block whose input is kept.
	Layer int
	// Width is the length of a residual row, streams included.
	Width int
}

// Draft joins the next token's embedding with the trunk's residual (model.md
// 2.6):
//
//	X[s] = Join·concat(RMS(table[next]) ⊙ EmbedNorm, RMS(R[s]) ⊙ HiddenNorm[s])
type Draft struct {
	// Layer is the layer index of the MTP block.
	Layer int
	// Streams and Width are the extents.
	Streams, Width int
	// Eps is the norms' epsilon.
	Eps float32
	// Table is [vocab][width], EmbedNorm [width], HiddenNorm [streams·width],
	// Join [width][2·width].
	Table, EmbedNorm, HiddenNorm, Join Weight
}
