package reference

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/quant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// single compares float32 results of a few operations.
var single = cmpopts.EquateApprox(1e-6, 1e-6)

// weight makes a float32 weight.
func weight(t *testing.T, d *Device, dims []int64, values ...float32) ops.Weight {
	t.Helper()
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	w, err := d.Weight(ops.Tensor{Name: "w", Type: quant.F32, Dims: dims, Data: data})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// random makes a weight of normal values.
func random(t *testing.T, d *Device, r *rand.Rand, dims ...int64) ops.Weight {
	t.Helper()
	n := int64(1)
	for _, x := range dims {
		n *= x
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(r.NormFloat64() / math.Sqrt(float64(dims[0])))
	}
	return weight(t, d, dims, values...)
}

func ones(t *testing.T, d *Device, n int64) ops.Weight {
	t.Helper()
	return weight(t, d, []int64{n}, slices.Repeat([]float32{1}, int(n))...)
}

func buffer(t *testing.T, d *Device, values ...float32) ops.Buffer {
	t.Helper()
	b, err := d.Alloc(len(values))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Write(b, 0, values); err != nil {
		t.Fatal(err)
	}
	return b
}

func read(t *testing.T, d *Device, b ops.Buffer) []float32 {
	t.Helper()
	out := make([]float32, b.Len())
	if err := d.Read(out, b, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

// window makes a window of one segment.
func window(st ops.State, pos int, tokens ...int32) *ops.Window {
	return &ops.Window{
		Segments: []ops.Segment{{State: st, Pos: pos, Tokens: tokens}},
		Rows:     len(tokens),
		Flags:    ops.NewFlags(len(tokens)),
	}
}

func fence(t *testing.T, d *Device) {
	t.Helper()
	if err := d.Queue().Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func newTestState(t *testing.T, d *Device, layers ...ops.LayerState) ops.State {
	t.Helper()
	st, err := d.NewState(&ops.StateLayout{ID: "test", Layers: layers})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Reserve(st, 64); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestEmbed(t *testing.T) {
	d := New()
	r := buffer(t, d, make([]float32, 8)...)
	op := &ops.Embed{Table: weight(t, d, []int64{2, 3}, 1, 2, 3, 4, 5, 6), Streams: 2, Width: 2}
	d.Queue().Embed(op, window(nil, 0, 2, 0), r)
	fence(t, d)
	if diff := cmp.Diff([]float32{5, 6, 5, 6, 1, 2, 1, 2}, read(t, d, r)); diff != "" {
		t.Error(diff)
	}
}

func TestNormAndAdd(t *testing.T) {
	d, w := New(), window(nil, 0, 1)
	r, x := buffer(t, d, 3, 4), buffer(t, d, 0, 0)
	d.Queue().Norm(&ops.Norm{Width: 2, Eps: 12.5, Weight: weight(t, d, []int64{2}, 1, 10)}, w, r, x)
	d.Queue().Add(&ops.Add{Width: 2}, w, r, x)
	fence(t, d)
	if diff := cmp.Diff([]float32{0.6, 8}, read(t, d, x), single); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]float32{3.6, 12}, read(t, d, r), single); diff != "" {
		t.Error(diff)
	}
}

func TestHyperMixAndInject(t *testing.T) {
	d, w := New(), window(nil, 0, 1)
	// Two streams of one value: the norm leaves signs, so n = [1, -2].
	r, x, gate := buffer(t, d, 3, -5), buffer(t, d, 0), buffer(t, d, 0, 0)
	op := &ops.HyperMix{
		Streams: 2, Width: 1, Rank: 1, Eps: 1e-30,
		Norm: weight(t, d, []int64{2}, 1, 2), Down: weight(t, d, []int64{2, 1}, 4, 1),
		Up: weight(t, d, []int64{1, 2}, 1, -1), Inject: weight(t, d, []int64{2, 2}, 2, 0, 0, 1),
	}
	d.Queue().HyperMix(op, w, r, x, gate)
	d.Queue().HyperInject(&ops.HyperInject{Streams: 2, Width: 1}, w, r, gate, x)
	fence(t, d)
	lo := SiLU((4 - 2) / 2.0)
	want := (Sigmoid(lo)*1 + Sigmoid(-lo)*-2) / 2
	g0, g1 := 2*Sigmoid(1), 2*Sigmoid(-1)
	if diff := cmp.Diff([]float32{float32(want)}, read(t, d, x), single); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]float32{float32(3 + g0*want), float32(-5 + g1*want)}, read(t, d, r), single); diff != "" {
		t.Error(diff)
	}
}

func TestMoE(t *testing.T) {
	d := New()
	// Expert e multiplies: gate 1, up e+1, down 1. The router prefers 2, then 0
	// and 1 alike, of which the lower wins.
	op := &ops.MoE{
		Width: 1, Experts: 4, Used: 2, ExpertWidth: 1, SharedWidth: 1,
		Router: weight(t, d, []int64{1, 4}, 1, 1, 2, -1),
		Gate:   weight(t, d, []int64{1, 1, 4}, 1, 1, 1, 1), Up: weight(t, d, []int64{1, 1, 4}, 1, 2, 3, 4), Down: weight(t, d, []int64{1, 1, 4}, 1, 1, 1, 1),
		DownScale:  weight(t, d, []int64{4}, 1, 1, 10, 1),
		SharedGate: weight(t, d, []int64{1}, 2), SharedGateProj: weight(t, d, []int64{1, 1}, 1), SharedUp: weight(t, d, []int64{1, 1}, 7), SharedDown: weight(t, d, []int64{1, 1}, 1),
		Uses: make([]uint64, 4),
	}
	x, y := buffer(t, d, 1.5), buffer(t, d, 0)
	d.Queue().MoE(op, window(nil, 0, 1), x, y)
	fence(t, d)
	p := Sigmoid(1.5) // of expert 2 against expert 0: their scores differ by 1.5.
	h := SiLU(1.5) * 1.5
	want := p*30*h + (1-p)*h + Sigmoid(3)*7*h
	if diff := cmp.Diff([]float32{float32(want)}, read(t, d, y), single); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]uint64{1, 0, 1, 0}, op.Uses); diff != "" {
		t.Error(diff)
	}
}

