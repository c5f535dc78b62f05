package engine

import (
	"fmt"
	"math"

	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/sdk/ops"
)

// boundDelta is a DeltaNet ready to run.
type boundDelta struct {
	*ops.DeltaNet
	qkv, gate, beta, alpha, both, out *kernels.Matrix
	conv, dtBias, a, norm             []float32
	keys, values, channels            int
	// want is the state that a sequence must have.
	want ops.DeltaState
}

// DeltaNet implements ops.Queue.
func (q *Queue) DeltaNet(op *ops.DeltaNet, w *ops.Window, x, y ops.Buffer) {
	b, err := bind(q, op, func(b *binder) *boundDelta { return bindDelta(b, op) }, "DeltaNet", op.Layer)
	if err != nil {
		q.enqueue(call{}, err)
		return
	}
	o := of(w)
	c := call{run: (*Queue).runDelta, layer: op.Layer, op: b, w: w, a: o.rows(x, op.Width), b: o.rows(y, op.Width)}
	for i := range w.Segments {
		if _, err := b.state(&w.Segments[i]); err != nil {
			o.fail("%w", err)
		}
	}
	q.enqueue(c, named("DeltaNet", op.Layer, o.err))
}

func bindDelta(b *binder, op *ops.DeltaNet) *boundDelta {
	if op.KeyHeads < 1 || op.ValueHeads < 1 || op.ValueHeads%op.KeyHeads != 0 || op.KeyDim < 1 || op.ValueDim < 1 || op.Taps < 1 {
		b.check(false, "%d value heads of %d, %d key heads of %d, %d taps", op.ValueHeads, op.ValueDim, op.KeyHeads, op.KeyDim, op.Taps)
		return nil
	}
	keys, values := op.KeyHeads*op.KeyDim, op.ValueHeads*op.ValueDim
	channels := 2*keys + values
	t := &boundDelta{
		DeltaNet: op,
		qkv:      b.matrix(op.QKV, "QKV", channels, op.Width),
		gate:     b.matrix(op.Gate, "Gate", values, op.Width),
		out:      b.matrix(op.Out, "Out", op.Width, values),
		conv:     b.vector(op.Conv, "Conv", channels, op.Taps),
		dtBias:   b.vector(op.DtBias, "DtBias", 1, op.ValueHeads),
		a:        b.vector(op.A, "A", 1, op.ValueHeads),
		norm:     b.vector(op.Norm, "Norm", 1, op.ValueDim),
		keys:     keys, values: values, channels: channels,
		want: ops.DeltaState{Heads: op.ValueHeads, KeyDim: op.KeyDim, ValueDim: op.ValueDim, Taps: op.Taps - 1, Channels: channels},
	}
	if op.BetaAlpha != nil {
		t.both = b.matrix(op.BetaAlpha, "BetaAlpha", 2*op.ValueHeads, op.Width)
	} else {
		t.beta = b.matrix(op.Beta, "Beta", op.ValueHeads, op.Width)
		t.alpha = b.matrix(op.Alpha, "Alpha", op.ValueHeads, op.Width)
	}
	return t
}

// state returns the layer's state of a segment.
func (b *boundDelta) state(seg *ops.Segment) (*deltaState, error) {
	s, err := own(seg.State)
	if err != nil {
		return nil, err
	}
	d := s.delta[b.Layer]
	if d == nil || d.DeltaState != b.want {
		return nil, fmt.Errorf("the state has no layer of %+v", b.want)
	}
	return d, nil
}

// deltaTask is the state of a DeltaNet; its regions have types of their own.
type deltaTask struct {
	*boundDelta
	q *Queue
	w *ops.Window
	// raw are q, k and v before the convolution, mixed after it: [row][channel].
	// z is the output gate's input, small β and α: [row][value head] both, or as
	// the fused matrix has them. out is [row][value head][value].
	raw, mixed, z, beta, alpha, out []float32
	// convChunks of per channels each come before the chunks of q.multiply.
	convChunks, per int
}

type (
	deltaProject deltaTask // multiplies; convolves q, k and v
	deltaHeads   deltaTask // the recurrence, and each head's norm and gate
)

