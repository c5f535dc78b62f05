package model

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/strata-engine/strata/core"
)

// architectures has, for every supported general.architecture, what its
// hyper-parameters have beyond attention and experts.
var architectures = map[string]struct {
	// deltaNet: some layers are gated DeltaNets, and there is a shared expert.
	deltaNet bool
	// streams: hyper-connections, sparse attention and n-gram embeddings.
	streams bool
}{
	"qwen3moe":  {},
	"qwen3next": {deltaNet: true},
	"qwen35moe": {deltaNet: true},
	"qwen4exp":  {deltaNet: true, streams: true},
}

// The ranges of hyper-parameters are far wider than any model's. They keep
// products of a few of them within an int64 and allocations in proportion.
const (
	maxLayers  = 1 << 10
	maxWidth   = 1 << 17
	maxVocab   = 1 << 22
	maxHeads   = 1 << 10
	maxHeadDim = 1 << 12
	maxExperts = 1 << 14
	maxContext = 1 << 30
	maxKernel  = 1 << 5
)

// readHyper reads the typed hyper-parameters of the architecture and checks that
// each is in range and that they fit together, so that nothing downstream
// divides by zero. tensors is the model's table, sorted by name.
func readHyper(architecture string, m *Metadata, tensors []core.Tensor) (core.Hyper, error) {
	arch, ok := architectures[architecture]
	if !ok {
		known := slices.Sorted(maps.Keys(architectures))
		return core.Hyper{}, invalid(m.path, "the architecture %q is not supported; supported are %s", architecture, strings.Join(known, ", "))
	}
	p := &params{metadata: m, prefix: architecture + ".", tensors: tensors}
	var h core.Hyper
	p.layers(&h)
	p.embedding(&h)
	p.attention(&h)
	p.experts(&h, arch.deltaNet)
	if arch.deltaNet {
		p.deltaNet(&h)
	}
	if arch.streams {
		p.streams(&h)
		p.sparseAttention(&h)
		p.ngrams(&h)
	}
	// The MTP block attends to everything, whatever the trunk's layers do.
	for range h.DraftLayers {
		h.Kinds = append(h.Kinds, core.LayerAttention)
	}
	if p.err != nil {
		return core.Hyper{}, p.err
	}
	return h, nil
}

// params reads the metadata of one architecture. The first failure sticks in
// err; values read after it mean nothing, but are in their ranges.
type params struct {
	metadata *Metadata
	prefix   string
	tensors  []core.Tensor
	// blocks is block_count: the layers of the trunk and the MTP blocks.
	blocks int
	err    error
}

func (p *params) keep(err error) {
	if p.err == nil {
		p.err = err
	}
}

// wrong records that the value of a key cannot be.
func (p *params) wrong(key, format string, args ...any) {
	p.keep(p.metadata.wrong(p.prefix+key, format, args...))
}

func (p *params) has(key string) bool { return p.metadata.Has(p.prefix + key) }

// int reads an integer from lo to hi. Where the file has an array with a value
// per layer, those that are not zero must be equal.
func (p *params) int(key string, lo, hi int64) int {
	v, err := p.metadata.get(p.prefix + key)
	if err != nil {
		p.keep(err)
		return int(lo)
	}
	all, err := v.ints()
	if err != nil {
		p.wrong(key, "%v", err)
		return int(lo)
	}
	n := int64(0)
	for _, x := range all {
		if x != 0 && n != 0 && x != n {
			p.wrong(key, "differs between layers (%d and %d), which is not supported", n, x)
			return int(lo)
		}
		if x != 0 {
			n = x
		}
	}
	if n < lo || n > hi {
		p.wrong(key, "is %d; %d to %d are possible", n, lo, hi)
		return int(lo)
	}
	return int(n)
}

// intOr is int for a key that may be absent.
func (p *params) intOr(key string, absent int, lo, hi int64) int {
	if !p.has(key) {
		return absent
	}
	return p.int(key, lo, hi)
}

// float reads a number from lo to hi.
func (p *params) float(key string, lo, hi float64) float64 {
	f, err := p.metadata.Float(p.prefix + key)
	if err != nil {
		p.keep(err)
		return lo
	}
	if !(f >= lo && f <= hi) { // also refuses NaN
		p.wrong(key, "is %g; %g to %g are possible", f, lo, hi)
		return lo
	}
	return f
}

