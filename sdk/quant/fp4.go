package quant

import "math"

// The FP4 formats: E2M1 elements (OCP Microscaling Formats specification 1.0)
// below a shared power of two (MXFP4) or an unsigned E4M3 scale (NVFP4).

// levelsE2M1 are twice the E2M1 values, so that they are integers; the scales
// are halved instead. Minus zero is zero.
var levelsE2M1 = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// halfE8M0 is half the value of an E8M0 scale: 2^(e-128). As in ggml the code
// 255, which the specification calls NaN, is a power of two like the others.
func halfE8M0(e byte) float32 {
	if e < 2 { // subnormal in float32
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// halfUE4M3 has half the value of every unsigned E4M3 scale: exponent bias 7,
// exponent 0 subnormal, the NaN code zero. Bit 7 is not part of the number.
var halfUE4M3 = func() (table [256]float32) {
	for i := range table {
		exponent, mantissa := i>>3&15, float64(i&7)
		switch {
		case i&127 == 127:
		case exponent == 0:
			table[i] = float32(math.Ldexp(mantissa, -10))
		default:
			table[i] = float32(math.Ldexp(8+mantissa, exponent-11))
		}
	}
	return table
}()

// dequantizeMXFP4: E8M0 e, qs[16] with the nibble order of Q4_0.
func dequantizeMXFP4(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[17:] {
		y, b := (*[32]float32)(dst), (*[17]byte)(src)
		d := halfE8M0(b[0])
		for j, q := range b[1:] {
			y[j] = d * levelsE2M1[q&15]
			y[j+16] = d * levelsE2M1[q>>4]
		}
	}
}

// dequantizeNVFP4: UE4M3 scales[4], qs[32]; of each 8 bytes the low nibbles are
// 8 elements, the high ones the next 8.
func dequantizeNVFP4(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[64:], src[36:] {
		y, b := (*[64]float32)(dst), (*[36]byte)(src)
		for k := range 4 {
			d := halfUE4M3[b[k]]
			qs := (*[8]byte)(b[4+8*k:])
			out := (*[16]float32)(y[16*k:])
			for j, q := range qs {
				out[j] = d * levelsE2M1[q&15]
				out[j+8] = d * levelsE2M1[q>>4]
			}
		}
	}
}
