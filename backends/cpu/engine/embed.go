package engine

import (
	"fmt"

	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/sdk/ops"
)

// boundEmbed is an Embed ready to run.
type boundEmbed struct {
	*ops.Embed
	table *kernels.Matrix
}

// Embed implements ops.Queue.
func (q *Queue) Embed(op *ops.Embed, w *ops.Window, r ops.Buffer) {
	b, err := bind(q, op, func(b *binder) *boundEmbed {
		t := &boundEmbed{Embed: op, table: b.table(op.Table, op.Width)}
		b.check(op.Streams > 0, "%d streams", op.Streams)
		return t
	}, "embedding", -1)
	if err != nil {
		q.enqueue(call{}, err)
		return
	}
	o := of(w)
	c := call{run: (*Queue).runEmbed, layer: -1, op: b, w: w, a: o.rows(r, op.Streams*op.Width)}
	if err := checkTokens(w, b.table.Rows); err != nil {
		o.fail("%w", err)
	}
	q.enqueue(c, named("embedding", -1, o.err))
}

// table returns a matrix of any number of rows.
func (b *binder) table(w ops.Weight, width int) *kernels.Matrix {
	own, ok := w.(*weight)
	if !ok || own == nil {
		b.check(false, "the table is %T, no weight of this device", w)
		return nil
	}
	b.check(own.matrix.Cols == width, "the table (tensor %q) has rows of %d, want %d", own.name, own.matrix.Cols, width)
	return own.matrix
}

// checkTokens checks that token ids are rows of a table.
func checkTokens(w *ops.Window, rows int) error {
	for i := range w.Segments {
		for _, id := range w.Segments[i].Tokens {
			if id < 0 || int(id) >= rows {
				return fmt.Errorf("token id %d, the table has %d rows", id, rows)
			}
		}
	}
	return nil
}

// embedTask writes table rows to the residual.
type embedTask struct {
	*boundEmbed
	w *ops.Window
	r []float32
}

func (q *Queue) runEmbed(c *call) error {
	q.embedding = embedTask{c.op.(*boundEmbed), c.w, c.a}
	q.pool.Run(pieces(c.w.Rows, rowsPerChunk), &q.embedding)
	return nil
}

// Do implements pool.Task.
func (t *embedTask) Do(chunk, _ int) {
	for row := chunk * rowsPerChunk; row < min((chunk+1)*rowsPerChunk, t.w.Rows); row++ {
		r := t.r[row*t.Streams*t.Width:][:t.Streams*t.Width]
		t.table.Row(r[:t.Width], int(token(t.w, row)))
		if !kernels.Finite(r[:t.Width]) {
			t.w.Flags.Mark(row, ops.FlagResidual, -1)
		}
		for s := 1; s < t.Streams; s++ {
			copy(r[s*t.Width:], r[:t.Width])
		}
	}
}

// segment returns the segment of a row.
func segment(w *ops.Window, row int) *ops.Segment {
	// Windows have few segments, and most of them one.
	for i := range w.Segments {
		if s := &w.Segments[i]; row < s.Row+len(s.Tokens) {
			return s
		}
	}
	return nil
}

func token(w *ops.Window, row int) int32 {
	s := segment(w, row)
	return s.Tokens[row-s.Row]
}
