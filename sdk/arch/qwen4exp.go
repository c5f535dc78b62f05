package arch

import (
	"errors"
	"fmt"
	"math"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/ops"
)

// qwen4exp is Qwen3.8-Flash-Next: a wide residual of several streams with
// hyper-connections instead of norms, gated DeltaNet layers with a sigmoid gate,
// sparse attention in between, an n-gram embedding, and an MTP block.
var qwen4exp = architecture{
	hyper: func(h *pb.Hyper) error {
		if err := allPositive(
			positive{"the number of residual streams", h.GetStreams()},
			positive{"the rank of the hyper-connections", h.GetStreamRank()},
		); err != nil {
			return err
		}
		if int64(h.GetStreams())*int64(h.GetWidth()) > 1<<29 {
			return fmt.Errorf("%d residual streams of %d are too wide", h.GetStreams(), h.GetWidth())
		}
		return checkPLE(h)
	},
	embed: func(b *builder) *ops.Embed { return b.embed(int(b.h.GetStreams())) },
	head: func(b *builder) *ops.Head {
		return &ops.Head{
			Layer:  b.layers(),
			Width:  int(b.h.GetWidth()),
			Vocab:  int(b.h.GetVocab()),
			Mix:    b.hyperMix(b.layers(), "output_hc_", false),
			Output: b.output(),
		}
	},
	layer: func(b *builder, i int) *layer {
		l := &layer{index: i, mixer: b.wide(i, "hc_attn_"), experts: b.wide(i, "hc_ffn_")}
		for _, p := range b.h.GetPle().GetLayers() {
			if int(p) == i {
				l.ple, l.pleTaps = b.ple(i), int(b.h.GetPle().GetConvKernel())
			}
		}
		if b.isAttention(i) {
			l.mixer.attention = b.attention(i, true)
			if b.h.GetKinds()[i] == pb.LayerKind_LAYER_KIND_SPARSE_ATTENTION {
				l.mixer.attention.Index = b.index(i)
			}
		} else {
			l.mixer.delta = b.deltaNet(i, ops.GateSigmoid, false)
			b.splitProjections(l.mixer.delta)
			b.splitBetaAlpha(l.mixer.delta)
		}
		l.experts.moe = b.moe(i)
		return l
	},
	draft: func(b *builder) *draftBlock {
		i, width, streams := b.layers(), int(b.h.GetWidth()), int(b.h.GetStreams())
		l := &layer{index: i, mixer: b.wide(i, "hc_attn_"), experts: b.wide(i, "hc_ffn_")}
		l.mixer.attention = b.attention(i, true)
		if b.h.GetKinds()[i] == pb.LayerKind_LAYER_KIND_SPARSE_ATTENTION {
			l.mixer.attention.Index = b.index(i)
		} else {
			// The indexer is in the files even where the block's attention is dense.
			b.ignore(block(i, "indexer.q_proj.weight"), block(i, "indexer.k_proj.weight"), block(i, "indexer.q_norm.weight"), block(i, "indexer.k_norm.weight"))
		}
		l.experts.moe = b.moe(i)
		return &draftBlock{
			layer: l,
			join: &ops.Draft{
				Layer: i, Streams: streams, Width: width, Eps: b.h.GetNormEps(),
				Table:      b.embed(streams).Table,
				EmbedNorm:  b.weight(block(i, "nextn.enorm.weight"), width),
				HiddenNorm: b.weight(block(i, "nextn.hnorm.weight"), streams*width),
				Join:       b.weight(block(i, "nextn.eh_proj.weight"), 2*width, width),
			},
			hidden: &ops.Hidden{Layer: i, Width: streams * width},
			head: &ops.Head{
				Layer: i, Width: width, Vocab: int(b.h.GetVocab()),
				Mix:    b.hyperMix(i, block(i, "nextn.hc_head_"), false),
				Output: b.output(),
			},
		}
	},
}

// wide makes a half around the wide residual.
func (b *builder) wide(i int, prefix string) half {
	return half{
		mix:    b.hyperMix(i, block(i, prefix), true),
		inject: &ops.HyperInject{Layer: i, Streams: int(b.h.GetStreams()), Width: int(b.h.GetWidth())},
	}
}

// hyperMix walks a mixer of the wide residual.
func (b *builder) hyperMix(i int, prefix string, inject bool) *ops.HyperMix {
	width, streams, rank := int(b.h.GetWidth()), int(b.h.GetStreams()), int(b.h.GetStreamRank())
	m := &ops.HyperMix{
		Layer: i, Streams: streams, Width: width, Rank: rank, Eps: b.h.GetNormEps(),
		Norm: b.weight(prefix+"norm.weight", streams*width),
		Down: b.weight(prefix+"down.weight", streams*width, rank),
		Up:   b.weight(prefix+"up.weight", rank, streams*width),
	}
	if inject {
		m.Inject = b.weight(prefix+"inject.weight", streams*width, streams)
	}
	return m
}

