package kernels

// One activation row: the common formats are multiplied without storing the
// unpacked weights first, which would cost as much as the product. The integer
// sums are exact, so the results are those of the functions that unpack.
//
// The sums are written out. The compiler loads a loop's or a helper's operands
// first and then lacks registers, which halves the speed.

// nibbleMask selects one nibble of each half of a word.
const nibbleMask = 0xf * both

// singleQ8_0 adds 128 to every weight, which the activations' sum takes off
// again.
func singleQ8_0(row []byte, a []Block) float32 {
	var sum float32
	for i := range a {
		a, b := &a[i], (*[34]byte)(row[34*i:])
		p, q0, q1, q2, q3 := &a.Pair, le64(b[2:])^flip, le64(b[10:])^flip, le64(b[18:])^flip, le64(b[26:])^flip
		s0 := int64(q0&byteMask)*p[0] + int64(q0>>8&byteMask)*p[1] + int64(q0>>16&byteMask)*p[2] + int64(q0>>24&byteMask)*p[3]
		s1 := int64(q1&byteMask)*p[4] + int64(q1>>8&byteMask)*p[5] + int64(q1>>16&byteMask)*p[6] + int64(q1>>24&byteMask)*p[7]
		s2 := int64(q2&byteMask)*p[8] + int64(q2>>8&byteMask)*p[9] + int64(q2>>16&byteMask)*p[10] + int64(q2>>24&byteMask)*p[11]
		s3 := int64(q3&byteMask)*p[12] + int64(q3>>8&byteMask)*p[13] + int64(q3>>16&byteMask)*p[14] + int64(q3>>24&byteMask)*p[15]
		n := upperHalf(s0+s1+s2+s3) - 128*int32(a.Sum)
		sum += float32(a.Scale * float32(half(b[:])*float32(n)))
	}
	return sum
}

func singleQ4_0(row []byte, a []Block) float32 {
	var sum float32
	for i := range a {
		a, b := &a[i], (*[18]byte)(row[18*i:])
		p, q0, q1 := &a.Pair, le64(b[2:]), le64(b[10:])
		s0 := int64(q0&nibbleMask)*p[0] + int64(q0>>8&nibbleMask)*p[1] + int64(q0>>16&nibbleMask)*p[2] + int64(q0>>24&nibbleMask)*p[3]
		s1 := int64(q1&nibbleMask)*p[4] + int64(q1>>8&nibbleMask)*p[5] + int64(q1>>16&nibbleMask)*p[6] + int64(q1>>24&nibbleMask)*p[7]
		s2 := int64(q0>>4&nibbleMask)*p[8] + int64(q0>>12&nibbleMask)*p[9] + int64(q0>>20&nibbleMask)*p[10] + int64(q0>>28&nibbleMask)*p[11]
		s3 := int64(q1>>4&nibbleMask)*p[12] + int64(q1>>12&nibbleMask)*p[13] + int64(q1>>20&nibbleMask)*p[14] + int64(q1>>28&nibbleMask)*p[15]
		n := upperHalf(s0+s1+s2+s3) - 8*int32(a.Sum)
		sum += float32(a.Scale * float32(half(b[:])*float32(n)))
	}
	return sum
}

func singleIQ4_NL(row []byte, a []Block) float32 {
	var sum float32
	for i := range a {
		a, b := &a[i], (*[18]byte)(row[18*i:])
		p, q0, q1 := &a.Pair, le64(b[2:]), le64(b[10:])
		s0 := pairOfLevels(q0)*p[0] + pairOfLevels(q0>>8)*p[1] + pairOfLevels(q0>>16)*p[2] + pairOfLevels(q0>>24)*p[3]
		s1 := pairOfLevels(q1)*p[4] + pairOfLevels(q1>>8)*p[5] + pairOfLevels(q1>>16)*p[6] + pairOfLevels(q1>>24)*p[7]
		s2 := pairOfLevels(q0>>4)*p[8] + pairOfLevels(q0>>12)*p[9] + pairOfLevels(q0>>20)*p[10] + pairOfLevels(q0>>28)*p[11]
		s3 := pairOfLevels(q1>>4)*p[12] + pairOfLevels(q1>>12)*p[13] + pairOfLevels(q1>>20)*p[14] + pairOfLevels(q1>>28)*p[15]
		sum += float32(a.Scale * float32(half(b[:])*float32(upperHalf(s0+s1+s2+s3))))
	}
	return sum
}

func singleQ4_K(row []byte, a []Block) float32 {
	var sum float32
	for ; len(a) >= 8; a, row = a[8:], row[144:] {
		b, a := (*[144]byte)(row), (*[8]Block)(a)
		d, dmin := half(b[:]), half(b[2:])
		scales := (*[12]byte)(b[4:])
		for k := range a {
			a, qs, shift := &a[k], (*[32]byte)(b[16+k/2*32:]), k%2*4
			p, q0, q1, q2, q3 := &a.Pair, le64(qs[:])>>shift, le64(qs[8:])>>shift, le64(qs[16:])>>shift, le64(qs[24:])>>shift
			s0 := int64(q0&nibbleMask)*p[0] + int64(q0>>8&nibbleMask)*p[1] + int64(q0>>16&nibbleMask)*p[2] + int64(q0>>24&nibbleMask)*p[3]
			s1 := int64(q1&nibbleMask)*p[4] + int64(q1>>8&nibbleMask)*p[5] + int64(q1>>16&nibbleMask)*p[6] + int64(q1>>24&nibbleMask)*p[7]
			s2 := int64(q2&nibbleMask)*p[8] + int64(q2>>8&nibbleMask)*p[9] + int64(q2>>16&nibbleMask)*p[10] + int64(q2>>24&nibbleMask)*p[11]
			s3 := int64(q3&nibbleMask)*p[12] + int64(q3>>8&nibbleMask)*p[13] + int64(q3>>16&nibbleMask)*p[14] + int64(q3>>24&nibbleMask)*p[15]
			s, m := scaleMin(scales, k)
			sum += float32(a.Scale * (float32(d*float32(s)*float32(upperHalf(s0+s1+s2+s3))) - float32(dmin*float32(m)*a.Sum)))
		}
	}
	return sum
}
