package kernels

import "math"

// Bounds within which reduce finds a normal number's exponent.
const (
	expLow  = -87.33654
	expHigh = 88
)

// reduce writes x within the bounds as n·ln 2 + r with |r| <= ln(2)/2 and returns
// r and 2^n.
func reduce(x float32) (r, power float32) {
	const (
		high = 0x1.62e4p-1 // the first 15 bits of ln 2, so that n·high is exact
		low  = math.Ln2 - high
	)
	f := float32(x*math.Log2E) + roundMagic
	power = math.Float32frombits((math.Float32bits(f) - math.Float32bits(roundMagic) + 127) << 23)
	f -= roundMagic
	r = x - float32(f*high)
	return r - float32(f*low), power
}

// power5 is e^r with a relative error below 1.6e-7 for what reduce returns: the
// polynomial of degree 5 whose largest relative error is smallest, among those
// with the first two coefficients of the Taylor series. Estrin's scheme, because
// the latency of Horner's is what limits a loop of them.
func power5(r float32) float32 {
	square := float32(r * r)
	high := float32(r*0.008369165338858127) + 0.04191763029448903
	mid := float32(r*0.16666523066167654) + 0.49998994077503095
	return (r + 1) + float32(square*(mid+float32(square*high)))
}

// Exp is e^x with a relative error below 4e-7. Results below the smallest normal
// float32 are 0, those above e^88 +Inf; Exp(NaN) is NaN.
func Exp(x float32) float32 {
	if x < expLow {
		return 0
	}
	if x > expHigh {
		return float32(math.Inf(1))
	}
	r, power := reduce(x)
	return float32(power5(r) * power)
}

// Sigmoid is 1/(1+e^-x), and 0 below e^-87.
func Sigmoid(x float32) float32 { return 1 / (1 + Exp(-x)) }

// Sigmoids writes Sigmoid(x[i]) to dst[i]; dst may be x. The loop repeats what Exp
// does, because a call would cost as much as the work.
func Sigmoids(dst, x []float32) {
	dst = dst[:len(x)]
	for i, v := range x {
		switch {
		case v > -expLow:
			dst[i] = 1
		case v < -expHigh:
			dst[i] = 0
		default:
			r, power := reduce(-v)
			dst[i] = 1 / (1 + float32(power5(r)*power))
		}
	}
}

// SiLUs writes x[i]·Sigmoid(x[i]) to dst[i]; dst may be x.
func SiLUs(dst, x []float32) {
	dst = dst[:len(x)]
	for i, v := range x {
		switch {
		case v > -expLow:
			dst[i] = v
		case v < -expHigh:
			dst[i] = v * 0
		default:
			r, power := reduce(-v)
			dst[i] = v / (1 + float32(power5(r)*power))
		}
	}
}

// exps writes e^(x[i]-top) to x[i]; no x is above top.
func exps(x []float32, top float32) {
	for i, v := range x {
		v -= top
		if v < expLow {
			x[i] = 0
			continue
		}
		r, power := reduce(v)
		x[i] = power5(r) * power
	}
}

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
