package kernels

// A block of an unpacked weight row: the partner of Block.
type weights struct {
	// pair[4g+t] is w[8g+t] + w[8g+t+4]·2^32.
	pair [pairs]int64
	// d is the scale, m what the format has beside it: a minimum, or the scale of
	// the second 16 values.
	d, m float32
}

// upperHalf reads the sum of products from the upper half, rounding off the lower
// half, which is a signed sum of its own.
func upperHalf(s int64) int32 { return int32((s + 1<<31) >> 32) }

// mulMinimum multiplies a row of a format with a scale, and perhaps a minimum,
// for each 32 values with the activation rows that index names: the product with
// row index[i] goes to dst[i·stride].
func mulMinimum(dst []float32, stride int, w []weights, in *Rows, index []int32) {
	for i, row := range index {
		a := in.blocks(row)[:len(w)]
		var sum float32
		for j := range w {
			w, a := &w[j], &a[j]
			// One long sum: the compiler keeps it in few registers.
			p, q := &w.pair, &a.Pair
			n := upperHalf(p[0]*q[0] + p[1]*q[1] + p[2]*q[2] + p[3]*q[3] + p[4]*q[4] + p[5]*q[5] + p[6]*q[6] + p[7]*q[7] +
				p[8]*q[8] + p[9]*q[9] + p[10]*q[10] + p[11]*q[11] + p[12]*q[12] + p[13]*q[13] + p[14]*q[14] + p[15]*q[15])
			sum += float32(a.Scale * (float32(w.d*float32(n)) - float32(w.m*a.Sum)))
		}
		dst[i*stride] = sum
	}
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
