package model

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/strata-engine/strata/sdk/quant"
	"github.com/strata-engine/strata/testdata"
)

// ggufFile is a GGUF file to write; every field can be made wrong.
type ggufFile struct {
	magic                 string
	version               uint32
	pairs                 []pair
	tensors               []tensor
	tensorCount, keyCount uint64 // 0: as many as there are
	align                 int
	cut                   int // bytes removed from the end of the data
	tail                  []byte
}

// pair is an encoded key/value pair: value has the type and the bytes.
type pair struct {
	key   string
	value []byte
}

// tensor is a row of the table. size is the room its data take.
type tensor struct {
	name   string
	dims   []uint64
	typ    uint32
	offset uint64
	size   int
}

func le(values ...any) []byte {
	var b bytes.Buffer
	for _, v := range values {
		if s, ok := v.(string); ok {
			b.Write(le(uint64(len(s))))
			b.WriteString(s)
			continue
		}
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

func u32(key string, v uint32) pair  { return pair{key, le(uint32(typeUint32), v)} }
func u16(key string, v uint16) pair  { return pair{key, le(uint32(typeUint16), v)} }
func f32(key string, v float32) pair { return pair{key, le(uint32(typeFloat32), v)} }
func str(key, v string) pair         { return pair{key, le(uint32(typeString), v)} }

func strs(key string, v ...string) pair {
	b := le(uint32(typeArray), uint32(typeString), uint64(len(v)))
	for _, s := range v {
		b = append(b, le(s)...)
	}
	return pair{key, b}
}

// array encodes an array of a fixed-size type.
func array[T any](key string, elem uint32, v ...T) pair {
	return pair{key, append(le(uint32(typeArray), elem, uint64(len(v))), le(v)...)}
}

// bytes encodes the file.
func (g *ggufFile) bytes() []byte {
	var b bytes.Buffer
	b.WriteString(g.magic)
	tensorCount, keyCount := g.tensorCount, g.keyCount
	if tensorCount == 0 {
		tensorCount = uint64(len(g.tensors))
	}
	if keyCount == 0 {
		keyCount = uint64(len(g.pairs))
	}
	b.Write(le(g.version, tensorCount, keyCount))
	for _, p := range g.pairs {
		b.Write(le(p.key))
		b.Write(p.value)
	}
	size := 0
	for _, t := range g.tensors {
		b.Write(le(t.name, uint32(len(t.dims)), t.dims, t.typ, t.offset))
		size = max(size, int(t.offset)+t.size)
	}
	b.Write(make([]byte, -b.Len()&(g.align-1)))
	b.Write(make([]byte, max(0, size-g.cut)))
	b.Write(g.tail)
	return b.Bytes()
}

// set replaces the value of a pair, or adds it.
func (g *ggufFile) set(p pair) {
	for i := range g.pairs {
		if g.pairs[i].key == p.key {
			g.pairs[i] = p
			return
		}
	}
	g.pairs = append(g.pairs, p)
}

// remove deletes a pair.
func (g *ggufFile) remove(key string) {
	g.pairs = slices.DeleteFunc(g.pairs, func(p pair) bool { return p.key == key })
}

// place gives the tensors consecutive aligned offsets.
func (g *ggufFile) place() {
	offset := 0
	for i := range g.tensors {
		g.tensors[i].offset = uint64(offset)
		offset += g.tensors[i].size + -g.tensors[i].size&(g.align-1)
	}
}

// write puts the file into dir and returns its path.
func (g *ggufFile) write(t testing.TB, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, g.bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// dense makes a tensor of a known type with the right size.
func dense(name string, typ quant.Type, dims ...uint64) tensor {
	n, err := typ.RowBytes(int(dims[0]))
	if err != nil {
		panic(err)
	}
	for _, d := range dims[1:] {
		n *= int(d)
	}
	return tensor{name: name, dims: dims, typ: uint32(typ), size: n}
}

// smallest is a valid file of the architecture with the fewest keys.
func smallest() *ggufFile {
	g := &ggufFile{
		magic:   "GGUF",
		version: 3,
		align:   32,
		pairs: []pair{
			str("general.architecture", "qwen3moe"),
			str("general.name", "smallest"),
			u32("qwen3moe.block_count", 2),
			u32("qwen3moe.context_length", 128),
			u32("qwen3moe.embedding_length", 64),
			u32("qwen3moe.attention.head_count", 4),
			u32("qwen3moe.attention.head_count_kv", 2),
			u32("qwen3moe.attention.key_length", 16),
			u32("qwen3moe.attention.value_length", 16),
			f32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6),
			f32("qwen3moe.rope.freq_base", 1e6),
			u32("qwen3moe.expert_count", 8),
			u32("qwen3moe.expert_used_count", 2),
			u32("qwen3moe.expert_feed_forward_length", 32),
			strs("tokenizer.ggml.tokens", "a", "b", ""),
			array("tokenizer.ggml.token_type", typeInt32, int32(1), int32(1), int32(3)),
		},
		tensors: []tensor{
			dense("token_embd.weight", quant.F32, 64, 5),
			dense("output.weight", quant.Q8_0, 64, 5),
			dense("blk.0.ffn_gate_exps.weight", quant.Q4_0, 64, 32, 8),
		},
	}
	g.place()
	return g
}

// hybrid is a valid qwen4exp file with every kind of key.
func hybrid() *ggufFile {
	g := &ggufFile{
		magic:   "GGUF",
		version: 3,
		align:   32,
		pairs: []pair{
			str("general.architecture", "qwen4exp"),
			u32("qwen4exp.block_count", 4),
			u32("qwen4exp.context_length", 128),
			u32("qwen4exp.embedding_length", 64),
			u32("qwen4exp.attention.head_count", 4),
			u32("qwen4exp.attention.head_count_kv", 2),
			u32("qwen4exp.attention.key_length", 16),
			u32("qwen4exp.attention.value_length", 16),
			f32("qwen4exp.attention.layer_norm_rms_epsilon", 1e-6),
			u32("qwen4exp.rope.dimension_count", 8),
			array("qwen4exp.rope.dimension_sections", typeInt32, int32(2), int32(1), int32(1), int32(0)),
			f32("qwen4exp.rope.freq_base", 1e7),
			u32("qwen4exp.full_attention_interval", 2),
			u32("qwen4exp.expert_count", 8),
			u32("qwen4exp.expert_used_count", 2),
			array("qwen4exp.expert_feed_forward_length", typeUint32, uint32(32), uint32(32), uint32(32), uint32(32)),
			u32("qwen4exp.expert_shared_feed_forward_length", 16),
			u32("qwen4exp.ssm.conv_kernel", 4),
			u32("qwen4exp.ssm.state_size", 8),
			u32("qwen4exp.ssm.group_count", 2),
			u32("qwen4exp.ssm.time_step_rank", 6),
			u32("qwen4exp.ssm.inner_size", 48),
			u32("qwen4exp.hyper_connection.count", 4),
			u32("qwen4exp.hyper_connection.low_rank", 8),
			u32("qwen4exp.attention.indexer.head_count", 2),
			u32("qwen4exp.attention.indexer.key_length", 8),
			u32("qwen4exp.attention.indexer.top_k", 16),
			array("qwen4exp.attention.compress_ratios", typeInt32, int32(0), int32(4), int32(0), int32(0)),
			array("qwen4exp.ple.layers", typeInt32, int32(1)),
			u32("qwen4exp.ple.ngram_size", 3),
			u32("qwen4exp.ple.heads_per_ngram", 2),
			u32("qwen4exp.ple.conv_kernel", 4),
			u32("qwen4exp.ple.eos_token_id", 4),
			array("qwen4exp.ple.layer_multipliers", typeUint64, uint64(1781521888438589), uint64(1380870639283673), uint64(1689857461653859)),
			array("qwen4exp.ple.head_offsets", typeUint64, uint64(0), uint64(11), uint64(24), uint64(41)),
			array("qwen4exp.ple.head_vocab_sizes", typeUint64, uint64(11), uint64(13), uint64(17), uint64(19)),
			u32("qwen4exp.embedding_length_per_layer_input", 32),
		},
		tensors: []tensor{
			dense("token_embd.weight", quant.F32, 64, 5),
			dense("per_layer_token_embd.weight", quant.Q8_0, 32, 60),
		},
	}
	g.place()
	return g
}

// checkError fails the test unless err is a line that names the file and wraps
// ErrInvalid or ErrNotFound.
func checkError(t testing.TB, err error, path string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrNotFound) {
		t.Errorf("error %q is neither ErrInvalid nor ErrNotFound", err)
	}
	if strings.ContainsAny(err.Error(), "\n\r\x00") {
		t.Errorf("error %q is not one line", err)
	}
	if !strings.Contains(err.Error(), filepath.Dir(path)) {
		t.Errorf("error %q does not name the file %s", err, path)
	}
}

func TestMalformedFiles(t *testing.T) {
	key := func(p pair) func(*ggufFile) { return func(g *ggufFile) { g.set(p) } }
	tests := []struct {
		name   string
		mutate func(*ggufFile)
		want   string
	}{
		{"foreign magic", func(g *ggufFile) { g.magic = "GGML" }, "it is not a GGUF file (it starts with 47474d4c)"},
		{"git lfs pointer", func(g *ggufFile) { g.magic = "version https://git-lfs" }, "git lfs pull"},
		{"version 0", func(g *ggufFile) { g.version = 0 }, "version 0"},
		{"version 1", func(g *ggufFile) { g.version = 1 }, "version 1; versions 2 and 3"},
		{"version 99", func(g *ggufFile) { g.version = 99 }, "version 99"},
		{"big endian", func(g *ggufFile) { g.version = 3 << 24 }, "big-endian"},
		{"more keys than bytes", func(g *ggufFile) { g.keyCount = 1 << 60 }, "1152921504606846976 keys do not fit"},
		{"more tensors than bytes", func(g *ggufFile) { g.tensorCount = math.MaxUint64 }, "18446744073709551615 tensors do not fit"},
		{"one key too many", func(g *ggufFile) { g.keyCount = uint64(len(g.pairs)) + 1 }, "a tensor's name is"},
		{"one tensor too many", func(g *ggufFile) { g.tensorCount = uint64(len(g.tensors)) + 1 }, "tensor 4 of 4"},
		{"empty key", key(u32("", 1)), "the key is empty"},
		{"duplicate key", func(g *ggufFile) { g.pairs = append(g.pairs, g.pairs[3]) }, `key "qwen3moe.context_length": it occurs twice`},
		{"key longer than the file", func(g *ggufFile) {
			g.pairs = append(g.pairs, pair{"x", nil})
			g.pairs[len(g.pairs)-2] = pair{strings.Repeat("k", 70000), le(uint32(typeUint8), uint8(0))}
		}, "70000 bytes long, at most 65535"},
		{"string longer than the file", key(pair{"x", le(uint32(typeString), uint64(1<<20))}), "needs 1048576 bytes"},
		{"string of 2^64-1", key(pair{"x", le(uint32(typeString), uint64(math.MaxUint64))}), `key "x": a string is 18446744073709551615 bytes long`},
		{"unknown value type", key(pair{"x", le(uint32(13))}), `key "x": the value has the unknown type 13`},
		{"unknown element type", key(pair{"x", le(uint32(typeArray), uint32(99), uint64(1))}), "unknown type 99"},
		{"array of 2^60", key(pair{"x", le(uint32(typeArray), uint32(typeInt32), uint64(1<<60))}), "1152921504606846976 values of int32 do not fit"},
		{"array of 2^60 bytes", key(pair{"x", le(uint32(typeArray), uint32(typeUint8), uint64(1<<60))}), "1152921504606846976 values of uint8 do not fit"},
		{"array of 2^60 strings", key(pair{"x", le(uint32(typeArray), uint32(typeString), uint64(1<<60))}), "1152921504606846976 strings"},
		{"array whose size overflows", key(pair{"x", le(uint32(typeArray), uint32(typeInt64), uint64(1<<61))}), "do not fit"},
		{"array with a long string", key(pair{"x", le(uint32(typeArray), uint32(typeString), uint64(2), "a", uint64(math.MaxUint64))}), "an array's string needs"},
		{"nested array", key(pair{"x", le(uint32(typeArray), uint32(typeArray), uint64(1), uint32(typeInt32), uint64(0))}), "array of arrays"},
		{"bool of 2", key(pair{"x", le(uint32(typeBool), uint8(2))}), "neither 0 nor 1"},
		{"alignment 0", key(u32("general.alignment", 0)), `"general.alignment" is 0; it must be a power of two`},
		{"alignment 3", key(u32("general.alignment", 3)), "is 3;"},
		{"alignment 48", key(u32("general.alignment", 48)), "is 48;"},
		{"alignment 2^31", key(u32("general.alignment", 1<<31)), "is 2147483648;"},
		{"alignment of a wrong type", key(str("general.alignment", "32")), "is a string; integers are needed"},
		{"empty tensor name", func(g *ggufFile) { g.tensors[1].name = "" }, "the name is empty"},
		{"long tensor name", func(g *ggufFile) { g.tensors[1].name = strings.Repeat("n", 65) }, "65 bytes long"},
		{"duplicate tensor", func(g *ggufFile) { g.tensors[1].name = g.tensors[0].name }, `tensor "token_embd.weight": it occurs twice`},
		{"no dimensions", func(g *ggufFile) { g.tensors[1].dims = nil }, "it has 0 dimensions"},
		{"five dimensions", func(g *ggufFile) { g.tensors[1].dims = []uint64{32, 1, 1, 1, 1} }, "it has 5 dimensions"},
		{"dimension 0", func(g *ggufFile) { g.tensors[1].dims[1] = 0 }, `tensor "output.weight": it has a dimension of 0`},
		{"first dimension 0", func(g *ggufFile) { g.tensors[1].dims[0] = 0 }, "it has a dimension of 0"},
		{"dimension 2^63", func(g *ggufFile) { g.tensors[1].dims[1] = 1 << 63 }, "it has a dimension of 9223372036854775808"},
		{"dimension 2^64-32", func(g *ggufFile) { g.tensors[1].dims[0] = math.MaxUint64 - 31 }, "it has a dimension of 18446744073709551584"},
		{"product of dimensions overflows", func(g *ggufFile) { g.tensors[1].dims = []uint64{1 << 31, 1 << 31, 1 << 31} }, "larger than any file"},
		{"product wraps to a small number", func(g *ggufFile) { g.tensors[1].dims = []uint64{32, 1 << 32, 1 << 32} }, "larger than any file"},
		{"row overflows", func(g *ggufFile) { g.tensors[1].dims = []uint64{1<<63 - 32, 1} }, `"output.weight"`},
		{"unknown tensor type", func(g *ggufFile) { g.tensors[1].typ = 4 }, `tensor "output.weight": tensor type 4 is not supported`},
		{"type 2^32-1", func(g *ggufFile) { g.tensors[1].typ = math.MaxUint32 }, "tensor type 4294967295"},
		{"type id that only we use", func(g *ggufFile) { g.tensors[1].typ = uint32(quant.Q2_0_128) }, "is not supported"},
		{"row is no multiple of the block", func(g *ggufFile) { g.tensors[1].dims[0] = 63 }, "rows of 63 values: it is Q8_0, whose rows are multiples of 32"},
		{"offset not aligned", func(g *ggufFile) { g.tensors[2].offset += 8 }, "no multiple of the alignment 32"},
		{"offset 2^64-32", func(g *ggufFile) { g.tensors[1].offset = math.MaxUint64 - 31; g.tensors[1].size = 0 }, "lies beyond"},
		{"offset 2^63", func(g *ggufFile) { g.tensors[1].offset = 1 << 63; g.tensors[1].size = 0 }, "lies beyond"},
		{"offset beyond the end", func(g *ggufFile) {
			g.tensors[2].offset = 1 << 30
			g.tensors[2].size = 32 - 1<<30
		}, `tensor "blk.0.ffn_gate_exps.weight": its offset 1073741824 lies beyond`},
		{"range beyond the end", func(g *ggufFile) { g.cut = 1 }, `tensor "blk.0.ffn_gate_exps.weight": its 9216 bytes at offset 1632 do not fit`},
		{"data missing", func(g *ggufFile) { g.cut = 1 << 20 }, "lies beyond the 0 bytes"},
		{"overlap", func(g *ggufFile) { g.tensors[1].offset -= 32 }, `tensors "token_embd.weight" and "output.weight" overlap`},
		{"same place", func(g *ggufFile) { g.tensors[1].offset = 0 }, "overlap"},
		{"no tensors", func(g *ggufFile) { g.tensors = nil }, "it has no tensors"},
		{"second file appended", func(g *ggufFile) { g.tail = smallest().bytes() }, "cannot be joined with cat"},

		{"no architecture", func(g *ggufFile) { g.remove("general.architecture") }, `key "general.architecture" is missing`},
		{"architecture of a wrong type", key(u32("general.architecture", 1)), `key "general.architecture" is a uint32, not a string`},
		{"unknown architecture", key(str("general.architecture", "llama")), `"llama" is not supported; supported are qwen35moe, qwen3moe, qwen3next, qwen4exp`},
		{"name of a wrong type", key(u32("general.name", 1)), `"general.name" is a uint32`},
		{"no layers", key(u32("qwen3moe.block_count", 0)), "is 0; 1 to 1024 are possible"},
		{"too many layers", key(u32("qwen3moe.block_count", 1<<31)), "is 2147483648;"},
		{"negative layers", key(pair{"qwen3moe.block_count", le(uint32(typeInt32), int32(-1))}), "is -1;"},
		{"layers of 2^64-1", key(pair{"qwen3moe.block_count", le(uint32(typeUint64), uint64(math.MaxUint64))}), "18446744073709551615, which is larger"},
		{"layers as a float", key(f32("qwen3moe.block_count", 2)), "is a float32; integers are needed"},
		{"only MTP blocks", func(g *ggufFile) {
			g.set(u32("qwen3moe.block_count", 1))
			g.set(u32("qwen3moe.nextn_predict_layers", 1))
		}, "no layer remains"},
		{"two MTP blocks", key(u32("qwen3moe.nextn_predict_layers", 2)), "more than one MTP block"},
		{"context 0", key(u32("qwen3moe.context_length", 0)), "context_length"},
		{"width 0", key(u32("qwen3moe.embedding_length", 0)), "embedding_length"},
		{"heads 0", key(u32("qwen3moe.attention.head_count", 0)), "head_count"},
		{"kv heads 0", key(u32("qwen3moe.attention.head_count_kv", 0)), "head_count_kv"},
		{"kv heads empty", key(array[int32]("qwen3moe.attention.head_count_kv", typeInt32)), "is 0;"},
		{"kv heads differ", key(array("qwen3moe.attention.head_count_kv", typeInt32, int32(2), int32(4))), "differs between layers (2 and 4)"},
		{"kv heads do not divide", key(u32("qwen3moe.attention.head_count_kv", 3)), "no multiple of the 3"},
		{"head length 0", key(u32("qwen3moe.attention.key_length", 0)), "key_length"},
		{"no head length and no divisor", func(g *ggufFile) {
			g.remove("qwen3moe.attention.key_length")
			g.set(u32("qwen3moe.embedding_length", 66))
		}, "no multiple of the 4 heads"},
		{"epsilon 0", key(f32("qwen3moe.attention.layer_norm_rms_epsilon", 0)), "epsilon\" is 0;"},
		{"epsilon NaN", key(f32("qwen3moe.attention.layer_norm_rms_epsilon", float32(math.NaN()))), "is NaN"},
		{"rope base infinite", key(f32("qwen3moe.rope.freq_base", float32(math.Inf(1)))), "is +Inf"},
		{"rope base missing", func(g *ggufFile) { g.remove("qwen3moe.rope.freq_base") }, `"qwen3moe.rope.freq_base" is missing`},
		{"odd rope", key(u32("qwen3moe.rope.dimension_count", 7)), "must be even and at most 16"},
		{"long rope", key(u32("qwen3moe.rope.dimension_count", 18)), "must be even and at most 16"},
		{"five rope sections", key(array("qwen3moe.rope.dimension_sections", typeUint8, []byte{1, 1, 1, 1, 1}...)), "has 5 values"},
		{"rope scaling", key(str("qwen3moe.rope.scaling.type", "yarn")), `rope scaling "yarn"`},
		{"no experts", key(u32("qwen3moe.expert_count", 0)), "expert_count"},
		{"more experts used than there are", key(u32("qwen3moe.expert_used_count", 9)), "is 9, but there are 8 experts"},
		{"expert width 0", key(u32("qwen3moe.expert_feed_forward_length", 0)), "expert_feed_forward_length"},
		{"no embedding", func(g *ggufFile) { g.tensors[0].name = "x" }, `no tensor "token_embd.weight"`},
		{"embedding of one dimension", func(g *ggufFile) { g.tensors[0].dims = []uint64{320} }, "has dimensions [320]"},
		{"more tokens than rows", key(strs("tokenizer.ggml.tokens", "1", "2", "3", "4", "5", "6")), "has 6 tokens"},
		{"tokens of a wrong type", key(u32("tokenizer.ggml.tokens", 1)), "not an array of strings"},
		{"shard without its name", func(g *ggufFile) {
			g.set(u16("split.no", 0))
			g.set(u16("split.count", 2))
		}, "its name does not end in -00001-of-00002.gguf"},
		{"split.tensors.count differs", func(g *ggufFile) {
			g.set(u16("split.count", 1))
			g.set(u32("split.tensors.count", 4))
		}, "3 tensors together, but its metadata say 4"},
	}
	runMutations(t, smallest, tests)
}

func TestMalformedHybrids(t *testing.T) {
	key := func(p pair) func(*ggufFile) { return func(g *ggufFile) { g.set(p) } }
	tests := []struct {
		name   string
		mutate func(*ggufFile)
		want   string
	}{
		{"interval 0", key(u32("qwen4exp.full_attention_interval", 0)), "full_attention_interval"},
		{"short list of recurrent layers", key(array("qwen4exp.attention.recurrent_layers", typeBool, true, false)), "has 2 values; the model has 4 layers"},
		{"recurrent layers as strings", key(strs("qwen4exp.attention.recurrent_layers", "a", "b", "c", "d")), "integers are needed"},
		{"convolution of one tap", key(u32("qwen4exp.ssm.conv_kernel", 1)), "ssm.conv_kernel"},
		{"state 0", key(u32("qwen4exp.ssm.state_size", 0)), "ssm.state_size"},
		{"key heads 0", key(u32("qwen4exp.ssm.group_count", 0)), "ssm.group_count"},
		{"value heads do not divide", func(g *ggufFile) { g.set(u32("qwen4exp.ssm.group_count", 4)) }, "no multiple of the 4 key heads"},
		{"inner width", key(u32("qwen4exp.ssm.inner_size", 49)), "must be 6 value heads of length 8"},
		{"shared expert missing", func(g *ggufFile) { g.remove("qwen4exp.expert_shared_feed_forward_length") }, "is missing"},
		{"expert widths differ", key(array("qwen4exp.expert_feed_forward_length", typeUint32, uint32(32), uint32(32), uint32(16), uint32(32))), "differs between layers (32 and 16)"},
		{"streams 0", key(u32("qwen4exp.hyper_connection.count", 0)), "hyper_connection.count"},
		{"rank 0", key(u32("qwen4exp.hyper_connection.low_rank", 0)), "hyper_connection.low_rank"},
		{"ratio on a recurrent layer", key(array("qwen4exp.attention.compress_ratios", typeInt32, int32(4), int32(4), int32(0), int32(0))), "layer 0, which has no attention"},
		{"negative ratio", key(array("qwen4exp.attention.compress_ratios", typeInt32, int32(0), int32(-4), int32(0), int32(0))), "is -4 for layer 1"},
		{"ratios differ", key(array("qwen4exp.attention.compress_ratios", typeInt32, int32(0), int32(4), int32(0), int32(8))), "differs between layers (4 and 8)"},
		{"ratios missing", func(g *ggufFile) { g.remove("qwen4exp.attention.compress_ratios") }, "compress_ratios\" is missing"},
		{"budget no multiple", key(u32("qwen4exp.attention.indexer.top_k", 18)), "no multiple of the 4"},
		{"indexer shorter than rope", key(u32("qwen4exp.attention.indexer.key_length", 4)), "less than the 8 rotated"},
		{"indexer heads 0", key(u32("qwen4exp.attention.indexer.head_count", 0)), "indexer.head_count"},
		{"n-gram layer out of range", key(array("qwen4exp.ple.layers", typeInt32, int32(4))), "has 4 at index 0"},
		{"two n-gram layers", key(array("qwen4exp.ple.layers", typeInt32, int32(0), int32(1))), "more than one n-gram layer"},
		{"1-grams", key(u32("qwen4exp.ple.ngram_size", 1)), "ple.ngram_size"},
		{"reset token beyond the vocabulary", key(u32("qwen4exp.ple.eos_token_id", 5)), "is 5; 0 to 4"},
		{"multiplier overflows", key(array("qwen4exp.ple.layer_multipliers", typeUint64, uint64(math.MaxInt64/5+1), uint64(1), uint64(1))), "ple.layer_multipliers"},
		{"multipliers missing", key(array("qwen4exp.ple.layer_multipliers", typeUint64, uint64(1), uint64(1))), "3-grams need 3"},
		{"hash head of size 0", key(array("qwen4exp.ple.head_vocab_sizes", typeUint64, uint64(0), uint64(13), uint64(17), uint64(19))), "ple.head_vocab_sizes"},
		{"too few hash heads", key(array("qwen4exp.ple.head_vocab_sizes", typeUint64, uint64(11))), "both must have 4"},
		{"hash head beyond the table", key(array("qwen4exp.ple.head_offsets", typeUint64, uint64(0), uint64(11), uint64(24), uint64(42))), "19 rows of hash head 3 at row 42, beyond the 60 rows"},
		{"hash head offset overflows", key(array("qwen4exp.ple.head_offsets", typeUint64, uint64(0), uint64(11), uint64(24), uint64(math.MaxInt64))), "beyond the 60 rows"},
		{"no table", func(g *ggufFile) { g.tensors[1].name = "x" }, `no table "per_layer_token_embd.weight"`},
	}
	runMutations(t, hybrid, tests)
}

// runMutations applies each mutation to a valid file and expects an error with
// the wanted text.
func runMutations(t *testing.T, valid func() *ggufFile, tests []struct {
	name   string
	mutate func(*ggufFile)
	want   string
}) {
	dir := t.TempDir()
	if _, err := Open(valid().write(t, dir, "valid.gguf")); err != nil {
		t.Fatalf("the unchanged file: %v", err)
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := valid()
			tt.mutate(g)
			path := g.write(t, dir, fmt.Sprintf("%d.gguf", i))
			_, err := Open(path)
			checkError(t, err, path)
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not contain %q", err, tt.want)
			}
		})
	}
}

