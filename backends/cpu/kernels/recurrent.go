package kernels

// DeltaStep is one token of the gated delta rule for one head (Yang et al.,
// "Gated Delta Networks", 2024). The state s is [len(k)][len(v)]:
//
//	m = kᵀS;  d = beta·(v - decay·m);  S ← decay·S + k dᵀ;  o = qᵀS
//
// which is the rule with decay taken out of the first sum. Sums run over the
// keys in ascending order, separately for every value, so that any number of
// values may be computed side by side.
func DeltaStep(s, q, k, v []float32, beta, decay float32, o []float32) {
	n := len(v)
	j := 0
	for ; j+4 <= n; j += 4 {
		deltaColumns4(s[j:], n, q, k, (*[4]float32)(v[j:]), beta, decay, (*[4]float32)(o[j:]))
	}
	for ; j < n; j++ {
		deltaColumn(s[j:], n, q, k, v[j], beta, decay, &o[j])
	}
}

// deltaColumns4 does four values; s starts at the first and has rows of n.
func deltaColumns4(s []float32, n int, q, k []float32, v *[4]float32, beta, decay float32, o *[4]float32) {
	q = q[:len(k)]
	var m0, m1, m2, m3 float32
	at := 0
	for _, ki := range k {
		c := (*[4]float32)(s[at : at+4])
		at += n
		m0 += float32(ki * c[0])
		m1 += float32(ki * c[1])
		m2 += float32(ki * c[2])
		m3 += float32(ki * c[3])
	}
	d0 := beta * (v[0] - float32(decay*m0))
	d1 := beta * (v[1] - float32(decay*m1))
	d2 := beta * (v[2] - float32(decay*m2))
	d3 := beta * (v[3] - float32(decay*m3))
	var o0, o1, o2, o3 float32
	at = 0
	for i, ki := range k {
		c, qi := (*[4]float32)(s[at:at+4]), q[i]
		at += n
		c0 := float32(decay*c[0]) + float32(ki*d0)
		c1 := float32(decay*c[1]) + float32(ki*d1)
		c2 := float32(decay*c[2]) + float32(ki*d2)
		c3 := float32(decay*c[3]) + float32(ki*d3)
		c[0], c[1], c[2], c[3] = c0, c1, c2, c3
		o0 += float32(qi * c0)
		o1 += float32(qi * c1)
		o2 += float32(qi * c2)
		o3 += float32(qi * c3)
	}
	o[0], o[1], o[2], o[3] = o0, o1, o2, o3
}

// deltaColumn does one value.
func deltaColumn(s []float32, n int, q, k []float32, v, beta, decay float32, o *float32) {
	var m, out float32
	for i, ki := range k {
		m += float32(ki * s[i*n])
	}
	d := beta * (v - float32(decay*m))
	for i, ki := range k {
		c := float32(decay*s[i*n]) + float32(ki*d)
		s[i*n] = c
		out += float32(q[i] * c)
	}
	*o = out
}
