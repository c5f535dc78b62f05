package quant

import (
	"encoding/binary"
	"math"
)

// The K formats: 256 elements in sub-blocks of 16 or 32 with small integer
// scales (and minima) of their own below the block's float16 scales.

// dequantizeQ2_K: scales[16] (low nibble scale, high nibble minimum), qs[64], d,
// dmin; d*scale*c - dmin*minimum for two-bit codes c.
func dequantizeQ2_K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[84:] {
		y, b := (*[256]float32)(dst), (*[84]byte)(src)
		d, dmin := half(b[:], 80), half(b[:], 82)
		for k := range 16 { // sub-block of 16 elements
			scale := d * float32(b[k]&15)
			minimum := dmin * float32(b[k]>>4)
			// Elements 128n+32j+l take bits 2j of qs[32n+l].
			n, j, l := k/8, k%8/2, k%2*16
			qs := b[16+32*n+l:][:16]
			out := y[16*k:][:16]
			for i, q := range qs {
				out[i] = scale*float32(q>>(2*j)&3) - minimum
			}
		}
	}
}

// dequantizeQ3_K: hmask[32], qs[64], scales[12] (six bits each), d;
// d*(scale-32)*(c-4*(1-h)) for two-bit codes c and mask bits h.
func dequantizeQ3_K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[110:] {
		y, b := (*[256]float32)(dst), (*[110]byte)(src)
		d := half(b[:], 108)
		packed := (*[12]byte)(b[96:])
		for k := range 16 {
			var low byte
			if k < 8 {
				low = packed[k] & 15
			} else {
				low = packed[k-8] >> 4
			}
			high := packed[8+k%4] >> (2 * (k / 4)) & 3
			scale := d * float32(int32(low|high<<4)-32)
			n, j, l := k/8, k%8/2, k%2*16
			qs := b[32+32*n+l:][:16]
			mask := b[l:][:16]
			out := y[16*k:][:16]
			for i, q := range qs {
				c := int32(q>>(2*j)&3) | int32(mask[i]>>(4*n+j)&1)<<2
				out[i] = scale * float32(c-4)
			}
		}
	}
}

// scaleMin unpacks the six-bit scale and minimum of sub-block k from the twelve
// bytes that Q4_K and Q5_K share.
func scaleMin(p *[12]byte, k int) (scale, minimum byte) {
	if k < 4 {
		return p[k] & 63, p[k+4] & 63
	}
	return p[k+4]&15 | p[k-4]>>6<<4, p[k+4]>>4 | p[k]>>6<<4
}

// dequantizeQ4_K: d, dmin, scales[12], qs[128]; d*scale*n - dmin*minimum, eight
// sub-blocks of 32; of 32 bytes the low nibbles are one, the high ones the next.
func dequantizeQ4_K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[144:] {
		y, b := (*[256]float32)(dst), (*[144]byte)(src)
		d, dmin := half(b[:], 0), half(b[:], 2)
		packed := (*[12]byte)(b[4:])
		for k := 0; k < 8; k += 2 {
			s, m := scaleMin(packed, k)
			scale0, min0 := d*float32(s), dmin*float32(m)
			s, m = scaleMin(packed, k+1)
			scale1, min1 := d*float32(s), dmin*float32(m)
			qs := (*[32]byte)(b[16+16*k:])
			out := (*[64]float32)(y[32*k:])
			for i, q := range qs {
				out[i] = scale0*float32(q&15) - min0
				out[i+32] = scale1*float32(q>>4) - min1
			}
		}
	}
}

// dequantizeQ5_K: d, dmin, scales[12], qh[32], qs[128]; as Q4_K with the fifth
// bit of sub-block k in bit k of qh.
func dequantizeQ5_K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[176:] {
		y, b := (*[256]float32)(dst), (*[176]byte)(src)
		d, dmin := half(b[:], 0), half(b[:], 2)
		packed := (*[12]byte)(b[4:])
		high := (*[32]byte)(b[16:])
		for k := 0; k < 8; k += 2 {
			s, m := scaleMin(packed, k)
			scale0, min0 := d*float32(s), dmin*float32(m)
			s, m = scaleMin(packed, k+1)
			scale1, min1 := d*float32(s), dmin*float32(m)
			qs := (*[32]byte)(b[48+16*k:])
			out := (*[64]float32)(y[32*k:])
			for i, q := range qs {
				h := high[i] >> k
				out[i] = scale0*float32(q&15|h&1<<4) - min0
				out[i+32] = scale1*float32(q>>4|h>>1&1<<4) - min1
			}
		}
	}
}

// dequantizeQ6_K: ql[128], qh[64], int8 scales[16], d; d*scale*(n-32).
func dequantizeQ6_K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[210:] {
		y, b := (*[256]float32)(dst), (*[210]byte)(src)
		d := half(b[:], 208)
		for k := range 16 {
			scale := d * float32(int8(b[192+k]))
			// Elements 128n+32j+l: the low four bits are a nibble of
			// ql[64n+32(j%2)+l], the upper two bits 2j of qh[32n+l].
			n, j, l := k/8, k%8/2, k%2*16
			low := b[64*n+32*(j%2)+l:][:16]
			high := b[128+32*n+l:][:16]
			out := y[16*k:][:16]
			for i, q := range low {
				c := q>>(4*(j/2))&15 | high[i]>>(2*j)&3<<4
				out[i] = scale * float32(int32(c)-32)
			}
		}
	}
}

// dequantizeQ8_K: float32 d, 256 signed bytes, 16 int16 sums (which only dot
// products use); d*q.
func dequantizeQ8_K(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[292:] {
		y, b := (*[256]float32)(dst), (*[292]byte)(src)
		d := math.Float32frombits(binary.LittleEndian.Uint32(b[:]))
		for j := range y {
			y[j] = d * float32(int8(b[4+j]))
		}
	}
}
