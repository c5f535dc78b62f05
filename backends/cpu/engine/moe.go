package engine

import (
	"sync/atomic"

	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/sdk/ops"
)

// boundMoE is a MoE ready to run.
type boundMoE struct {
	*ops.MoE
	router *kernels.Matrix
	// routed and shared are the experts; shared counts as one.
	routed, shared experts
	sharedGate     *kernels.Matrix
}

// experts are stacked feed-forward blocks.
type experts struct {
	width          int
	gate, up, down *kernels.Matrix
	// fused: gate and up are one matrix, gate rows first for each expert.
	fused                         bool
	gateScale, upScale, downScale []float32
}

// gateRow and upRow are the first rows of an expert.
func (x *experts) gateRow(e int) int {
	if x.fused {
		return 2 * e * x.width
	}
	return e * x.width
}

func (x *experts) upRow(e int) int {
	if x.fused {
		return (2*e + 1) * x.width
	}
	return e * x.width
}

// scaleOf returns an expert's factor, 1 where there are none.
func scaleOf(scales []float32, e int) float32 {
	if scales == nil {
		return 1
	}
	return scales[e]
}

// MoE implements ops.Queue.
func (q *Queue) MoE(op *ops.MoE, w *ops.Window, x, y ops.Buffer) {
	b, err := bind(q, op, func(b *binder) *boundMoE { return bindMoE(b, op) }, "experts", op.Layer)
	if err != nil {
		q.enqueue(call{}, err)
		return
	}
	o := of(w)
	c := call{run: (*Queue).runMoE, layer: op.Layer, op: b, w: w, a: o.rows(x, op.Width), b: o.rows(y, op.Width)}
	q.enqueue(c, named("experts", op.Layer, o.err))
}

func bindMoE(b *binder, op *ops.MoE) *boundMoE {
	if op.Used < 1 || op.Used > op.Experts || op.Uses != nil && len(op.Uses) != op.Experts {
		b.check(false, "%d of %d experts used, %d counters", op.Used, op.Experts, len(op.Uses))
		return nil
	}
	t := &boundMoE{MoE: op, router: b.matrix(op.Router, "Router", op.Experts, op.Width)}
	t.routed = experts{
		width:     op.ExpertWidth,
		down:      b.matrix(op.Down, "Down", op.Experts*op.Width, op.ExpertWidth),
		gateScale: b.optional(op.GateScale, "GateScale", 1, op.Experts),
		upScale:   b.optional(op.UpScale, "UpScale", 1, op.Experts),
		downScale: b.optional(op.DownScale, "DownScale", 1, op.Experts),
	}
	if op.GateUp != nil {
		t.routed.gate = b.matrix(op.GateUp, "GateUp", op.Experts*2*op.ExpertWidth, op.Width)
		t.routed.up, t.routed.fused = t.routed.gate, true
	} else {
		t.routed.gate = b.matrix(op.Gate, "Gate", op.Experts*op.ExpertWidth, op.Width)
		t.routed.up = b.matrix(op.Up, "Up", op.Experts*op.ExpertWidth, op.Width)
	}
	if op.SharedWidth > 0 {
		t.sharedGate = b.matrix(op.SharedGate, "SharedGate", 1, op.Width)
		t.shared = experts{
			width: op.SharedWidth,
			gate:  b.matrix(op.SharedGateProj, "SharedGateProj", op.SharedWidth, op.Width),
			up:    b.matrix(op.SharedUp, "SharedUp", op.SharedWidth, op.Width),
			down:  b.matrix(op.SharedDown, "SharedDown", op.Width, op.SharedWidth),
		}
	}
	return t
}

// moeTask is the state of a MoE; its regions have types of their own.
type moeTask struct {
	*boundMoE
	q *Queue
	w *ops.Window
	n int
	// in and out are the operation's rows.
	in  kernels.Rows
	out []float32
	// scores are the router's [row][expert], open the shared gate's [row].
	scores, open []float32
	// chosen and share are [row][used]: experts in order of their score and their
	// weights.
	chosen []int32
	share  []float32
	// A slot is a row at one of its experts. Slots are ordered by expert, then by
	// row; the slots of expert e are [first[e], first[e+1]).
	first, slotRow []int32
	slotShare      []float32
	// hidden and sharedHidden are what goes into the down projections: of each
	// slot, of each row.
	hidden, sharedHidden kernels.Rows
	// items are pieces of the first projections, in groups of four: expert (or
	// -1), first hidden value, first slot, end of slots.
	items []int32
	// width is the number of hidden values in an item, and cols that of output
	// columns in a chunk of moeDown.
	width, cols int
}