// TestChangedBytes changes every byte of small files: whatever the result, it is
// a clean error or a valid model.
func TestChangedBytes(t *testing.T) {
	for name, valid := range map[string]*ggufFile{"smallest": smallest(), "hybrid": hybrid()} {
		t.Run(name, func(t *testing.T) {
			data := valid.bytes()
			header := bytes.Index(data, make([]byte, 512)) + 1
			path := filepath.Join(t.TempDir(), "model.gguf")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Write(data); err != nil {
				t.Fatal(err)
			}
			refused := 0
			for i := range header {
				for _, b := range []byte{0, 1, 0xff, data[i] ^ 0x80} {
					if _, err := f.WriteAt([]byte{b}, int64(i)); err != nil {
						t.Fatal(err)
					}
					if m, err := Open(path); err != nil {
						refused++
						checkError(t, err, path)
					} else {
						checkRanges(t, m)
					}
				}
				if _, err := f.WriteAt(data[i:i+1], int64(i)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Open(path); err != nil {
				t.Fatalf("the restored file: %v", err)
			}
			if refused < header {
				t.Errorf("of %d changes only %d were refused", 4*header, refused)
			}
		})
	}
}

func TestTruncatedAnywhere(t *testing.T) {
	for _, name := range []string{"tiny-qwen3moe-q8_0.gguf", "tiny-qwen35moe-q8_0.gguf"} {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(testdata.Model(t, name))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "model.gguf")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			m, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			dataStart := int64(math.MaxInt64)
			for _, tensor := range m.Spec.Tensors {
				dataStart = min(dataStart, tensor.Offset)
			}
			// From the end to the start: a few cuts of the data, many of the tensor
			// table, some of the vocabulary, all of the first keys.
			for size := int64(len(data)) - 1; size >= 0; {
				if err := os.Truncate(path, size); err != nil {
					t.Fatal(err)
				}
				_, err := Open(path)
				if err == nil {
					t.Fatalf("%d of %d bytes: no error", size, len(data))
				}
				checkError(t, err, path)
				switch {
				case size > dataStart+1000:
					size -= 99991
				case size > dataStart-2500:
					size -= 17
				case size > 1500:
					size -= 997
				default:
					size--
				}
			}
		})
	}
}

