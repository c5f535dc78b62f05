package kernels

import (
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/cpu"
)

// TestMain runs the tests with AVX2, where the processor has it, and then all of
// them again without.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if bench := flag.Lookup("test.bench"); code == 0 && vector && bench.Value.String() == "" {
		vector = false
		code = m.Run()
	}
	os.Exit(code)
}

// TestVectorGivesTheSameBits multiplies with and without AVX2.
func TestVectorGivesTheSameBits(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("NOT RUN: the processor has no AVX2")
	}
	defer func(v bool) { vector = v }(vector)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, typ := range allTypes {
		for _, blocks := range []int{1, 2, 3, 5, 70} { // of 32 values; 70 are more than one group
			cols := blocks * typ.BlockValues()
			if typ.BlockValues() < BlockValues {
				cols = blocks*BlockValues + 8*(blocks%2)
			}
			m, _ := randomMatrix(t, rng, typ, 3, cols)
			if m.Quantized() && cols%BlockValues != 0 {
				t.Fatalf("%v: %d columns", typ, cols)
			}
			x := make([]float32, 4*cols)
			for i := range x {
				x[i] = float32(rng.NormFloat64() * math.Exp(3*rng.NormFloat64()))
			}
			x[cols+1] = float32(math.NaN())
			var got [2][]float32
			for i, v := range []bool{false, true} {
				vector = v
				in := &Rows{Width: cols, Floats: x}
				if m.Quantized() {
					in.Blocks = make([]Block, len(x)/BlockValues)
					Quantize(in.Blocks, x)
				}
				got[i] = make([]float32, 5*3)
				var s Scratch
				m.Mul(got[i], 3, 0, 3, in, []int32{3, 0, 1, 2}, &s)
				m.Mul(got[i][12:], 3, 0, 3, in, []int32{2}, &s)
			}
			for i := range got[0] {
				if a, b := got[0][i], got[1][i]; math.Float32bits(a) != math.Float32bits(b) && (a == a || b == b) {
					t.Fatalf("%v, %d columns, product %d: %v without, %v with AVX2", typ, cols, i, a, b)
				}
			}
		}
	}
}