type (
	moeRoute moeTask // chooses experts
	moeUp    moeTask // gate and up projections
	moeDown  moeTask // down projections and their sum
)

func (q *Queue) runMoE(c *call) error {
	b, n := c.op.(*boundMoE), c.w.Rows
	t := &q.moe
	*t = moeTask{boundMoE: b, q: q, w: c.w, n: n, out: c.b}
	t.in = q.activations(c.a, n, b.Width, b.router, b.sharedGate, b.routed.gate, b.routed.up, b.shared.gate, b.shared.up)
	t.scores = q.floats.take(n * b.Experts)
	q.multiply.begin(q, t.in, n)
	q.multiply.all(b.router, t.scores)
	if b.sharedGate != nil {
		t.open = q.floats.take(n)
		q.multiply.all(b.sharedGate, t.open)
	}
	q.multiply.run()

	t.chosen, t.share = q.numbers.take(n*b.Used), q.floats.take(n*b.Used)
	q.pool.Run(pieces(n, rowsPerChunk), (*moeRoute)(t))
	t.group()

	q.needIndex(n * b.Used)
	t.hidden = t.hiddenRows(&b.routed, n*b.Used)
	if b.SharedWidth > 0 {
		t.sharedHidden = t.hiddenRows(&b.shared, n)
	}
	t.cut()
	q.pool.Run(len(t.items)/4, (*moeUp)(t))

	t.cols = min(q.chunkRows(b.Width, n*(b.Used*b.ExpertWidth+b.SharedWidth), 1), 128)
	q.pool.Run(pieces(b.Width, t.cols), (*moeDown)(t))
	return nil
}

// hiddenRows takes memory for hidden rows in the form that the down projection
// reads.
func (t *moeTask) hiddenRows(x *experts, n int) kernels.Rows {
	r := kernels.Rows{Width: x.width}
	if x.down.Quantized() {
		r.Blocks = t.q.blocks.take(n * x.width / kernels.BlockValues)
	} else {
		r.Floats = t.q.floats.take(n * x.width)
	}
	return r
}

// Do implements pool.Task.
func (t *moeRoute) Do(chunk, _ int) {
	for row := chunk * rowsPerChunk; row < min((chunk+1)*rowsPerChunk, t.n); row++ {
		scores := t.scores[row*t.Experts:][:t.Experts]
		finite := kernels.Finite(scores)
		if !finite {
			t.w.Flags.Mark(row, ops.FlagResidual, t.Layer)
			clear(scores) // the row is marked; any valid experts will do
		}
		chosen, share := t.chosen[row*t.Used:][:t.Used], t.share[row*t.Used:][:t.Used]
		route(scores, chosen, share)
		if t.Uses != nil && finite {
			for _, e := range chosen {
				atomic.AddUint64(&t.Uses[e], 1)
			}
		}
	}
}

// route chooses the experts with the largest scores, ties to the lower index, in
// that order, and their shares: a softmax over the chosen, which is the softmax
// over all renormalised. It overwrites scores, which are finite.
func route(scores []float32, chosen []int32, share []float32) {
	// The few best so far, kept sorted: an expert is compared with the worst of
	// them first, and rarely with more.
	n := 0
	for e, v := range scores {
		if n == len(chosen) && !(v > share[n-1]) {
			continue
		}
		if n < len(chosen) {
			n++
		}
		i := n - 1
		for ; i > 0 && v > share[i-1]; i-- {
			chosen[i], share[i] = chosen[i-1], share[i-1]
		}
		chosen[i], share[i] = int32(e), v
	}
	top, sum := share[0], float32(0)
	for i, v := range share {
		share[i] = kernels.Exp(v - top)
		sum += share[i]
	}
	for i := range share {
		share[i] /= sum
	}
}

// group orders the slots by expert.
func (t *moeTask) group() {
	t.first = t.q.numbers.take(t.Experts + 1)
	clear(t.first)
	for _, e := range t.chosen {
		t.first[e+1]++
	}
	for e := range t.Experts {
		t.first[e+1] += t.first[e]
	}
	next := t.q.numbers.take(t.Experts)
	copy(next, t.first)
	t.slotRow, t.slotShare = t.q.numbers.take(t.n*t.Used), t.q.floats.take(t.n*t.Used)
	for i, e := range t.chosen {
		slot := next[e]
		next[e]++
		t.slotRow[slot] = int32(i / t.Used)
		t.slotShare[slot] = t.share[i]
	}
}

