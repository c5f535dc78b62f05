package quant

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/testdata"
)

// vectors is the layout of fixtures/quant_vectors.json.gz.
type vectors struct {
	Types map[string]struct {
		Type    uint32 `json:"ggml_type"`
		Block   int    `json:"block"`
		Bytes   int    `json:"block_bytes"`
		Vectors []struct {
			Kind  string `json:"kind"`
			N     int    `json:"n"`
			Bytes string `json:"bytes"`
			F32   string `json:"f32"`
		} `json:"vectors"`
	} `json:"types"`
}

func decode64(t testing.TB, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sameBits compares two values bit by bit; every NaN equals every other.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func TestDequantizeRecordedVectors(t *testing.T) {
	var v vectors
	testdata.Load(t, "quant_vectors.json.gz", &v)
	if len(v.Types) != 25 {
		t.Fatalf("%d types in the fixture, want 25", len(v.Types))
	}
	for name, want := range v.Types {
		t.Run(name, func(t *testing.T) {
			typ, err := ParseType(name)
			if err != nil {
				t.Fatal(err)
			}
			if uint32(typ) != want.Type || typ.BlockValues() != want.Block || typ.BlockBytes() != want.Bytes {
				t.Fatalf("id %d, block %d values in %d bytes; recorded %d, %d, %d",
					typ, typ.BlockValues(), typ.BlockBytes(), want.Type, want.Block, want.Bytes)
			}
			for _, vec := range want.Vectors {
				src, f32 := decode64(t, vec.Bytes), decode64(t, vec.F32)
				got := make([]float32, vec.N)
				if err := Dequantize(typ, got, src); err != nil {
					t.Fatalf("%s: %v", vec.Kind, err)
				}
				for i, g := range got {
					w := math.Float32frombits(binary.LittleEndian.Uint32(f32[4*i:]))
					if !sameBits(g, w) {
						t.Fatalf("%s: value %d (block %d, element %d) is %v (%08x), recorded %v (%08x)", vec.Kind, i,
							i/want.Block, i%want.Block, g, math.Float32bits(g), w, math.Float32bits(w))
					}
				}
			}
		})
	}
}

func TestGridsAreTheRecordedTables(t *testing.T) {
	var want struct {
		Grids map[string][][]int8 `json:"grids"`
	}
	testdata.Load(t, "iq_grids.json.gz", &want)
	rows := func(table []uint64, width int) [][]int8 {
		out := make([][]int8, len(table))
		for r, row := range table {
			for i := range width {
				out[r] = append(out[r], int8(row>>(8*i)))
			}
		}
		return out
	}
	widen := func(table []uint32) []uint64 {
		out := make([]uint64, len(table))
		for i, r := range table {
			out[i] = uint64(r)
		}
		return out
	}
	got := map[string][][]int8{
		"iq1_s":   rows(gridIQ1_S[:], 8),
		"iq2_xxs": rows(gridIQ2_XXS[:], 8),
		"iq2_xs":  rows(gridIQ2_XS[:], 8),
		"iq2_s":   rows(gridIQ2_S[:], 8),
		"iq3_xxs": rows(widen(gridIQ3_XXS[:]), 4),
		"iq3_s":   rows(widen(gridIQ3_S[:]), 4),
	}
	if diff := cmp.Diff(want.Grids, got); diff != "" {
		t.Errorf("grids differ (-recorded +ours):\n%.2000s", diff)
	}
}

// TestDequantizeTypesWithoutVectors covers the types that the fixture lacks with
// values computed here from their definitions.
func TestDequantizeTypesWithoutVectors(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	const blocks = 64
	tests := []struct {
		typ  Type
		want func(b []byte, e int) float64
	}{
		{F32, func(b []byte, _ int) float64 {
			return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
		}},
		{F16, func(b []byte, _ int) float64 { return f16Value(binary.LittleEndian.Uint16(b)) }},
		{BF16, func(b []byte, _ int) float64 {
			return float64(math.Float32frombits(uint32(b[0])<<16 | uint32(b[1])<<24))
		}},
		{Q8_K, func(b []byte, e int) float64 {
			return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))) * float64(int8(b[4+e]))
		}},
		{Q2_0_128, func(b []byte, e int) float64 {
			return f16Value(binary.LittleEndian.Uint16(b)) * float64(int(b[2+e/4]>>(2*(e%4))&3)-1)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.typ.String(), func(t *testing.T) {
			values, size := tt.typ.BlockValues(), tt.typ.BlockBytes()
			src := random(blocks * size)
			got := make([]float32, blocks*values)
			if err := Dequantize(tt.typ, got, src); err != nil {
				t.Fatal(err)
			}
			for i, g := range got {
				w := float32(tt.want(src[i/values*size:][:size], i%values))
				if !sameBits(g, w) {
					t.Fatalf("value %d is %v, want %v", i, g, w)
				}
			}
		})
	}
}