func TestMoERouterFault(t *testing.T) {
	d := New()
	one := func() ops.Weight { return weight(t, d, []int64{1, 1, 2}, 1, 1) }
	op := &ops.MoE{
		Layer: 3, Width: 1, Experts: 2, Used: 1, ExpertWidth: 1,
		Router: weight(t, d, []int64{1, 2}, 1, float32(math.NaN())), Gate: one(), Up: one(), Down: one(), Uses: make([]uint64, 2),
	}
	w := window(nil, 0, 1, 1)
	d.Queue().MoE(op, w, buffer(t, d, 1, 2), buffer(t, d, 0, 0))
	fence(t, d)
	if residual, _, _, layer := w.Flags.Row(1); !residual || layer != 3 {
		t.Errorf("residual flag %v in layer %d", residual, layer)
	}
	if op.Uses[0]+op.Uses[1] != 0 {
		t.Errorf("a faulty row counts: %v", op.Uses)
	}
}

// deltaNet is a random operation with its state.
func deltaNet(t *testing.T, d *Device, grouped bool) (*ops.DeltaNet, func() ops.State) {
	r := rand.New(rand.NewPCG(1, 2))
	op := &ops.DeltaNet{
		Layer: 2, Width: 6, KeyHeads: 2, ValueHeads: 4, KeyDim: 3, ValueDim: 2, Taps: 4, Grouped: grouped, Eps: 1e-6,
		QKV: random(t, d, r, 6, 20), Gate: random(t, d, r, 6, 8), Beta: random(t, d, r, 6, 4), Alpha: random(t, d, r, 6, 4),
		Conv: random(t, d, r, 4, 20), DtBias: random(t, d, r, 4), A: weight(t, d, []int64{4}, -0.5, -1, -0.1, -2),
		Norm: random(t, d, r, 2), Out: random(t, d, r, 8, 6),
	}
	return op, func() ops.State {
		return newTestState(t, d, ops.LayerState{Layer: 2, Delta: &ops.DeltaState{Heads: 4, KeyDim: 3, ValueDim: 2, Taps: 3, Channels: 20}})
	}
}