// ints reads an array of integers from lo to hi.
func (p *params) ints(key string, lo, hi int64) []int64 {
	all, err := p.metadata.Ints(p.prefix + key)
	p.keep(err)
	for i, x := range all {
		if x < lo || x > hi {
			p.wrong(key, "has %d at index %d; %d to %d are possible", x, i, lo, hi)
			return nil
		}
	}
	return all
}

// perBlock reads an array with one integer or bool for every block, or a single
// one for all.
func (p *params) perBlock(key string, layers int) []int64 {
	out := make([]int64, layers)
	v, err := p.metadata.get(p.prefix + key)
	if err != nil {
		p.keep(err)
		return out
	}
	var all []int64
	if v.typ == typeBool || v.typ == typeArray && v.elem == typeBool {
		for _, b := range v.data {
			all = append(all, int64(b))
		}
	} else if all, err = v.ints(); err != nil {
		p.wrong(key, "%v", err)
		return out
	}
	switch {
	case v.typ != typeArray:
		for i := range out {
			out[i] = all[0]
		}
	case len(all) != layers && len(all) != p.blocks:
		p.wrong(key, "has %d values; the model has %d layers", len(all), layers)
	default:
		copy(out, all)
	}
	return out
}

// layers reads the number and the kinds of the layers.
func (p *params) layers(h *core.Hyper) {
	p.blocks = p.int("block_count", 1, maxLayers)
	h.DraftLayers = p.intOr("nextn_predict_layers", 0, 0, maxLayers)
	if h.DraftLayers > 1 {
		p.wrong("nextn_predict_layers", "is %d; models with more than one MTP block are not supported", h.DraftLayers)
		h.DraftLayers = 1
	}
	h.Layers = p.blocks - h.DraftLayers
	if h.Layers < 1 {
		p.wrong("block_count", "is %d, of which %d are MTP blocks; no layer remains", p.blocks, h.DraftLayers)
		h.Layers = 1
	}
	// Converters that leave the block out keep the key.
	if find(p.tensors, fmt.Sprintf("blk.%d.nextn.eh_proj.weight", h.Layers)) == nil {
		h.DraftLayers = 0
	}
	h.Kinds = make([]core.LayerKind, h.Layers)
}

// embedding reads the sizes of the residual and of the vocabulary.
func (p *params) embedding(h *core.Hyper) {
	h.Context = p.int("context_length", 1, maxContext)
	h.Width = p.int("embedding_length", 1, maxWidth)
	h.NormEps = float32(p.float("attention.layer_norm_rms_epsilon", 1e-30, 1))
	const embedding, tokens = "token_embd.weight", "tokenizer.ggml.tokens"
	t := find(p.tensors, embedding)
	switch {
	case t == nil && h.DraftLayers > 0:
		p.keep(invalid(p.metadata.path, "it has no tensor %q: it is the MTP sidecar of a model; give the model's own file and this one as its draft", embedding))
	case t == nil:
		p.keep(invalid(p.metadata.path, "it has no tensor %q; it is not a whole model, use another file", embedding))
	case len(t.Dims) != 2 || t.Dims[1] > maxVocab:
		p.keep(invalid(p.metadata.path, "tensor %q has dimensions %d; two are possible, the second up to %d", embedding, t.Dims, maxVocab))
	default:
		h.Vocab = int(t.Dims[1])
	}
	if p.err == nil && p.metadata.Has(tokens) {
		names, err := p.metadata.Strings(tokens)
		p.keep(err)
		if len(names) > h.Vocab {
			p.keep(p.metadata.wrong(tokens, "has %d tokens, but tensor %q has %d rows", len(names), embedding, h.Vocab))
		}
	}
}

