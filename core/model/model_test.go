package model

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/sdk/quant"
	"github.com/strata-engine/strata/testdata"
)

var hashPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// checkRanges checks what core.ModelSpec promises of every model.
func checkRanges(t testing.TB, m *File) {
	t.Helper()
	spec := m.Spec
	if !hashPattern.MatchString(spec.Hash) {
		t.Errorf("hash %q", spec.Hash)
	}
	if h := spec.Hyper; len(h.Kinds) != h.Layers+h.DraftLayers || h.Layers < 1 {
		t.Errorf("%d kinds for %d layers and %d MTP blocks", len(h.Kinds), h.Layers, h.DraftLayers)
	}
	for i, tensor := range spec.Tensors {
		if i > 0 && spec.Tensors[i-1].Name >= tensor.Name {
			t.Errorf("tensors %q and %q are not sorted", spec.Tensors[i-1].Name, tensor.Name)
		}
		size := spec.Shards[tensor.Shard].Size
		if tensor.Offset < 0 || tensor.Bytes <= 0 || tensor.Offset > size || tensor.Bytes > size-tensor.Offset {
			t.Errorf("tensor %q: %d bytes at %d of %d", tensor.Name, tensor.Bytes, tensor.Offset, size)
		}
		row, err := quant.Type(tensor.Type).RowBytes(int(tensor.Dims[0]))
		if err != nil {
			t.Error(err)
		}
		want := int64(row)
		for _, d := range tensor.Dims[1:] {
			want *= d
		}
		if want != tensor.Bytes {
			t.Errorf("tensor %q: %d bytes, want %d", tensor.Name, tensor.Bytes, want)
		}
	}
}

// pebble are the hyper-parameters of the default model without its MTP block.
func pebble() core.Hyper {
	h := core.Hyper{
		Layers: 8, Context: 262144, Width: 256, Vocab: 4128, NormEps: 1e-6,
		Heads: 4, KVHeads: 2, HeadDim: 64, ValueDim: 64, RopeDim: 16, RopeBase: 1e7, RopeSections: []int{3, 3, 2, 0},
		Experts: 32, ExpertsUsed: 4, ExpertWidth: 64, SharedExpertWidth: 128,
		KeyHeads: 2, ValueHeads: 6, StateDim: 64, ConvKernel: 4, InnerWidth: 384,
		Streams: 4, StreamRank: 32,
		IndexHeads: 2, IndexDim: 32, IndexBudget: 256, IndexRatio: 4,
		PLE: &core.PLE{
			Layers: []int{1}, NGram: 3, HeadsPerNGram: 4, ConvKernel: 4, RowWidth: 32, ResetToken: 4096,
			Multipliers: []int64{1781521888438589, 1380870639283673, 1689857461653859},
			Offsets:     []int64{0, 16001, 32008, 48041, 64098, 80159, 96222, 112289},
			Sizes:       []int64{16001, 16007, 16033, 16057, 16061, 16063, 16067, 16069},
		},
	}
	for i := range h.Layers {
		kind := core.LayerDeltaNet
		if i%4 == 3 {
			kind = core.LayerSparseAttention
		}
		h.Kinds = append(h.Kinds, kind)
	}
	return h
}

func withDraft(h core.Hyper) core.Hyper {
	h.DraftLayers = 1
	h.Kinds = append(slices.Clone(h.Kinds), core.LayerAttention)
	return h
}

