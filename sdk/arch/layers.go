package arch

import (
	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/ops"
)

// layer is one layer's operations: for each of its two halves, read the
// residual, run the mixer or the experts, and write to the residual.
type layer struct {
	index int
	// ple comes before everything else, where the layer has one.
	ple *ops.PLE
	// pleTaps are the taps of its convolution.
	pleTaps        int
	mixer, experts half
}

// half reads the residual by mix or norm, runs one of the three operations, and
// writes by inject or add.
type half struct {
	mix    *ops.HyperMix
	inject *ops.HyperInject
	norm   *ops.Norm
	add    *ops.Add

	delta     *ops.DeltaNet
	attention *ops.Attention
	moe       *ops.MoE
}

// plain makes a half around a single residual.
func (b *builder) plain(i int, norm string) half {
	width := int(b.h.GetWidth())
	return half{
		norm: &ops.Norm{Layer: i, Width: width, Eps: b.h.GetNormEps(), Weight: b.weight(block(i, norm+".weight"), width)},
		add:  &ops.Add{Layer: i, Width: width},
	}
}

// embed walks the token embedding.
func (b *builder) embed(streams int) *ops.Embed {
	return &ops.Embed{
		Table:   b.weight("token_embd.weight", int(b.h.GetWidth()), int(b.h.GetVocab())),
		Streams: streams,
		Width:   int(b.h.GetWidth()),
	}
}

// normHead walks a head behind a plain norm.
func (b *builder) normHead() *ops.Head {
	width, layers := int(b.h.GetWidth()), b.layers()
	return &ops.Head{
		Layer:  layers,
		Width:  width,
		Vocab:  int(b.h.GetVocab()),
		Norm:   &ops.Norm{Layer: layers, Width: width, Eps: b.h.GetNormEps(), Weight: b.weight("output_norm.weight", width)},
		Output: b.output(),
	}
}

// output walks the output matrix. No supported architecture ties it to the
// embedding.
func (b *builder) output() ops.Weight {
	return b.weight("output.weight", int(b.h.GetWidth()), int(b.h.GetVocab()))
}

// attention walks dense attention.
func (b *builder) attention(i int, gated bool) *ops.Attention {
	h := b.h
	width, heads, kvHeads, dim, value := int(h.GetWidth()), int(h.GetHeads()), int(h.GetKvHeads()), int(h.GetHeadDim()), int(h.GetValueDim())
	query := heads * dim
	if gated {
		query += heads * value
	}
	return &ops.Attention{
		Layer: i, Width: width,
		Heads: heads, KVHeads: kvHeads, HeadDim: dim, ValueDim: value,
		RopeDim: int(h.GetRopeDim()), RopeBase: h.GetRopeBase(),
		Eps: h.GetNormEps(), Gated: gated,
		Q:     b.weight(block(i, "attn_q.weight"), width, query),
		K:     b.weight(block(i, "attn_k.weight"), width, kvHeads*dim),
		V:     b.weight(block(i, "attn_v.weight"), width, kvHeads*value),
		Out:   b.weight(block(i, "attn_output.weight"), heads*value, width),
		QNorm: b.weight(block(i, "attn_q_norm.weight"), dim),
		KNorm: b.weight(block(i, "attn_k_norm.weight"), dim),
	}
}

// deltaNet walks a gated DeltaNet but for its input projections.
func (b *builder) deltaNet(i int, gate ops.GateKind, grouped bool) *ops.DeltaNet {
	h := b.h
	values, taps := int(h.GetValueHeads()), int(h.GetConvKernel())
	return &ops.DeltaNet{
		Layer: i, Width: int(h.GetWidth()),
		KeyHeads: int(h.GetKeyHeads()), ValueHeads: values, KeyDim: int(h.GetStateDim()), ValueDim: int(h.GetInnerWidth()) / values, Taps: taps,
		Grouped: grouped, GateKind: gate, Eps: h.GetNormEps(),
		Conv:   b.weight(block(i, "ssm_conv1d.weight"), taps, b.channels()),
		DtBias: b.weight(block(i, "ssm_dt.bias"), values),
		A:      b.weight(block(i, "ssm_a"), values),
		Norm:   b.weight(block(i, "ssm_norm.weight"), int(h.GetInnerWidth())/values),
		Out:    b.weight(block(i, "ssm_out.weight"), int(h.GetInnerWidth()), int(h.GetWidth())),
	}
}

