package reference

import (
	"errors"
	"math"
	"slices"

	"github.com/strata-engine/strata/sdk/ops"
)

// errNaN is TopK's fault.
var errNaN = errors.New("top-k of a NaN")

// Dot is Σ a[i]·b[i]. It sums in four interleaved chains, always in the same
// order.
func Dot(a, b []float64) float64 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float64
	i := 0
	for ; i+4 <= len(a); i += 4 {
		x, y := a[i:i+4:i+4], b[i:i+4:i+4]
		s0 += x[0] * y[0]
		s1 += x[1] * y[1]
		s2 += x[2] * y[2]
		s3 += x[3] * y[3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

// MatMul is y[r] = W·x[r] for every row r, where W are weight rows [first,
// first+n) of w, y is [rows][n] and x is [rows][length of a weight row].
func MatMul(y []float64, w *Weight, first, n int, x []float64, rows int) {
	width, m := w.Width(), w.Matrix()
	parallel(n, n*rows*width, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := m[(first+i)*width : (first+i+1)*width]
			for r := range rows {
				y[r*n+i] = Dot(row, x[r*width:(r+1)*width])
			}
		}
	})
}

// RMSNorm is y = x / sqrt(mean(x²) + eps) ⊙ weight. y and x may be the same.
func RMSNorm(y, x, weight []float64, eps float64) {
	scale := 1 / math.Sqrt(Dot(x, x)/float64(len(x))+eps)
	for i, v := range x {
		y[i] = v * scale * weight[i]
	}
}

// L2Norm is x ← x / sqrt(Σx² + eps).
func L2Norm(x []float64, eps float64) {
	scale := 1 / math.Sqrt(Dot(x, x)+eps)
	for i := range x {
		x[i] *= scale
	}
}

// RoPE rotates the first dim values of x in NeoX style (Su et al., "RoFormer",
// 2021; halves instead of neighbours): the pair (i, i+dim/2) by the angle
// pos·base^(-2i/dim).
func RoPE(x []float64, pos, dim int, base float64) {
	half := dim / 2
	for i := range half {
		sin, cos := math.Sincos(float64(pos) * math.Pow(base, -2*float64(i)/float64(dim)))
		a, b := x[i], x[i+half]
		x[i], x[i+half] = a*cos-b*sin, b*cos+a*sin
	}
}

// Softmax is x ← exp(x - max x) / Σ exp(x - max x).
func Softmax(x []float64) {
	top := math.Inf(-1)
	for _, v := range x {
		top = max(top, v)
	}
	sum := 0.0
	for i, v := range x {
		x[i] = math.Exp(v - top)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}

// TopK returns the indices of the k largest values of x in ascending order of
// index; of equal values the lower index wins. Any NaN is an error, never a
// comparison.
func TopK(x []float64, k int) ([]int, error) {
	for _, v := range x {
		if math.IsNaN(v) {
			return nil, errNaN
		}
	}
	// A heap of the k best so far, the worst on top.
	worse := func(a, b int) bool { return x[a] < x[b] || x[a] == x[b] && a > b }
	heap := make([]int, 0, k)
	for i := range x {
		if len(heap) < k {
			heap = append(heap, i)
			for c := len(heap) - 1; c > 0 && worse(heap[c], heap[(c-1)/2]); c = (c - 1) / 2 {
				heap[c], heap[(c-1)/2] = heap[(c-1)/2], heap[c]
			}
			continue
		}
		if k == 0 || !worse(heap[0], i) {
			continue
		}
		heap[0] = i
		for p := 0; ; {
			c := 2*p + 1
			if c >= k {
				break
			}
			if c+1 < k && worse(heap[c+1], heap[c]) {
				c++
			}
			if !worse(heap[c], heap[p]) {
				break
			}
			heap[p], heap[c] = heap[c], heap[p]
			p = c
		}
	}
	slices.Sort(heap)
	return heap, nil
}

// Sigmoid is σ(x) = 1 / (1 + exp(-x)).
func Sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// SiLU is x·σ(x).
func SiLU(x float64) float64 { return x * Sigmoid(x) }

// Softplus is log(1 + exp(x)).
func Softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

// DeltaStep is one token of the gated delta rule for one head (Yang et al.,
// "Gated Delta Networks", 2024). The state s is [len(k)][len(v)]; decay is
// exp(g):
//
//	S ← decay·S;  d = beta·(v - kᵀS);  S ← S + k dᵀ;  o = qᵀS
func DeltaStep(s, q, k, v []float64, beta, decay float64, o []float64) {
	n := len(v)
	d := make([]float64, n)
	for i, ki := range k {
		row := s[i*n : (i+1)*n]
		for j := range row {
			row[j] *= decay
			d[j] += ki * row[j]
		}
	}
	for j := range d {
		d[j] = beta * (v[j] - d[j])
		o[j] = 0
	}
	for i, ki := range k {
		row, qi := s[i*n:(i+1)*n], q[i]
		for j := range row {
			row[j] += ki * d[j]
			o[j] += qi * row[j]
		}
	}
}

// Attend is softmax(q kᵀ/sqrt(len(q)))·v over the given cells of a cache: k and
// v return a cell's key and value. o has the length of a value.
func Attend(o, q []float64, cells []int, k, v func(cell int) []float64) {
	p, scale := make([]float64, len(cells)), 1/math.Sqrt(float64(len(q)))
	for i, c := range cells {
		p[i] = Dot(q, k(c)) * scale
	}
	Softmax(p)
	clear(o)
	for i, c := range cells {
		for j, x := range v(c) {
			o[j] += p[i] * x
		}
	}
}

// HashRows returns the table rows of a token's n-grams (see ops.PLE). ids are
// the token and its predecessors, latest first, NGram of them; -1 stands for a
// position before the start.
func HashRows(op *ops.PLE, ids []int32) []int64 {
	rows := make([]int64, 0, len(op.Sizes))
	mix, cut := uint64(0), false
	for i := range op.NGram {
		id := ids[i]
		// The token itself may be Reset without cutting its own context.
		if i > 0 && (id < 0 || id == op.Reset) {
			cut = true
		}
		if cut {
			id = op.Reset
		}
		mix ^= uint64(id) * uint64(op.Multipliers[i])
		if i == 0 {
			continue
		}
		for range op.HeadsPerNGram {
			h := len(rows)
			rows = append(rows, int64(mix%uint64(op.Sizes[h]))+op.Offsets[h])
		}
	}
	return rows
}
