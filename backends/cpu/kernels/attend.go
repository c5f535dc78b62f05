package kernels

import (
	"math"

	"github.com/strata-engine/strata/sdk/quant"
)

// Softmax is a running softmax-weighted sum of values (Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018). Results depend on how the
// values are cut into groups, so a caller cuts them by position.
type Softmax struct {
	top, sum float32
	// out is the sum of values so far, times sum.
	out []float32
}

// Reset starts over; out is the memory for the result.
func (s *Softmax) Reset(out []float32) {
	clear(out)
	*s = Softmax{top: float32(math.Inf(-1)), out: out}
}

// Add takes in a group of scores, which it overwrites, and their values: that of
// score i is the row at[i] of values.
func (s *Softmax) Add(scores []float32, values []float32, at []int32) {
	top := s.top
	for _, v := range scores {
		if v > top {
			top = v
		}
	}
	if top != s.top {
		shrink := Exp(s.top - top)
		s.sum = float32(s.sum * shrink)
		for i := range s.out {
			s.out[i] *= shrink
		}
		s.top = top
	}
	exps(scores, top)
	for _, p := range scores {
		s.sum += p
	}
	n := len(s.out)
	row := func(i int) []float32 { return values[int(at[i])*n:][:n] }
	i := 0
	for ; i+4 <= len(scores); i += 4 {
		addScaled4(s.out, scores[i], scores[i+1], scores[i+2], scores[i+3], row(i), row(i+1), row(i+2), row(i+3))
	}
	for ; i < len(scores); i++ {
		AddScaled(s.out, scores[i], row(i))
	}
}

// Finish divides by the sum of weights.
func (s *Softmax) Finish() {
	for i := range s.out {
		s.out[i] /= s.sum
	}
}

// addScaled4 is four AddScaled one after the other.
func addScaled4(y []float32, a0, a1, a2, a3 float32, x0, x1, x2, x3 []float32) {
	x0, x1, x2, x3 = x0[:len(y)], x1[:len(y)], x2[:len(y)], x3[:len(y)]
	for i, v := range y {
		v += float32(a0 * x0[i])
		v += float32(a1 * x1[i])
		v += float32(a2 * x2[i])
		v += float32(a3 * x3[i])
		y[i] = v
	}
}

// FromHalf converts float16 values.
func FromHalf(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i, h := range src {
		dst[i] = fromHalf(h)
	}
}

// ToHalf rounds to float16 and reports whether all results are finite.
func ToHalf(dst []uint16, src []float32) bool {
	dst = dst[:len(src)]
	finite := true
	for i, v := range src {
		h := quant.F32ToF16(v)
		dst[i] = h
		finite = finite && h&0x7c00 != 0x7c00
	}
	return finite
}