// attention reads heads and rotary embedding.
func (p *params) attention(h *core.Hyper) {
	h.Heads = p.int("attention.head_count", 1, maxHeads)
	h.KVHeads = p.int("attention.head_count_kv", 1, maxHeads)
	if h.Heads%h.KVHeads != 0 {
		p.wrong("attention.head_count", "is %d, which is no multiple of the %d key/value heads", h.Heads, h.KVHeads)
	}
	if p.has("attention.key_length") {
		h.HeadDim = p.int("attention.key_length", 1, maxHeadDim)
	} else if h.HeadDim = h.Width / h.Heads; h.Width%h.Heads != 0 {
		p.wrong("embedding_length", "is %d, which is no multiple of the %d heads, and there is no attention.key_length", h.Width, h.Heads)
	}
	h.ValueDim = p.intOr("attention.value_length", h.HeadDim, 1, maxHeadDim)
	h.RopeDim = p.intOr("rope.dimension_count", h.HeadDim, 2, maxHeadDim)
	if h.RopeDim%2 != 0 || h.RopeDim > h.HeadDim {
		p.wrong("rope.dimension_count", "is %d; it must be even and at most %d, the length of a head", h.RopeDim, h.HeadDim)
	}
	h.RopeBase = p.float("rope.freq_base", 1, 1e12)
	if p.has("rope.dimension_sections") {
		const most = 4
		sections := p.ints("rope.dimension_sections", 0, maxHeadDim)
		if len(sections) > most {
			p.wrong("rope.dimension_sections", "has %d values; %d are possible", len(sections), most)
		}
		for _, s := range sections {
			h.RopeSections = append(h.RopeSections, int(s))
		}
	}
	if p.has("rope.scaling.type") {
		scaling, err := p.metadata.String(p.prefix + "rope.scaling.type")
		p.keep(err)
		if scaling != "none" {
			p.keep(invalid(p.metadata.path, "it uses rope scaling %q, which is not supported; use a file without it", scaling))
		}
	}
}

// experts reads the sizes of the MoE.
func (p *params) experts(h *core.Hyper, shared bool) {
	h.Experts = p.int("expert_count", 1, maxExperts)
	h.ExpertsUsed = p.int("expert_used_count", 1, maxExperts)
	if h.ExpertsUsed > h.Experts {
		p.wrong("expert_used_count", "is %d, but there are %d experts", h.ExpertsUsed, h.Experts)
	}
	h.ExpertWidth = p.int("expert_feed_forward_length", 1, maxWidth)
	if shared {
		h.SharedExpertWidth = p.int("expert_shared_feed_forward_length", 1, maxWidth)
	}
}

// deltaNet reads which layers are gated DeltaNets, and their sizes.
func (p *params) deltaNet(h *core.Hyper) {
	switch {
	case p.has("attention.recurrent_layers"):
		for i, recurrent := range p.perBlock("attention.recurrent_layers", h.Layers) {
			if recurrent != 0 {
				h.Kinds[i] = core.LayerDeltaNet
			}
		}
	case p.has("full_attention_interval"):
		interval := p.int("full_attention_interval", 1, maxLayers)
		for i := range h.Kinds {
			if (i+1)%interval != 0 {
				h.Kinds[i] = core.LayerDeltaNet
			}
		}
	default: // early files have neither key; the tensors tell
		for i := range h.Kinds {
			if find(p.tensors, fmt.Sprintf("blk.%d.ssm_a", i)) != nil {
				h.Kinds[i] = core.LayerDeltaNet
			}
		}
	}
	h.ConvKernel = p.int("ssm.conv_kernel", 2, maxKernel)
	h.StateDim = p.int("ssm.state_size", 1, maxHeadDim)
	h.KeyHeads = p.int("ssm.group_count", 1, maxHeads)
	h.ValueHeads = p.int("ssm.time_step_rank", 1, maxHeads)
	h.InnerWidth = p.int("ssm.inner_size", 1, maxHeads*maxHeadDim)
	if h.ValueHeads%h.KeyHeads != 0 {
		p.wrong("ssm.time_step_rank", "is %d value heads, which is no multiple of the %d key heads", h.ValueHeads, h.KeyHeads)
	}
	if h.InnerWidth != h.ValueHeads*h.StateDim {
		p.wrong("ssm.inner_size", "is %d; it must be %d value heads of length %d", h.InnerWidth, h.ValueHeads, h.StateDim)
	}
}

// streams reads the hyper-connections.
func (p *params) streams(h *core.Hyper) {
	const maxStreams = 16
	h.Streams = p.int("hyper_connection.count", 1, maxStreams)
	h.StreamRank = p.int("hyper_connection.low_rank", 1, maxWidth)
}

