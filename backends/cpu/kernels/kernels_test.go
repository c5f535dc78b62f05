package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/sdk/quant"
)

// allTypes are the types that occur in files.
var allTypes = []quant.Type{
	quant.F32, quant.F16, quant.BF16, quant.Q1_0, quant.Q2_0, quant.Q2_0_128, quant.Q4_0, quant.Q4_1, quant.Q5_0, quant.Q5_1,
	quant.Q8_0, quant.Q2_K, quant.Q3_K, quant.Q4_K, quant.Q5_K, quant.Q6_K, quant.IQ1_S, quant.IQ1_M, quant.IQ2_XXS, quant.IQ2_XS,
	quant.IQ2_S, quant.IQ3_XXS, quant.IQ3_S, quant.IQ4_NL, quant.IQ4_XS, quant.TQ1_0, quant.TQ2_0, quant.MXFP4, quant.NVFP4,
}

// randomMatrix returns valid random blocks of moderate size, and their values.
func randomMatrix(t testing.TB, rng *rand.Rand, typ quant.Type, rows, cols int) (*Matrix, []float32) {
	t.Helper()
	rowBytes, err := typ.RowBytes(cols)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, rows*rowBytes)
	values := make([]float32, rows*cols)
	nv, nb := typ.BlockValues(), typ.BlockBytes()
	for i := range len(values) / nv {
		block, v := data[i*nb:(i+1)*nb], values[i*nv:(i+1)*nv]
		for ok := false; !ok; {
			for j := range block {
				block[j] = byte(rng.Uint32())
			}
			if err := quant.Dequantize(typ, v, block); err != nil {
				t.Fatal(err)
			}
			ok = true
			for _, x := range v {
				ok = ok && math.Abs(float64(x)) < 1e4
			}
		}
	}
	m, err := NewMatrix(typ, rows, cols, data)
	if err != nil {
		t.Fatal(err)
	}
	return m, values
}

func randomRows(rng *rand.Rand, n, width int) *Rows {
	r := &Rows{Width: width, Floats: make([]float32, n*width)}
	for i := range r.Floats {
		r.Floats[i] = float32(rng.NormFloat64() * math.Exp(2*rng.NormFloat64()))
	}
	if width%BlockValues == 0 {
		r.Blocks = make([]Block, n*width/BlockValues)
		Quantize(r.Blocks, r.Floats)
	}
	return r
}

// integers reads the values of a block back.
func integers(b *Block) (q [BlockValues]int64) {
	if vector {
		for i, v := range b.Ints {
			q[i] = int64(v)
		}
		return q
	}
	for g := range 4 {
		for t := range 4 {
			p := b.Pair[4*g+t]
			low := int64(int32(p))
			q[8*g+t], q[8*g+t+4] = (p-low)>>32, low
		}
	}
	return q
}

const ulp = 0x1p-23 // twice the relative error of one float32 operation

// Every type against the exact product of its values in float64. The bound has
// two parts. Rounding an activation moves it by at most half its scale (and the
// division that finds the integer by 2 units in the last place more). The
// float32 operations, two or four a block and one addition of blocks, each err
// by half an ulp of a magnitude below Σ|x|·3·max|w|: with a minimum the parts
// D·I and M·S may be larger than their difference.
func TestProductOfEveryType(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, typ := range allTypes {
		t.Run(typ.String(), func(t *testing.T) {
			for _, n := range []int{1, 2, 7} {
				cols := max(typ.BlockValues(), 32) * (1 + n%3)
				rows := 5
				m, values := randomMatrix(t, rng, typ, rows, cols)
				in := randomRows(rng, n, cols)
				index := make([]int32, n)
				for i := range index {
					index[i] = int32(n - 1 - i)
				}
				got := make([]float32, n*rows)
				m.Mul(got, rows, 0, rows, in, index, new(Scratch))
				for i, a := range index {
					x := in.Floats[int(a)*cols:][:cols]
					for r := range rows {
						w := values[r*cols:][:cols]
						var want, moved, size, top float64
						for j := range w {
							want += float64(w[j]) * float64(x[j])
							top = max(top, math.Abs(float64(w[j])))
							size += math.Abs(float64(x[j]))
							if m.Quantized() {
								s := float64(in.Blocks[(int(a)*cols+j)/BlockValues].Scale)
								moved += math.Abs(float64(w[j])) * s * 0.5 * (1 + limit*2*ulp)
							}
						}
						bound := moved + float64(cols/BlockValues+8)*ulp*3*size*top
						if err := math.Abs(float64(got[i*rows+r]) - want); !(err <= bound) {
							t.Errorf("row %d, activation %d: %g, want %g within %g", r, a, got[i*rows+r], want, bound)
						}
					}
				}
			}
		})
	}
}

