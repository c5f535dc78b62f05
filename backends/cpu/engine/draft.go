package engine

import (
	"fmt"

	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/sdk/ops"
)

// Hidden implements ops.Queue.
func (q *Queue) Hidden(op *ops.Hidden, w *ops.Window, r ops.Buffer) {
	o := of(w)
	c := call{run: (*Queue).runHidden, layer: op.Layer, op: op, w: w, a: o.rows(r, op.Width)}
	for i := range w.Segments {
		if _, err := hiddenOf(&w.Segments[i], op.Layer, op.Width); err != nil {
			o.fail("%w", err)
		}
	}
	q.enqueue(c, named("hidden row", op.Layer, o.err))
}

// hiddenOf returns the row that a segment's state keeps.
func hiddenOf(seg *ops.Segment, layer, width int) ([]float32, error) {
	s, err := own(seg.State)
	if err != nil {
		return nil, err
	}
	kept := s.hidden[layer]
	if len(kept) != width {
		return nil, fmt.Errorf("the state keeps a row of %d values, want %d", len(kept), width)
	}
	return kept, nil
}

func (q *Queue) runHidden(c *call) error {
	op := c.op.(*ops.Hidden)
	for i := range c.w.Segments {
		seg := &c.w.Segments[i]
		if len(seg.Tokens) == 0 {
			continue
		}
		kept, err := hiddenOf(seg, op.Layer, op.Width)
		if err != nil {
			return err
		}
		row := seg.Row + len(seg.Tokens) - 1
		copy(kept, c.a[row*op.Width:(row+1)*op.Width])
		if !kernels.Finite(kept) {
			c.w.Flags.Mark(row, ops.FlagState, op.Layer)
		}
	}
	return nil
}

// boundDraft is a Draft ready to run.
type boundDraft struct {
	*ops.Draft
	table, join           *kernels.Matrix
	embedNorm, hiddenNorm []float32
}

// Draft implements ops.Queue.
func (q *Queue) Draft(op *ops.Draft, w *ops.Window, hidden ops.Buffer, from []int, r ops.Buffer) {
	wide := op.Streams * op.Width
	b, err := bind(q, op, func(b *binder) *boundDraft {
		return &boundDraft{
			Draft:      op,
			table:      b.table(op.Table, op.Width),
			join:       b.matrix(op.Join, "Join", op.Width, 2*op.Width),
			embedNorm:  b.vector(op.EmbedNorm, "EmbedNorm", 1, op.Width),
			hiddenNorm: b.vector(op.HiddenNorm, "HiddenNorm", 1, wide),
		}
	}, "draft", op.Layer)
	if err != nil {
		q.enqueue(call{}, err)
		return
	}
	o := of(w)
	c := call{run: (*Queue).runDraft, layer: op.Layer, op: b, w: w, b: o.rows(r, wide), rows: from}
	if err := checkTokens(w, b.table.Rows); err != nil {
		o.fail("%w", err)
	}
	if len(from) != w.Rows {
		o.fail("%d sources for %d rows", len(from), w.Rows)
	}
	highest := -1
	for row, f := range from {
		highest = max(highest, f)
		if f >= 0 || o.err != nil {
			continue
		}
		if _, err := hiddenOf(segment(w, row), op.Layer, wide); err != nil {
			o.fail("%w", err)
		}
	}
	if highest >= 0 {
		c.a = o.buffer(hidden, (highest+1)*wide)
	}
	q.enqueue(c, named("draft", op.Layer, o.err))
}

// draftTask norms the embedding and the residual of draft rows.
type draftTask struct {
	*boundDraft
	w      *ops.Window
	hidden []float32
	from   []int
	pairs  []float32
}

func (q *Queue) runDraft(c *call) error {
	b, n := c.op.(*boundDraft), c.w.Rows
	t := &q.draft
	*t = draftTask{b, c.w, c.a, c.rows, q.floats.take(n * b.Streams * 2 * b.Width)}
	q.pool.Run(pieces(n, rowsPerChunk), t)
	q.multiply.begin(q, q.activations(t.pairs, n*b.Streams, 2*b.Width, b.join), n*b.Streams)
	q.multiply.all(b.join, c.b)
	q.multiply.run()
	for row := range n {
		if !kernels.Finite(c.b[row*b.Streams*b.Width : (row+1)*b.Streams*b.Width]) {
			c.w.Flags.Mark(row, ops.FlagResidual, b.Layer)
		}
	}
	return nil
}

// Do implements pool.Task.
func (t *draftTask) Do(chunk, _ int) {
	wide := t.Streams * t.Width
	for row := chunk * rowsPerChunk; row < min((chunk+1)*rowsPerChunk, t.w.Rows); row++ {
		seg := segment(t.w, row)
		var res []float32
		if f := t.from[row]; f >= 0 {
			res = t.hidden[f*wide : (f+1)*wide]
		} else {
			res = seg.State.(*state).hidden[t.Layer]
		}
		first := t.pairs[row*t.Streams*2*t.Width:][:t.Width]
		t.table.Row(first, int(seg.Tokens[row-seg.Row]))
		kernels.Norm(first, first, t.embedNorm, t.Eps)
		for s := range t.Streams {
			pair := t.pairs[(row*t.Streams+s)*2*t.Width:][:2*t.Width]
			copy(pair, first)
			kernels.Norm(pair[t.Width:], res[s*t.Width:(s+1)*t.Width], t.hiddenNorm[s*t.Width:(s+1)*t.Width], t.Eps)
		}
	}
}
