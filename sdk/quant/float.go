package quant

import (
	"encoding/binary"
	"math"
)

// F16ToF32 converts an IEEE 754 binary16 value, given by its bits. Every value
// is represented exactly; the payload of a NaN is kept.
func F16ToF32(h uint16) float32 {
	// Shifted into place, the number has its float32 fields but an exponent that
	// is 112 too small. One multiplication corrects that for normal and
	// subnormal numbers alike, without rounding.
	const rebias = 0x1p112
	sign := uint32(h&0x8000) << 16
	magnitude := uint32(h&0x7fff) << 13
	if magnitude >= 0x7c00<<13 { // infinity and NaN
		return math.Float32frombits(sign | magnitude | 0x7f800000)
	}
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(magnitude)*rebias))
}

// F32ToF16 converts to the bits of the nearest IEEE 754 binary16 value, ties to
// the even one. Values from 65520 on become infinite; a NaN stays a (quiet) NaN.
func F32ToF16(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	magnitude := bits & 0x7fffffff
	switch {
	case magnitude > 0x7f800000: // NaN
		return sign | 0x7e00 | uint16(magnitude>>13&0x3ff)
	case magnitude >= 0x477ff000: // 65520, half way beyond the largest number
		return sign | 0x7c00
	case magnitude < 0x38800000: // below 2^-14: subnormal
		// The last place of 0.5 is 2^-24, the unit of binary16's subnormals, so
		// this addition rounds as wanted.
		return sign | uint16(math.Float32bits(math.Float32frombits(magnitude)+0.5)-math.Float32bits(0.5))
	}
	magnitude += 0xfff + magnitude>>13&1
	return sign | uint16((magnitude-112<<23)>>13)
}

// BF16ToF32 converts a bfloat16 value, given by its bits: the upper half of a
// float32.
func BF16ToF32(b uint16) float32 {
	return math.Float32frombits(uint32(b) << 16)
}

// F32ToBF16 converts to the bits of the nearest bfloat16 value, ties to the
// even one. A NaN stays a (quiet) NaN.
func F32ToBF16(f float32) uint16 {
	bits := math.Float32bits(f)
	if bits&0x7fffffff > 0x7f800000 {
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

func dequantizeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func dequantizeF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func dequantizeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// half reads a binary16 scale at b[i].
func half(b []byte, i int) float32 {
	return F16ToF32(uint16(b[i]) | uint16(b[i+1])<<8)
}