func TestDeltaNetDoesNotDependOnChunks(t *testing.T) {
	for _, grouped := range []bool{false, true} {
		d := New()
		op, state := deltaNet(t, d, grouped)
		r := rand.New(rand.NewPCG(3, 4))
		in := make([]float32, 11*6)
		for i := range in {
			in[i] = float32(r.NormFloat64())
		}
		run := func(chunk int) []float32 {
			st, tokens := state(), make([]int32, 11)
			var out []float32
			for at := 0; at < 11; at += chunk {
				n := min(chunk, 11-at)
				x, y := buffer(t, d, in[at*6:(at+n)*6]...), buffer(t, d, make([]float32, n*6)...)
				d.Queue().DeltaNet(op, window(st, at, tokens[:n]...), x, y)
				fence(t, d)
				out = append(out, read(t, d, y)...)
			}
			return out
		}
		want := run(11)
		for _, chunk := range []int{1, 2, 5} {
			if !slices.Equal(run(chunk), want) {
				t.Errorf("grouped %v: chunks of %d differ", grouped, chunk)
			}
		}
	}
}

// TestDeltaNetByHand follows one value head through two tokens.
func TestDeltaNetByHand(t *testing.T) {
	d := New()
	// One head of length 1 each; q = x, k = 2x, v = 3x, z = x. The convolution
	// adds half of the token before.
	op := &ops.DeltaNet{
		Width: 1, KeyHeads: 1, ValueHeads: 1, KeyDim: 1, ValueDim: 1, Taps: 2, Eps: 1e-6, GateKind: ops.GateSiLU,
		QKV: weight(t, d, []int64{1, 3}, 1, 2, 3), Gate: weight(t, d, []int64{1, 1}, 1),
		Beta: weight(t, d, []int64{1, 1}, 1), Alpha: weight(t, d, []int64{1, 1}, -1),
		Conv: weight(t, d, []int64{2, 3}, 0.5, 1, 0.5, 1, 0.5, 1), DtBias: weight(t, d, []int64{1}, 0.25), A: weight(t, d, []int64{1}, -0.5),
		Norm: weight(t, d, []int64{1}, 2), Out: weight(t, d, []int64{1, 1}, 1),
	}
	st := newTestState(t, d, ops.LayerState{Delta: &ops.DeltaState{Heads: 1, KeyDim: 1, ValueDim: 1, Taps: 1, Channels: 3}})
	x, y := buffer(t, d, 1, -2), buffer(t, d, 0, 0)
	d.Queue().DeltaNet(op, window(st, 0, 0, 0), x, y)
	fence(t, d)
	s, before := 0.0, 0.0
	for i, v := range []float64{1, -2} {
		mixed := v + before/2
		unit := func(a float64) float64 { return a / math.Sqrt(a*a+1e-6) }
		q, k, val := unit(SiLU(mixed)), unit(SiLU(2*mixed)), SiLU(3*mixed)
		s *= math.Exp(-0.5 * Softplus(-v+0.25))
		s += k * Sigmoid(v) * (val - k*s)
		o := q * s
		want := o / math.Sqrt(o*o+1e-6) * 2 * SiLU(v)
		if got := read(t, d, y)[i]; math.Abs(float64(got)-want) > 1e-6 {
			t.Errorf("row %d is %g, want %g", i, got, want)
		}
		before = v
	}
}

