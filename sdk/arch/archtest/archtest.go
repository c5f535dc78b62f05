// Package archtest makes tiny random models of every architecture, as files, for
// tests that need no trained weights. Shapes and names are written out here a
// second time, from the format's description, so that a test of package arch
// compares two lists.
package archtest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
)

// Vocab is the vocabulary of every model.
const Vocab = 40

// Model is a tiny model that a test may change before it writes it.
type Model struct {
	// Architecture and Hyper are what the file's metadata says.
	Architecture string
	Hyper        *pb.Hyper
	// Tensors by name.
	Tensors map[string]*Tensor
}

// Tensor is a tensor of float32 values.
type Tensor struct {
	// Dims has the contiguous dimension first; Values are in that order.
	Dims   []int64
	Values []float32
}

const (
	attention = pb.LayerKind_LAYER_KIND_ATTENTION
	sparse    = pb.LayerKind_LAYER_KIND_SPARSE_ATTENTION
	deltaNet  = pb.LayerKind_LAYER_KIND_DELTANET
)

// New returns a random model of an architecture: qwen4exp with an MTP block and
// sparse attention from 13 tokens on, qwen35moe, qwen3next or qwen3moe. It is the
// same every time.
func New(architecture string) *Model {
	m := &Model{
		Architecture: architecture,
		Hyper: &pb.Hyper{
			Layers: 4, Kinds: []pb.LayerKind{deltaNet, deltaNet, deltaNet, attention},
			Context: 256, Width: 16, Vocab: Vocab, NormEps: 1e-6,
			Heads: 4, KvHeads: 2, HeadDim: 8, ValueDim: 8, RopeDim: 4, RopeBase: 1e4,
			Experts: 6, ExpertsUsed: 2, ExpertWidth: 8, SharedExpertWidth: 12,
			KeyHeads: 2, ValueHeads: 6, StateDim: 4, ConvKernel: 4, InnerWidth: 24,
		},
		Tensors: map[string]*Tensor{},
	}
	m.add("token_embd.weight", 16, Vocab)
	m.add("output.weight", 16, Vocab)
	switch architecture {
	case "qwen4exp":
		m.qwen4exp()
	case "qwen35moe", "qwen3next":
		m.add("output_norm.weight", 16)
		for i, kind := range m.Hyper.Kinds {
			m.add(block(i, "attn_norm.weight"), 16)
			m.add(block(i, "post_attention_norm.weight"), 16)
			if kind == attention {
				m.attention(i, 64)
			} else {
				m.deltaNet(i, architecture == "qwen3next")
			}
			m.experts(i, true)
		}
	case "qwen3moe":
		m.Hyper.Kinds = []pb.LayerKind{attention, attention, attention, attention}
		m.Hyper.SharedExpertWidth = 0
		m.add("output_norm.weight", 16)
		for i := range m.Hyper.Kinds {
			m.add(block(i, "attn_norm.weight"), 16)
			m.add(block(i, "ffn_norm.weight"), 16)
			m.attention(i, 32)
			m.experts(i, false)
		}
	default:
		panic("archtest: unknown architecture " + architecture)
	}
	return m
}

func (m *Model) qwen4exp() {
	h := m.Hyper
	h.Kinds, h.DraftLayers = []pb.LayerKind{deltaNet, deltaNet, deltaNet, sparse, attention}, 1
	h.Streams, h.StreamRank = 4, 8
	h.IndexHeads, h.IndexDim, h.IndexBudget, h.IndexRatio = 2, 8, 12, 4
	h.Ple = &pb.PLE{
		Layers: []int32{1}, Ngram: 3, HeadsPerNgram: 2, ConvKernel: 4, RowWidth: 4, ResetToken: 7,
		Multipliers: []int64{23703573157769, 20109073645365, 8052911324071},
		Offsets:     []int64{0, 11, 24, 41}, Sizes: []int64{11, 13, 17, 19},
	}
	m.add("output_hc_norm.weight", 64)
	m.add("output_hc_down.weight", 64, 8)
	m.add("output_hc_up.weight", 8, 64)
	m.add("per_layer_token_embd.weight", 4, 64)
	for i, kind := range h.Kinds {
		for _, half := range []string{"attn", "ffn"} {
			m.add(block(i, "hc_"+half+"_norm.weight"), 64)
			m.add(block(i, "hc_"+half+"_down.weight"), 64, 8)
			m.add(block(i, "hc_"+half+"_up.weight"), 8, 64)
			m.add(block(i, "hc_"+half+"_inject.weight"), 64, 4)
		}
		if kind == deltaNet {
			m.deltaNet(i, false)
		} else {
			m.attention(i, 64)
			m.add(block(i, "indexer.q_proj.weight"), 16, 16)
			m.add(block(i, "indexer.k_proj.weight"), 16, 8)
			m.add(block(i, "indexer.q_norm.weight"), 8)
			m.add(block(i, "indexer.k_norm.weight"), 8)
		}
		m.experts(i, true)
	}
	m.add("blk.1.ple_key.weight", 16, 64)
	m.add("blk.1.ple_value.weight", 16, 16)
	m.add("blk.1.ple_norm_key.weight", 64)
	m.add("blk.1.ple_norm_query.weight", 64)
	m.add("blk.1.ple_norm_conv.weight", 64)
	m.add("blk.1.ple_conv1d.weight", 4, 64)
	m.add("blk.4.nextn.enorm.weight", 16)
	m.add("blk.4.nextn.hnorm.weight", 64)
	m.add("blk.4.nextn.eh_proj.weight", 32, 16)
	m.add("blk.4.nextn.hc_head_norm.weight", 64)
	m.add("blk.4.nextn.hc_head_down.weight", 64, 8)
	m.add("blk.4.nextn.hc_head_up.weight", 8, 64)
}