// The integer formats again, against the same rounded activations in float64:
// what is left is the error of the few float32 operations.
func TestIntegerSumsAreExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for typ := range integerFormats {
		t.Run(typ.String(), func(t *testing.T) {
			const rows, cols = 4, 512
			m, values := randomMatrix(t, rng, typ, rows, cols)
			in := randomRows(rng, 1, cols)
			got := make([]float32, rows)
			m.Mul(got, rows, 0, rows, in, []int32{0}, new(Scratch))
			for r := range rows {
				var want, size, top float64
				for b := range cols / BlockValues {
					block := &in.Blocks[b]
					for j, q := range integers(block) {
						w := float64(values[r*cols+b*BlockValues+j])
						want += float64(block.Scale) * float64(q) * w
						size += float64(block.Scale) * math.Abs(float64(q))
						top = max(top, math.Abs(w))
					}
				}
				bound := float64(cols/BlockValues+8) * ulp / 2 * 3 * size * top
				if err := math.Abs(float64(got[r]) - want); !(err <= bound) {
					t.Errorf("row %d: %g, want %g within %g", r, got[r], want, bound)
				}
			}
		})
	}
}

// The same bits whatever is computed beside: single rows, part of the rows,
// other activations.
func TestProductIgnoresCompany(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, typ := range allTypes {
		const rows, n, cols = 6, 9, 512
		m, _ := randomMatrix(t, rng, typ, rows, cols)
		in := randomRows(rng, n, cols)
		all := make([]float32, n*rows)
		index := make([]int32, n)
		for i := range index {
			index[i] = int32(i)
		}
		s := new(Scratch)
		m.Mul(all, rows, 0, rows, in, index, s)
		for i := range n {
			for r := range rows {
				var one [1]float32
				m.Mul(one[:], 1, r, r+1, in, index[i:i+1], s)
				if math.Float32bits(one[0]) != math.Float32bits(all[i*rows+r]) {
					t.Fatalf("%v: row %d, activation %d: alone %g, in company %g", typ, r, i, one[0], all[i*rows+r])
				}
			}
		}
	}
}

// The largest integers that can meet do not overflow.
func TestExtremeIntegers(t *testing.T) {
	const cols = 256
	for typ := range integerFormats {
		for fill := range 256 {
			rowBytes, _ := typ.RowBytes(cols)
			data := make([]byte, rowBytes)
			for i := range data {
				data[i] = byte(fill)
			}
			// Sixteen-bit scales whose bytes are all the same may be anything but are
			// finite unless the exponent is full.
			values := make([]float32, cols)
			if err := quant.Dequantize(typ, values, data); err != nil {
				t.Fatal(err)
			}
			if !Finite(values) {
				continue
			}
			m, err := NewMatrix(typ, 1, cols, data)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range []float32{1, -1} {
				in := &Rows{Width: cols, Floats: make([]float32, 2*cols), Blocks: make([]Block, 2*cols/BlockValues)}
				for i := range in.Floats {
					in.Floats[i] = x
				}
				Quantize(in.Blocks, in.Floats)
				var want, size float64
				for _, w := range values {
					want += float64(w * x)
					size += math.Abs(float64(w))
				}
				got := make([]float32, 2)
				m.Mul(got[:1], 1, 0, 1, in, []int32{0}, new(Scratch))
				m.Mul(got, 1, 0, 1, in, []int32{0, 1}, new(Scratch))
				for _, g := range got {
					if math.Abs(float64(g)-want) > 64*ulp*size+1e-30 {
						t.Errorf("%v filled with %#x times %g: %g, want %g", typ, fill, x, g, want)
					}
				}
			}
		}
	}
}

