// Package kernels multiplies weights as they lie in a model file with rows of
// activations, and holds the few elementwise functions that the operations
// share. It is portable Go, and assembly for the inner products where the
// processor has AVX2; both give the same bits.
//
// # What a product is
//
// A weight row of an integer format meets activations that were rounded, for
// each 32 values of a row, to 16-bit integers with one float32 scale (Block). With I
// the exact integer sum of products over a block, S the sum of its activations,
// a its scale, and D and M the block's weight scale and minimum, a product is
//
//	Σ_blocks a·(D·I - M·S)
//
// where blocks are added in ascending order and every float32 operation rounds
// on its own (no fused multiply-add; the many float32(...) around products forbid
// it to the compiler). Formats with a scale for each 16 values
// have D0·I0 + D1·I1 in place of D·I. Since the integer sums are exact, an
// implementation may compute them in any way; since the float operations are
// few and ordered, the result is one definite float32, which depends on nothing
// but the weight row and the activation row.
//
// A weight row of another format is decoded to float32 and meets the unrounded
// activations: 16 lanes, of which lane l adds the products of the values
// 16·i + l in ascending order, and then the lanes l and l+8, l and l+4, l and
// l+2, and the last two (Dot).
//
// # Why 16 bits
//
// Rounding moves the router's scores, and where two experts are close, another
// one is chosen: another function, not a nearby value. Against the float64
// device on the same file (pebble-q4-mtp, 5919 teacher-forced positions of the
// recorded prompts) the likeliest token differs where its margin is at least 0.1
//
//	bits of an activation   positions   mean KL divergence
//	 8                      20          1.8e-3
//	11                      2           3.6e-4
//	16                      0           1.5e-6
//
// and 16 bits cost a portable implementation no more than 8.
package kernels

import "math"

// BlockValues is the number of activations that share a scale.
const BlockValues = 32

// pairs is the number of int64 that hold a block's integers.
const pairs = BlockValues / 2

// Block is 32 activations of a row.
//
// Two integers lie in one int64, so that a single multiplication with two
// weights, w0 + w1·2^32, adds both products to the upper half of a sum:
//
//	(w0 + w1·2^32)·(q1 + q0·2^32) ≡ w0·q1 + (w0·q0 + w1·q1)·2^32  (mod 2^64)
//
// Sums of 16 such products with |w| <= 255 stay below 2^31 in both halves.
type Block struct {
	// Pair[4g+t] holds the values 8g+t (upper half) and 8g+t+4 (lower half);
	// unused with AVX2.
	Pair [pairs]int64
	// Ints are the values in order; only used with AVX2.
	Ints [BlockValues]int16
	// Scale times an integer is the activation. It is NaN where one of the 32 was
	// not finite, which makes every product NaN.
	Scale float32
	// Sum of the integers, at most 2^20.
	Sum float32
}

// limit is the largest magnitude of an activation's integer.
const limit = 32767

// roundMagic added to a float32 below 2^22 in magnitude leaves the nearest
// integer, ties to even, in the low bits.
const roundMagic = 3 << 22

// tiny is where 1/scale would overflow; such values are scaled up first.
const tiny = 0x1p-100

// Quantize rounds a row of activations; len(x) is 32·len(dst).
func Quantize(dst []Block, x []float32) {
	for i := range dst {
		quantizeBlock(&dst[i], (*[BlockValues]float32)(x[BlockValues*i:]))
	}
}

func quantizeBlock(b *Block, x *[BlockValues]float32) {
	// The largest magnitude, by its bits: magnitudes order like unsigned
	// integers, infinities and NaNs last.
	var top uint32
	for _, v := range x {
		top = max(top, math.Float32bits(v)&0x7fffffff)
	}
	largest := math.Float32frombits(top)
	if top >= 0x7f800000 || top == 0 {
		*b = Block{}
		if top != 0 {
			b.Scale = float32(math.NaN())
		}
		return
	}
	up := float32(1)
	if largest < tiny {
		up = 0x1p60
	}
	inverse := limit / (largest * up)
	var sum int64
	if vector {
		for i, v := range x {
			q := round(v*up, inverse)
			b.Ints[i] = int16(q)
			sum += q
		}
	} else {
		sum = b.setPairs(x, up, inverse)
	}
	b.Scale = largest / limit
	b.Sum = float32(sum)
}

// setPairs rounds the activations into pairs and returns their sum.
func (b *Block) setPairs(x *[BlockValues]float32, up, inverse float32) (sum int64) {
	for g := range 4 {
		v, p := (*[8]float32)(x[8*g:]), (*[4]int64)(b.Pair[4*g:])
		for t := range p {
			high, low := round(v[t]*up, inverse), round(v[t+4]*up, inverse)
			p[t] = low + high<<32
			sum += low + high
		}
	}
	return sum
}

// round returns the integer nearest to v·inverse.
func round(v, inverse float32) int64 {
	f := float32(v*inverse) + roundMagic
	return int64(int32(math.Float32bits(f)) - int32(math.Float32bits(roundMagic)))
}
