package kernels

// A block of an unpacked weight row: the partner of Block.
type weights struct {
	// pair[4g+t] is w[8g+t] + w[8g+t+4]·2^32; unused with AVX2.
	pair [pairs]int64
	// bytes are the weights in order; only used with AVX2.
	bytes [BlockValues]int8
	// d is the scale, m what the format has beside it: a minimum, or the scale of
	// the second 16 values.
	d, m float32
}

// upperHalf reads the sum of products from the upper half, rounding off the lower
// half, which is a signed sum of its own.
func upperHalf(s int64) int32 { return int32((s + 1<<31) >> 32) }

// mulMinimum multiplies a row of a format with a scale, and perhaps a minimum,
// for each 32 values with the activation rows that index names: the product with
// row index[i] goes to dst[i·stride]. It takes two activation rows at a time,
// which saves half of the loads of weights; the sums are written out for the
// reason given in single.go.
func mulMinimum(dst []float32, stride int, w []weights, in *Rows, index []int32) {
	at := 0
	for ; len(index) >= 2; index = index[2:] {
		a, b := in.blocks(index[0])[:len(w)], in.blocks(index[1])[:len(w)]
		var sum0, sum1 float32
		for j := range w {
			w, a, b := &w[j], &a[j], &b[j]
			p, q, r := &w.pair, &a.Pair, &b.Pair
			s := p[0]*q[0] + p[1]*q[1] + p[2]*q[2] + p[3]*q[3] + p[4]*q[4] + p[5]*q[5] + p[6]*q[6] + p[7]*q[7]
			t := p[0]*r[0] + p[1]*r[1] + p[2]*r[2] + p[3]*r[3] + p[4]*r[4] + p[5]*r[5] + p[6]*r[6] + p[7]*r[7]
			s += p[8]*q[8] + p[9]*q[9] + p[10]*q[10] + p[11]*q[11] + p[12]*q[12] + p[13]*q[13] + p[14]*q[14] + p[15]*q[15]
			t += p[8]*r[8] + p[9]*r[9] + p[10]*r[10] + p[11]*r[11] + p[12]*r[12] + p[13]*r[13] + p[14]*r[14] + p[15]*r[15]
			sum0 += float32(a.Scale * (float32(w.d*float32(upperHalf(s))) - float32(w.m*a.Sum)))
			sum1 += float32(b.Scale * (float32(w.d*float32(upperHalf(t))) - float32(w.m*b.Sum)))
		}
		dst[at], dst[at+stride] = sum0, sum1
		at += 2 * stride
	}
	if len(index) == 0 {
		return
	}
	a := in.blocks(index[0])[:len(w)]
	var sum float32
	for j := range w {
		w, a := &w[j], &a[j]
		p, q := &w.pair, &a.Pair
		s := p[0]*q[0] + p[1]*q[1] + p[2]*q[2] + p[3]*q[3] + p[4]*q[4] + p[5]*q[5] + p[6]*q[6] + p[7]*q[7] +
			p[8]*q[8] + p[9]*q[9] + p[10]*q[10] + p[11]*q[11] + p[12]*q[12] + p[13]*q[13] + p[14]*q[14] + p[15]*q[15]
		sum += float32(a.Scale * (float32(w.d*float32(upperHalf(s))) - float32(w.m*a.Sum)))
	}
	dst[at] = sum
}

// mulHalves is mulMinimum for a format with a scale for each 16 values.
func mulHalves(dst []float32, stride int, w []weights, in *Rows, index []int32) {
	for i, row := range index {
		a := in.blocks(row)[:len(w)]
		var sum float32
		for j := range w {
			w, a := &w[j], &a[j]
			p, q := &w.pair, &a.Pair
			n0 := upperHalf(p[0]*q[0] + p[1]*q[1] + p[2]*q[2] + p[3]*q[3] + p[4]*q[4] + p[5]*q[5] + p[6]*q[6] + p[7]*q[7])
			n1 := upperHalf(p[8]*q[8] + p[9]*q[9] + p[10]*q[10] + p[11]*q[11] + p[12]*q[12] + p[13]*q[13] + p[14]*q[14] + p[15]*q[15])
			sum += float32(a.Scale * (float32(w.d*float32(n0)) + float32(w.m*float32(n1))))
		}
		dst[i*stride] = sum
	}
}
