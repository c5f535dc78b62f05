package arch

import (
	"github.com/strata-engine/strata/sdk/ops"
)

// qwen35moe is Qwen3.5-MoE and Qwen3.6-MoE: a plain residual, gated DeltaNet
// layers with a SiLU gate and dense gated attention in between.
//
// Its MTP block reads the trunk's output behind the final norm, which no
// operation hands on. The block's tensors are accepted and left alone; a stage
// with Draft is refused.
var qwen35moe = architecture{
	hyper: noSparse,
	embed: func(b *builder) *ops.Embed { return b.embed(1) },
	head:  (*builder).normHead,
	layer: func(b *builder, i int) *layer {
		l := &layer{index: i, mixer: b.plain(i, "attn_norm"), experts: b.plain(i, "post_attention_norm")}
		if b.isAttention(i) {
			l.mixer.attention = b.attention(i, true)
		} else {
			l.mixer.delta = b.deltaNet(i, ops.GateSiLU, false)
			b.splitProjections(l.mixer.delta)
			b.splitBetaAlpha(l.mixer.delta)
		}
		l.experts.moe = b.moe(i)
		return l
	},
}
