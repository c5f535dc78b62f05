package reference

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/strata-engine/strata/sdk/ops"
)

// near compares to 1e-12.
var near = cmpopts.EquateApprox(0, 1e-12)

func TestRMSNorm(t *testing.T) {
	x := []float64{1, -2, 2, 4}
	// The mean of the squares is 25/4; with eps 0.0625 the root is 2.5124...
	root := math.Sqrt(6.25 + 0.0625)
	y := make([]float64, 4)
	RMSNorm(y, x, []float64{1, 2, 3, 0.5}, 0.0625)
	if diff := cmp.Diff([]float64{1 / root, -4 / root, 6 / root, 2 / root}, y, near); diff != "" {
		t.Error(diff)
	}
}

func TestL2Norm(t *testing.T) {
	x := []float64{3, 4}
	L2Norm(x, 11)
	if diff := cmp.Diff([]float64{0.5, 4.0 / 6}, x, near); diff != "" {
		t.Error(diff)
	}
}

func TestRoPE(t *testing.T) {
	// Two pairs, (0, 2) by pos and (1, 3) by pos/100; the last value stays.
	x := []float64{1, 2, 3, 4, 5}
	RoPE(x, 2, 4, 1e4)
	s0, c0 := math.Sincos(2)
	s1, c1 := math.Sincos(0.02)
	want := []float64{c0 - 3*s0, 2*c1 - 4*s1, 3*c0 + s0, 4*c1 + 2*s1, 5}
	if diff := cmp.Diff(want, x, near); diff != "" {
		t.Error(diff)
	}
	// Scores depend on distances only.
	a, b := []float64{1, 2, 3, 4}, []float64{-2, 0.5, 1, 3}
	score := func(i, j int) float64 {
		p, q := slices.Clone(a), slices.Clone(b)
		RoPE(p, i, 4, 1e4)
		RoPE(q, j, 4, 1e4)
		return Dot(p, q)
	}
	if d := score(7, 3) - score(1007, 1003); math.Abs(d) > 1e-9 {
		t.Errorf("scores of the same distance differ by %g", d)
	}
}

func TestSoftmax(t *testing.T) {
	x := []float64{1000, 1000 + math.Log(3), math.Inf(-1)}
	Softmax(x)
	if diff := cmp.Diff([]float64{0.25, 0.75, 0}, x, near); diff != "" {
		t.Error(diff)
	}
}

func TestActivations(t *testing.T) {
	for _, x := range []float64{-800, -3, -1e-9, 0, 0.5, 20, 800} {
		if got, want := Sigmoid(x), (math.Tanh(x/2)+1)/2; math.Abs(got-want) > 1e-15 {
			t.Errorf("Sigmoid(%g) = %g, want %g", x, got, want)
		}
		if got, want := SiLU(x), x*(math.Tanh(x/2)+1)/2; math.Abs(got-want) > 1e-12 {
			t.Errorf("SiLU(%g) = %g, want %g", x, got, want)
		}
	}
	for x, want := range map[float64]float64{-800: 0, 0: math.Ln2, 800: 800, 1: math.Log(1 + math.E)} {
		if got := Softplus(x); math.Abs(got-want) > 1e-15 {
			t.Errorf("Softplus(%g) = %g, want %g", x, got, want)
		}
	}
}

func TestTopK(t *testing.T) {
	inf := math.Inf(1)
	tests := []struct {
		x    []float64
		k    int
		want []int
	}{
		{[]float64{1, 5, 3, 4}, 2, []int{1, 3}},
		{[]float64{2, 2, 2, 2}, 2, []int{0, 1}},
		{[]float64{0, 0, 1, 0, 0}, 3, []int{0, 1, 2}},
		{[]float64{-inf, inf, -1}, 2, []int{1, 2}},
		{[]float64{1, 2}, 5, []int{0, 1}},
		{[]float64{1, 2}, 0, []int{}},
	}
	for _, tt := range tests {
		got, err := TopK(tt.x, tt.k)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("TopK(%v, %d): %v %s", tt.x, tt.k, err, diff)
		}
	}
	if _, err := TopK([]float64{1, math.NaN(), 2}, 1); !errors.Is(err, errNaN) {
		t.Errorf("top-k of a NaN: error %v", err)
	}
	// Against sorting, with many equal values.
	for n := range 40 {
		x := make([]float64, n)
		order := make([]int, n)
		for i := range x {
			x[i], order[i] = float64(i*i*7%5), i
		}
		slices.SortStableFunc(order, func(a, b int) int { return int(x[b] - x[a]) })
		want := slices.Clone(order[:n/2])
		slices.Sort(want)
		if got, _ := TopK(x, n/2); !slices.Equal(got, want) {
			t.Errorf("TopK(%v, %d) = %v, want %v", x, n/2, got, want)
		}
	}
}