func TestQuantizeExtremes(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, tc := range []struct {
		name string
		x    []float32
		nan  bool
	}{
		{"zero", []float32{0, float32(math.Copysign(0, -1))}, false},
		{"largest", []float32{math.MaxFloat32, -math.MaxFloat32, 1}, false},
		{"smallest normal", []float32{0x1p-126, -0x1p-127}, false},
		{"subnormal", []float32{math.SmallestNonzeroFloat32, -3 * math.SmallestNonzeroFloat32}, false},
		{"near the threshold", []float32{0x1p-100, 0x1.fp-101}, false},
		{"below the threshold", []float32{0x1.fffp-101, 0x1p-110}, false},
		{"mixed", []float32{1, 1e-20, -1e-3}, false},
		{"infinity", []float32{1, inf}, true},
		{"minus infinity", []float32{-inf, 0}, true},
		{"not a number", []float32{0, nan, 5}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := make([]float32, BlockValues)
			copy(x, tc.x)
			var b [1]Block
			Quantize(b[:], x)
			if got := b[0].Scale != b[0].Scale; got != tc.nan {
				t.Fatalf("scale %g", b[0].Scale)
			}
			if tc.nan {
				return
			}
			var sum int64
			for i, q := range integers(&b[0]) {
				sum += q
				// Subnormal scales have few bits: half of the smallest number for
				// each unit is lost.
				bound := float64(b[0].Scale)*0.501 + limit*math.SmallestNonzeroFloat32
				if q > limit || q < -limit || math.Abs(float64(b[0].Scale)*float64(q)-float64(x[i])) > bound {
					t.Errorf("%g became %d times %g", x[i], q, b[0].Scale)
				}
			}
			if float32(sum) != b[0].Sum {
				t.Errorf("sum %g, want %d", b[0].Sum, sum)
			}
		})
	}
}

// One activation that is not finite makes every product of its row NaN or
// infinite, also where all weights are zero, and leaves other rows alone.
func TestNonFiniteActivationsShow(t *testing.T) {
	for _, typ := range []quant.Type{quant.Q8_0, quant.Q4_K, quant.Q6_K, quant.IQ4_NL, quant.F32, quant.BF16, quant.Q3_K} {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
			const cols = 512
			rowBytes, _ := typ.RowBytes(cols)
			m, err := NewMatrix(typ, 1, cols, make([]byte, rowBytes))
			if err != nil {
				t.Fatal(err)
			}
			in := randomRows(rand.New(rand.NewPCG(7, 8)), 3, cols)
			in.Floats[cols+300] = bad
			Quantize(in.Blocks, in.Floats)
			got := make([]float32, 3)
			m.Mul(got, 1, 0, 1, in, []int32{0, 1, 2}, new(Scratch))
			if got[0] != 0 || Finite(got[1:2]) || got[2] != 0 {
				t.Errorf("%v with %g: %g", typ, bad, got)
			}
		}
	}
}

func TestNewMatrixErrors(t *testing.T) {
	for _, tc := range []struct {
		typ              quant.Type
		rows, cols, size int
		want             string
	}{
		{quant.Q8_0, 0, 32, 0, "use matrix: extents 0 x 32 are not positive"},
		{quant.Q8_0, 1, 33, 34, "use matrix: size of a row: 33 values are no multiple of the 32 in a block of Q8_0"},
		{quant.Q8_0, 2, 32, 67, "use matrix: 67 bytes do not hold 2 rows of 32 values of Q8_0 (34 bytes each)"},
		{quant.Q8_0, math.MaxInt, 32, 34, fmt.Sprintf("use matrix: 34 bytes do not hold %d rows of 32 values of Q8_0 (34 bytes each)", math.MaxInt)},
		{77, 1, 32, 34, "use matrix: size of a row: unknown tensor type 77"},
	} {
		_, err := NewMatrix(tc.typ, tc.rows, tc.cols, make([]byte, tc.size))
		if err == nil {
			t.Errorf("%v: no error", tc)
			continue
		}
		if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
			t.Error(diff)
		}
	}
}

