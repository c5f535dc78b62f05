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

// first8 and last8 sum the products of a block's first and second 16 values.
func first8(w, a *[pairs]int64) int64 {
	return w[0]*a[0] + w[1]*a[1] + w[2]*a[2] + w[3]*a[3] + (w[4]*a[4] + w[5]*a[5] + w[6]*a[6] + w[7]*a[7])
}

func last8(w, a *[pairs]int64) int64 {
	return w[8]*a[8] + w[9]*a[9] + w[10]*a[10] + w[11]*a[11] + (w[12]*a[12] + w[13]*a[13] + w[14]*a[14] + w[15]*a[15])
}

// mulMinimum multiplies a row of a format with a scale, and perhaps a minimum,
// for each 32 values; a has as many blocks as w.
func mulMinimum(w []weights, a []Block) float32 {
	var sum float32
	a = a[:len(w)]
	for i := range w {
		w, a := &w[i], &a[i]
		n := upperHalf(first8(&w.pair, &a.Pair) + last8(&w.pair, &a.Pair))
		sum += float32(a.Scale * (float32(w.d*float32(n)) - float32(w.m*a.Sum)))
	}
	return sum
}

// mulHalves multiplies a row of a format with a scale for each 16 values.
func mulHalves(w []weights, a []Block) float32 {
	var sum float32
	a = a[:len(w)]
	for i := range w {
		w, a := &w[i], &a[i]
		n0 := upperHalf(first8(&w.pair, &a.Pair))
		n1 := upperHalf(last8(&w.pair, &a.Pair))
		sum += float32(a.Scale * (float32(w.d*float32(n0)) + float32(w.m*float32(n1))))
	}
	return sum
}