// TestSparseAttentionSelects compares with a selection written out again.
func TestSparseAttentionSelects(t *testing.T) {
	d, r := New(), rand.New(rand.NewPCG(5, 6))
	const width, dim, ratio, budget, n = 6, 4, 2, 4, 13
	op := &ops.Attention{
		Layer: 1, Width: width, Heads: 1, KVHeads: 1, HeadDim: dim, ValueDim: dim, RopeDim: 2, RopeBase: 100, Eps: 1e-6,
		Q: random(t, d, r, width, dim), K: random(t, d, r, width, dim), V: random(t, d, r, width, dim), Out: random(t, d, r, dim, width),
		QNorm: ones(t, d, dim), KNorm: ones(t, d, dim),
		Index: &ops.Index{Heads: 2, Dim: 3, Budget: budget, Ratio: ratio,
			Q: random(t, d, r, width, 6), K: random(t, d, r, width, 3), QNorm: ones(t, d, 3), KNorm: ones(t, d, 3)},
	}
	in := make([]float32, n*width)
	for i := range in {
		in[i] = float32(r.NormFloat64())
	}
	st := newTestState(t, d, ops.LayerState{Layer: 1, KV: &ops.KVState{Heads: 1, KeyDim: dim, ValueDim: dim, IndexDim: 3, IndexRatio: ratio}})
	y := buffer(t, d, make([]float32, n*width)...)
	d.Queue().Attention(op, window(st, 0, make([]int32, n)...), buffer(t, d, in...), y)
	fence(t, d)
	got := read(t, d, y)

	project := func(w ops.Weight, pos, rows int) []float64 {
		x := make([]float64, width)
		for i := range x {
			x[i] = float64(in[pos*width+i])
		}
		out := make([]float64, rows)
		for i := range out {
			out[i] = Dot(part(host(w).Matrix(), i, width), x)
		}
		return out
	}
	normRotate := func(x []float64, pos int) []float64 {
		RMSNorm(x, x, []float64{1, 1, 1, 1}[:len(x)], 1e-6)
		RoPE(x, pos, 2, 100)
		return x
	}
	for pos := range n {
		blocks := (pos + 1) / ratio
		score := make([]float64, blocks)
		for b := range score {
			mean := make([]float64, 3)
			for i := range ratio {
				for j, v := range project(op.Index.K, b*ratio+i, 3) {
					mean[j] += v / ratio
				}
			}
			normRotate(mean, b*ratio)
			q := project(op.Index.Q, pos, 6)
			for h := range 2 {
				if s := Dot(normRotate(part(q, h, 3), pos), mean); s > 0 {
					score[b] += s
				}
				// part aliases q, and normRotate changed it.
				q = project(op.Index.Q, pos, 6)
			}
		}
		order := make([]int, blocks)
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case score[a] > score[b]:
				return -1
			case score[a] < score[b]:
				return 1
			}
			return 0
		})
		var p, sum float64
		o := make([]float64, dim)
		add := func(cell int) {
			p = math.Exp(Dot(normRotate(project(op.Q, pos, dim), pos), normRotate(project(op.K, cell, dim), cell)) / 2)
			sum += p
			for j, v := range project(op.V, cell, dim) {
				o[j] += p * v
			}
		}
		for _, b := range order[:min(blocks, budget/ratio)] {
			for i := range ratio {
				add(b*ratio + i)
			}
		}
		for cell := blocks * ratio; cell <= pos; cell++ {
			add(cell)
		}
		for j := range o {
			o[j] /= sum
		}
		for i := range width {
			if want := Dot(part(host(op.Out).Matrix(), i, dim), o); math.Abs(float64(got[pos*width+i])-want) > 1e-6 {
				t.Fatalf("position %d, value %d: %g, want %g", pos, i, got[pos*width+i], want)
			}
		}
	}
	if pos := n - 1; (pos+1)/ratio <= budget/ratio {
		t.Fatal("nothing was left out")
	}
}

func TestSelectionFault(t *testing.T) {
	d, nan := New(), float32(math.NaN())
	one := func(n int64) ops.Weight { return ones(t, d, n) }
	op := &ops.Attention{
		Layer: 1, Width: 2, Heads: 1, KVHeads: 1, HeadDim: 2, ValueDim: 2, RopeDim: 2, RopeBase: 100, Eps: 1e-6,
		Q: weight(t, d, []int64{2, 2}, 1, 0, 0, 1), K: weight(t, d, []int64{2, 2}, 1, 0, 0, 1), V: weight(t, d, []int64{2, 2}, 1, 0, 0, 1), Out: weight(t, d, []int64{2, 2}, 1, 0, 0, 1),
		QNorm: one(2), KNorm: one(2),
		// Only the indexer's query is not finite.
		Index: &ops.Index{Heads: 1, Dim: 2, Budget: 2, Ratio: 2, Q: weight(t, d, []int64{2, 2}, nan, 0, 0, 1), K: weight(t, d, []int64{2, 2}, 1, 0, 0, 1), QNorm: one(2), KNorm: one(2)},
	}
	st := newTestState(t, d, ops.LayerState{Layer: 1, KV: &ops.KVState{Heads: 1, KeyDim: 2, ValueDim: 2, IndexDim: 2, IndexRatio: 2}})
	w := window(st, 0, 0, 0, 0, 0)
	x, y := buffer(t, d, 1, 2, 3, 4, 5, 6, 7, 8), buffer(t, d, make([]float32, 8)...)
	d.Queue().Attention(op, w, x, y)
	fence(t, d)
	for row, want := range []bool{false, false, false, true} {
		if _, _, state, _ := w.Flags.Row(row); state != want {
			t.Errorf("row %d: state flag %v, want %v", row, state, want)
		}
	}
}

