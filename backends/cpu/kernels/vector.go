package kernels

// With AVX2 the integers of a block are multiplied sixteen at a time. Blocks and
// unpacked weights then hold plain integers instead of pairs. The integer sums are
// the same, and the float operations are those of the portable functions, so the
// results are the same to the last bit.

// mulMinimumVector is mulMinimum with AVX2.
func mulMinimumVector(dst []float32, stride int, w []weights, in *Rows, index []int32) {
	for i, row := range index {
		a := in.blocks(row)[:len(w)]
		dst[i*stride] = mulBlocks(&w[0], &a[0], len(w))
	}
}

// singleQ8_0Vector is singleQ8_0 with AVX2.
func singleQ8_0Vector(row []byte, a []Block) float32 {
	_ = row[34*len(a)-1]
	return mulRowQ8_0(&row[0], &a[0], len(a))
}

// sumBlocks is how many blocks' sums are computed before they are scaled.
const sumBlocks = 64

// mulHalvesVector is mulHalves with AVX2.
func mulHalvesVector(dst []float32, stride int, w []weights, in *Rows, index []int32) {
	var sums [2 * sumBlocks]int32
	for i, row := range index {
		a := in.blocks(row)[:len(w)]
		var sum float32
		for first := 0; first < len(w); first += sumBlocks {
			w := w[first:min(first+sumBlocks, len(w))]
			a := a[first:][:len(w)]
			dotHalves(&sums[0], &w[0], &a[0], len(w))
			for j := range w {
				w, n0, n1 := &w[j], sums[2*j], sums[2*j+1]
				sum += float32(a[j].Scale * (float32(w.d*float32(n0)) + float32(w.m*float32(n1))))
			}
		}
		dst[i*stride] = sum
	}
}

// dotVector is Dot with AVX2.
func dotVector(w, x []float32) float32 {
	x = x[:len(w)]
	var s [lanes]float32
	n := len(w) / lanes
	if n > 0 {
		dotLanes(&s, &w[0], &x[0], n)
	}
	for i := n * lanes; i < len(w); i++ {
		s[i-n*lanes] += float32(w[i] * x[i])
	}
	for l := range s[:8] {
		s[l] += s[l+8]
	}
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}
