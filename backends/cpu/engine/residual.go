package engine

import (
	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/sdk/ops"
)

// HyperInject implements ops.Queue.
func (q *Queue) HyperInject(op *ops.HyperInject, w *ops.Window, r, gate, y ops.Buffer) {
	o := of(w)
	c := call{run: (*Queue).runInject, layer: op.Layer, op: op, w: w, a: o.rows(r, op.Streams*op.Width), b: o.rows(gate, op.Streams), c: o.rows(y, op.Width)}
	q.enqueue(c, named("injection", op.Layer, o.err))
}

// injectTask adds gated rows to the residual's streams.
type injectTask struct {
	*ops.HyperInject
	w          *ops.Window
	r, gate, y []float32
}

func (q *Queue) runInject(c *call) error {
	q.inject = injectTask{c.op.(*ops.HyperInject), c.w, c.a, c.b, c.c}
	q.pool.Run(pieces(c.w.Rows, rowsPerChunk), &q.inject)
	return nil
}

// Do implements pool.Task.
func (t *injectTask) Do(chunk, _ int) {
	for row := chunk * rowsPerChunk; row < min((chunk+1)*rowsPerChunk, t.w.Rows); row++ {
		y := t.y[row*t.Width:][:t.Width]
		for s := range t.Streams {
			r, g := t.r[(row*t.Streams+s)*t.Width:][:t.Width], t.gate[row*t.Streams+s]
			kernels.AddScaled(r, g, y)
			if !kernels.Finite(r) {
				t.w.Flags.Mark(row, ops.FlagResidual, t.Layer)
			}
		}
	}
}

// Add implements ops.Queue.
func (q *Queue) Add(op *ops.Add, w *ops.Window, r, y ops.Buffer) {
	o := of(w)
	c := call{run: (*Queue).runAdd, layer: op.Layer, op: op, w: w, a: o.rows(r, op.Width), b: o.rows(y, op.Width)}
	q.enqueue(c, named("addition", op.Layer, o.err))
}

// addTask adds rows to the residual.
type addTask struct {
	*ops.Add
	w    *ops.Window
	r, y []float32
}

func (q *Queue) runAdd(c *call) error {
	q.add = addTask{c.op.(*ops.Add), c.w, c.a, c.b}
	q.pool.Run(pieces(c.w.Rows, rowsPerChunk), &q.add)
	return nil
}

// Do implements pool.Task.
func (t *addTask) Do(chunk, _ int) {
	for row := chunk * rowsPerChunk; row < min((chunk+1)*rowsPerChunk, t.w.Rows); row++ {
		r, y := t.r[row*t.Width:][:t.Width], t.y[row*t.Width:][:t.Width]
		for i, v := range y {
			r[i] += v
		}
		if !kernels.Finite(r) {
			t.w.Flags.Mark(row, ops.FlagResidual, t.Layer)
		}
	}
}

// boundNorm is a Norm ready to run.
type boundNorm struct {
	*ops.Norm
	weight []float32
}

func bindNorm(q *Queue, op *ops.Norm) (*boundNorm, error) {
	return bind(q, op, func(b *binder) *boundNorm {
		return &boundNorm{op, b.vector(op.Weight, "Weight", 1, op.Width)}
	}, "norm", op.Layer)
}

// Norm implements ops.Queue.
func (q *Queue) Norm(op *ops.Norm, w *ops.Window, r, x ops.Buffer) {
	b, err := bindNorm(q, op)
	if err != nil {
		q.enqueue(call{}, err)
		return
	}
	o := of(w)
	c := call{run: (*Queue).runNorm, layer: op.Layer, op: b, w: w, a: o.rows(r, op.Width), b: o.rows(x, op.Width)}
	q.enqueue(c, named("norm", op.Layer, o.err))
}

// normTask norms rows.
type normTask struct {
	*boundNorm
	n    int
	r, x []float32
}

func (q *Queue) runNorm(c *call) error {
	q.normRows(c.op.(*boundNorm), c.a, c.b, c.w.Rows)
	return nil
}

func (q *Queue) normRows(b *boundNorm, r, x []float32, n int) {
	q.norm = normTask{b, n, r, x}
	q.pool.Run(pieces(n, rowsPerChunk), &q.norm)
}

// Do implements pool.Task.
func (t *normTask) Do(chunk, _ int) {
	for row := chunk * rowsPerChunk; row < min((chunk+1)*rowsPerChunk, t.n); row++ {
		kernels.Norm(t.x[row*t.Width:][:t.Width], t.r[row*t.Width:][:t.Width], t.weight, t.Eps)
	}
}
