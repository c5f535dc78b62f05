package kernels

import "math"

// Exp is e^x with a relative error below 2e-7. Results below the smallest normal
// float32 are 0, those above the largest +Inf; Exp(NaN) is NaN.
func Exp(x float32) float32 {
	const (
		ln2High = 0x1.62e4p-1 // the first 15 bits of ln 2, so that n·ln2High is exact
		ln2Low  = math.Ln2 - ln2High
	)
	switch {
	case x != x:
		return x
	case x > 88.72283:
		return float32(math.Inf(1))
	case x < -87.33654:
		return 0
	}
	// x = n·ln 2 + r with |r| <= ln(2)/2; the Taylor series of e^r to r^7 leaves
	// 6e-9.
	f := float32(x*math.Log2E) + roundMagic
	n := int32(math.Float32bits(f)) - int32(math.Float32bits(roundMagic))
	f -= roundMagic
	r := x - float32(f*ln2High)
	r -= float32(f * ln2Low)
	y := float32(1.0 / 5040)
	y = float32(y*r) + 1.0/720
	y = float32(y*r) + 1.0/120
	y = float32(y*r) + 1.0/24
	y = float32(y*r) + 1.0/6
	y = float32(y*r) + 0.5
	y = float32(y*r) + 1
	y = float32(y*r) + 1
	// 2^n in two steps, because 2^128 is no float32.
	m := n >> 1
	return y * math.Float32frombits(uint32(m+127)<<23) * math.Float32frombits(uint32(n-m+127)<<23)
}

// Sigmoid is 1/(1+e^-x).
func Sigmoid(x float32) float32 { return 1 / (1 + Exp(-x)) }

// SiLU is x·Sigmoid(x).
func SiLU(x float32) float32 { return x / (1 + Exp(-x)) }

// Softplus is ln(1+e^x).
func Softplus(x float32) float32 {
	if x > 30 { // e^-x is below half a unit in the last place
		return x
	}
	return float32(math.Log1p(math.Exp(float64(x))))
}

// InverseRMS is 1/sqrt(mean(x²) + eps).
func InverseRMS(x []float32, eps float32) float32 {
	return float32(1 / math.Sqrt(SumSquares(x)/float64(len(x))+float64(eps)))
}

// SumSquares is Σx². Squares of finite values do not overflow.
func SumSquares(x []float32) float64 {
	if s := Dot(x, x); s < math.MaxFloat32/2 {
		return float64(s)
	}
	// Values above 1e19: rare, but 1/sqrt(+Inf) would turn them into zeros.
	var sum float64
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return sum
}

// Norm writes RMS(x) ⊙ weight to dst, all of the same length; dst may be x.
func Norm(dst, x, weight []float32, eps float32) {
	scale := InverseRMS(x, eps)
	dst, weight = dst[:len(x)], weight[:len(x)]
	for i, v := range x {
		dst[i] = float32(v*scale) * weight[i]
	}
}

// AddScaled adds a·x to y, of the same length.
func AddScaled(y []float32, a float32, x []float32) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += float32(a * v)
	}
}
