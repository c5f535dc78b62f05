//go:build unix

package kernels

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/strata-engine/strata/sdk/quant"
)

// BenchmarkMul reports products per second of processor time, which other
// processes on the machine change less than wall-clock time.
func BenchmarkMul(b *testing.B) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, typ := range []quant.Type{quant.Q8_0, quant.Q4_K, quant.IQ4_NL, quant.Q4_0, quant.Q5_K, quant.Q6_K, quant.Q2_0, quant.F32, quant.BF16, quant.F16, quant.IQ2_XS} {
		for _, n := range []int{1, 32} {
			b.Run(fmt.Sprintf("%v/%d", typ, n), func(b *testing.B) {
				const rows, cols = 64, 256
				m, _ := randomMatrix(b, rng, typ, rows, cols)
				in := randomRows(rng, n, cols)
				index := make([]int32, n)
				for i := range index {
					index[i] = int32(i)
				}
				dst, s := make([]float32, n*rows), new(Scratch)
				start := processorTime(b)
				for b.Loop() {
					m.Mul(dst, rows, 0, rows, in, index, s)
				}
				b.ReportMetric(float64(b.N)*rows*cols*float64(n)/(processorTime(b)-start)/1e9, "GMAC/cpu-s")
			})
		}
	}
}

// processorTime is the processor time of this process in seconds.
func processorTime(b *testing.B) float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return float64(usage.Utime.Nano()) / 1e9
}