// f16Value is the value of a binary16 number in float64, from its definition.
func f16Value(h uint16) float64 {
	exponent, mantissa := int(h>>10&31), float64(h&1023)
	var v float64
	switch exponent {
	case 31:
		v = math.Inf(1)
		if mantissa != 0 {
			return math.NaN()
		}
	case 0:
		v = math.Ldexp(mantissa, -24)
	default:
		v = math.Ldexp(1024+mantissa, exponent-25)
	}
	return math.Copysign(v, 1-2*float64(h>>15))
}

// TestFP4Scales compares every scale byte with its definition; the vectors hold
// only some.
func TestFP4Scales(t *testing.T) {
	for i := range 256 {
		b := byte(i)
		if got, want := float64(halfE8M0(b)), math.Ldexp(1, i-128); got != want {
			t.Errorf("half of E8M0 %d = %g, want %g", i, got, want)
		}
		want := f16Value(uint16(b&127)<<7) * 256 / 2 // the same fields with a bias of 15
		if b&127 == 127 {
			want = 0
		}
		if got := float64(halfUE4M3[b]); got != want {
			t.Errorf("half of UE4M3 %02x = %g, want %g", b, got, want)
		}
	}
}

func TestF16ToF32AllValues(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		got, want := F16ToF32(h), float32(f16Value(h))
		if !sameBits(got, want) {
			t.Fatalf("F16ToF32(%04x) = %v, want %v", h, got, want)
		}
		back := F32ToF16(got)
		if got != got { // NaN: sign and payload kept, made quiet
			if back != h|0x200 {
				t.Fatalf("F32ToF16(F16ToF32(%04x)) = %04x", h, back)
			}
		} else if back != h {
			t.Fatalf("F32ToF16(F16ToF32(%04x)) = %04x", h, back)
		}
	}
}

func TestBF16AllValues(t *testing.T) {
	for i := range 1 << 16 {
		b := uint16(i)
		f := BF16ToF32(b)
		if math.Float32bits(f) != uint32(b)<<16 {
			t.Fatalf("BF16ToF32(%04x) = %08x", b, math.Float32bits(f))
		}
		want := b
		if f != f {
			want |= 0x40
		}
		if back := F32ToBF16(f); back != want {
			t.Fatalf("F32ToBF16(BF16ToF32(%04x)) = %04x", b, back)
		}
	}
}

// TestRoundingToHalf checks, around every representable magnitude, that values
// round to the nearest and ties to even.
func TestRoundingToHalf(t *testing.T) {
	tests := []struct {
		name  string
		round func(float32) uint16
		value func(uint16) float32
		inf   uint16
	}{
		{"float16", F32ToF16, F16ToF32, 0x7c00},
		{"bfloat16", F32ToBF16, BF16ToF32, 0x7f80},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for lo := uint16(0); lo < tt.inf; lo++ {
				hi := lo + 1
				low := float64(tt.value(lo))
				high := float64(tt.value(hi))
				if hi == tt.inf { // as if the exponent range went on
					high = low + (low - float64(tt.value(lo-1)))
				}
				// The middle has one bit more than low: exact in float32 except
				// between the smallest bfloat16 values' last places, where it is a
				// subnormal of float32 and still exact.
				mid := float32((low + high) / 2)
				even := lo + lo&1
				for _, c := range []struct {
					in   float32
					want uint16
				}{
					{mid, even},
					{math.Nextafter32(mid, 0), lo},
					{math.Nextafter32(mid, float32(math.Inf(1))), hi},
				} {
					if got := tt.round(c.in); got != c.want {
						t.Fatalf("round(%g) = %04x, want %04x", c.in, got, c.want)
					}
					if got := tt.round(-c.in); got != c.want|0x8000 {
						t.Fatalf("round(%g) = %04x, want %04x", -c.in, got, c.want|0x8000)
					}
				}
			}
			for _, nan := range []uint32{0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001} {
				h := tt.round(math.Float32frombits(nan))
				if v := tt.value(h); v == v || h>>15 != uint16(nan>>31) {
					t.Errorf("round(NaN %08x) = %04x", nan, h)
				}
			}
		})
	}
}

