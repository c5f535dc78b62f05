package quant

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// The IQ formats: groups of 4 or 8 elements are an index into a grid of
// magnitudes (grid.go) and a set of signs.

// signMask has, for every seven-bit sign id, the eight sign bits: the eighth
// makes their number even.
var signMask = func() (table [128]byte) {
	for i := range table {
		table[i] = byte(i) | byte(bits.OnesCount8(uint8(i))&1)<<7
	}
	return table
}()

// group8 writes eight elements: the bytes of row times scale, negated where
// signs has a bit.
func group8(y *[8]float32, scale float32, row uint64, signs byte) {
	for i := range y {
		v := scale * float32(byte(row>>(8*i)))
		y[i] = math.Float32frombits(math.Float32bits(v) ^ uint32(signs)>>i<<31)
	}
}

// dequantizeIQ2_XXS: d, and for each 32 elements four grid indices and a uint32
// of four seven-bit sign ids below a four-bit scale s; d*(0.5+s)/4*grid.
func dequantizeIQ2_XXS(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[66:] {
		y, b := (*[256]float32)(dst), (*[66]byte)(src)
		d := half(b[:], 0)
		for k := range 8 {
			qs := (*[8]byte)(b[2+8*k:])
			aux := binary.LittleEndian.Uint32(qs[4:])
			scale := d * (0.5 + float32(aux>>28)) * 0.25
			for g := range 4 {
				group8((*[8]float32)(y[32*k+8*g:]), scale, gridIQ2_XXS[qs[g]], signMask[aux>>(7*g)&127])
			}
		}
	}
}

// dequantizeIQ2_XS: d, 32 uint16 of a nine-bit grid index and a seven-bit sign
// id, scales[8] (a nibble s for each 16 elements); d*(0.5+s)/4*grid.
func dequantizeIQ2_XS(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[74:] {
		y, b := (*[256]float32)(dst), (*[74]byte)(src)
		d := half(b[:], 0)
		for g := range 32 { // group of 8
			q := binary.LittleEndian.Uint16(b[2+2*g:])
			s := b[66+g/4] >> (g % 4 / 2 * 4) & 15
			scale := d * (0.5 + float32(s)) * 0.25
			group8((*[8]float32)(y[8*g:]), scale, gridIQ2_XS[q&511], signMask[q>>9])
		}
	}
}

// dequantizeIQ2_S: d, qs[32], signs[32], qh[8], scales[8]; a ten-bit grid index
// of qs and two bits of qh, plain sign bits; scales as IQ2_XS.
func dequantizeIQ2_S(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[82:] {
		y, b := (*[256]float32)(dst), (*[82]byte)(src)
		d := half(b[:], 0)
		for g := range 32 {
			index := uint(b[2+g]) | uint(b[66+g/4])>>(2*(g%4))&3<<8
			s := b[74+g/4] >> (g % 4 / 2 * 4) & 15
			scale := d * (0.5 + float32(s)) * 0.25
			group8((*[8]float32)(y[8*g:]), scale, gridIQ2_S[index], b[34+g])
		}
	}
}

// dequantizeIQ3_XXS: d, qs[64] (a grid index for each 4 elements), and for each
// 32 elements a uint32 as in IQ2_XXS; d*(0.5+s)/2*grid.
func dequantizeIQ3_XXS(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[98:] {
		y, b := (*[256]float32)(dst), (*[98]byte)(src)
		d := half(b[:], 0)
		for k := range 8 {
			aux := binary.LittleEndian.Uint32(b[66+4*k:])
			scale := d * (0.5 + float32(aux>>28)) * 0.5
			qs := (*[8]byte)(b[2+8*k:])
			for g := range 4 {
				row := uint64(gridIQ3_XXS[qs[2*g]]) | uint64(gridIQ3_XXS[qs[2*g+1]])<<32
				group8((*[8]float32)(y[32*k+8*g:]), scale, row, signMask[aux>>(7*g)&127])
			}
		}
	}
}

