package kernels

import "golang.org/x/sys/cpu"

// vector says whether the processor has AVX2; every processor that does also
// converts float16 (F16C). It is set before anything is
// multiplied: blocks and unpacked weights hold one form or the other.
var vector = cpu.X86.HasAVX2

// mulBlocks is the product of n unpacked blocks with n of activations.
//
//go:noescape
func mulBlocks(w *weights, a *Block, n int) float32

// mulRowQ8_0 is the product of n blocks of Q8_0 with n of activations.
//
//go:noescape
func mulRowQ8_0(row *byte, a *Block, n int) float32

// dotHalves writes two sums a block: of its first and of its last 16 values.
//
//go:noescape
func dotHalves(sums *int32, w *weights, a *Block, n int)

// setLevelsVector looks up the levels of 16 bytes of nibbles, low ones first.
//
//go:noescape
func setLevelsVector(dst *[BlockValues]int8, src *byte, levels *[16]int8)

// dotLanes writes the 16 partial sums of steps of 16 products, in the order that
// the package documentation states. steps is at least 1.
//
//go:noescape
func dotLanes(sums *[lanes]float32, w, x *float32, steps int)
