package quant

// The ternary formats: values -d, 0 and d (TQ2_0's fourth code is 2d).

// dequantizeTQ1_0: qs[48], qh[4], d. A byte holds five base-3 digits (qh: four)
// as a fixed-point fraction of 256: multiplying by 3 moves the next digit above
// the byte. Elements are grouped by digit: 32 bytes give 160 elements, 16 bytes
// the next 80, qh the last 16. d*(digit-1).
func dequantizeTQ1_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[54:] {
		y, b := (*[256]float32)(dst), (*[54]byte)(src)
		d := half(b[:], 52)
		digits(y[:160], d, b[:32])
		digits(y[160:240], d, b[32:48])
		digits(y[240:], d, b[48:52])
	}
}

// digits decodes len(y)/len(qs) base-3 digits of each byte of qs.
func digits(y []float32, d float32, qs []byte) {
	level := [4]float32{d * -1, d * 0, d}
	power := byte(1)
	for ; len(y) > 0; y = y[len(qs):] {
		for i, q := range qs {
			y[i] = level[uint16(q*power)*3>>8]
		}
		power *= 3
	}
}

// dequantizeTQ2_0: qs[64], d. Of each 32 bytes, bits 0 and 1 are 32 elements,
// bits 2 and 3 the next 32, and so on. d*(c-1).
func dequantizeTQ2_0(dst []float32, src []byte) {
	for ; len(dst) > 0; dst, src = dst[256:], src[66:] {
		y, b := (*[256]float32)(dst), (*[66]byte)(src)
		d := half(b[:], 64)
		level := [4]float32{d * -1, d * 0, d, d * 2}
		for n := range 2 {
			qs := (*[32]byte)(b[32*n:])
			for j := range 4 {
				out := (*[32]float32)(y[128*n+32*j:])
				for i, q := range qs {
					out[i] = level[q>>(2*j)&3]
				}
			}
		}
	}
}