// sparseAttention reads which attention layers select their tokens (QSA), and
// the sizes of their indexers.
func (p *params) sparseAttention(h *core.Hyper) {
	const key = "attention.compress_ratios"
	for i, ratio := range p.perBlock(key, h.Layers) {
		switch {
		case ratio == 0:
		case h.Kinds[i] == core.LayerDeltaNet:
			p.wrong(key, "is %d for layer %d, which has no attention", ratio, i)
		case ratio < 1 || ratio > maxContext:
			p.wrong(key, "is %d for layer %d; 0 to %d are possible", ratio, i, maxContext)
		case h.IndexRatio != 0 && int(ratio) != h.IndexRatio:
			p.wrong(key, "differs between layers (%d and %d), which is not supported", h.IndexRatio, ratio)
		default:
			h.IndexRatio = int(ratio)
			h.Kinds[i] = core.LayerSparseAttention
		}
	}
	h.IndexHeads = p.int("attention.indexer.head_count", 1, maxHeads)
	h.IndexDim = p.int("attention.indexer.key_length", 1, maxHeadDim)
	h.IndexBudget = p.int("attention.indexer.top_k", 1, maxContext)
	if h.IndexDim < h.RopeDim {
		p.wrong("attention.indexer.key_length", "is %d, less than the %d rotated dimensions", h.IndexDim, h.RopeDim)
	}
	if h.IndexRatio != 0 && h.IndexBudget%h.IndexRatio != 0 {
		p.wrong("attention.indexer.top_k", "is %d tokens, which is no multiple of the %d in a block", h.IndexBudget, h.IndexRatio)
	}
}

// ngrams reads the constants of the n-gram embedding, if the model has one.
func (p *params) ngrams(h *core.Hyper) {
	if !p.has("ple.layers") {
		return
	}
	layers := p.ints("ple.layers", 0, int64(h.Layers-1))
	if len(layers) == 0 {
		return
	}
	// Hash constants are stored once; how several layers would share them is
	// defined nowhere.
	if len(layers) > 1 {
		p.wrong("ple.layers", "names %d layers; models with more than one n-gram layer are not supported", len(layers))
	}
	const maxNGram, maxHashes = 8, 64
	e := &core.PLE{
		Layers:        []int{int(layers[0])},
		NGram:         p.int("ple.ngram_size", 2, maxNGram),
		HeadsPerNGram: p.int("ple.heads_per_ngram", 1, maxHashes),
		ConvKernel:    p.int("ple.conv_kernel", 1, maxKernel),
		RowWidth:      p.int("embedding_length_per_layer_input", 1, maxWidth),
		ResetToken:    p.int("ple.eos_token_id", 0, int64(h.Vocab-1)),
		// A multiplier times a token id stays below 2^63, so that signed and
		// unsigned remainders agree and no row index is negative.
		Multipliers: p.ints("ple.layer_multipliers", 0, math.MaxInt64/int64(max(h.Vocab, 1))),
		Offsets:     p.ints("ple.head_offsets", 0, math.MaxInt64),
		Sizes:       p.ints("ple.head_vocab_sizes", 1, math.MaxInt64),
	}
	if p.err != nil {
		return
	}
	if len(e.Multipliers) != e.NGram {
		p.wrong("ple.layer_multipliers", "has %d values; %d-grams need %d", len(e.Multipliers), e.NGram, e.NGram)
	}
	heads := (e.NGram - 1) * e.HeadsPerNGram
	if len(e.Offsets) != heads || len(e.Sizes) != heads {
		p.wrong("ple.head_offsets", "has %d values and ple.head_vocab_sizes %d; both must have %d, one for each hash head", len(e.Offsets), len(e.Sizes), heads)
		return
	}
	const name = "per_layer_token_embd.weight"
	table := find(p.tensors, name)
	if table == nil || len(table.Dims) != 2 {
		p.keep(invalid(p.metadata.path, "it has no table %q for its n-gram embedding; it is not a whole model, use another file", name))
		return
	}
	rows := table.Dims[1]
	for i, size := range e.Sizes {
		if offset := e.Offsets[i]; offset > rows || size > rows-offset {
			p.wrong("ple.head_offsets", "puts the %d rows of hash head %d at row %d, beyond the %d rows of tensor %q", size, i, offset, rows, name)
			return
		}
	}
	h.PLE = e
}
