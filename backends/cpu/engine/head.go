package engine

import (
	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/sdk/ops"
)

// boundHead is a Head ready to run.
type boundHead struct {
	*ops.Head
	mix    *boundMix
	norm   *boundNorm
	output *kernels.Matrix
	width  int // of a residual row
}

// Head implements ops.Queue.
func (q *Queue) Head(op *ops.Head, w *ops.Window, r ops.Buffer, rows []int, logits ops.Buffer) {
	b, err := bind(q, op, func(b *binder) *boundHead {
		t := &boundHead{Head: op, output: b.matrix(op.Output, "Output", op.Vocab, op.Width), width: op.Width}
		var err error
		switch {
		case op.Mix != nil:
			t.width *= op.Mix.Streams
			t.mix, err = bindMix(q, op.Mix)
			b.check(err == nil, "%w", err)
			b.check(op.Mix.Width == op.Width && op.Mix.Inject == nil, "the final mixer has width %d, or injects", op.Mix.Width)
		case op.Norm != nil:
			t.norm, err = bindNorm(q, op.Norm)
			b.check(err == nil, "%w", err)
			b.check(op.Norm.Width == op.Width, "the final norm has width %d", op.Norm.Width)
		}
		return t
	}, "head", op.Layer)
	if err != nil {
		q.enqueue(call{}, err)
		return
	}
	o := of(w)
	c := call{run: (*Queue).runHead, layer: op.Layer, op: b, w: w, a: o.rows(r, b.width), b: o.buffer(logits, len(rows)*op.Vocab), rows: rows}
	last := -1
	for _, row := range rows {
		if row <= last || row >= w.Rows {
			o.fail("row %d after %d of %d", row, last, w.Rows)
		}
		last = row
	}
	q.enqueue(c, named("head", op.Layer, o.err))
}

// headTask looks for logits that are not finite.
type headTask struct {
	*boundHead
	w      *ops.Window
	rows   []int
	logits []float32
	pieces int // of a row
}

// scanPiece is how many logits a chunk looks at.
const scanPiece = 1 << 14

func (q *Queue) runHead(c *call) error {
	b, n := c.op.(*boundHead), len(c.rows)
	if n == 0 {
		return nil
	}
	x := q.floats.take(n * b.width)
	for i, row := range c.rows {
		copy(x[i*b.width:(i+1)*b.width], c.a[row*b.width:])
	}
	switch {
	case b.mix != nil:
		r := x
		x = q.floats.take(n * b.Width)
		q.mixRows(b.mix, r, x, nil, n)
	case b.norm != nil:
		q.normRows(b.norm, x, x, n)
	}
	q.multiply.begin(q, q.activations(x, n, b.Width, b.output), n)
	q.multiply.all(b.output, c.b)
	q.multiply.run()
	q.head = headTask{b, c.w, c.rows, c.b, pieces(b.Vocab, scanPiece)}
	q.pool.Run(n*q.head.pieces, &q.head)
	return nil
}

// Do implements pool.Task.
func (t *headTask) Do(chunk, _ int) {
	i, from := chunk/t.pieces, chunk%t.pieces*scanPiece
	to := min(from+scanPiece, t.Vocab)
	if !kernels.Finite(t.logits[i*t.Vocab+from : i*t.Vocab+to]) {
		t.w.Flags.Mark(t.rows[i], ops.FlagLogits, t.Layer)
	}
}
