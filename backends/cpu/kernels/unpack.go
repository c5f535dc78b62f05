package kernels

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// Unpacking a row of an integer format. The layouts are those that sdk/quant
// documents; here a block's 32 integers become four words of eight unsigned
// bytes in the order of the row, from which pairs follow by shifting.

// both is the value 1 in either half of a pair.
const both = 1 + 1<<32

// byteMask selects the byte t of each half of a word shifted right by 8t.
const byteMask = 0xff * both

// nibbles selects the low nibble of each byte.
const nibbles = 0x0f0f0f0f0f0f0f0f

func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// half reads a float16.
func half(b []byte) float32 { return fromHalf(binary.LittleEndian.Uint16(b)) }

// fromHalf is quant.F16ToF32 for loops over scales: nearly all are normal
// numbers, which only need their exponent moved.
func fromHalf(h uint16) float32 {
	m := uint32(h&0x7fff) << 13
	f := m + 112<<23
	if m >= 0x7c00<<13 { // infinity and NaN
		f = m | 0x7f800000
	} else if m < 0x400<<13 { // subnormal: as if it had the lowest exponent, less its implied bit
		f = math.Float32bits(math.Float32frombits(m+113<<23) - 0x1p-14)
	}
	return math.Float32frombits(uint32(h&0x8000)<<16 | f)
}

// set stores the bytes of four words, each less bias: as pairs, or with AVX2 as
// signed bytes. Bytes are below 128 or bias is 128.
func (w *weights) set(q0, q1, q2, q3 uint64, bias int64) {
	if vector {
		w.setBytes(q0, q1, q2, q3, bias)
		return
	}
	p := &w.pair
	bias *= both
	p[0] = int64(q0&byteMask) - bias
	p[1] = int64(q0>>8&byteMask) - bias
	p[2] = int64(q0>>16&byteMask) - bias
	p[3] = int64(q0>>24&byteMask) - bias
	p[4] = int64(q1&byteMask) - bias
	p[5] = int64(q1>>8&byteMask) - bias
	p[6] = int64(q1>>16&byteMask) - bias
	p[7] = int64(q1>>24&byteMask) - bias
	p[8] = int64(q2&byteMask) - bias
	p[9] = int64(q2>>8&byteMask) - bias
	p[10] = int64(q2>>16&byteMask) - bias
	p[11] = int64(q2>>24&byteMask) - bias
	p[12] = int64(q3&byteMask) - bias
	p[13] = int64(q3>>8&byteMask) - bias
	p[14] = int64(q3>>16&byteMask) - bias
	p[15] = int64(q3>>24&byteMask) - bias
}

// setBytes is set for AVX2. With the top bit of every byte set, subtracting from
// a byte never borrows from the next; inverting it afterwards makes the
// difference signed. A bias of 128 is the inversion alone.
func (w *weights) setBytes(q0, q1, q2, q3 uint64, bias int64) {
	high, less := uint64(flip), uint64(bias)*bit0
	if bias == 128 {
		high, less = 0, 0
	}
	b := (*[4]uint64)(unsafe.Pointer(&w.bytes))
	b[0], b[1], b[2], b[3] = ((q0|high)-less)^flip, ((q1|high)-less)^flip, ((q2|high)-less)^flip, ((q3|high)-less)^flip
}

// flip turns signed bytes into unsigned ones that are 128 larger.
const flip = 0x8080808080808080

func unpackQ8_0(w []weights, row []byte) {
	for i := range w {
		b := (*[34]byte)(row[34*i:])
		w[i].set(le64(b[2:])^flip, le64(b[10:])^flip, le64(b[18:])^flip, le64(b[26:])^flip, 128)
		w[i].d, w[i].m = half(b[:]), 0
	}
}

// nibbleWords orders 16 bytes of nibbles: the low ones are the first 16 values.
func nibbleWords(b []byte) (q0, q1, q2, q3 uint64) {
	lo, hi := le64(b), le64(b[8:])
	return lo & nibbles, hi & nibbles, lo >> 4 & nibbles, hi >> 4 & nibbles
}

func unpackQ4_0(w []weights, row []byte) {
	for i := range w {
		b := (*[18]byte)(row[18*i:])
		q0, q1, q2, q3 := nibbleWords(b[2:])
		w[i].set(q0, q1, q2, q3, 8)
		w[i].d, w[i].m = half(b[:]), 0
	}
}

func unpackQ4_1(w []weights, row []byte) {
	for i := range w {
		b := (*[20]byte)(row[20*i:])
		q0, q1, q2, q3 := nibbleWords(b[4:])
		w[i].set(q0, q1, q2, q3, 0)
		w[i].d, w[i].m = half(b[:]), -half(b[2:])
	}
}

// fifth[b] spreads the bits of b to the bit 4 of eight bytes.
var fifth = func() (table [256]uint64) {
	for b := range table {
		for i := range 8 {
			table[b] |= uint64(b>>i&1) << (8*i + 4)
		}
	}
	return table
}()

func unpackQ5_0(w []weights, row []byte) {
	for i := range w {
		b := (*[22]byte)(row[22*i:])
		q0, q1, q2, q3 := nibbleWords(b[6:])
		w[i].set(q0|fifth[b[2]], q1|fifth[b[3]], q2|fifth[b[4]], q3|fifth[b[5]], 16)
		w[i].d, w[i].m = half(b[:]), 0
	}
}

func unpackQ5_1(w []weights, row []byte) {
	for i := range w {
		b := (*[24]byte)(row[24*i:])
		q0, q1, q2, q3 := nibbleWords(b[8:])
		w[i].set(q0|fifth[b[4]], q1|fifth[b[5]], q2|fifth[b[6]], q3|fifth[b[7]], 0)
		w[i].d, w[i].m = half(b[:]), -half(b[2:])
	}
}

