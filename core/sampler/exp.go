package sampler

import "math"

// expSteps is the number of table entries per power of two.
const expSteps = 128

// powers holds 2^(i/expSteps).
var powers = func() (t [expSteps]float64) {
	for i := range t {
		t[i] = math.Exp2(float64(i) / expSteps)
	}
	return t
}()

// exp is e^x for x <= 0, to a relative error of 1e-14; 0 below -700. A
// vocabulary's worth of calls is what sampling without top-k costs, and this is
// several times faster than math.Exp.
func exp(x float64) float64 {
	if !(x >= -700) {
		return 0
	}
	n := int(x*(expSteps*math.Log2E) - 0.5) // to the nearest, for x <= 0
	r := x - float64(n)*(math.Ln2/expSteps)
	p := 1 + r*(1+r*(1.0/2+r*(1.0/6+r*(1.0/24))))
	return powers[n&(expSteps-1)] * p * math.Float64frombits(uint64(n>>7+1023)<<52)
}
