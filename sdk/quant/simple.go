package quant

import "encoding/binary"

// The simple formats: a float16 scale d (and, for the _1 types, a minimum m)
// followed by small integers.
//
// In this file and the next ones, products of a scale and the integers have at
// most 24 significant bits, so they are exact in float32; at most one addition
// rounds. Neither the order of multiplications nor a fused multiply-add
// changes a result.

// dequantizeQ1_0: d, 128 bits; a set bit is d, a clear one -d.
func dequantizeQ1_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[128:], src[18:] {
		y, b := (*[128]float32)(dst), (*[18]byte)(src)
		d := half(b[:], 0)
		level := [2]float32{-d, d}
		for j, q := range b[2:] {
			for k := range 8 {
				y[8*j+k] = level[q>>k&1]
			}
		}
	}
}

// dequantizeQ2_0: d, 64 two-bit codes c; d*(c-1).
func dequantizeQ2_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[64:], src[18:] {
		b := (*[18]byte)(src)
		twoBit(dst[:64], half(b[:], 0), b[2:])
	}
}

// dequantizeQ2_0_128: as Q2_0 with 128 codes.
func dequantizeQ2_0_128(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[128:], src[34:] {
		b := (*[34]byte)(src)
		twoBit(dst[:128], half(b[:], 0), b[2:])
	}
}

// twoBit decodes four codes c of qs at a time, lowest bits first, as d*(c-1).
func twoBit(y []float32, d float32, qs []byte) {
	level := [4]float32{d * -1, d * 0, d, d * 2}
	for j, q := range qs {
		o := y[4*j : 4*j+4 : 4*j+4]
		o[0] = level[q&3]
		o[1] = level[q>>2&3]
		o[2] = level[q>>4&3]
		o[3] = level[q>>6]
	}
}

// dequantizeQ4_0: d, qs[16]; d*(n-8). The low nibbles are elements 0 to 15, the
// high ones 16 to 31.
func dequantizeQ4_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[18:] {
		y, b := (*[32]float32)(dst), (*[18]byte)(src)
		d := half(b[:], 0)
		for j, q := range b[2:] {
			y[j] = d * float32(int32(q&15)-8)
			y[j+16] = d * float32(int32(q>>4)-8)
		}
	}
}

// dequantizeQ4_1: d, m, qs[16]; d*n + m.
func dequantizeQ4_1(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[20:] {
		y, b := (*[32]float32)(dst), (*[20]byte)(src)
		d, m := half(b[:], 0), half(b[:], 2)
		for j, q := range b[4:] {
			y[j] = d*float32(q&15) + m
			y[j+16] = d*float32(q>>4) + m
		}
	}
}

// dequantizeQ5_0: d, the fifth bits as a uint32, qs[16]; d*(n-16).
func dequantizeQ5_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[22:] {
		y, b := (*[32]float32)(dst), (*[22]byte)(src)
		d := half(b[:], 0)
		high := binary.LittleEndian.Uint32(b[2:])
		for j, q := range b[6:] {
			y[j] = d * float32(int32(uint32(q&15)|high>>j&1<<4)-16)
			y[j+16] = d * float32(int32(uint32(q>>4)|high>>(j+16)&1<<4)-16)
		}
	}
}

// dequantizeQ5_1: d, m, the fifth bits as a uint32, qs[16]; d*n + m.
func dequantizeQ5_1(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[24:] {
		y, b := (*[32]float32)(dst), (*[24]byte)(src)
		d, m := half(b[:], 0), half(b[:], 2)
		high := binary.LittleEndian.Uint32(b[4:])
		for j, q := range b[8:] {
			y[j] = d*float32(uint32(q&15)|high>>j&1<<4) + m
			y[j+16] = d*float32(uint32(q>>4)|high>>(j+16)&1<<4) + m
		}
	}
}

// dequantizeQ8_0: d, 32 signed bytes; d*q.
func dequantizeQ8_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[32:], src[34:] {
		y, b := (*[32]float32)(dst), (*[34]byte)(src)
		d := half(b[:], 0)
		for j, q := range b[2:] {
			y[j] = d * float32(int8(q))
		}
	}
}
