package arch_test

import (
	"strings"
	"testing"

	"github.com/strata-engine/strata/sdk/arch"
	"github.com/strata-engine/strata/sdk/arch/archtest"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
)

func TestCheckAcceptsCompleteModels(t *testing.T) {
	for _, name := range arch.Supported() {
		t.Run(name, func(t *testing.T) {
			if err := arch.Check(archtest.New(name).Write(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCheckAcceptsVariants(t *testing.T) {
	tests := []struct {
		name, architecture string
		change             func(m *archtest.Model)
	}{
		{"fused gate and up experts", "qwen4exp", fuseExperts},
		{"factors of experts", "qwen4exp", func(m *archtest.Model) {
			for _, name := range []string{"gate", "up", "down"} {
				m.Tensors["blk.0.ffn_"+name+"_exps.scale"] = &archtest.Tensor{Dims: []int64{6}, Values: make([]float32, 6)}
			}
		}},
		{"no indexer in the MTP block", "qwen4exp", func(m *archtest.Model) {
			for _, name := range []string{"q_proj", "k_proj", "q_norm", "k_norm"} {
				delete(m.Tensors, "blk.4.indexer."+name+".weight")
			}
		}},
		{"no MTP block", "qwen4exp", dropDraft},
		{"no n-gram layer", "qwen4exp", func(m *archtest.Model) {
			m.Hyper.Ple = nil
			for name := range m.Tensors {
				if strings.Contains(name, "ple_") || strings.HasPrefix(name, "per_layer") {
					delete(m.Tensors, name)
				}
			}
		}},
		{"shared expert's gate as a matrix", "qwen35moe", func(m *archtest.Model) {
			m.Tensors["blk.0.ffn_gate_inp_shexp.weight"].Dims = []int64{16, 1}
		}},
		{"MTP block that is left alone", "qwen35moe", func(m *archtest.Model) {
			m.Hyper.DraftLayers, m.Hyper.Kinds = 1, append(m.Hyper.Kinds, pb.LayerKind_LAYER_KIND_ATTENTION)
			m.Tensors["blk.4.nextn.eh_proj.weight"] = &archtest.Tensor{Dims: []int64{32, 16}, Values: make([]float32, 512)}
		}},
		{"fused input projections", "qwen3next", fuseProjections},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := archtest.New(tt.architecture)
			tt.change(m)
			if err := arch.Check(m.Write(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// dropDraft removes the MTP block.
func dropDraft(m *archtest.Model) {
	m.Hyper.DraftLayers, m.Hyper.Kinds = 0, m.Hyper.Kinds[:4]
	for name := range m.Tensors {
		if strings.HasPrefix(name, "blk.4.") {
			delete(m.Tensors, name)
		}
	}
}

// fuseExperts makes one tensor of the gate and up projections of all experts.
func fuseExperts(m *archtest.Model) {
	for i := range m.Hyper.Kinds {
		gate, up := m.Tensors[name(i, "ffn_gate_exps.weight")], m.Tensors[name(i, "ffn_up_exps.weight")]
		fused := &archtest.Tensor{Dims: []int64{16, 16, 6}}
		for e := range 6 {
			fused.Values = append(fused.Values, gate.Values[e*128:(e+1)*128]...)
			fused.Values = append(fused.Values, up.Values[e*128:(e+1)*128]...)
		}
		m.Tensors[name(i, "ffn_gate_up_exps.weight")] = fused
		delete(m.Tensors, name(i, "ffn_gate_exps.weight"))
		delete(m.Tensors, name(i, "ffn_up_exps.weight"))
	}
}

// fuseProjections makes one tensor of the input projections of DeltaNet layers:
// for each of the 2 key heads q (4 rows), k (4), v (12), z (12).
func fuseProjections(m *archtest.Model) {
	for i := range 3 {
		qkv, z := m.Tensors[name(i, "attn_qkv.weight")].Values, m.Tensors[name(i, "attn_gate.weight")].Values
		fused := &archtest.Tensor{Dims: []int64{16, 64}}
		for head := range 2 {
			for _, part := range []struct {
				of    []float32
				at, n int
			}{{qkv, head * 4, 4}, {qkv, 8 + head*4, 4}, {qkv, 16 + head*12, 12}, {z, head * 12, 12}} {
				fused.Values = append(fused.Values, part.of[part.at*16:(part.at+part.n)*16]...)
			}
		}
		m.Tensors[name(i, "ssm_in.weight")] = fused
		delete(m.Tensors, name(i, "attn_qkv.weight"))
		delete(m.Tensors, name(i, "attn_gate.weight"))
	}
}

func TestCheckRefuses(t *testing.T) {
	add := func(name string, dims ...int64) func(m *archtest.Model) {
		return func(m *archtest.Model) {
			n := int64(1)
			for _, d := range dims {
				n *= d
			}
			m.Tensors[name] = &archtest.Tensor{Dims: dims, Values: make([]float32, n)}
		}
	}
	hyper := func(change func(h *pb.Hyper)) func(m *archtest.Model) {
		return func(m *archtest.Model) { change(m.Hyper) }
	}
	tests := []struct {
		name, architecture string
		change             func(m *archtest.Model)
		want               string
	}{
		{"architecture", "qwen4exp", func(m *archtest.Model) { m.Architecture = "llama" },
			`check model: architecture "llama" is not supported; supported are qwen35moe, qwen3moe, qwen3next, qwen4exp`},
		{"one missing", "qwen4exp", func(m *archtest.Model) { delete(m.Tensors, "blk.2.ssm_norm.weight") },
			"check model: not a complete qwen4exp model: missing tensors: blk.2.ssm_norm.weight"},
		{"many missing", "qwen3moe", func(m *archtest.Model) {
			for i := range 4 {
				delete(m.Tensors, name(i, "attn_k.weight"))
				delete(m.Tensors, name(i, "attn_v.weight"))
			}
		}, "missing tensors: blk.0.attn_k.weight, blk.0.attn_v.weight, blk.1.attn_k.weight, blk.1.attn_v.weight and 4 more"},
		{"no output matrix", "qwen3moe", func(m *archtest.Model) { delete(m.Tensors, "output.weight") }, "missing tensors: output.weight"},
		{"shape", "qwen35moe", add("blk.3.attn_q.weight", 16, 32), "wrong shapes: blk.3.attn_q.weight is [16 32] and must be [16 64]"},
		{"swapped shape", "qwen35moe", add("output.weight", archtest.Vocab, 16), "wrong shapes: output.weight is [40 16] and must be [16 40]"},
		{"surplus", "qwen3next", add("blk.0.attn_bias", 16), "tensors that do not belong to the architecture: blk.0.attn_bias"},
		{"mistake of a tensor used twice", "qwen4exp", func(m *archtest.Model) {
			add("output.weight", 8, archtest.Vocab)(m)
			add("extra", 1)(m)
		}, "wrong shapes: output.weight is [8 40] and must be [16 40]; tensors that do not belong to the architecture: extra"},
		{"control characters", "qwen3next", add("blk.0\n\x1b[31m", 16), `tensors that do not belong to the architecture: "blk.0\n\x1b[31m"`},
		{"layer too many", "qwen3moe", add("blk.4.attn_norm.weight", 16), "do not belong to the architecture: blk.4.attn_norm.weight"},
		{"split and fused experts", "qwen3moe", add("blk.0.ffn_gate_up_exps.weight", 16, 16, 6),
			"do not belong to the architecture: blk.0.ffn_gate_exps.weight, blk.0.ffn_up_exps.weight"},
		{"everything at once", "qwen3moe", func(m *archtest.Model) {
			delete(m.Tensors, "output.weight")
			add("output_norm.weight", 17)(m)
			add("extra", 1)(m)
		}, "missing tensors: output.weight; wrong shapes: output_norm.weight is [17] and must be [16]; tensors that do not belong to the architecture: extra"},
		{"n-gram table too short", "qwen4exp", add("per_layer_token_embd.weight", 4, 59),
			"per_layer_token_embd.weight is [4 59] and must be [4, 60 or more]"},
		{"n-gram table missing", "qwen4exp", func(m *archtest.Model) { delete(m.Tensors, "per_layer_token_embd.weight") },
			"missing tensors: per_layer_token_embd.weight"},
		{"MTP tensor", "qwen4exp", func(m *archtest.Model) { delete(m.Tensors, "blk.4.nextn.enorm.weight") },
			"missing tensors: blk.4.nextn.enorm.weight"},

		{"no layers", "qwen3moe", hyper(func(h *pb.Hyper) { h.Layers = 0 }), "the number of layers is 0"},
		{"kinds", "qwen3moe", hyper(func(h *pb.Hyper) { h.Kinds = h.Kinds[1:] }), "3 layer kinds for 4 layers"},
		{"unknown kind", "qwen3moe", hyper(func(h *pb.Hyper) { h.Kinds[2] = 9 }), "layer 2: unknown kind 9"},
		{"two MTP blocks", "qwen4exp", hyper(func(h *pb.Hyper) { h.DraftLayers = 2 }), "2 MTP blocks"},
		{"recurrent MTP block", "qwen4exp", hyper(func(h *pb.Hyper) { h.Kinds[4] = h.Kinds[0] }), "an MTP block is an attention layer"},
		{"epsilon", "qwen3moe", hyper(func(h *pb.Hyper) { h.NormEps = 0 }), "epsilon"},
		{"heads", "qwen3moe", hyper(func(h *pb.Hyper) { h.KvHeads = 3 }), "4 attention heads are no multiple of 3 key/value heads"},
		{"odd rotation", "qwen3moe", hyper(func(h *pb.Hyper) { h.RopeDim = 3 }), "3 rotated dimensions"},
		{"wide rotation", "qwen3moe", hyper(func(h *pb.Hyper) { h.RopeDim = 10 }), "10 rotated dimensions of 8"},
		{"rotary base", "qwen3moe", hyper(func(h *pb.Hyper) { h.RopeBase = 0 }), "rotary base"},
		{"experts used", "qwen3moe", hyper(func(h *pb.Hyper) { h.ExpertsUsed = 7 }), "7 of 6 experts used"},
		{"shared expert", "qwen3moe", hyper(func(h *pb.Hyper) { h.SharedExpertWidth = 4 }), "there is no shared expert"},
		{"DeltaNet", "qwen3moe", hyper(func(h *pb.Hyper) { h.Kinds[0] = pb.LayerKind_LAYER_KIND_DELTANET }), "every layer is dense attention"},
		{"sparse", "qwen35moe", hyper(func(h *pb.Hyper) {
			h.Kinds[3], h.IndexHeads, h.IndexDim, h.IndexBudget, h.IndexRatio = pb.LayerKind_LAYER_KIND_SPARSE_ATTENTION, 2, 8, 12, 4
		}), "there is no sparse attention"},
		{"value heads", "qwen35moe", hyper(func(h *pb.Hyper) { h.KeyHeads = 4 }), "6 value heads are no multiple of 4 key heads"},
		{"inner size", "qwen35moe", hyper(func(h *pb.Hyper) { h.InnerWidth = 25 }), "inner size 25 is no multiple of 6"},
		{"kernel", "qwen35moe", hyper(func(h *pb.Hyper) { h.ConvKernel = 0 }), "the convolution's kernel is 0"},
		{"streams", "qwen4exp", hyper(func(h *pb.Hyper) { h.Streams = 0 }), "the number of residual streams is 0"},
		{"budget", "qwen4exp", hyper(func(h *pb.Hyper) { h.IndexBudget = 13 }), "budget of 13 tokens is no multiple of the 4"},
		{"indexer", "qwen4exp", hyper(func(h *pb.Hyper) { h.IndexDim = 2 }), "4 rotated dimensions of an indexer key of 2"},
		{"n-gram length", "qwen4exp", hyper(func(h *pb.Hyper) { h.Ple.Ngram = 1 }), "n-grams of up to 1 tokens"},
		{"n-gram layers", "qwen4exp", hyper(func(h *pb.Hyper) { h.Ple.Layers = []int32{0, 1} }), "2 n-gram layers"},
		{"n-gram layer", "qwen4exp", hyper(func(h *pb.Hyper) { h.Ple.Layers = []int32{4} }), "n-gram layer 4 of 4"},
		{"multipliers", "qwen4exp", hyper(func(h *pb.Hyper) { h.Ple.Multipliers = h.Ple.Multipliers[1:] }), "2 hash multipliers"},
		{"hash heads", "qwen4exp", hyper(func(h *pb.Hyper) { h.Ple.Sizes = h.Ple.Sizes[1:] }), "4 hash offsets and 3 sizes for 4 hash heads"},
		{"hash size", "qwen4exp", hyper(func(h *pb.Hyper) { h.Ple.Sizes[1] = 0 }), "hash head 1 has 0 rows"},
		{"hash overflow", "qwen4exp", hyper(func(h *pb.Hyper) { h.Ple.Offsets[1] = 1<<63 - 1 }), "hash head 1 has 13 rows at"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := archtest.New(tt.architecture)
			tt.change(m)
			err := arch.Check(m.Write(t))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %q does not contain %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has several lines", err)
			}
		})
	}
}

func TestCheckRefusesNoHyperParameters(t *testing.T) {
	if err := arch.Check(&pb.ModelSpec{Architecture: "qwen3moe"}); err == nil {
		t.Error("no error")
	}
	if err := arch.Check(nil); err == nil {
		t.Error("no error for no model")
	}
}
