package engine

import (
	"fmt"
	"math"

	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/sdk/ops"
)

// boundPLE is a PLE ready to run.
type boundPLE struct {
	*ops.PLE
	table, key, value                    *kernels.Matrix
	normKey, normQuery, normConv, kernel []float32
	taps                                 int
	want                                 ops.PLEState
}

// PLE implements ops.Queue.
func (q *Queue) PLE(op *ops.PLE, w *ops.Window, r ops.Buffer) {
	b, err := bind(q, op, func(b *binder) *boundPLE { return bindPLE(b, op) }, "n-gram embedding", op.Layer)
	if err != nil {
		q.enqueue(call{}, err)
		return
	}
	o := of(w)
	c := call{run: (*Queue).runPLE, layer: op.Layer, op: b, w: w, a: o.rows(r, op.Streams*op.Width)}
	for i := range w.Segments {
		if _, err := b.state(&w.Segments[i]); err != nil {
			o.fail("%w", err)
		}
	}
	q.enqueue(c, named("n-gram embedding", op.Layer, o.err))
}

func bindPLE(b *binder, op *ops.PLE) *boundPLE {
	heads := len(op.Sizes)
	if op.NGram < 2 || op.HeadsPerNGram < 1 || heads != (op.NGram-1)*op.HeadsPerNGram || len(op.Offsets) != heads || len(op.Multipliers) != op.NGram {
		b.check(false, "%d hash heads, %d offsets and %d multipliers for n-grams up to %d with %d heads each",
			heads, len(op.Offsets), len(op.Multipliers), op.NGram, op.HeadsPerNGram)
		return nil
	}
	wide := op.Streams * op.Width
	own, ok := op.Conv.(*weight)
	if !ok || own == nil || own.matrix.Rows != wide {
		b.check(false, "Conv is no weight of this device with %d rows", wide)
		return nil
	}
	t := &boundPLE{
		PLE:       op,
		table:     b.table(op.Table, op.RowWidth),
		key:       b.matrix(op.Key, "Key", wide, heads*op.RowWidth),
		value:     b.matrix(op.Value, "Value", op.Width, heads*op.RowWidth),
		normKey:   b.vector(op.NormKey, "NormKey", 1, wide),
		normQuery: b.vector(op.NormQuery, "NormQuery", 1, wide),
		normConv:  b.vector(op.NormConv, "NormConv", 1, wide),
		kernel:    own.floats(),
		taps:      own.matrix.Cols,
	}
	t.want = ops.PLEState{Taps: (t.taps - 1) * op.NGram, Channels: wide, Tokens: op.NGram - 1}
	if t.table != nil {
		for h, size := range op.Sizes {
			rows := int64(t.table.Rows)
			b.check(size > 0 && op.Offsets[h] >= 0 && size <= rows && op.Offsets[h] <= rows-size,
				"hash head %d has rows [%d, +%d) of a table of %d", h, op.Offsets[h], size, rows)
		}
	}
	return t
}

// state returns the layer's state of a segment.
func (b *boundPLE) state(seg *ops.Segment) (*pleState, error) {
	s, err := own(seg.State)
	if err != nil {
		return nil, err
	}
	p := s.ple[b.Layer]
	if p == nil || p.PLEState != b.want {
		return nil, fmt.Errorf("the state has no layer of %+v", b.want)
	}
	return p, nil
}

// pleTask is the state of a PLE; its regions have types of their own.
type pleTask struct {
	*boundPLE
	q *Queue
	w *ops.Window
	r []float32
	// e are the table rows [row][head][RowWidth], k [row][stream][width], v
	// [row][width], u and c as k.
	e, k, v, u, c []float32
	per           int // channels in a chunk of pleConvolve
}

type (
	pleGather   pleTask // reads the table
	pleGate     pleTask // u and c
	pleConvolve pleTask // adds u and the convolution of c to the residual
	pleFinite   pleTask // looks at the residual
)