// TestKeysBeyondFloat16AreFlagged: the canonical state could not hold them.
func TestKeysBeyondFloat16AreFlagged(t *testing.T) {
	d := New()
	op := &ops.Attention{
		Layer: 1, Width: 2, Heads: 1, KVHeads: 1, HeadDim: 2, ValueDim: 2, RopeDim: 2, RopeBase: 100, Eps: 1e-6,
		Q: weight(t, d, []int64{2, 2}, 1, 0, 0, 1), K: weight(t, d, []int64{2, 2}, 1, 0, 0, 1), V: weight(t, d, []int64{2, 2}, 1, 0, 0, 1), Out: weight(t, d, []int64{2, 2}, 1, 0, 0, 1),
		QNorm: ones(t, d, 2), KNorm: ones(t, d, 2),
	}
	st := newTestState(t, d, ops.LayerState{Layer: 1, KV: &ops.KVState{Heads: 1, KeyDim: 2, ValueDim: 2}})
	w := window(st, 0, 0, 0)
	d.Queue().Attention(op, w, buffer(t, d, 1, 65519, 1, 65520), buffer(t, d, 0, 0, 0, 0))
	fence(t, d)
	for row, want := range []bool{false, true} {
		if _, _, state, _ := w.Flags.Row(row); state != want {
			t.Errorf("row %d: state flag %v, want %v", row, state, want)
		}
	}
}

// TestPLEByHand: one stream of one value, one hash head.
func TestPLEByHand(t *testing.T) {
	d := New()
	op := &ops.PLE{
		Layer: 1, Streams: 1, Width: 1, RowWidth: 1, NGram: 2, HeadsPerNGram: 1, Reset: 0,
		Multipliers: []int64{1, 2}, Offsets: []int64{1}, Sizes: []int64{3}, Eps: 1e-30,
		Table: weight(t, d, []int64{1, 4}, 99, 1, -2, 3), Key: weight(t, d, []int64{1, 1}, 1), Value: weight(t, d, []int64{1, 1}, 2),
		NormKey: weight(t, d, []int64{1}, 1), NormQuery: weight(t, d, []int64{1}, 4), NormConv: weight(t, d, []int64{1}, 5),
		Conv: weight(t, d, []int64{2, 1}, 0.5, 1),
	}
	st := newTestState(t, d, ops.LayerState{Layer: 1, PLE: &ops.PLEState{Taps: 2, Channels: 1, Tokens: 1}})
	tokens := []int32{1, 2, 4}
	r := buffer(t, d, 10, -10, 10)
	// The last token in a window of its own: history and ids come from the state.
	d.Queue().PLE(op, window(st, 0, tokens[:2]...), r)
	fence(t, d)
	last := buffer(t, d, 10)
	d.Queue().PLE(op, window(st, 2, tokens[2]), last)
	fence(t, d)
	got := append(read(t, d, r)[:2], read(t, d, last)...)

	table, conv := []float64{99, 1, -2, 3}, []float64{0, 0}
	for i, residual := range []float64{10, -10, 10} {
		before := int32(0)
		if i > 0 {
			before = tokens[i-1]
		}
		e := table[(tokens[i]^before*2)%3+1]
		a := math.Copysign(1, e) * math.Copysign(4, residual)
		a = math.Copysign(math.Sqrt(math.Abs(a)), a)
		u := Sigmoid(a) * 2 * e
		c := math.Copysign(5, u)
		want := residual + u + SiLU(c+0.5*conv[0])
		conv = []float64{conv[1], c}
		if math.Abs(float64(got[i])-want) > 1e-5 {
			t.Errorf("row %d is %g, want %g", i, got[i], want)
		}
	}
}