func TestOpenRealFiles(t *testing.T) {
	hybrid := core.Hyper{
		Layers: 4, Context: 4096, Width: 128, Vocab: 4128, NormEps: 1e-6,
		Kinds: []core.LayerKind{core.LayerDeltaNet, core.LayerDeltaNet, core.LayerDeltaNet, core.LayerAttention},
		Heads: 4, KVHeads: 2, HeadDim: 64, ValueDim: 64, RopeDim: 16, RopeBase: 1e7,
		Experts: 8, ExpertsUsed: 2, ExpertWidth: 64, SharedExpertWidth: 64,
		KeyHeads: 2, ValueHeads: 6, StateDim: 32, ConvKernel: 4, InnerWidth: 192,
	}
	sectioned := hybrid
	sectioned.RopeSections = []int{3, 3, 2, 0}
	plain := core.Hyper{
		Layers: 3, Context: 4096, Width: 128, Vocab: 4128, NormEps: 1e-6,
		Kinds: []core.LayerKind{core.LayerAttention, core.LayerAttention, core.LayerAttention},
		Heads: 4, KVHeads: 2, HeadDim: 32, ValueDim: 32, RopeDim: 32, RopeBase: 1e6,
		Experts: 8, ExpertsUsed: 2, ExpertWidth: 64,
	}
	tests := []struct {
		file, architecture, name string
		tensors                  int
		hyper                    core.Hyper
		sample                   core.Tensor // Offset relative to the data
	}{
		{"pebble-q4-mtp.gguf", "qwen4exp", "Strata Pebble", 246, withDraft(pebble()),
			core.Tensor{Name: "blk.7.ffn_gate_exps.weight", Type: uint32(quant.Q4_K), Dims: []int64{256, 64, 32}, Offset: 16402560, Bytes: 294912}},
		{"pebble-bf16.gguf", "qwen4exp", "Strata Pebble", 214, pebble(),
			core.Tensor{Name: "per_layer_token_embd.weight", Type: uint32(quant.BF16), Dims: []int64{32, 128384}, Offset: 4362240, Bytes: 8216576}},
		{"tiny-qwen35moe-q8_0.gguf", "qwen35moe", "Tiny random qwen35moe", 76, sectioned,
			core.Tensor{Name: "blk.0.ssm_a", Type: uint32(quant.F32), Dims: []int64{6}, Offset: 1202176, Bytes: 24}},
		{"tiny-qwen3next-q8_0.gguf", "qwen3next", "Tiny random qwen3next", 73, hybrid,
			core.Tensor{Name: "blk.0.ssm_ba.weight", Type: uint32(quant.Q8_0), Dims: []int64{128, 12}, Offset: 1193984, Bytes: 1632}},
		{"tiny-qwen3moe-q8_0.gguf", "qwen3moe", "Tiny random qwen3moe", 39, plain,
			core.Tensor{Name: "blk.0.ffn_down_exps.weight", Type: uint32(quant.Q8_0), Dims: []int64{64, 128, 8}, Offset: 1320192, Bytes: 69632}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			path := testdata.Model(t, tt.file)
			m, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			checkRanges(t, m)
			if m.Spec.Architecture != tt.architecture || m.Spec.Name != tt.name || len(m.Spec.Tensors) != tt.tensors {
				t.Errorf("architecture %q, name %q, %d tensors; want %q, %q, %d",
					m.Spec.Architecture, m.Spec.Name, len(m.Spec.Tensors), tt.architecture, tt.name, tt.tensors)
			}
			if diff := cmp.Diff(tt.hyper, m.Spec.Hyper); diff != "" {
				t.Errorf("hyper-parameters (-want +got):\n%s", diff)
			}
			// The first tensor of all these files is the embedding.
			tt.sample.Offset += find(m.Spec.Tensors, "token_embd.weight").Offset
			if diff := cmp.Diff(&tt.sample, find(m.Spec.Tensors, tt.sample.Name)); diff != "" {
				t.Errorf("a tensor (-want +got):\n%s", diff)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			shard := core.Shard{Path: path, Size: info.Size(), ModTime: info.ModTime().UnixNano(), Inode: inode(info)}
			if diff := cmp.Diff([]core.Shard{shard}, m.Spec.Shards); diff != "" {
				t.Errorf("shards (-want +got):\n%s", diff)
			}
			again, err := Open(path)
			if err != nil || again.Spec.Hash != m.Spec.Hash {
				t.Errorf("opened again: hash %s, then %s, error %v", m.Spec.Hash, again.Spec.Hash, err)
			}
		})
	}
}

// TestOffsetsPointAtData reads a tensor whose values have a known property: the
// decays of a gated DeltaNet are negative.
func TestOffsetsPointAtData(t *testing.T) {
	m, err := Open(testdata.Model(t, "pebble-q4-mtp.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(m.Spec.Shards[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	if start := find(m.Spec.Tensors, "token_embd.weight").Offset; start != 149760 {
		t.Errorf("the tensor data start at %d, want 149760", start)
	}
	for i := range m.Spec.Hyper.Layers {
		decay := find(m.Spec.Tensors, fmt.Sprintf("blk.%d.ssm_a", i))
		if decay == nil {
			continue
		}
		values := make([]float32, decay.Dims[0])
		if err := quant.Dequantize(quant.Type(decay.Type), values, data[decay.Offset:][:decay.Bytes]); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			if !(v < -1e-6 && v > -1e3) {
				t.Errorf("%s = %v", decay.Name, values)
				break
			}
		}
	}
}

