package kernels

// One activation row: the common formats are multiplied without storing the
// unpacked weights first, which would cost as much as the product. The integer
// sums are exact, so the results are those of the functions that unpack.

// singleQ8_0 adds 128 to every weight, which the activations' sum takes off
// again.
func singleQ8_0(row []byte, a []Block) float32 {
	var sum float32
	for i := range a {
		a, b := &a[i], (*[34]byte)(row[34*i:])
		var s int64
		for g := range 4 { // a loop, because eight weights at a time fit the registers
			s += mulBytes(le64(b[2+8*g:])^flip, (*[4]int64)(a.Pair[4*g:]))
		}
		n := upperHalf(s) - 128*int32(a.Sum)
		sum += float32(a.Scale * float32(half(b[:])*float32(n)))
	}
	return sum
}

// mulBytes sums the products of eight bytes.
func mulBytes(q uint64, p *[4]int64) int64 {
	return int64(q&byteMask)*p[0] + int64(q>>8&byteMask)*p[1] + int64(q>>16&byteMask)*p[2] + int64(q>>24&byteMask)*p[3]
}

// nibbleMask selects one nibble of each half of a word.
const nibbleMask = 0xf * both

// mulNibbles sums the products of the low nibbles of eight bytes.
func mulNibbles(q uint64, p *[4]int64) int64 {
	return int64(q&nibbleMask)*p[0] + int64(q>>8&nibbleMask)*p[1] + int64(q>>16&nibbleMask)*p[2] + int64(q>>24&nibbleMask)*p[3]
}

func singleQ4_0(row []byte, a []Block) float32 {
	var sum float32
	for i := range a {
		a, b := &a[i], (*[18]byte)(row[18*i:])
		var s int64
		for g := range 2 {
			q := le64(b[2+8*g:])
			s += mulNibbles(q, (*[4]int64)(a.Pair[4*g:])) + mulNibbles(q>>4, (*[4]int64)(a.Pair[4*g+8:]))
		}
		n := upperHalf(s) - 8*int32(a.Sum)
		sum += float32(a.Scale * float32(half(b[:])*float32(n)))
	}
	return sum
}

func singleIQ4_NL(row []byte, a []Block) float32 {
	var sum float32
	for i := range a {
		a, b := &a[i], (*[18]byte)(row[18*i:])
		var s int64
		for g := range 2 {
			q := le64(b[2+8*g:])
			s += mulLevels(q, (*[4]int64)(a.Pair[4*g:])) + mulLevels(q>>4, (*[4]int64)(a.Pair[4*g+8:]))
		}
		sum += float32(a.Scale * float32(half(b[:])*float32(upperHalf(s))))
	}
	return sum
}

// mulLevels is mulNibbles for the levels of nibbles.
func mulLevels(q uint64, p *[4]int64) int64 {
	return pairOfLevels(q)*p[0] + pairOfLevels(q>>8)*p[1] + pairOfLevels(q>>16)*p[2] + pairOfLevels(q>>24)*p[3]
}

func singleQ4_K(row []byte, a []Block) float32 {
	var sum float32
	for ; len(a) >= 8; a, row = a[8:], row[144:] {
		b, a := (*[144]byte)(row), (*[8]Block)(a)
		d, dmin := half(b[:]), half(b[2:])
		scales := (*[12]byte)(b[4:])
		for k := range a {
			a, qs, shift := &a[k], (*[32]byte)(b[16+k/2*32:]), k%2*4
			var sub int64
			for g := range 4 {
				sub += mulNibbles(le64(qs[8*g:])>>shift, (*[4]int64)(a.Pair[4*g:]))
			}
			s, m := scaleMin(scales, k)
			sum += float32(a.Scale * (float32(d*float32(s)*float32(upperHalf(sub))) - float32(dmin*float32(m)*a.Sum)))
		}
	}
	return sum
}