func TestDraft(t *testing.T) {
	d := New()
	op := &ops.Draft{
		Layer: 4, Streams: 2, Width: 1, Eps: 1e-30,
		Table: weight(t, d, []int64{1, 2}, -7, 3), EmbedNorm: weight(t, d, []int64{1}, 2), HiddenNorm: weight(t, d, []int64{2}, 3, 5),
		Join: weight(t, d, []int64{2, 1}, 10, 1),
	}
	st := newTestState(t, d, ops.LayerState{Layer: 4, Hidden: 2})
	q := d.Queue()
	q.Hidden(&ops.Hidden{Layer: 4, Width: 2}, window(st, 0, 0, 0), buffer(t, d, 9, 9, 1, -1))
	r := buffer(t, d, 0, 0, 0, 0)
	q.Draft(op, window(st, 1, 0, 1), buffer(t, d, 0, 0, -6, 6), []int{-1, 1}, r)
	fence(t, d)
	if diff := cmp.Diff([]float32{-20 + 3, -20 - 5, 20 - 3, 20 + 5}, read(t, d, r), single); diff != "" {
		t.Error(diff)
	}
}

func TestHead(t *testing.T) {
	d, w := New(), window(nil, 0, 1, 1, 1)
	op := &ops.Head{
		Layer: 9, Width: 2, Vocab: 3, Norm: &ops.Norm{Width: 2, Eps: 1e-30, Weight: weight(t, d, []int64{2}, 1, 1)},
		Output: weight(t, d, []int64{2, 3}, 1, 0, 0, 1, 1, 1),
	}
	logits := buffer(t, d, make([]float32, 6)...)
	d.Queue().Head(op, w, buffer(t, d, 1, 1, 2, -2, float32(math.NaN()), 0), []int{1, 2}, logits)
	fence(t, d)
	if diff := cmp.Diff([]float32{1, -1, 0}, read(t, d, logits)[:3], single); diff != "" {
		t.Error(diff)
	}
	for row, want := range []bool{false, false, true} {
		if _, bad, _, layer := w.Flags.Row(row); bad != want || want && layer != 9 {
			t.Errorf("row %d: logits flag %v in layer %d", row, bad, layer)
		}
	}
}

func TestDeviceRefuses(t *testing.T) {
	d := New()
	b := buffer(t, d, 1, 2, 3)
	if err := d.Write(b, 2, []float32{1, 2}); err == nil {
		t.Error("wrote beyond the end")
	}
	if err := d.Read(make([]float32, 1), b, -1); err == nil {
		t.Error("read before the start")
	}
	if _, err := d.Alloc(-1); err == nil {
		t.Error("allocated a negative length")
	}
	tests := []struct {
		tensor ops.Tensor
		want   string
	}{
		{ops.Tensor{Name: "x", Type: quant.F32, Dims: []int64{2, 2}, Data: make([]byte, 12)}, `weight "x": 12 bytes do not hold [2 2] values of F32`},
		{ops.Tensor{Name: "x", Type: quant.F32, Dims: []int64{2, 3, 0}, Data: nil}, "do not hold"},
		{ops.Tensor{Name: "x", Type: quant.Type(9999), Dims: []int64{2}}, "unknown tensor type"},
		{ops.Tensor{Name: "x", Type: quant.Q8_0, Dims: []int64{33}}, "no multiple"},
		{ops.Tensor{Name: "x", Type: quant.F32}, "extents"},
	}
	for _, tt := range tests {
		if _, err := d.Weight(tt.tensor); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v does not contain %q", err, tt.want)
		}
	}
}