func TestDeltaStep(t *testing.T) {
	// Two keys, one value; S = [2, 4].
	s, o := []float64{2, 4}, []float64{9}
	q, k, v := []float64{1, 2}, []float64{0.5, 1}, []float64{10}
	DeltaStep(s, q, k, v, 0.5, 0.5, o)
	// Decayed S = [1, 2]; kᵀS = 2.5; d = 0.5·7.5 = 3.75; S = [2.875, 5.75].
	if diff := cmp.Diff([]float64{2.875, 5.75}, s, near); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]float64{14.375}, o, near); diff != "" {
		t.Error(diff)
	}
}

func TestAttend(t *testing.T) {
	keys, values := [][]float64{{2, 0, 0, 0}, {9, 9, 9, 9}, {0, 2, 0, 0}}, [][]float64{{1, 10}, {5, 5}, {4, 20}}
	o := []float64{7, 7}
	// Scores of cells 0 and 2 are ln 3 and 0.
	Attend(o, []float64{math.Log(3), 0, 0, 0}, []int{0, 2},
		func(c int) []float64 { return keys[c] }, func(c int) []float64 { return values[c] })
	if diff := cmp.Diff([]float64{1.75, 12.5}, o, near); diff != "" {
		t.Error(diff)
	}
}

func TestHashRows(t *testing.T) {
	op := &ops.PLE{
		NGram: 3, HeadsPerNGram: 2, Reset: 9,
		Multipliers: []int64{3, 5, 7}, Offsets: []int64{0, 100, 200, 300}, Sizes: []int64{11, 13, 17, 19},
	}
	rows := func(t0, t1, t2 int64) []int64 {
		two := t0*3 ^ t1*5
		three := two ^ t2*7
		return []int64{two % 11, two%13 + 100, three%17 + 200, three%19 + 300}
	}
	tests := []struct {
		name string
		ids  []int32
		want []int64
	}{
		{"plain", []int32{1, 2, 4}, rows(1, 2, 4)},
		{"start", []int32{1, -1, -1}, rows(1, 9, 9)},
		{"second token", []int32{1, 2, -1}, rows(1, 2, 9)},
		{"reset before", []int32{1, 9, 4}, rows(1, 9, 9)},
		{"reset two before", []int32{1, 2, 9}, rows(1, 2, 9)},
		{"reset itself does not cut", []int32{9, 2, 4}, rows(9, 2, 4)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, HashRows(op, tt.ids)); diff != "" {
				t.Error(diff)
			}
		})
	}
	// The products wrap around like the unsigned 64-bit integers they are:
	// 3·(2^63-1) is 2^63-3 modulo 2^64.
	op.Multipliers = []int64{math.MaxInt64, math.MaxInt64, 1}
	mix := uint64(1<<63-3) ^ uint64(1<<63-1)
	if got := HashRows(op, []int32{3, 1, 0})[0]; got != int64(mix%11) {
		t.Errorf("row %d, want %d", got, mix%11)
	}
}

func TestMatMul(t *testing.T) {
	d := New()
	w := weight(t, d, []int64{3, 4}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	y := make([]float64, 4)
	MatMul(y, host(w), 1, 2, []float64{1, 0, -1, 2, 1, 0}, 2)
	if diff := cmp.Diff([]float64{-2, -2, 13, 22}, y, near); diff != "" {
		t.Error(diff)
	}
}
