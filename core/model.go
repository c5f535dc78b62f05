package core

import "fmt"

// ModelSpec is everything a backend needs to know about a model file: the host
// parses and validates the file once and sends the spec in LoadStage; backends
// map tensor data but never parse GGUF. A ModelSpec is immutable once built and
// may be shared between goroutines.
type ModelSpec struct {
	// Architecture is general.architecture of the file, e.g. "qwen4exp".
	Architecture string
	// Name is general.name, for people; it decides nothing.
	Name string
	// Hash identifies the weights: SHA-256 over the canonical form of the
	// hyper-parameters, the tensor table and the shards' sizes, in lower-case
	// hex. Equal hashes mean that saved state may be exchanged.
	Hash string
	// Hyper are the typed hyper-parameters read from the metadata.
	Hyper Hyper
	// Tensors is the tensor table, sorted by name. Every range lies inside its
	// shard: Offset+Bytes <= Shards[Shard].Size.
	Tensors []Tensor
	// Shards are the files that hold the data, in order.
	Shards []Shard
}

// Shard is one file of a model. A backend compares Size and Inode with the file
// it opens before it maps it, so that a file replaced since the host's check is
// refused and not mapped.
type Shard struct {
	// Path is absolute.
	Path string
	// Size is the length of the file in bytes.
	Size int64
	// ModTime is the modification time in nanoseconds since the Unix epoch.
	ModTime int64
	// Inode is the inode number where the platform has one, else 0.
	Inode uint64
}

// Tensor is one row of the tensor table.
type Tensor struct {
	// Name is the name in the file, e.g. "blk.3.attn_q.weight".
	Name string
	// Type is the ggml type id (see TensorType in sdk/quant for names and block
	// sizes).
	Type uint32
	// Dims are the extents, contiguous dimension first (ggml's ne order): a
	// matrix W[out][in] has Dims {in, out}; experts have {in, out, experts}.
	Dims []int64
	// Shard indexes ModelSpec.Shards.
	Shard int
	// Offset is the position of the first byte in the shard's file, absolute.
	Offset int64
	// Bytes is the length of the data.
	Bytes int64
}

// LayerKind says which mixer a layer has.
type LayerKind uint8

// The mixers of the supported architectures (model.md section 2).
const (
	// LayerAttention is causal softmax attention over all visible tokens.
	LayerAttention LayerKind = iota
	// LayerSparseAttention is attention over the tokens that the layer's
	// indexer selects (QSA).
	LayerSparseAttention
	// LayerDeltaNet is a gated DeltaNet: a recurrent state of fixed size.
	LayerDeltaNet
)

// String returns the kind's name as used in logs and by strata inspect.
func (k LayerKind) String() string {
	switch k {
	case LayerAttention:
		return "attention"
	case LayerSparseAttention:
		return "sparse-attention"
	case LayerDeltaNet:
		return "deltanet"
	}
	return fmt.Sprintf("layer-kind-%d", uint8(k))
}

// Hyper are the hyper-parameters of a model, typed. Fields that an architecture
// does not have are zero. Sources: the GGUF keys of model.md section 3.1.
type Hyper struct {
	// Layers counts the trunk's layers (block_count without MTP blocks).
	Layers int
	// DraftLayers counts the MTP blocks behind the trunk (0 or 1).
	DraftLayers int
	// Kinds has one entry per trunk layer, then one per MTP block.
	Kinds []LayerKind
	// Context is the trained context length in tokens.
	Context int
	// Width is the hidden size D.
	Width int
	// Vocab is the number of rows of the embedding and of the output head,
	// padding rows included.
	Vocab int
	// NormEps is the epsilon of every RMS norm.
	NormEps float32

	// Heads, KVHeads, HeadDim and ValueDim describe attention: query heads, key
	// and value heads, length of a query/key head and of a value head.
	Heads, KVHeads, HeadDim, ValueDim int
	// RopeDim is the number of leading head dimensions that are rotated.
	RopeDim int
	// RopeBase is the base of the rotary frequencies.
	RopeBase float64
	// RopeSections are the M-RoPE sections; text uses plain RoPE whatever they
	// are. Empty where the file has none.
	RopeSections []int

	// Experts, ExpertsUsed, ExpertWidth and SharedExpertWidth describe the MoE:
	// routed experts per layer, experts per token, inner width of a routed and
	// of the shared expert (0: no shared expert).
	Experts, ExpertsUsed, ExpertWidth, SharedExpertWidth int

	// KeyHeads, ValueHeads, StateDim, ConvKernel and InnerWidth describe the
	// gated DeltaNet: key heads, value heads, length of a key (and value) head,
	// taps of its convolution, ValueHeads x value head length.
	KeyHeads, ValueHeads, StateDim, ConvKernel, InnerWidth int

	// Streams and StreamRank describe hyper-connections: parallel residual
	// streams (0: a single plain residual) and the rank of the mixers.
	Streams, StreamRank int

	// IndexHeads, IndexDim, IndexBudget and IndexRatio describe QSA: query
	// heads and head length of the indexer, tokens a query may select, tokens
	// per block. One IndexRatio serves all sparse layers.
	IndexHeads, IndexDim, IndexBudget, IndexRatio int

	// PLE describes the n-gram embedding; nil where the model has none.
	PLE *PLE
}

// PLE are the constants of the n-gram hash embedding (model.md section 2.3).
// They are int64 as in the file and never pass through floating point.
type PLE struct {
	// Layers are the 0-based layers that inject an n-gram embedding.
	Layers []int
	// NGram is the longest n-gram (3: bigrams and trigrams).
	NGram int
	// HeadsPerNGram is the number of hash heads for each n-gram length.
	HeadsPerNGram int
	// ConvKernel is the number of taps of the dilated convolution; its dilation
	// is NGram.
	ConvKernel int
	// RowWidth is the length of a row of the table.
	RowWidth int
	// ResetToken is the token id that ends an n-gram's context.
	ResetToken int
	// Multipliers, Offsets and Sizes are the hash constants: one multiplier per
	// n-gram position, and per head the first row and the number of rows.
	Multipliers, Offsets, Sizes []int64
}

// Recurrent reports whether any layer keeps a recurrent state, i.e. whether a
// sequence can be continued only from a position that has a snapshot.
func (h *Hyper) Recurrent() bool {
	for _, k := range h.Kinds {
		if k == LayerDeltaNet {
			return true
		}
	}
	return h.PLE != nil
}

// ResidualWidth is the number of float32 values that one row of the residual
// carries between stages: Width times the number of streams.
func (h *Hyper) ResidualWidth() int {
	if h.Streams > 1 {
		return h.Width * h.Streams
	}
	return h.Width
}