func TestImportChecksBeforeItChanges(t *testing.T) {
	d := New()
	layers := []ops.LayerState{
		{Layer: 0, PLE: &ops.PLEState{Taps: 1, Channels: 2, Tokens: 2}},
		{Layer: 0, Delta: &ops.DeltaState{Heads: 1, KeyDim: 2, ValueDim: 2, Taps: 1, Channels: 2}},
		{Layer: 1, KV: &ops.KVState{Heads: 1, KeyDim: 2, ValueDim: 2, IndexDim: 2, IndexRatio: 2}},
		{Layer: 2, KV: &ops.KVState{Heads: 1, KeyDim: 2, ValueDim: 2, Lag: 1}},
		{Layer: 2, Hidden: 3},
	}
	st := newTestState(t, d, layers...)
	const tokens = 3
	export := func() []ops.Section {
		t.Helper()
		sections, err := d.Export(st, tokens)
		if err != nil {
			t.Fatal(err)
		}
		return sections
	}
	want := export()
	if n := len(want[4].Data); n != 2*tokens*2 {
		t.Fatalf("section 4 has %d bytes", n)
	}
	tests := []struct {
		name   string
		change func(s []ops.Section) []ops.Section
		want   string
	}{
		{"missing", func(s []ops.Section) []ops.Section { return s[1:] }, "6 sections, the layout"},
		{"order", func(s []ops.Section) []ops.Section { s[0], s[1] = s[1], s[0]; return s }, "section 0 is layer 0, kind 3"},
		{"layer", func(s []ops.Section) []ops.Section { s[3].Layer = 2; return s }, "section 3 is layer 2"},
		{"short", func(s []ops.Section) []ops.Section { s[3].Data = s[3].Data[2:]; return s }, "section 3"},
		{"half not finite", func(s []ops.Section) []ops.Section { s[4].Data[3] = 0x7c; return s }, "layer 1, kind 2 holds numbers that are not finite"},
		{"single not finite", func(s []ops.Section) []ops.Section { s[1].Data[3], s[1].Data[2] = 0x7f, 0x80; return s }, "layer 0, kind 3 holds numbers that are not finite"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := export()
			s[0].Data[0] = 1
			if err := d.Import(st, tokens, tt.change(s)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v does not contain %q", err, tt.want)
			}
			if diff := cmp.Diff(want, export()); diff != "" {
				t.Errorf("a refused import changed the state: %s", diff)
			}
		})
	}
	if err := d.Import(st, -1, nil); err == nil {
		t.Error("imported a negative number of tokens")
	}
	// Token ids are no numbers: a bit pattern of NaN is an id like any other.
	s := export()
	copy(s[0].Data[2*4:], []byte{0xff, 0xff, 0xff, 0x7f})
	if err := d.Import(st, tokens, s); err != nil {
		t.Error(err)
	}
}

func TestFenceStopsAndForgets(t *testing.T) {
	var q Queue
	var done []int
	boom := errors.New("boom")
	for i := range 3 {
		q.Enqueue(func(context.Context) error {
			done = append(done, i)
			if i == 1 {
				return boom
			}
			return nil
		})
	}
	if err := q.Fence(t.Context()); !errors.Is(err, boom) || len(done) != 2 {
		t.Errorf("error %v after %v", err, done)
	}
	if err := q.Fence(t.Context()); err != nil {
		t.Errorf("an old error came back: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q.Enqueue(func(context.Context) error { t.Error("ran"); return nil })
	if err := q.Fence(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// ownBuffer is another author's buffer around a reference buffer.
type ownBuffer struct {
	*Buffer
}

// TestEmbedding replaces one operation by another author's.
func TestEmbedding(t *testing.T) {
	type queue struct{ *Queue }
	d := New()
	q := queue{d.queue}
	b := &ownBuffer{Buffer: &Buffer{make([]float32, 2)}}
	w := window(nil, 0, 1)
	q.Embed(&ops.Embed{Table: weight(t, d, []int64{2, 2}, 1, 2, 3, 4), Streams: 1, Width: 2}, w, b)
	q.Enqueue(func(context.Context) error {
		b.Host()[0] *= 10
		return nil
	})
	q.Add(&ops.Add{Width: 2}, w, b, b)
	if err := q.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]float32{60, 8}, b.Host()); diff != "" {
		t.Error(diff)
	}
}