// channels are those of a DeltaNet's convolution: q, k and v.
func (b *builder) channels() int {
	return 2*int(b.h.GetKeyHeads())*int(b.h.GetStateDim()) + int(b.h.GetInnerWidth())
}

// splitProjections walks the input projections as they lie in most files.
func (b *builder) splitProjections(d *ops.DeltaNet) {
	d.QKV = b.weight(block(d.Layer, "attn_qkv.weight"), d.Width, b.channels())
	d.Gate = b.weight(block(d.Layer, "attn_gate.weight"), d.Width, int(b.h.GetInnerWidth()))
}

// splitBetaAlpha walks β and α as two tensors.
func (b *builder) splitBetaAlpha(d *ops.DeltaNet) {
	d.Beta = b.weight(block(d.Layer, "ssm_beta.weight"), d.Width, d.ValueHeads)
	d.Alpha = b.weight(block(d.Layer, "ssm_alpha.weight"), d.Width, d.ValueHeads)
}

// moe walks router, routed experts and, where the model has one, the shared
// expert. Gate and up may be one tensor, and every projection may have a factor
// per expert (NVFP4 files).
func (b *builder) moe(i int) *ops.MoE {
	h := b.h
	width, n, f := int(h.GetWidth()), int(h.GetExperts()), int(h.GetExpertWidth())
	m := &ops.MoE{
		Layer: i, Width: width, Experts: n, Used: int(h.GetExpertsUsed()), ExpertWidth: f,
		SharedWidth: int(h.GetSharedExpertWidth()),
		Router:      b.weight(block(i, "ffn_gate_inp.weight"), width, n),
		Down:        b.weight(block(i, "ffn_down_exps.weight"), f, width, n),
		DownScale:   b.optional(block(i, "ffn_down_exps.scale"), n),
	}
	if b.has(block(i, "ffn_gate_up_exps.weight")) {
		m.GateUp = b.weight(block(i, "ffn_gate_up_exps.weight"), width, 2*f, n)
		m.GateScale = b.optional(block(i, "ffn_gate_up_exps.scale"), n)
		m.UpScale = m.GateScale
	} else {
		m.Gate = b.weight(block(i, "ffn_gate_exps.weight"), width, f, n)
		m.Up = b.weight(block(i, "ffn_up_exps.weight"), width, f, n)
		m.GateScale = b.optional(block(i, "ffn_gate_exps.scale"), n)
		m.UpScale = b.optional(block(i, "ffn_up_exps.scale"), n)
	}
	if s := m.SharedWidth; s > 0 {
		m.SharedGate = b.weight(block(i, "ffn_gate_inp_shexp.weight"), width)
		m.SharedGateProj = b.weight(block(i, "ffn_gate_shexp.weight"), width, s)
		m.SharedUp = b.weight(block(i, "ffn_up_shexp.weight"), width, s)
		m.SharedDown = b.weight(block(i, "ffn_down_shexp.weight"), s, width)
	}
	return m
}

// state lists what a layer keeps.
func (l *layer) state() []ops.LayerState {
	var out []ops.LayerState
	if p := l.ple; p != nil {
		out = append(out, ops.LayerState{Layer: l.index, PLE: &ops.PLEState{
			Taps:     (l.pleTaps - 1) * p.NGram,
			Channels: p.Streams * p.Width,
			Tokens:   p.NGram - 1,
		}})
	}
	switch m := &l.mixer; {
	case m.attention != nil:
		a := m.attention
		s := &ops.KVState{Heads: a.KVHeads, KeyDim: a.HeadDim, ValueDim: a.ValueDim}
		if a.Index != nil {
			s.IndexDim, s.IndexRatio = a.Index.Dim, a.Index.Ratio
		}
		out = append(out, ops.LayerState{Layer: l.index, KV: s})
	case m.delta != nil:
		d := m.delta
		out = append(out, ops.LayerState{Layer: l.index, Delta: &ops.DeltaState{
			Heads: d.ValueHeads, KeyDim: d.KeyDim, ValueDim: d.ValueDim,
			Taps:     d.Taps - 1,
			Channels: 2*d.KeyHeads*d.KeyDim + d.ValueHeads*d.ValueDim,
		}})
	}
	return out
}

// isAttention reports whether a layer's mixer is attention of any kind.
func (b *builder) isAttention(i int) bool {
	return b.h.GetKinds()[i] != pb.LayerKind_LAYER_KIND_DELTANET
}