func (q *Queue) runPLE(call *call) error {
	b, n := call.op.(*boundPLE), call.w.Rows
	wide, hashed := b.Streams*b.Width, len(b.Sizes)*b.RowWidth
	t := &q.ple
	*t = pleTask{boundPLE: b, q: q, w: call.w, r: call.a}
	t.e, t.v = q.floats.take(n*hashed), q.floats.take(n*b.Width)
	t.k, t.u, t.c = q.floats.take(n*wide), q.floats.take(n*wide), q.floats.take(n*wide)
	q.pool.Run(pieces(n, rowsPerChunk), (*pleGather)(t))

	q.multiply.begin(q, q.activations(t.e, n, hashed, b.key, b.value), n)
	q.multiply.all(b.key, t.k)
	q.multiply.all(b.value, t.v)
	q.multiply.run()

	q.pool.Run(pieces(n, rowsPerChunk), (*pleGate)(t))
	t.per = q.chunkRows(wide, (b.taps+16)*n, 1)
	q.pool.Run(pieces(wide, t.per), (*pleConvolve)(t))
	q.pool.Run(pieces(n, rowsPerChunk), (*pleFinite)(t))
	for i := range call.w.Segments {
		seg := &call.w.Segments[i]
		ids := seg.State.(*state).ple[b.Layer].ids
		for _, id := range seg.Tokens[max(len(seg.Tokens)-len(ids), 0):] {
			copy(ids[1:], ids)
			ids[0] = id
		}
	}
	return nil
}

// Do implements pool.Task.
func (t *pleGather) Do(chunk, _ int) {
	for row := chunk * rowsPerChunk; row < min((chunk+1)*rowsPerChunk, t.w.Rows); row++ {
		seg := segment(t.w, row)
		earlier := seg.State.(*state).ple[t.Layer].ids
		i := row - seg.Row
		mix := uint64(seg.Tokens[i]) * uint64(t.Multipliers[0])
		cut := false
		e := t.e[row*len(t.Sizes)*t.RowWidth:]
		for n, h := 1, 0; n < t.NGram; n++ {
			id := t.Reset
			if !cut {
				if n <= i {
					id = seg.Tokens[i-n]
				} else {
					id = earlier[n-i-1]
				}
				if id < 0 || id == t.Reset {
					id, cut = t.Reset, true
				}
			}
			mix ^= uint64(id) * uint64(t.Multipliers[n])
			for range t.HeadsPerNGram {
				t.table.Row(e[h*t.RowWidth:][:t.RowWidth], int(int64(mix%uint64(t.Sizes[h]))+t.Offsets[h]))
				h++
			}
		}
	}
}

// Do implements pool.Task.
func (t *pleGate) Do(chunk, worker int) {
	query := t.q.workers[worker].floats(0, t.Width)
	scale := float32(1 / math.Sqrt(float64(t.Width)))
	for row := chunk * rowsPerChunk; row < min((chunk+1)*rowsPerChunk, t.w.Rows); row++ {
		v := t.v[row*t.Width:][:t.Width]
		for s := range t.Streams {
			at, norm := (row*t.Streams+s)*t.Width, s*t.Width
			key := t.k[at:][:t.Width]
			kernels.Norm(key, key, t.normKey[norm:][:t.Width], t.Eps)
			kernels.Norm(query, t.r[at:][:t.Width], t.normQuery[norm:][:t.Width], t.Eps)
			a := float64(kernels.Dot(key, query) * scale)
			a = math.Copysign(math.Sqrt(max(math.Abs(a), 1e-6)), a)
			gate := kernels.Sigmoid(float32(a))
			u := t.u[at:][:t.Width]
			for i, x := range v {
				u[i] = gate * x
			}
			c := t.c[at:][:t.Width]
			kernels.Norm(c, u, t.normConv[norm:][:t.Width], t.Eps)
			if !kernels.Finite(c) {
				t.w.Flags.Mark(row, ops.FlagState, t.Layer)
			}
		}
	}
}

// Do implements pool.Task.
func (t *pleConvolve) Do(chunk, worker int) {
	wide := t.Streams * t.Width
	first := chunk * t.per
	last := min(first+t.per, wide)
	sum := t.q.workers[worker].floats(0, last-first)
	for i := range t.w.Segments {
		seg := &t.w.Segments[i]
		history := seg.State.(*state).ple[t.Layer].conv
		rows := kernels.History{Past: history, Rows: t.c[seg.Row*wide:], Width: wide, N: len(seg.Tokens)}
		for j := range seg.Tokens {
			rows.Convolve(sum, t.kernel[first*t.taps:last*t.taps], j, t.NGram, first)
			at := (seg.Row+j)*wide + first
			r, u := t.r[at:][:len(sum)], t.u[at:][:len(sum)]
			kernels.SiLUs(sum, sum)
			for c, v := range sum {
				r[c] += u[c] + v
			}
		}
		rows.Keep(first, last)
	}
}

// Do implements pool.Task.
func (t *pleFinite) Do(chunk, _ int) {
	wide := t.Streams * t.Width
	for row := chunk * rowsPerChunk; row < min((chunk+1)*rowsPerChunk, t.w.Rows); row++ {
		if !kernels.Finite(t.r[row*wide:][:wide]) {
			t.w.Flags.Mark(row, ops.FlagResidual, t.Layer)
		}
	}
}
