package kernels

// lanes is the number of partial sums of a float product: one AVX-512 register,
// two of AVX2, four of NEON.
const lanes = 16

// Dot is the product of two rows of equal length in the order that the package
// documentation states.
func Dot(w, x []float32) float32 {
	var s [lanes]float32
	n := len(w) / lanes * lanes
	x = x[:len(w)]
	if n > 0 {
		// Two passes of eight lanes: that many sums fit the registers.
		lower(&s, w[:n], x[:n])
		upper(&s, w[:n], x[:n])
	}
	for i := n; i < len(w); i++ {
		s[i-n] += float32(w[i] * x[i])
	}
	return tree(&s)
}

// lower adds the products of lanes 0 to 7.
func lower(s *[lanes]float32, w, x []float32) {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	for len(w) >= lanes && len(x) >= lanes {
		a, b := (*[lanes]float32)(w), (*[lanes]float32)(x)
		s0 += float32(a[0] * b[0])
		s1 += float32(a[1] * b[1])
		s2 += float32(a[2] * b[2])
		s3 += float32(a[3] * b[3])
		s4 += float32(a[4] * b[4])
		s5 += float32(a[5] * b[5])
		s6 += float32(a[6] * b[6])
		s7 += float32(a[7] * b[7])
		w, x = w[lanes:], x[lanes:]
	}
	s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7] = s0, s1, s2, s3, s4, s5, s6, s7
}

// upper adds the products of lanes 8 to 15.
func upper(s *[lanes]float32, w, x []float32) {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	for len(w) >= lanes && len(x) >= lanes {
		a, b := (*[lanes]float32)(w), (*[lanes]float32)(x)
		s0 += float32(a[8] * b[8])
		s1 += float32(a[9] * b[9])
		s2 += float32(a[10] * b[10])
		s3 += float32(a[11] * b[11])
		s4 += float32(a[12] * b[12])
		s5 += float32(a[13] * b[13])
		s6 += float32(a[14] * b[14])
		s7 += float32(a[15] * b[15])
		w, x = w[lanes:], x[lanes:]
	}
	s[8], s[9], s[10], s[11], s[12], s[13], s[14], s[15] = s0, s1, s2, s3, s4, s5, s6, s7
}

// tree adds the lanes.
func tree(s *[lanes]float32) float32 {
	for half := lanes / 2; half > 0; half /= 2 {
		for l := range half {
			s[l] += s[l+half]
		}
	}
	return s[0]
}