// index walks a QSA indexer.
func (b *builder) index(i int) *ops.Index {
	h := b.h
	width, dim := int(h.GetWidth()), int(h.GetIndexDim())
	return &ops.Index{
		Heads: int(h.GetIndexHeads()), Dim: dim, Budget: int(h.GetIndexBudget()), Ratio: int(h.GetIndexRatio()),
		Q:     b.weight(block(i, "indexer.q_proj.weight"), width, int(h.GetIndexHeads())*dim),
		K:     b.weight(block(i, "indexer.k_proj.weight"), width, dim),
		QNorm: b.weight(block(i, "indexer.q_norm.weight"), dim),
		KNorm: b.weight(block(i, "indexer.k_norm.weight"), dim),
	}
}

// ple walks an n-gram layer.
func (b *builder) ple(i int) *ops.PLE {
	p := b.h.GetPle()
	width, streams, row := int(b.h.GetWidth()), int(b.h.GetStreams()), int(p.GetRowWidth())
	heads := len(p.GetSizes())
	return &ops.PLE{
		Layer: i, Streams: streams, Width: width, RowWidth: row,
		NGram: int(p.GetNgram()), HeadsPerNGram: int(p.GetHeadsPerNgram()), Reset: p.GetResetToken(),
		Multipliers: p.GetMultipliers(), Offsets: p.GetOffsets(), Sizes: p.GetSizes(),
		Eps:       b.h.GetNormEps(),
		Table:     b.rows("per_layer_token_embd.weight", row, pleRows(p)),
		Key:       b.weight(block(i, "ple_key.weight"), heads*row, streams*width),
		Value:     b.weight(block(i, "ple_value.weight"), heads*row, width),
		NormKey:   b.weight(block(i, "ple_norm_key.weight"), streams*width),
		NormQuery: b.weight(block(i, "ple_norm_query.weight"), streams*width),
		NormConv:  b.weight(block(i, "ple_norm_conv.weight"), streams*width),
		Conv:      b.weight(block(i, "ple_conv1d.weight"), int(p.GetConvKernel()), streams*width),
	}
}

// pleRows is the number of table rows that the hash heads reach.
func pleRows(p *pb.PLE) int64 {
	var rows int64
	for h, size := range p.GetSizes() {
		rows = max(rows, p.GetOffsets()[h]+size)
	}
	return rows
}

// checkPLE checks the constants of the n-gram embedding.
func checkPLE(h *pb.Hyper) error {
	p := h.GetPle()
	if p == nil {
		return nil
	}
	if err := allPositive(
		positive{"the n-gram convolution's kernel", p.GetConvKernel()},
		positive{"the length of an n-gram row", p.GetRowWidth()},
		positive{"the number of hash heads per n-gram", p.GetHeadsPerNgram()},
	); err != nil {
		return err
	}
	if p.GetNgram() < 2 || p.GetNgram() > 16 {
		return fmt.Errorf("n-grams of up to %d tokens; 2 to 16 are supported", p.GetNgram())
	}
	heads := int64(p.GetNgram()-1) * int64(p.GetHeadsPerNgram())
	switch {
	case len(p.GetLayers()) != 1:
		// One set of hash constants serves one layer.
		return fmt.Errorf("%d n-gram layers; 1 is supported", len(p.GetLayers()))
	case p.GetLayers()[0] < 0 || p.GetLayers()[0] >= h.GetLayers():
		return fmt.Errorf("n-gram layer %d of %d layers", p.GetLayers()[0], h.GetLayers())
	case p.GetResetToken() < 0:
		return fmt.Errorf("the n-gram reset token is %d", p.GetResetToken())
	case len(p.GetMultipliers()) != int(p.GetNgram()):
		return fmt.Errorf("%d hash multipliers for n-grams of up to %d tokens", len(p.GetMultipliers()), p.GetNgram())
	case int64(len(p.GetOffsets())) != heads || int64(len(p.GetSizes())) != heads:
		return fmt.Errorf("%d hash offsets and %d sizes for %d hash heads", len(p.GetOffsets()), len(p.GetSizes()), heads)
	case heads*int64(p.GetRowWidth()) > 1<<29 || int64(p.GetConvKernel())*int64(p.GetNgram())*int64(h.GetStreams())*int64(h.GetWidth()) > 1<<33:
		return errors.New("the n-gram embedding is too wide")
	}
	for i, size := range p.GetSizes() {
		if offset := p.GetOffsets()[i]; size < 1 || offset < 0 || offset > math.MaxInt64-size {
			return fmt.Errorf("hash head %d has %d rows at %d", i, size, offset)
		}
	}
	return nil
}
