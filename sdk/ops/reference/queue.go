package reference

import (
	"context"
	"fmt"
	"math"

	"github.com/strata-engine/strata/sdk/ops"
)

// Queue keeps the operations until Fence executes them.
type Queue struct {
	pending []func(ctx context.Context) error
}

var _ ops.Queue = (*Queue)(nil)

// Enqueue adds an operation. It is called by Fence, in order, and looks at ctx
// where it takes long.
func (q *Queue) Enqueue(op func(ctx context.Context) error) { q.pending = append(q.pending, op) }

// Fence implements ops.Queue.
func (q *Queue) Fence(ctx context.Context) error {
	pending := q.pending
	q.pending = nil
	for _, op := range pending {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := op(ctx); err != nil {
			return err
		}
	}
	return nil
}

// load returns rows of a buffer as float64.
func load(b ops.Buffer, rows, width int) []float64 {
	src, out := floats(b), make([]float64, rows*width)
	for i := range out {
		out[i] = float64(src[i])
	}
	return out
}

// store writes rows to a buffer as float32.
func store(b ops.Buffer, x []float64) {
	dst := floats(b)
	for i, v := range x {
		dst[i] = float32(v)
	}
}

// finite reports whether all values are finite as float32.
func finite(x []float64) bool {
	for _, v := range x {
		if f := float32(v); f-f != 0 {
			return false
		}
	}
	return true
}

// finite16 reports whether all values are finite as float16, the number format
// of canonical keys and values.
func finite16(x []float64) bool {
	for _, v := range x {
		if !ops.Finite16(v) {
			return false
		}
	}
	return true
}

// storeResidual writes the residual and marks its rows that are not finite.
func storeResidual(w *ops.Window, layer int, b ops.Buffer, x []float64) {
	width := len(x) / max(w.Rows, 1)
	for row := range w.Rows {
		if !finite(x[row*width : (row+1)*width]) {
			w.Flags.Mark(row, ops.FlagResidual, layer)
		}
	}
	store(b, x)
}

// eachRow calls f for every row with its segment and position.
func eachRow(w *ops.Window, f func(seg *ops.Segment, row, i, pos int)) {
	for s := range w.Segments {
		seg := &w.Segments[s]
		for i := range seg.Tokens {
			f(seg, seg.Row+i, i, seg.Pos+i)
		}
	}
}

// part returns piece i of length n.
func part(x []float64, i, n int) []float64 { return x[i*n : (i+1)*n : (i+1)*n] }

// Embed implements ops.Queue.
func (q *Queue) Embed(op *ops.Embed, w *ops.Window, r ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		table, out := host(op.Table), make([]float64, w.Rows*op.Streams*op.Width)
		eachRow(w, func(seg *ops.Segment, row, i, _ int) {
			first := part(out, row*op.Streams, op.Width)
			table.Row(int(seg.Tokens[i]), first)
			for s := 1; s < op.Streams; s++ {
				copy(part(out, row*op.Streams+s, op.Width), first)
			}
		})
		storeResidual(w, -1, r, out)
		return nil
	})
}