func TestOtherFiles(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.gguf")
	if _, err := Open(missing); !errors.Is(err, ErrNotFound) {
		t.Errorf("a missing file: %v", err)
	} else {
		checkError(t, err, missing)
	}
	_, err := Open(dir)
	checkError(t, err, filepath.Join(dir, "x"))
	empty := filepath.Join(dir, "empty.gguf")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(empty)
	checkError(t, err, empty)
	if !strings.Contains(err.Error(), "0 bytes") {
		t.Errorf("an empty file: %v", err)
	}
}

func TestVersion2(t *testing.T) {
	g := smallest()
	g.version = 2
	if _, err := Open(g.write(t, t.TempDir(), "v2.gguf")); err != nil {
		t.Error(err)
	}
}

func TestAlignment(t *testing.T) {
	g := smallest()
	g.align = 128
	g.set(u32("general.alignment", 128))
	g.place()
	m, err := Open(g.write(t, t.TempDir(), "aligned.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tensor := range m.Spec.Tensors {
		if tensor.Offset%128 != 0 {
			t.Errorf("tensor %s at %d", tensor.Name, tensor.Offset)
		}
	}
}

// TestQ2Variants writes files with both formats that share Q2_0's id.
func TestQ2Variants(t *testing.T) {
	variant := func(name string, dims ...uint64) tensor {
		v := dense(name, quant.Q2_0_128, dims...)
		v.typ = uint32(quant.Q2_0)
		return v
	}
	tests := []struct {
		name    string
		tensors []tensor
		cut     int
		want    quant.Type
		wantErr string
	}{
		{"standard", []tensor{dense("a", quant.Q2_0, 256, 4), dense("b", quant.Q2_0, 256, 4)}, 0, quant.Q2_0, ""},
		{"standard with short rows", []tensor{dense("a", quant.Q2_0, 64, 5), dense("b", quant.Q2_0, 256, 4)}, 0, quant.Q2_0, ""},
		{"variant", []tensor{variant("a", 256, 64), variant("b", 256, 64)}, 0, quant.Q2_0_128, ""},
		{"variant, small tensor last", []tensor{variant("a", 256, 64), variant("b", 128, 1)}, 0, quant.Q2_0_128, ""},
		{"variant before another type", []tensor{variant("a", 256, 64), dense("b", quant.F32, 8)}, 0, quant.Q2_0_128, ""},
		{"truncated standard", []tensor{dense("a", quant.Q2_0, 256, 64), dense("b", quant.Q2_0, 256, 64)}, 256 * 64 / 128 * 2, 0, "do not fit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := smallest()
			g.tensors = append([]tensor{g.tensors[0]}, tt.tensors...)
			g.cut = tt.cut
			g.place()
			path := g.write(t, t.TempDir(), "q2.gguf")
			m, err := Open(path)
			if tt.wantErr != "" {
				checkError(t, err, path)
				if !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %q does not contain %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, tensor := range m.Spec.Tensors {
				typ := quant.Type(tensor.Type)
				if typ != quant.F32 && typ != tt.want {
					t.Errorf("tensor %s has type %s, want %s", tensor.Name, typ, tt.want)
				}
			}
			checkRanges(t, m)
		})
	}
}

func FuzzOpen(f *testing.F) {
	// Little data keeps the fuzzer fast; headers are what is parsed.
	for _, g := range []*ggufFile{smallest(), hybrid()} {
		for i, t := range g.tensors {
			g.tensors[i] = dense(t.name, quant.Q1_0, 128, t.dims[1])
		}
		g.place()
		f.Add(g.bytes())
		g.version = 2
		g.set(u32("general.alignment", 8))
		g.place()
		f.Add(g.bytes())
	}
	f.Add([]byte("GGUF"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "model.gguf")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Open(path)
		if err != nil {
			checkError(t, err, path)
			return
		}
		checkRanges(t, m)
	})
}