func TestMetadataOfRealFile(t *testing.T) {
	m, err := Open(testdata.Model(t, "pebble-q4-mtp.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := m.Metadata.Strings("tokenizer.ggml.tokens")
	if err != nil || len(tokens) != 4128 || tokens[4098] != "<|im_end|>" || tokens[0] != "!" {
		t.Errorf("%d tokens, error %v", len(tokens), err)
	}
	types, err := m.Metadata.Ints("tokenizer.ggml.token_type")
	if err != nil || len(types) != 4128 || types[4103] != 4 || types[4105] != 5 {
		t.Errorf("%d token types, error %v", len(types), err)
	}
	merges, err := m.Metadata.Strings("tokenizer.ggml.merges")
	if err != nil || len(merges) != 3840 || merges[0] != "e r" {
		t.Errorf("%d merges, error %v", len(merges), err)
	}
	if pre, err := m.Metadata.String("tokenizer.ggml.pre"); err != nil || pre != "qwen35" {
		t.Errorf("pre %q, error %v", pre, err)
	}
	if eos, err := m.Metadata.Int("tokenizer.ggml.eos_token_id"); err != nil || eos != 4098 {
		t.Errorf("eos %d, error %v", eos, err)
	}
	if bos, err := m.Metadata.Bool("tokenizer.ggml.add_bos_token"); err != nil || bos {
		t.Errorf("add_bos %v, error %v", bos, err)
	}
	if base, err := m.Metadata.Float("qwen4exp.rope.freq_base"); err != nil || base != 1e7 {
		t.Errorf("rope base %v, error %v", base, err)
	}
	want, err := os.ReadFile(filepath.Join(testdata.Root(t), "testdata", "chat_template.jinja"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := m.Metadata.String("tokenizer.chat_template"); err != nil || got != string(want) {
		t.Errorf("the chat template differs from the recorded one (%d and %d bytes, error %v)", len(got), len(want), err)
	}
	if keys := m.Metadata.Keys(); len(keys) != 85 || keys[0] != "general.architecture" {
		t.Errorf("%d keys, the first is %q", len(keys), keys[0])
	}
}

func TestMetadataGetters(t *testing.T) {
	g := smallest()
	for typ, v := range map[uint32]any{
		typeUint8: uint8(200), typeInt8: int8(-7), typeUint16: uint16(60000), typeInt16: int16(-7), typeUint32: uint32(4e9),
		typeInt32: int32(-7), typeUint64: uint64(1) << 62, typeInt64: int64(-7), typeFloat32: float32(0.5), typeFloat64: 0.25,
	} {
		g.set(pair{typeNames[typ], le(typ, v)})
		g.set(pair{typeNames[typ] + "s", le(uint32(typeArray), typ, uint64(2), v, v)})
	}
	g.set(pair{"yes", le(uint32(typeBool), uint8(1))})
	m, err := Open(g.write(t, t.TempDir(), "getters.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int64{"uint8": 200, "int8": -7, "uint16": 60000, "int16": -7, "uint32": 4e9, "int32": -7, "uint64": 1 << 62, "int64": -7} {
		if got, err := m.Metadata.Int(name); err != nil || got != want {
			t.Errorf("Int(%s) = %d, %v; want %d", name, got, err, want)
		}
		if got, err := m.Metadata.Float(name); err != nil || got != float64(want) {
			t.Errorf("Float(%s) = %g, %v; want %d", name, got, err, want)
		}
		if got, err := m.Metadata.Ints(name + "s"); err != nil || !slices.Equal(got, []int64{want, want}) {
			t.Errorf("Ints(%ss) = %d, %v; want %d twice", name, got, err, want)
		}
	}
	for name, want := range map[string]float64{"float32": 0.5, "float64": 0.25} {
		if got, err := m.Metadata.Float(name); err != nil || got != want {
			t.Errorf("Float(%s) = %g, %v; want %g", name, got, err, want)
		}
	}
	if yes, err := m.Metadata.Bool("yes"); err != nil || !yes {
		t.Errorf("Bool(yes) = %v, %v", yes, err)
	}
	for _, key := range []string{"missing", "yes", "int8", "int8s", "float32", "general.name", "tokenizer.ggml.tokens"} {
		calls := map[string]func() error{
			"String":  func() error { _, err := m.Metadata.String(key); return err },
			"Int":     func() error { _, err := m.Metadata.Int(key); return err },
			"Float":   func() error { _, err := m.Metadata.Float(key); return err },
			"Bool":    func() error { _, err := m.Metadata.Bool(key); return err },
			"Strings": func() error { _, err := m.Metadata.Strings(key); return err },
			"Ints":    func() error { _, err := m.Metadata.Ints(key); return err },
		}
		allowed := map[string]string{"yes": "Bool", "int8": "Int Float", "int8s": "Ints", "float32": "Float",
			"general.name": "String", "tokenizer.ggml.tokens": "Strings"}[key]
		for name, call := range calls {
			err := call()
			if slices.Contains(strings.Fields(allowed), name) != (err == nil) {
				t.Errorf("%s(%s): %v", name, key, err)
			}
			if err != nil && !strings.Contains(err.Error(), key) {
				t.Errorf("%s(%s): error %q does not name the key", name, key, err)
			}
		}
	}
}

func TestLayerKinds(t *testing.T) {
	const a, s, d = core.LayerAttention, core.LayerSparseAttention, core.LayerDeltaNet
	tests := []struct {
		name   string
		mutate func(*ggufFile)
		want   []core.LayerKind
	}{
		{"interval", func(*ggufFile) {}, []core.LayerKind{d, s, d, a}},
		{"interval 1", func(g *ggufFile) {
			g.set(u32("qwen4exp.full_attention_interval", 1))
		}, []core.LayerKind{a, s, a, a}},
		{"array of bools overrides the interval", func(g *ggufFile) {
			g.set(array("qwen4exp.attention.recurrent_layers", typeBool, false, false, true, true))
		}, []core.LayerKind{a, s, d, d}},
		{"array of integers", func(g *ggufFile) {
			g.set(array("qwen4exp.attention.recurrent_layers", typeUint8, []byte{1, 0, 0, 1}...))
		}, []core.LayerKind{d, s, a, d}},
		{"one bool for all", func(g *ggufFile) {
			g.set(pair{"qwen4exp.attention.recurrent_layers", le(uint32(typeBool), uint8(0))})
		}, []core.LayerKind{a, s, a, a}},
		{"tensors", func(g *ggufFile) {
			g.remove("qwen4exp.full_attention_interval")
			g.tensors = append(g.tensors, dense("blk.2.ssm_a", quant.F32, 6))
			g.place()
		}, []core.LayerKind{a, s, d, a}},
		{"one ratio for all", func(g *ggufFile) {
			g.set(u32("qwen4exp.full_attention_interval", 1))
			g.set(u32("qwen4exp.attention.compress_ratios", 4))
		}, []core.LayerKind{s, s, s, s}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := hybrid()
			tt.mutate(g)
			m, err := Open(g.write(t, t.TempDir(), "kinds.gguf"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, m.Spec.Hyper.Kinds); diff != "" {
				t.Errorf("kinds (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAbsentDraft: a file that announces an MTP block without having it is a
// model without one.
func TestAbsentDraft(t *testing.T) {
	g := hybrid()
	g.set(u32("qwen4exp.block_count", 5))
	g.set(u32("qwen4exp.nextn_predict_layers", 1))
	g.set(array("qwen4exp.attention.compress_ratios", typeInt32, int32(0), int32(4), int32(0), int32(0), int32(0)))
	path := g.write(t, t.TempDir(), "model.gguf")
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if h := m.Spec.Hyper; h.Layers != 4 || h.DraftLayers != 0 || len(h.Kinds) != 4 {
		t.Errorf("%d layers, %d MTP blocks, %d kinds", h.Layers, h.DraftLayers, len(h.Kinds))
	}
	g.tensors = append(g.tensors, dense("blk.4.nextn.eh_proj.weight", quant.F32, 128, 64))
	g.place()
	m, err = Open(g.write(t, t.TempDir(), "model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if h := m.Spec.Hyper; h.Layers != 4 || h.DraftLayers != 1 || len(h.Kinds) != 5 {
		t.Errorf("%d layers, %d MTP blocks, %d kinds", h.Layers, h.DraftLayers, len(h.Kinds))
	}
}

func TestHashChangesWithWeights(t *testing.T) {
	hashOf := func(g *ggufFile, name string) string {
		t.Helper()
		m, err := Open(g.write(t, t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		return m.Spec.Hash
	}
	base := hashOf(hybrid(), "a.gguf")
	if got := hashOf(hybrid(), "b.gguf"); got != base {
		t.Error("the file's name changes the hash")
	}
	for name, mutate := range map[string]func(*ggufFile){
		"hyper-parameter": func(g *ggufFile) { g.set(u32("qwen4exp.expert_used_count", 3)) },
		"n-gram constant": func(g *ggufFile) {
			g.set(array("qwen4exp.ple.layer_multipliers", typeUint64, uint64(1781521888438588), uint64(1380870639283673), uint64(1689857461653859)))
		},
		"tensor type": func(g *ggufFile) { g.tensors[1] = dense(g.tensors[1].name, quant.Q4_0, 32, 60); g.place() },
		"tensor name": func(g *ggufFile) { g.tensors = append(g.tensors, dense("x", quant.F32, 8)); g.place() },
		"file size":   func(g *ggufFile) { g.tail = make([]byte, 32) },
	} {
		g := hybrid()
		mutate(g)
		if hashOf(g, "c.gguf") == base {
			t.Errorf("another %s does not change the hash", name)
		}
	}
}

func TestOpenWithDraft(t *testing.T) {
	tests := []struct{ trunk, draft string }{
		{"pebble-bf16.gguf", "pebble-mtp-bf16.gguf"},
		{"pebble-q8_0.gguf", "pebble-mtp-q8_0.gguf"},
	}
	for _, tt := range tests {
		t.Run(tt.draft, func(t *testing.T) {
			trunk, draft := testdata.Model(t, tt.trunk), testdata.Model(t, tt.draft)
			m, err := Open(trunk, WithDraft(draft))
			if err != nil {
				t.Fatal(err)
			}
			checkRanges(t, m)
			if diff := cmp.Diff(withDraft(pebble()), m.Spec.Hyper); diff != "" {
				t.Errorf("hyper-parameters (-want +got):\n%s", diff)
			}
			if len(m.Spec.Tensors) != 246 || len(m.Spec.Shards) != 2 || m.Spec.Shards[1].Path != draft {
				t.Errorf("%d tensors in %d shards", len(m.Spec.Tensors), len(m.Spec.Shards))
			}
			for _, tensor := range m.Spec.Tensors {
				if inDraft := strings.HasPrefix(tensor.Name, "blk.8."); inDraft != (tensor.Shard == 1) {
					t.Errorf("tensor %s is in shard %d", tensor.Name, tensor.Shard)
				}
			}
			// The merged model has the tensors of the file with the block inside.
			whole, err := Open(testdata.Model(t, "pebble-q4-mtp.gguf"))
			if err != nil {
				t.Fatal(err)
			}
			shapes := func(m *File) map[string][]int64 {
				out := map[string][]int64{}
				for _, tensor := range m.Spec.Tensors {
					out[tensor.Name] = tensor.Dims
				}
				return out
			}
			if diff := cmp.Diff(shapes(whole), shapes(m)); diff != "" {
				t.Errorf("tensors (-in one file +merged):\n%s", diff)
			}
			_, err = Open(draft)
			checkError(t, err, draft)
			if !strings.Contains(err.Error(), "MTP sidecar") {
				t.Errorf("the sidecar alone: %v", err)
			}
		})
	}
}

// sidecar is an MTP sidecar of hybrid.
func sidecar() *ggufFile {
	g := hybrid()
	g.set(u32("qwen4exp.block_count", 5))
	g.set(u32("qwen4exp.nextn_predict_layers", 1))
	g.set(array("qwen4exp.attention.compress_ratios", typeInt32, int32(0), int32(4), int32(0), int32(0), int32(0)))
	g.tensors = []tensor{
		dense("blk.4.attn_q.weight", quant.F32, 64, 128),
		dense("blk.4.nextn.eh_proj.weight", quant.F32, 128, 64),
		dense("blk.4.nextn.hc_head_norm.weight", quant.F32, 256),
	}
	g.place()
	return g
}

func TestSidecars(t *testing.T) {
	tests := []struct {
		name          string
		trunk         func(*ggufFile)
		draft         func(*ggufFile)
		want, wantErr string // a tensor, or part of the error
	}{
		{name: "plain", want: "blk.4.nextn.hc_head_norm.weight"},
		{name: "integers of another width", draft: func(g *ggufFile) {
			g.set(pair{"qwen4exp.expert_count", le(uint32(typeInt64), int64(8))})
		}, want: "blk.4.attn_q.weight"},
		{name: "older names", draft: func(g *ggufFile) {
			g.tensors[2].name = "output_hc_norm.weight"
		}, want: "blk.4.nextn.hc_head_norm.weight"},
		{name: "with both mixers", draft: func(g *ggufFile) {
			g.tensors = append(g.tensors, dense("output_hc_norm.weight", quant.F32, 256))
			g.place()
		}, want: "blk.4.nextn.hc_head_norm.weight"},
		{name: "with its own embedding", draft: func(g *ggufFile) {
			g.tensors = append(g.tensors, dense("token_embd.weight", quant.F16, 64, 5), dense("output.weight", quant.F16, 64, 5))
			g.place()
		}, want: "token_embd.weight"},
		{name: "trunk announces the block", trunk: func(g *ggufFile) {
			g.set(u32("qwen4exp.block_count", 5))
			g.set(u32("qwen4exp.nextn_predict_layers", 1))
		}, want: "blk.4.attn_q.weight"},
		{name: "trunk has the block", trunk: func(g *ggufFile) { *g = *sidecar(); g.tensors = append(g.tensors, hybrid().tensors...); g.place() },
			wantErr: "already contains an MTP block"},
		{name: "another architecture", draft: func(g *ggufFile) { g.set(str("general.architecture", "qwen4exp-mtp")) },
			wantErr: `its architecture is "qwen4exp-mtp"`},
		{name: "another number of layers", draft: func(g *ggufFile) { g.set(u32("qwen4exp.block_count", 9)) },
			wantErr: "it has 9 blocks"},
		{name: "no MTP block announced", draft: func(g *ggufFile) { g.remove("qwen4exp.nextn_predict_layers") },
			wantErr: "nextn_predict_layers\" is missing"},
		{name: "another model", draft: func(g *ggufFile) { g.set(u32("qwen4exp.embedding_length", 128)) },
			wantErr: `key "qwen4exp.embedding_length" differs`},
		{name: "tensors of the trunk", draft: func(g *ggufFile) { g.tensors[0].name = "blk.0.attn_q.weight" },
			wantErr: `tensor "blk.0.attn_q.weight" does not belong`},
		{name: "no tensors of the block", draft: func(g *ggufFile) { g.tensors = hybrid().tensors },
			wantErr: "no tensors of block 4"},
		{name: "truncated", draft: func(g *ggufFile) { g.cut = 10 }, wantErr: "do not fit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			trunk, draft := hybrid(), sidecar()
			if tt.trunk != nil {
				tt.trunk(trunk)
			}
			if tt.draft != nil {
				tt.draft(draft)
			}
			draftPath := draft.write(t, dir, "draft.gguf")
			m, err := Open(trunk.write(t, dir, "trunk.gguf"), WithDraft(draftPath))
			if tt.wantErr != "" {
				checkError(t, err, draftPath)
				if !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %q does not contain %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			checkRanges(t, m)
			tensor := find(m.Spec.Tensors, tt.want)
			if tensor == nil {
				t.Fatalf("no tensor %s", tt.want)
			}
			if fromDraft := strings.HasPrefix(tt.want, "blk.4."); fromDraft != (tensor.Shard == 1) {
				t.Errorf("tensor %s is from shard %d", tt.want, tensor.Shard)
			}
			if h := m.Spec.Hyper; h.DraftLayers != 1 || len(h.Kinds) != 5 || h.Kinds[4] != core.LayerAttention {
				t.Errorf("%d MTP blocks, kinds %v", h.DraftLayers, h.Kinds)
			}
		})
	}
	_, err := Open(hybrid().write(t, t.TempDir(), "trunk.gguf"), WithDraft(filepath.Join(t.TempDir(), "missing.gguf")))
	if err == nil || !strings.Contains(err.Error(), "missing.gguf") {
		t.Errorf("a missing sidecar: %v", err)
	}
}

// TestSpecIsPlainData: a spec survives encoding, so that it can be sent to a
// backend and recorded.
func TestSpecIsPlainData(t *testing.T) {
	m, err := Open(testdata.Model(t, "pebble-q4-mtp.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(m.Spec)
	if err != nil {
		t.Fatal(err)
	}
	var back core.ModelSpec
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m.Spec, &back); diff != "" {
		t.Errorf("the spec changed (-before +after):\n%s", diff)
	}
}

func BenchmarkOpen(b *testing.B) {
	path := testdata.Model(b, "pebble-q4-mtp.gguf")
	for b.Loop() {
		if _, err := Open(path); err != nil {
			b.Fatal(err)
		}
	}
}