func TestTypeNames(t *testing.T) {
	seen := map[Type]bool{}
	for _, f := range formats {
		if seen[f.id] {
			t.Errorf("type %d occurs twice", f.id)
		}
		seen[f.id] = true
		for _, name := range []string{f.name, strings.ToLower(f.name)} {
			got, err := ParseType(name)
			if err != nil || got != f.id {
				t.Errorf("ParseType(%q) = %v, %v; want %v", name, got, err, f.id)
			}
		}
		if f.id.String() != f.name || !f.id.Known() {
			t.Errorf("type %d is called %q, known %v; want %q", f.id, f.id, f.id.Known(), f.name)
		}
	}
	for _, unknown := range []Type{4, 5, 9, 24, 43, 63, 64, 1 << 16, 1<<16 | 41, math.MaxUint32} {
		if unknown.Known() || unknown.BlockBytes() != 0 || unknown.BlockValues() != 0 {
			t.Errorf("type %d is known", uint32(unknown))
		}
		if _, err := unknown.RowBytes(256); err == nil {
			t.Errorf("type %d has rows", uint32(unknown))
		}
	}
	if got := Type(99).String(); got != "type-99" {
		t.Errorf("Type(99).String() = %q", got)
	}
	if _, err := ParseType("q9_9"); err == nil || !strings.Contains(err.Error(), "Q4_K") {
		t.Errorf("ParseType of an unknown name: %v, want an error that lists the known ones", err)
	}
}

func TestRowBytes(t *testing.T) {
	for _, f := range formats {
		for _, n := range []int{0, f.values, 3 * f.values, math.MaxInt / f.values * f.values, -f.values, f.values - 1, f.values + 1} {
			got, err := f.id.RowBytes(n)
			// The expectation, in unbounded integers.
			want := new(big.Int).Mul(big.NewInt(int64(n/f.values)), big.NewInt(int64(f.bytes)))
			fits := n >= 0 && n%f.values == 0 && want.Cmp(big.NewInt(math.MaxInt)) <= 0
			if fits != (err == nil) || fits && int64(got) != want.Int64() {
				t.Errorf("%s.RowBytes(%d) = %d, %v; want %v, error %v", f.id, n, got, err, want, !fits)
			}
		}
	}
}

func TestDequantizeChecksLengths(t *testing.T) {
	for _, f := range formats {
		tests := []struct{ dst, src int }{
			{f.values, f.bytes - 1},
			{f.values, f.bytes + 1},
			{f.values, 2 * f.bytes},
			{2 * f.values, f.bytes},
			{0, f.bytes},
			{f.values, 0},
		}
		if f.values > 1 {
			tests = append(tests, struct{ dst, src int }{f.values - 1, f.bytes}, struct{ dst, src int }{1, 0})
		}
		for _, tt := range tests {
			if err := Dequantize(f.id, make([]float32, tt.dst), make([]byte, tt.src)); err == nil {
				t.Errorf("%s: %d values from %d bytes: no error", f.id, tt.dst, tt.src)
			}
		}
		if err := Dequantize(f.id, nil, nil); err != nil {
			t.Errorf("%s: no blocks: %v", f.id, err)
		}
	}
	if err := Dequantize(99, nil, nil); err == nil {
		t.Error("unknown type: no error")
	}
}

func FuzzDequantize(f *testing.F) {
	for _, format := range formats {
		f.Add(uint32(format.id), bytes.Repeat([]byte{0xff}, 2*format.bytes), 2*format.values)
		f.Add(uint32(format.id), bytes.Repeat([]byte{0x5a}, format.bytes+1), format.values)
	}
	f.Add(uint32(99), []byte{1, 2, 3}, 3)
	f.Fuzz(func(t *testing.T, id uint32, src []byte, n int) {
		if n < 0 || n > 1<<14 {
			return
		}
		typ := Type(id)
		dst := make([]float32, n)
		err := Dequantize(typ, dst, src)
		want, sizeErr := typ.RowBytes(n)
		if fits := sizeErr == nil && want == len(src); fits != (err == nil) {
			t.Errorf("%s: %d values from %d bytes: %v", typ, n, len(src), err)
		}
	})
}

func BenchmarkDequantize(b *testing.B) {
	for _, f := range formats {
		b.Run(f.name, func(b *testing.B) {
			const values = 4096
			src := make([]byte, values/f.values*f.bytes)
			rng := rand.New(rand.NewPCG(3, 4))
			for i := range src {
				src[i] = byte(rng.Uint32()) & 0x3f
			}
			dst := make([]float32, values)
			b.SetBytes(4 * values)
			for b.Loop() {
				if err := Dequantize(f.id, dst, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