func (q *Queue) runDelta(c *call) error {
	b, n := c.op.(*boundDelta), c.w.Rows
	t := &q.delta
	*t = deltaTask{boundDelta: b, q: q, w: c.w}
	t.raw, t.mixed = q.floats.take(n*b.channels), q.floats.take(n*b.channels)
	t.z, t.out = q.floats.take(n*b.values), q.floats.take(n*b.values)
	in := q.activations(c.a, n, b.Width, b.qkv, b.gate, b.beta, b.alpha, b.both)

	m := &q.multiply
	m.begin(q, in, n)
	m.all(b.gate, t.z)
	if b.both != nil {
		t.beta = q.floats.take(n * 2 * b.ValueHeads)
		m.all(b.both, t.beta)
	} else {
		t.beta, t.alpha = q.floats.take(n*b.ValueHeads), q.floats.take(n*b.ValueHeads)
		m.all(b.beta, t.beta)
		m.all(b.alpha, t.alpha)
	}
	rest := m.split()
	// A channel's convolution needs all rows in order, so these chunks are not
	// cut by rows.
	t.per = q.chunkRows(b.channels, b.Width*n, 1)
	t.convChunks = pieces(b.channels, t.per)
	q.pool.Run(t.convChunks+rest, (*deltaProject)(t))

	q.pool.Run(len(c.w.Segments)*b.ValueHeads, (*deltaHeads)(t))

	m.begin(q, q.activations(t.out, n, b.values, b.out), n)
	m.all(b.out, c.b)
	m.run()
	return nil
}

// Do implements pool.Task.
func (t *deltaProject) Do(chunk, worker int) {
	if chunk >= t.convChunks {
		t.q.multiply.Do(chunk-t.convChunks, worker)
		return
	}
	first := chunk * t.per
	last := min(first+t.per, t.channels)
	m := &t.q.multiply
	for from := 0; from < t.w.Rows; from += tile {
		to := min(from+tile, t.w.Rows)
		t.qkv.Mul(t.raw[from*t.channels+first:], t.channels, first, last, &m.in, t.q.index(from, to), &t.q.workers[worker].mul)
	}
	for row := range t.w.Rows {
		if !kernels.Finite(t.raw[row*t.channels+first : row*t.channels+last]) {
			t.w.Flags.Mark(row, ops.FlagState, t.Layer)
		}
	}
	for i := range t.w.Segments {
		seg := &t.w.Segments[i]
		history := seg.State.(*state).delta[t.Layer].conv
		rows := kernels.History{Past: history, Rows: t.raw[seg.Row*t.channels:], Width: t.channels, N: len(seg.Tokens)}
		for j := range seg.Tokens {
			out := t.mixed[(seg.Row+j)*t.channels:][first:last]
			rows.Convolve(out, t.conv[first*t.Taps:last*t.Taps], j, 1, first)
			kernels.SiLUs(out, out)
		}
		rows.Keep(first, last)
	}
}

// Do implements pool.Task.
func (t *deltaHeads) Do(chunk, worker int) {
	seg, h := &t.w.Segments[chunk/t.ValueHeads], chunk%t.ValueHeads
	kh := h % t.KeyHeads
	per := t.ValueHeads / t.KeyHeads
	if t.Grouped {
		kh = h / per
	}
	d := seg.State.(*state).delta[t.Layer]
	s := d.s[h*t.KeyDim*t.ValueDim:][:t.KeyDim*t.ValueDim]
	tmp := t.q.workers[worker].floats(0, 2*t.KeyDim)
	qn, kn := tmp[:t.KeyDim], tmp[t.KeyDim:]
	shrink := 1 / math.Sqrt(float64(t.KeyDim))
	for i := range seg.Tokens {
		row := seg.Row + i
		mixed := t.mixed[row*t.channels:][:t.channels]
		unit(qn, mixed[kh*t.KeyDim:], shrink)
		unit(kn, mixed[t.keys+kh*t.KeyDim:], 1)
		v := mixed[2*t.keys+h*t.ValueDim:][:t.ValueDim]
		var beta, alpha float32
		if t.both != nil {
			group := t.beta[row*2*t.ValueHeads+h/per*2*per:]
			beta, alpha = group[h%per], group[per+h%per]
		} else {
			beta, alpha = t.beta[row*t.ValueHeads+h], t.alpha[row*t.ValueHeads+h]
		}
		decay := kernels.Exp(t.a[h] * kernels.Softplus(alpha+t.dtBias[h]))
		o := t.out[row*t.values+h*t.ValueDim:][:t.ValueDim]
		kernels.DeltaStep(s, qn, kn, v, kernels.Sigmoid(beta), decay, o)
		// o reads all of the state, so what is not finite there shows here.
		if !kernels.Finite(o) || beta-beta != 0 || alpha-alpha != 0 {
			t.w.Flags.Mark(row, ops.FlagState, t.Layer)
		}
		kernels.Norm(o, o, t.norm, t.Eps)
		z := t.z[row*t.values+h*t.ValueDim:][:t.ValueDim]
		if t.GateKind == ops.GateSiLU {
			kernels.SiLUs(z, z)
		} else {
			kernels.Sigmoids(z, z)
		}
		for j, g := range z {
			o[j] *= g
		}
	}
}

// unit writes x/sqrt(Σx² + 1e-6), times factor, to dst.
func unit(dst, x []float32, factor float64) {
	x = x[:len(dst)]
	scale := float32(factor / math.Sqrt(kernels.SumSquares(x)+1e-6))
	for i, v := range x {
		dst[i] = v * scale
	}
}