func (m *Model) attention(i int, query int64) {
	m.add(block(i, "attn_q.weight"), 16, query)
	m.add(block(i, "attn_k.weight"), 16, 16)
	m.add(block(i, "attn_v.weight"), 16, 16)
	m.add(block(i, "attn_output.weight"), 32, 16)
	m.add(block(i, "attn_q_norm.weight"), 8)
	m.add(block(i, "attn_k_norm.weight"), 8)
}

func (m *Model) deltaNet(i int, fused bool) {
	m.add(block(i, "attn_qkv.weight"), 16, 40)
	m.add(block(i, "attn_gate.weight"), 16, 24)
	m.add(block(i, "ssm_conv1d.weight"), 4, 40)
	m.add(block(i, "ssm_dt.bias"), 6)
	m.add(block(i, "ssm_a"), 6)
	m.add(block(i, "ssm_norm.weight"), 4)
	m.add(block(i, "ssm_out.weight"), 24, 16)
	if fused {
		m.add(block(i, "ssm_ba.weight"), 16, 12)
	} else {
		m.add(block(i, "ssm_beta.weight"), 16, 6)
		m.add(block(i, "ssm_alpha.weight"), 16, 6)
	}
}

func (m *Model) experts(i int, shared bool) {
	m.add(block(i, "ffn_gate_inp.weight"), 16, 6)
	m.add(block(i, "ffn_gate_exps.weight"), 16, 8, 6)
	m.add(block(i, "ffn_up_exps.weight"), 16, 8, 6)
	m.add(block(i, "ffn_down_exps.weight"), 8, 16, 6)
	if shared {
		m.add(block(i, "ffn_gate_inp_shexp.weight"), 16)
		m.add(block(i, "ffn_gate_shexp.weight"), 16, 12)
		m.add(block(i, "ffn_up_shexp.weight"), 16, 12)
		m.add(block(i, "ffn_down_shexp.weight"), 12, 16)
	}
}

func block(i int, name string) string { return fmt.Sprintf("blk.%d.%s", i, name) }

// add adds a random tensor of a sensible size for its name.
func (m *Model) add(name string, dims ...int64) {
	seed := [32]byte{}
	copy(seed[:], name)
	random := rand.New(rand.NewChaCha8(seed))
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	values := make([]float32, n)
	for i := range values {
		x := random.NormFloat64()
		switch {
		case name == "token_embd.weight":
		case strings.HasSuffix(name, "ssm_a"):
			x = -math.Exp(x)
		case strings.Contains(name, "norm"):
			x = 1 + 0.2*x
		default:
			x *= 1.5 / math.Sqrt(float64(dims[0]))
		}
		values[i] = float32(x)
	}
	m.Tensors[name] = &Tensor{dims, values}
}

// Write writes the tensors to a file that lives as long as the test and returns
// the model's description.
func (m *Model) Write(t testing.TB) *pb.ModelSpec {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.bin")
	spec := &pb.ModelSpec{
		Architecture: m.Architecture, Name: "tiny", Hash: "0123456789abcdef",
		Hyper: m.Hyper, Shards: []*pb.Shard{{Path: path}},
	}
	var names []string
	for name := range m.Tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	var data []byte
	for _, name := range names {
		tensor := m.Tensors[name]
		spec.Tensors = append(spec.Tensors, &pb.Tensor{
			Name: name, Dims: tensor.Dims, Offset: int64(len(data)), Bytes: int64(4 * len(tensor.Values)),
		})
		for _, v := range tensor.Values {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
	}
	spec.Shards[0].Size = int64(len(data))
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return spec
}