// PLE implements ops.Queue.
func (q *Queue) PLE(op *ops.PLE, w *ops.Window, r ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		wide := op.Streams * op.Width
		table, heads := host(op.Table), len(op.Sizes)
		normKey, normQuery, normConv := host(op.NormKey).Matrix(), host(op.NormQuery).Matrix(), host(op.NormConv).Matrix()
		kernel, taps := host(op.Conv).Matrix(), host(op.Conv).Width()

		e := make([]float64, w.Rows*heads*op.RowWidth)
		eachRow(w, func(seg *ops.Segment, row, i, _ int) {
			st := state(seg.State).ple[op.Layer]
			ids := make([]int32, op.NGram)
			for n := range ids {
				if i >= n {
					ids[n] = seg.Tokens[i-n]
				} else {
					ids[n] = st.ids[n-i-1]
				}
			}
			for h, tableRow := range HashRows(op, ids) {
				table.Row(int(tableRow), part(e, row*heads+h, op.RowWidth))
			}
		})
		k, v := make([]float64, w.Rows*wide), make([]float64, w.Rows*op.Width)
		MatMul(k, host(op.Key), 0, wide, e, w.Rows)
		MatMul(v, host(op.Value), 0, op.Width, e, w.Rows)

		res := load(r, w.Rows, wide)
		query, u, c := make([]float64, op.Width), make([]float64, wide), make([]float64, wide)
		eachRow(w, func(seg *ops.Segment, row, i, _ int) {
			st, x := state(seg.State).ple[op.Layer], part(res, row, wide)
			for s := range op.Streams {
				ks := part(k, row*op.Streams+s, op.Width)
				RMSNorm(ks, ks, part(normKey, s, op.Width), float64(op.Eps))
				RMSNorm(query, part(x, s, op.Width), part(normQuery, s, op.Width), float64(op.Eps))
				a := Dot(ks, query) / math.Sqrt(float64(op.Width))
				a = math.Copysign(math.Sqrt(max(math.Abs(a), 1e-6)), a)
				us := part(u, s, op.Width)
				for j, vj := range part(v, row, op.Width) {
					us[j] = Sigmoid(a) * vj
				}
				RMSNorm(part(c, s, op.Width), us, part(normConv, s, op.Width), float64(op.Eps))
			}
			if !finite(c) {
				w.Flags.Mark(row, ops.FlagState, op.Layer)
			}
			// The dilated taps: the newest is c itself, the others lie NGram tokens
			// apart in the history.
			for ch := range c {
				sum := kernel[ch*taps+taps-1] * c[ch]
				for t := range taps - 1 {
					sum += kernel[ch*taps+t] * st.conv[t*op.NGram*wide+ch]
				}
				x[ch] += u[ch] + SiLU(sum)
			}
			push(st.conv, c)
			if len(st.ids) > 0 {
				copy(st.ids[1:], st.ids)
				st.ids[0] = seg.Tokens[i]
			}
		})
		storeResidual(w, op.Layer, r, res)
		return nil
	})
}

// push drops the oldest row of a history and appends x.
func push(history, x []float64) {
	copy(history, history[min(len(x), len(history)):])
	if len(history) >= len(x) {
		copy(history[len(history)-len(x):], x)
	}
}

// HyperMix implements ops.Queue.
func (q *Queue) HyperMix(op *ops.HyperMix, w *ops.Window, r, x, gate ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		out, g := mix(op, load(r, w.Rows, op.Streams*op.Width), w.Rows)
		store(x, out)
		if op.Inject != nil {
			store(gate, g)
		}
		return nil
	})
}

// mix computes HyperMix for rows of the residual, which it overwrites.
func mix(op *ops.HyperMix, r []float64, rows int) (x, gate []float64) {
	wide, streams := op.Streams*op.Width, float64(op.Streams)
	norm := host(op.Norm).Matrix()
	for i := range rows * op.Streams {
		n := part(r, i, op.Width)
		RMSNorm(n, n, part(norm, i%op.Streams, op.Width), float64(op.Eps))
	}
	lo, up := make([]float64, rows*op.Rank), make([]float64, rows*wide)
	MatMul(lo, host(op.Down), 0, op.Rank, r, rows)
	for i := range lo {
		lo[i] = SiLU(lo[i] / streams)
	}
	MatMul(up, host(op.Up), 0, wide, lo, rows)
	x = make([]float64, rows*op.Width)
	for row := range rows {
		xr := part(x, row, op.Width)
		for s := range op.Streams {
			n, g := part(r, row*op.Streams+s, op.Width), part(up, row*op.Streams+s, op.Width)
			for j := range xr {
				xr[j] += Sigmoid(g[j]) * n[j]
			}
		}
		for j := range xr {
			xr[j] /= streams
		}
	}
	if op.Inject != nil {
		gate = make([]float64, rows*op.Streams)
		MatMul(gate, host(op.Inject), 0, op.Streams, r, rows)
		for i := range gate {
			gate[i] = 2 * Sigmoid(gate[i]/streams)
		}
	}
	return x, gate
}

// HyperInject implements ops.Queue.
func (q *Queue) HyperInject(op *ops.HyperInject, w *ops.Window, r, gate, y ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		res := load(r, w.Rows, op.Streams*op.Width)
		g, add := load(gate, w.Rows, op.Streams), load(y, w.Rows, op.Width)
		for i := range w.Rows * op.Streams {
			yr := part(add, i/op.Streams, op.Width)
			for j := range yr {
				res[i*op.Width+j] += g[i] * yr[j]
			}
		}
		storeResidual(w, op.Layer, r, res)
		return nil
	})
}