// twoBits[b] spreads the two-bit codes of b to four bytes.
var twoBits = func() (table [256]uint32) {
	for b := range table {
		for i := range 4 {
			table[b] |= uint32(b>>(2*i)&3) << (8 * i)
		}
	}
	return table
}()

// twoBitWord spreads the codes of two bytes to eight.
func twoBitWord(a, b byte) uint64 { return uint64(twoBits[a]) | uint64(twoBits[b])<<32 }

// unpackQ2_0: 64 values share a scale, hence two blocks.
func unpackQ2_0(w []weights, row []byte) {
	for i := range w {
		b := (*[18]byte)(row[18*(i/2):])
		q := (*[8]byte)(b[2+i%2*8:])
		w[i].set(twoBitWord(q[0], q[1]), twoBitWord(q[2], q[3]), twoBitWord(q[4], q[5]), twoBitWord(q[6], q[7]), 1)
		w[i].d, w[i].m = half(b[:]), 0
	}
}

// levels4 are the 16 values of IQ4_NL and IQ4_XS.
var levels4 = [16]int64{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// levels8 are the same as bytes.
var levels8 = func() (table [16]int8) {
	for i, l := range levels4 {
		table[i] = int8(l)
	}
	return table
}()

// levelPair[n0 | n1<<4] is the pair of two levels.
var levelPair = func() (table [256]int64) {
	for i := range table {
		table[i] = levels4[i&15] + levels4[i>>4]<<32
	}
	return table
}()

// pairOfLevels looks up the levels of nibble t of each half of q shifted right.
func pairOfLevels(q uint64) int64 { return levelPair[uint8(q&15|q>>28&0xf0)] }

func (w *weights) setLevels(b []byte) {
	if vector {
		setLevelsVector(&w.bytes, &b[:16][0], &levels8)
		return
	}
	p := &w.pair
	lo, hi := le64(b), le64(b[8:])
	for t := range 4 {
		p[t] = pairOfLevels(lo >> (8 * t))
		p[4+t] = pairOfLevels(hi >> (8 * t))
		p[8+t] = pairOfLevels(lo >> (8*t + 4))
		p[12+t] = pairOfLevels(hi >> (8*t + 4))
	}
}

func unpackIQ4_NL(w []weights, row []byte) {
	for i := range w {
		b := (*[18]byte)(row[18*i:])
		w[i].setLevels(b[2:])
		w[i].d, w[i].m = half(b[:]), 0
	}
}

func unpackIQ4_XS(w []weights, row []byte) {
	for ; len(w) >= 8; w, row = w[8:], row[136:] {
		b := (*[136]byte)(row)
		d, high := half(b[:]), binary.LittleEndian.Uint16(b[2:])
		for k := range 8 {
			s := int32(b[4+k/2]>>(4*(k%2))&15) | int32(high>>(2*k)&3)<<4
			w[k].setLevels(b[8+16*k:])
			w[k].d, w[k].m = d*float32(s-32), 0
		}
	}
}

// scaleMin unpacks the six-bit scale and minimum of sub-block k.
func scaleMin(p *[12]byte, k int) (scale, minimum byte) {
	if k < 4 {
		return p[k] & 63, p[k+4] & 63
	}
	return p[k+4]&15 | p[k-4]>>6<<4, p[k+4]>>4 | p[k]>>6<<4
}

func unpackQ4_K(w []weights, row []byte) {
	for ; len(w) >= 8; w, row = w[8:], row[144:] {
		b := (*[144]byte)(row)
		d, dmin := half(b[:]), half(b[2:])
		for k := range 8 {
			qs, shift := b[16+k/2*32:][:32], k%2*4
			w[k].set(le64(qs)>>shift&nibbles, le64(qs[8:])>>shift&nibbles,
				le64(qs[16:])>>shift&nibbles, le64(qs[24:])>>shift&nibbles, 0)
			s, m := scaleMin((*[12]byte)(b[4:]), k)
			w[k].d, w[k].m = d*float32(s), dmin*float32(m)
		}
	}
}

// bit0 selects the lowest bit of each byte.
const bit0 = 0x0101010101010101

func unpackQ5_K(w []weights, row []byte) {
	for ; len(w) >= 8; w, row = w[8:], row[176:] {
		b := (*[176]byte)(row)
		d, dmin := half(b[:]), half(b[2:])
		for k := range 8 {
			var q [4]uint64
			for g := range q {
				low := le64(b[48+k/2*32+8*g:]) >> (k % 2 * 4) & nibbles
				q[g] = low | le64(b[16+8*g:])>>k&bit0<<4
			}
			w[k].set(q[0], q[1], q[2], q[3], 0)
			s, m := scaleMin((*[12]byte)(b[4:]), k)
			w[k].d, w[k].m = d*float32(s), dmin*float32(m)
		}
	}
}

// bits01 selects the two lowest bits of each byte.
const bits01 = 0x0303030303030303

func unpackQ6_K(w []weights, row []byte) {
	for ; len(w) >= 8; w, row = w[8:], row[210:] {
		b := (*[210]byte)(row)
		d := half(b[208:])
		for k := range 8 { // sub-block k is part j of half n
			n, j := k/4, k%4
			var q [4]uint64
			for g := range q {
				low := le64(b[64*n+32*(j&1)+8*g:]) >> (j / 2 * 4) & nibbles
				q[g] = low | le64(b[128+32*n+8*g:])>>(2*j)&bits01<<4
			}
			w[k].set(q[0], q[1], q[2], q[3], 32)
			w[k].d = d * float32(int8(b[192+2*k]))
			w[k].m = d * float32(int8(b[193+2*k]))
		}
	}
}