// dequantizeIQ3_S: d, qs[64], qh[8], signs[32], scales[4]; a nine-bit grid index
// of qs and a bit of qh for each 4 elements, plain sign bits, a nibble s for
// each 32 elements; d*(1+2s)*grid.
func dequantizeIQ3_S(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[110:] {
		y, b := (*[256]float32)(dst), (*[110]byte)(src)
		d := half(b[:], 0)
		for k := range 8 {
			s := b[106+k/2] >> (k % 2 * 4) & 15
			scale := d * float32(1+2*int32(s))
			high := uint(b[66+k])
			qs := (*[8]byte)(b[2+8*k:])
			for g := range 4 {
				low := gridIQ3_S[uint(qs[2*g])|high>>(2*g)&1<<8]
				next := gridIQ3_S[uint(qs[2*g+1])|high>>(2*g+1)&1<<8]
				group8((*[8]float32)(y[32*k+8*g:]), scale, uint64(low)|uint64(next)<<32, b[74+4*k+g])
			}
		}
	}
}

// shifted8 writes eight elements: scale*(grid+delta) for signed grid bytes.
func shifted8(y *[8]float32, scale, delta float32, row uint64) {
	for i := range y {
		y[i] = scale * (float32(int8(row>>(8*i))) + delta)
	}
}

// shift is the offset that the IQ1 formats add to or subtract from the grid.
const shift = 0.125

// dequantizeIQ1_S: d, qs[32], uint16 qh[8]: for each 32 elements the upper three
// bits of four grid indices, a three-bit scale s and the sign of the shift;
// d*(2s+1)*(grid+shift).
func dequantizeIQ1_S(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[50:] {
		y, b := (*[256]float32)(dst), (*[50]byte)(src)
		d := half(b[:], 0)
		for k := range 8 {
			high := uint(binary.LittleEndian.Uint16(b[34+2*k:]))
			scale := d * float32(2*(high>>12&7)+1)
			delta := float32(shift)
			if high&0x8000 != 0 {
				delta = -shift
			}
			for g := range 4 {
				index := uint(b[2+4*k+g]) | high>>(3*g)&7<<8
				shifted8((*[8]float32)(y[32*k+8*g:]), scale, delta, gridIQ1_S[index])
			}
		}
	}
}

// dequantizeIQ1_M: qs[32], qh[16], uint16 scales[4]: the four top nibbles are
// the bits of d, below them are three-bit scales s for each 16 elements; a
// nibble of qh for each 8 elements has three bits of the grid index and the
// sign of the shift; d*(2s+1)*(grid+shift).
func dequantizeIQ1_M(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[56:] {
		y, b := (*[256]float32)(dst), (*[56]byte)(src)
		var scales [4]uint16
		var dBits uint16
		for i := range scales {
			scales[i] = binary.LittleEndian.Uint16(b[48+2*i:])
			dBits |= scales[i] >> 12 << (4 * i)
		}
		d := F16ToF32(dBits)
		for g := range 32 { // group of 8
			s := scales[g/8] >> (g / 2 % 4 * 3) & 7
			scale := d * float32(2*s+1)
			high := uint(b[32+g/2]) >> (g % 2 * 4) & 15
			delta := float32(shift)
			if high&8 != 0 {
				delta = -shift
			}
			shifted8((*[8]float32)(y[8*g:]), scale, delta, gridIQ1_S[uint(b[g])|high&7<<8])
		}
	}
}

// levelsIQ4 are the 16 non-linear levels of IQ4_NL and IQ4_XS (origin: ggml,
// MIT licence).
var levelsIQ4 = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// dequantizeIQ4_NL: d, qs[16] with the nibble order of Q4_0; d*level[n].
func dequantizeIQ4_NL(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[18:] {
		b := (*[18]byte)(src)
		levels32((*[32]float32)(dst), half(b[:], 0), (*[16]byte)(b[2:]))
	}
}

// dequantizeIQ4_XS: d, uint16 scales_h, scales_l[4], qs[128]; six-bit scales s
// for each 32 elements; d*(s-32)*level[n].
func dequantizeIQ4_XS(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[136:] {
		y, b := (*[256]float32)(dst), (*[136]byte)(src)
		d := half(b[:], 0)
		high := binary.LittleEndian.Uint16(b[2:])
		for k := range 8 {
			s := int32(b[4+k/2]>>(k%2*4)&15) | int32(high>>(2*k)&3<<4)
			levels32((*[32]float32)(y[32*k:]), d*float32(s-32), (*[16]byte)(b[8+16*k:]))
		}
	}
}

// levels32 writes 32 elements scale*level[n], low nibbles first.
func levels32(y *[32]float32, scale float32, qs *[16]byte) {
	for j, q := range qs {
		y[j] = scale * levelsIQ4[q&15]
		y[j+16] = scale * levelsIQ4[q>>4]
	}
}