// Norm implements ops.Queue.
func (q *Queue) Norm(op *ops.Norm, w *ops.Window, r, x ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		out := load(r, w.Rows, op.Width)
		norm(op, out, w.Rows)
		store(x, out)
		return nil
	})
}

func norm(op *ops.Norm, x []float64, rows int) {
	weight := host(op.Weight).Matrix()
	for row := range rows {
		RMSNorm(part(x, row, op.Width), part(x, row, op.Width), weight, float64(op.Eps))
	}
}

// Add implements ops.Queue.
func (q *Queue) Add(op *ops.Add, w *ops.Window, r, y ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		res := load(r, w.Rows, op.Width)
		for i, v := range load(y, w.Rows, op.Width) {
			res[i] += v
		}
		storeResidual(w, op.Layer, r, res)
		return nil
	})
}

// Head implements ops.Queue.
func (q *Queue) Head(op *ops.Head, w *ops.Window, r ops.Buffer, rows []int, logits ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		width := op.Width
		if op.Mix != nil {
			width *= op.Mix.Streams
		}
		src, x := floats(r), make([]float64, len(rows)*width)
		for i, row := range rows {
			for j, v := range src[row*width : (row+1)*width] {
				x[i*width+j] = float64(v)
			}
		}
		switch {
		case op.Mix != nil:
			x, _ = mix(op.Mix, x, len(rows))
		case op.Norm != nil:
			norm(op.Norm, x, len(rows))
		}
		out := make([]float64, len(rows)*op.Vocab)
		MatMul(out, host(op.Output), 0, op.Vocab, x, len(rows))
		for i, row := range rows {
			if !finite(part(out, i, op.Vocab)) {
				w.Flags.Mark(row, ops.FlagLogits, op.Layer)
			}
		}
		store(logits, out)
		return nil
	})
}

// Hidden implements ops.Queue.
func (q *Queue) Hidden(op *ops.Hidden, w *ops.Window, r ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		src := floats(r)
		for _, seg := range w.Segments {
			row := seg.Row + len(seg.Tokens) - 1
			kept := state(seg.State).hidden[op.Layer]
			for j, v := range src[row*op.Width : (row+1)*op.Width] {
				kept[j] = float64(v)
			}
			if !finite(kept) {
				w.Flags.Mark(row, ops.FlagState, op.Layer)
			}
		}
		return nil
	})
}

// Draft implements ops.Queue.
func (q *Queue) Draft(op *ops.Draft, w *ops.Window, hidden ops.Buffer, from []int, r ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		table, wide := host(op.Table), op.Streams*op.Width
		embedNorm, hiddenNorm := host(op.EmbedNorm).Matrix(), host(op.HiddenNorm).Matrix()
		pairs := make([]float64, w.Rows*op.Streams*2*op.Width)
		embed, res := make([]float64, op.Width), make([]float64, wide)
		if len(from) != w.Rows {
			return fmt.Errorf("draft: %d sources for %d rows", len(from), w.Rows)
		}
		src := floats(hidden)
		eachRow(w, func(seg *ops.Segment, row, i, _ int) {
			if from[row] < 0 {
				copy(res, state(seg.State).hidden[op.Layer])
			} else {
				for j, v := range src[from[row]*wide : (from[row]+1)*wide] {
					res[j] = float64(v)
				}
			}
			table.Row(int(seg.Tokens[i]), embed)
			RMSNorm(embed, embed, embedNorm, float64(op.Eps))
			for s := range op.Streams {
				pair := part(pairs, row*op.Streams+s, 2*op.Width)
				copy(pair, embed)
				RMSNorm(pair[op.Width:], part(res, s, op.Width), part(hiddenNorm, s, op.Width), float64(op.Eps))
			}
		})
		out := make([]float64, w.Rows*wide)
		MatMul(out, host(op.Join), 0, op.Width, pairs, w.Rows*op.Streams)
		storeResidual(w, op.Layer, r, out)
		return nil
	})
}