// cut makes the items of moeUp: a range of hidden values of an expert for a tile
// of its slots. Ranges are whole blocks, so that an item can round what it
// computed.
func (t *moeTask) cut() {
	t.width = kernels.BlockValues
	cost := 2 * t.width * t.Width * min(t.n, tile)
	for t.width < t.ExpertWidth && cost < smallChunk {
		t.width *= 2
		cost *= 2
	}
	count := pieces(t.SharedWidth, t.width) * pieces(t.n, tile)
	for e := range t.Experts {
		count += pieces(t.ExpertWidth, t.width) * pieces(int(t.first[e+1]-t.first[e]), tile)
	}
	items := t.q.numbers.take(4 * count)[:0]
	add := func(e, width, from, to int) {
		for f := 0; f < width; f += t.width {
			for s := from; s < to; s += tile {
				items = append(items, int32(e), int32(f), int32(s), int32(min(s+tile, to)))
			}
		}
	}
	// The shared expert first: it has the most rows, and long work begins early.
	add(-1, t.SharedWidth, 0, t.n)
	for e := range t.Experts {
		add(e, t.ExpertWidth, int(t.first[e]), int(t.first[e+1]))
	}
	t.items = items
}

// Do implements pool.Task.
func (t *moeUp) Do(chunk, worker int) {
	item := t.items[4*chunk:][:4]
	e, f, from, to := int(item[0]), int(item[1]), int(item[2]), int(item[3])
	x, hidden, index := &t.routed, &t.hidden, t.slotRow[from:to]
	if e < 0 {
		x, hidden, index = &t.shared, &t.sharedHidden, t.q.index(from, to)
		e = 0
	}
	n := min(t.width, x.width-f)
	w := &t.q.workers[worker]
	gate, up := w.floats(0, len(index)*n), w.floats(1, len(index)*n)
	x.gate.Mul(gate, n, x.gateRow(e)+f, x.gateRow(e)+f+n, &t.in, index, &w.mul)
	x.up.Mul(up, n, x.upRow(e)+f, x.upRow(e)+f+n, &t.in, index, &w.mul)
	gateScale, upScale := scaleOf(x.gateScale, e), scaleOf(x.upScale, e)
	if gateScale != 1 || upScale != 1 {
		for i := range gate {
			gate[i] *= gateScale
			up[i] *= upScale
		}
	}
	kernels.SiLUs(gate, gate)
	for i, g := range gate {
		up[i] *= g
	}
	for i := range index {
		h := up[i*n:][:n]
		if hidden.Blocks != nil {
			at := ((from+i)*x.width + f) / kernels.BlockValues
			kernels.Quantize(hidden.Blocks[at:at+n/kernels.BlockValues], h)
		} else {
			copy(hidden.Floats[(from+i)*x.width+f:], h)
		}
	}
}

// Do implements pool.Task. Experts add up in ascending order, the shared one
// last.
func (t *moeDown) Do(chunk, worker int) {
	first := chunk * t.cols
	n := min(first+t.cols, t.Width) - first
	w := &t.q.workers[worker]
	y := w.floats(0, tile*t.cols)
	for row := range t.n {
		clear(t.out[row*t.Width+first:][:n])
	}
	for e := range t.Experts {
		at, scale := e*t.Width+first, scaleOf(t.routed.downScale, e)
		for from := int(t.first[e]); from < int(t.first[e+1]); from += tile {
			to := min(from+tile, int(t.first[e+1]))
			t.routed.down.Mul(y, n, at, at+n, &t.hidden, t.q.index(from, to), &w.mul)
			for i, row := range t.slotRow[from:to] {
				kernels.AddScaled(t.out[int(row)*t.Width+first:][:n], t.slotShare[from+i]*scale, y[i*n:][:n])
			}
		}
	}
	if t.SharedWidth == 0 {
		return
	}
	for from := 0; from < t.n; from += tile {
		to := min(from+tile, t.n)
		t.shared.down.Mul(y, n, first, first+n, &t.sharedHidden, t.q.index(from, to), &w.mul)
		for row := from; row < to; row++ {
			kernels.AddScaled(t.out[row*t.Width+first:][:n], kernels.Sigmoid(t.open[row]), y[(row-from)*n:][:n])
		}
	}
}
