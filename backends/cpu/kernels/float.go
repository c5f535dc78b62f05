package kernels

import "math"

// lanes is the number of partial sums of a float product: one AVX-512 register,
// two of AVX2, four of NEON.
const lanes = 16

// Dot is the product of two rows of equal length in the order that the package
// documentation states.
func Dot(w, x []float32) float32 {
	if vector {
		return dotVector(w, x)
	}
	n := len(w) / lanes * lanes
	x = x[:len(w)]
	// Two passes of eight lanes: that many sums fit the registers.
	s0, s1, s2, s3, s4, s5, s6, s7 := lower(w[:n], x[:n])
	s8, s9, s10, s11, s12, s13, s14, s15 := upper(w[:n], x[:n])
	if n < len(w) {
		s := [lanes]float32{s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15}
		for i := n; i < len(w); i++ {
			s[i-n] += float32(w[i] * x[i])
		}
		s0, s1, s2, s3, s4, s5, s6, s7 = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
		s8, s9, s10, s11, s12, s13, s14, s15 = s[8], s[9], s[10], s[11], s[12], s[13], s[14], s[15]
	}
	s0 += s8
	s1 += s9
	s2 += s10
	s3 += s11
	s4 += s12
	s5 += s13
	s6 += s14
	s7 += s15
	return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}

// lower adds the products of lanes 0 to 7; the rows are whole steps of 16.
func lower(w, x []float32) (s0, s1, s2, s3, s4, s5, s6, s7 float32) {
	x = x[:len(w)]
	for i := 0; i <= len(w)-lanes; i += lanes {
		a, b := (*[lanes]float32)(w[i:i+lanes]), (*[lanes]float32)(x[i:i+lanes])
		s0 += float32(a[0] * b[0])
		s1 += float32(a[1] * b[1])
		s2 += float32(a[2] * b[2])
		s3 += float32(a[3] * b[3])
		s4 += float32(a[4] * b[4])
		s5 += float32(a[5] * b[5])
		s6 += float32(a[6] * b[6])
		s7 += float32(a[7] * b[7])
	}
	return
}

// upper adds the products of lanes 8 to 15.
func upper(w, x []float32) (s0, s1, s2, s3, s4, s5, s6, s7 float32) {
	x = x[:len(w)]
	for i := 0; i <= len(w)-lanes; i += lanes {
		a, b := (*[lanes]float32)(w[i:i+lanes]), (*[lanes]float32)(x[i:i+lanes])
		s0 += float32(a[8] * b[8])
		s1 += float32(a[9] * b[9])
		s2 += float32(a[10] * b[10])
		s3 += float32(a[11] * b[11])
		s4 += float32(a[12] * b[12])
		s5 += float32(a[13] * b[13])
		s6 += float32(a[14] * b[14])
		s7 += float32(a[15] * b[15])
	}
	return
}

// decodeBF16 converts a row of bfloat16, four at a time.
func decodeBF16(dst []float32, row []byte) {
	i := 0
	for ; i+4 <= len(dst); i += 4 {
		d, v := (*[4]float32)(dst[i:i+4]), le64(row[2*i:2*i+8])
		d[0] = math.Float32frombits(uint32(v) << 16)
		d[1] = math.Float32frombits(uint32(v) & 0xffff0000)
		d[2] = math.Float32frombits(uint32(v>>32) << 16)
		d[3] = math.Float32frombits(uint32(v>>32) & 0xffff0000)
	}
	for ; i < len(dst); i++ {
		dst[i] = math.Float32frombits(uint32(row[2*i])<<16 | uint32(row[2*i+1])<<24)
	}
}
