package remote

import (
	"github.com/strata-engine/strata/core"
	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
)

// ModelSpec converts the host's description of a model to the wire form that
// LoadStage carries. The slices of dimensions and hash constants are shared, not
// copied; both forms are immutable.
func ModelSpec(m *core.ModelSpec) *pb.ModelSpec {
	out := &pb.ModelSpec{
		Architecture: m.Architecture,
		Name:         m.Name,
		Hash:         m.Hash,
		Hyper:        hyper(&m.Hyper),
		Tensors:      make([]*pb.Tensor, len(m.Tensors)),
		Shards:       make([]*pb.Shard, len(m.Shards)),
	}
	for i := range m.Tensors {
		t := &m.Tensors[i]
		out.Tensors[i] = &pb.Tensor{
			Name:   t.Name,
			Type:   t.Type,
			Dims:   t.Dims,
			Shard:  int32(t.Shard),
			Offset: t.Offset,
			Bytes:  t.Bytes,
		}
	}
	for i := range m.Shards {
		s := &m.Shards[i]
		out.Shards[i] = &pb.Shard{Path: s.Path, Size: s.Size, ModTime: s.ModTime, Inode: s.Inode}
	}
	return out
}

func hyper(h *core.Hyper) *pb.Hyper {
	out := &pb.Hyper{
		Layers:            int32(h.Layers),
		DraftLayers:       int32(h.DraftLayers),
		Context:           int32(h.Context),
		Width:             int32(h.Width),
		Vocab:             int32(h.Vocab),
		NormEps:           h.NormEps,
		Heads:             int32(h.Heads),
		KvHeads:           int32(h.KVHeads),
		HeadDim:           int32(h.HeadDim),
		ValueDim:          int32(h.ValueDim),
		RopeDim:           int32(h.RopeDim),
		RopeBase:          h.RopeBase,
		RopeSections:      int32s(h.RopeSections),
		Experts:           int32(h.Experts),
		ExpertsUsed:       int32(h.ExpertsUsed),
		ExpertWidth:       int32(h.ExpertWidth),
		SharedExpertWidth: int32(h.SharedExpertWidth),
		KeyHeads:          int32(h.KeyHeads),
		ValueHeads:        int32(h.ValueHeads),
		StateDim:          int32(h.StateDim),
		ConvKernel:        int32(h.ConvKernel),
		InnerWidth:        int32(h.InnerWidth),
		Streams:           int32(h.Streams),
		StreamRank:        int32(h.StreamRank),
		IndexHeads:        int32(h.IndexHeads),
		IndexDim:          int32(h.IndexDim),
		IndexBudget:       int32(h.IndexBudget),
		IndexRatio:        int32(h.IndexRatio),
	}
	for _, k := range h.Kinds {
		out.Kinds = append(out.Kinds, pb.LayerKind(k))
	}
	if p := h.PLE; p != nil {
		out.Ple = &pb.PLE{
			Layers:        int32s(p.Layers),
			Ngram:         int32(p.NGram),
			HeadsPerNgram: int32(p.HeadsPerNGram),
			ConvKernel:    int32(p.ConvKernel),
			RowWidth:      int32(p.RowWidth),
			ResetToken:    int32(p.ResetToken),
			Multipliers:   p.Multipliers,
			Offsets:       p.Offsets,
			Sizes:         p.Sizes,
		}
	}
	return out
}

func int32s(v []int) []int32 {
	if v == nil {
		return nil
	}
	out := make([]int32, len(v))
	for i, x := range v {
		out[i] = int32(x)
	}
	return out
}
