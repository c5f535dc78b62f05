package engine

import (
	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/sdk/ops"
)

// boundMix is a HyperMix ready to run.
type boundMix struct {
	*ops.HyperMix
	norm             []float32
	down, up, inject *kernels.Matrix
}

func bindMix(q *Queue, op *ops.HyperMix) (*boundMix, error) {
	return bind(q, op, func(b *binder) *boundMix {
		wide := op.Streams * op.Width
		t := &boundMix{
			HyperMix: op,
			norm:     b.vector(op.Norm, "Norm", 1, wide),
			down:     b.matrix(op.Down, "Down", op.Rank, wide),
			up:       b.matrix(op.Up, "Up", wide, op.Rank),
		}
		if op.Inject != nil {
			t.inject = b.matrix(op.Inject, "Inject", op.Streams, wide)
		}
		return t
	}, "mixer", op.Layer)
}

// HyperMix implements ops.Queue.
func (q *Queue) HyperMix(op *ops.HyperMix, w *ops.Window, r, x, gate ops.Buffer) {
	b, err := bindMix(q, op)
	if err != nil {
		q.enqueue(call{}, err)
		return
	}
	o := of(w)
	c := call{run: (*Queue).runMix, layer: op.Layer, op: b, w: w, a: o.rows(r, op.Streams*op.Width), b: o.rows(x, op.Width)}
	if op.Inject != nil {
		c.c = o.rows(gate, op.Streams)
	}
	q.enqueue(c, named("mixer", op.Layer, o.err))
}

// mixTask is the state of a HyperMix; its regions have types of their own.
type mixTask struct {
	*boundMix
	q *Queue
	n int
	// r is the residual, in the normed streams, lo the low-rank vector.
	r, x, gate []float32
	in, lo     kernels.Rows
	// per is the number of columns in a chunk of mixUp, tiles that of row tiles.
	per, tiles int
}

type (
	mixNorm mixTask // norms the streams
	mixLow  mixTask // activates the low-rank vector and the gates
	mixUp   mixTask // multiplies Up and adds the streams
)

func (q *Queue) runMix(c *call) error {
	q.mixRows(c.op.(*boundMix), c.a, c.b, c.c, c.w.Rows)
	return nil
}

// mixRows computes a HyperMix for n rows.
func (q *Queue) mixRows(b *boundMix, r, x, gate []float32, n int) {
	wide := b.Streams * b.Width
	t := &q.mix
	*t = mixTask{boundMix: b, q: q, n: n, r: r, x: x, gate: gate}
	t.in = kernels.Rows{Width: wide, Floats: q.floats.take(n * wide)}
	if b.down.Quantized() || b.inject != nil && b.inject.Quantized() {
		t.in.Blocks = q.blocks.take(n * wide / kernels.BlockValues)
	}
	t.lo = kernels.Rows{Width: b.Rank, Floats: q.floats.take(n * b.Rank)}
	if b.up.Quantized() {
		t.lo.Blocks = q.blocks.take(n * b.Rank / kernels.BlockValues)
	}
	q.pool.Run(pieces(n, rowsPerChunk), (*mixNorm)(t))

	q.multiply.begin(q, t.in, n)
	q.multiply.all(b.down, t.lo.Floats)
	q.multiply.all(b.inject, gate)
	q.multiply.run()

	q.pool.Run(pieces(n, rowsPerChunk), (*mixLow)(t))

	t.tiles = pieces(n, tile)
	t.per = q.chunkRows(b.Width, b.Streams*(b.Rank+16)*min(n, tile), t.tiles)
	q.needIndex(n)
	q.pool.Run(pieces(b.Width, t.per)*t.tiles, (*mixUp)(t))
}

// Do implements pool.Task.
func (t *mixNorm) Do(chunk, _ int) {
	for i := chunk * rowsPerChunk * t.Streams; i < min((chunk+1)*rowsPerChunk, t.n)*t.Streams; i++ {
		kernels.Norm(t.in.Floats[i*t.Width:][:t.Width], t.r[i*t.Width:][:t.Width], t.norm[i%t.Streams*t.Width:][:t.Width], t.Eps)
	}
	quantizeChunk(&t.in, chunk, t.n)
}

// quantizeChunk rounds a chunk of rows, where they are wanted in that form.
func quantizeChunk(r *kernels.Rows, chunk, n int) {
	if r.Blocks != nil {
		q := quantizeTask{*r, n}
		q.Do(chunk, 0)
	}
}

// Do implements pool.Task.
func (t *mixLow) Do(chunk, _ int) {
	streams := float32(t.Streams)
	from, to := chunk*rowsPerChunk, min((chunk+1)*rowsPerChunk, t.n)
	lo := t.lo.Floats[from*t.Rank : to*t.Rank]
	for i := range lo {
		lo[i] /= streams
	}
	kernels.SiLUs(lo, lo)
	quantizeChunk(&t.lo, chunk, t.n)
	if t.inject != nil {
		gate := t.gate[from*t.Streams : to*t.Streams]
		for i := range gate {
			gate[i] /= streams
		}
		kernels.Sigmoids(gate, gate)
		for i := range gate {
			gate[i] *= 2
		}
	}
}

// Do implements pool.Task.
func (t *mixUp) Do(chunk, worker int) {
	from := chunk % t.tiles * tile
	to := min(from+tile, t.n)
	first := chunk / t.tiles * t.per
	last := min(first+t.per, t.Width)
	for ; first < last; first += mixColumns {
		t.columns(from, to, first, min(mixColumns, last-first), worker)
	}
}

// mixColumns is how many columns of a stream are multiplied before the next
// stream's: they stay in the cache.
const mixColumns = 64

// columns computes n columns of x from the first on, for the rows [from, to).
func (t *mixUp) columns(from, to, first, n, worker int) {
	w := &t.q.workers[worker]
	up := w.floats(0, tile*mixColumns)
	for s := range t.Streams {
		at := s*t.Width + first
		t.up.Mul(up, n, at, at+n, &t.lo, t.q.index(from, to), &w.mul)
		for row := from; row < to; row++ {
			x := t.x[row*t.Width+first:][:n]
			g, v := up[(row-from)*n:][:n], t.in.Floats[row*t.in.Width+at:][:n]
			if s == 0 {
				clear(x)
			}
			kernels.Sigmoids(g, g)
			for i := range x {
				x[i] += float32(g[i] * v[i])
			}
		}
	}
	share := 1 / float32(t.Streams)
	for row := from; row < to; row++ {
		x := t.x[row*t.Width+first:][:n]
		for i := range x {
			x[i] *= share
		}
	}
}