// Misaligned float32 data are read all the same.
func TestMisalignedF32(t *testing.T) {
	raw := make([]byte, 4*32+1)
	data := raw[1:]
	for i := range 32 {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(i)))
	}
	m, err := NewMatrix(quant.F32, 1, 32, data)
	if err != nil {
		t.Fatal(err)
	}
	row := make([]float32, 32)
	m.Row(row, 0)
	if row[31] != 31 {
		t.Errorf("last value %g", row[31])
	}
}

func TestDotOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, n := range []int{0, 1, 7, 15, 16, 17, 31, 32, 100, 257} {
		w, x := make([]float32, n), make([]float32, n)
		var lane [16]float32
		for i := range w {
			w[i], x[i] = float32(rng.NormFloat64()), float32(rng.NormFloat64())
			lane[i%16] += float32(w[i] * x[i])
		}
		for half := 8; half > 0; half /= 2 {
			for l := range half {
				lane[l] += lane[l+half]
			}
		}
		if got := Dot(w, x); got != lane[0] {
			t.Errorf("%d values: %g, want %g", n, got, lane[0])
		}
	}
}

// one makes a function of one value of one of slices.
func one(f func(dst, x []float32)) func(float32) float32 {
	return func(x float32) float32 {
		v := []float32{x}
		f(v, v)
		return v[0]
	}
}

func TestElementwise(t *testing.T) {
	for _, tc := range []struct {
		name  string
		f     func(float32) float32
		exact func(float64) float64
		rel   float64
	}{
		{"Exp", Exp, math.Exp, 4e-7},
		{"Sigmoid", Sigmoid, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, 5e-7},
		{"Sigmoids", one(Sigmoids), func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, 5e-7},
		{"SiLUs", one(SiLUs), func(x float64) float64 { return x / (1 + math.Exp(-x)) }, 5e-7},
		{"Softplus", Softplus, func(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }, 2e-7},
	} {
		check := func(x float32) {
			got, want := float64(tc.f(x)), tc.exact(float64(x))
			if tc.name == "Exp" && x > 88 {
				want = math.Inf(1)
			}
			if got != want && !(math.Abs(got-want) <= tc.rel*math.Abs(want)+1e-36) {
				t.Errorf("%s(%g) = %g, want %g", tc.name, x, got, want)
			}
		}
		for x := float32(-120); x < 120; x += 0.00713 {
			check(x)
		}
		for _, x := range []float32{0, 1e-30, -1e-30, math.MaxFloat32, -math.MaxFloat32, 88, -88, 87.33655, -87.33655, 0x1p-149} {
			check(x)
		}
		if got := tc.f(float32(math.NaN())); got == got {
			t.Errorf("%s(NaN) = %g", tc.name, got)
		}
		if got := tc.f(float32(math.Inf(1))); tc.name != "Sigmoid" && tc.name != "Sigmoids" && !math.IsInf(float64(got), 1) {
			t.Errorf("%s(+Inf) = %g", tc.name, got)
		}
	}
}

func TestNormOfLargeValues(t *testing.T) {
	x := []float32{3e30, -3e30, 3e30, 3e30}
	Norm(x, x, []float32{1, 1, 1, 2}, 1e-6)
	for i, want := range []float32{1, -1, 1, 2} {
		if math.Abs(float64(x[i]-want)) > 1e-6 {
			t.Errorf("value %d is %g, want %g", i, x[i], want)
		}
	}
	x = []float32{1, float32(math.Inf(1)), 0}
	Norm(x, x, []float32{1, 1, 1}, 1e-6)
	if Finite(x) {
		t.Errorf("an infinite value became %g", x)
	}
}

func TestEveryHalf(t *testing.T) {
	for h := range 1 << 16 {
		if got, want := math.Float32bits(fromHalf(uint16(h))), math.Float32bits(quant.F16ToF32(uint16(h))); got != want {
			t.Fatalf("%#04x is %#08x, want %#08x", h, got, want)
		}
	}
}
