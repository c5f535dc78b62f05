package arch

import (
	"errors"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/ops"
)

// qwen3moe is Qwen3-MoE: a plain residual and dense attention without a gate in
// every layer, no shared expert.
var qwen3moe = architecture{
	hyper: func(h *pb.Hyper) error {
		for _, k := range h.GetKinds() {
			if k != pb.LayerKind_LAYER_KIND_ATTENTION {
				return errors.New("every layer is dense attention")
			}
		}
		if h.GetSharedExpertWidth() > 0 {
			return errors.New("there is no shared expert")
		}
		return nil
	},
	embed: func(b *builder) *ops.Embed { return b.embed(1) },
	head:  (*builder).normHead,
	layer: func(b *builder, i int) *layer {
		l := &layer{index: i, mixer: b.plain(i, "attn_norm"), experts: b.plain(i, "ffn_norm")}
		l.mixer.attention = b.attention(i, false)
		l.experts.moe = b.moe(i)
		return l
	},
}

// noSparse refuses sparse attention for architectures without an indexer.
func noSparse(h *pb.Hyper) error {
	for _, k := range h.GetKinds() {
		if k == pb.LayerKind_LAYER_KIND_SPARSE_ATTENTION {
			return errors.New("there is no sparse attention")
		}
	}
	return nil
}
