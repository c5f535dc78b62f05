package reference

import (
	"context"
	"fmt"

	"github.com/strata-engine/strata/sdk/ops"
)

// Attention implements ops.Queue.
func (q *Queue) Attention(op *ops.Attention, w *ops.Window, x, y ops.Buffer) {
	q.Enqueue(func(ctx context.Context) error {
		for _, seg := range w.Segments {
			if c := state(seg.State).kv[op.Layer]; seg.Pos+len(seg.Tokens) > c.cells() {
				return fmt.Errorf("attention of layer %d: position %d was not reserved, there is room for %d", op.Layer, seg.Pos+len(seg.Tokens)-1, c.cells())
			}
		}
		in := load(x, w.Rows, op.Width)
		query, gate := queries(op, w, in)
		cacheKeys(op, w, in)
		indexQuery := indexKeys(op, w, in)

		out := make([]float64, w.Rows*op.Heads*op.ValueDim)
		type row struct {
			c        *kv
			row, pos int
		}
		var rows []row
		eachRow(w, func(seg *ops.Segment, r, _, pos int) { rows = append(rows, row{state(seg.State).kv[op.Layer], r, pos}) })
		parallel(len(rows), len(rows)*100_000, func(lo, hi int) {
			for _, r := range rows[lo:hi] {
				if ctx.Err() != nil {
					return
				}
				cells := visible(op, w, r.c, r.row, r.pos, indexQuery)
				for h := range op.Heads {
					kh, o := h/(op.Heads/op.KVHeads), part(out, r.row*op.Heads+h, op.ValueDim)
					Attend(o, part(query, r.row*op.Heads+h, op.HeadDim), cells,
						func(cell int) []float64 { return r.c.key(cell, kh) },
						func(cell int) []float64 { return r.c.value(cell, kh) })
					if op.Gated {
						for j, g := range part(gate, r.row*op.Heads+h, op.ValueDim) {
							o[j] *= Sigmoid(g)
						}
					}
				}
			}
		})
		if err := ctx.Err(); err != nil {
			return err
		}
		res := make([]float64, w.Rows*op.Width)
		MatMul(res, host(op.Out), 0, op.Width, out, w.Rows)
		store(y, res)
		return nil
	})
}

// queries returns normed and rotated queries [row][head][dim] and, where there
// is one, the output gate [row][head][value dim].
func queries(op *ops.Attention, w *ops.Window, in []float64) (query, gate []float64) {
	per := op.HeadDim
	if op.Gated {
		per += op.ValueDim
		gate = make([]float64, w.Rows*op.Heads*op.ValueDim)
	}
	both := make([]float64, w.Rows*op.Heads*per)
	MatMul(both, host(op.Q), 0, op.Heads*per, in, w.Rows)
	query = make([]float64, w.Rows*op.Heads*op.HeadDim)
	norm := host(op.QNorm).Matrix()
	eachRow(w, func(_ *ops.Segment, row, _, pos int) {
		for h := range op.Heads {
			src, dst := part(both, row*op.Heads+h, per), part(query, row*op.Heads+h, op.HeadDim)
			RMSNorm(dst, src[:op.HeadDim], norm, float64(op.Eps))
			RoPE(dst, pos, op.RopeDim, op.RopeBase)
			if op.Gated {
				copy(part(gate, row*op.Heads+h, op.ValueDim), src[op.HeadDim:])
			}
		}
	})
	return query, gate
}

// cacheKeys writes the keys and values of the window's rows to their states.
func cacheKeys(op *ops.Attention, w *ops.Window, in []float64) {
	k, v := make([]float64, w.Rows*op.KVHeads*op.HeadDim), make([]float64, w.Rows*op.KVHeads*op.ValueDim)
	MatMul(k, host(op.K), 0, op.KVHeads*op.HeadDim, in, w.Rows)
	MatMul(v, host(op.V), 0, op.KVHeads*op.ValueDim, in, w.Rows)
	norm := host(op.KNorm).Matrix()
	eachRow(w, func(seg *ops.Segment, row, _, pos int) {
		c := state(seg.State).kv[op.Layer]
		for h := range op.KVHeads {
			key, value := c.key(pos, h), c.value(pos, h)
			RMSNorm(key, part(k, row*op.KVHeads+h, op.HeadDim), norm, float64(op.Eps))
			RoPE(key, pos, op.RopeDim, op.RopeBase)
			copy(value, part(v, row*op.KVHeads+h, op.ValueDim))
			if !finite16(key) || !finite16(value) {
				w.Flags.Mark(row, ops.FlagState, op.Layer)
			}
		}
	})
}

// indexKeys writes the raw indexer keys and the keys of the blocks that the
// window completes; it returns the indexer's queries [row][head][dim].
func indexKeys(op *ops.Attention, w *ops.Window, in []float64) []float64 {
	ix := op.Index
	if ix == nil {
		return nil
	}
	raw, query := make([]float64, w.Rows*ix.Dim), make([]float64, w.Rows*ix.Heads*ix.Dim)
	MatMul(raw, host(ix.K), 0, ix.Dim, in, w.Rows)
	MatMul(query, host(ix.Q), 0, ix.Heads*ix.Dim, in, w.Rows)
	qnorm, knorm := host(ix.QNorm).Matrix(), host(ix.KNorm).Matrix()
	eachRow(w, func(seg *ops.Segment, row, _, pos int) {
		for h := range ix.Heads {
			qh := part(query, row*ix.Heads+h, ix.Dim)
			RMSNorm(qh, qh, qnorm, float64(op.Eps))
			RoPE(qh, pos, op.RopeDim, op.RopeBase)
		}
		copy(state(seg.State).kv[op.Layer].raw(pos), part(raw, row, ix.Dim))
		if !finite16(part(raw, row, ix.Dim)) {
			w.Flags.Mark(row, ops.FlagState, op.Layer)
		}
	})
	for _, seg := range w.Segments {
		c := state(seg.State).kv[op.Layer]
		// Blocks beyond the window's start are overwritten.
		c.blocks = c.blocks[:min(len(c.blocks), seg.Pos/ix.Ratio)]
		for b := len(c.blocks); (b+1)*ix.Ratio <= seg.Pos+len(seg.Tokens); b++ {
			mean := make([]float64, ix.Dim)
			for t := range ix.Ratio {
				for j, v := range c.raw(b*ix.Ratio + t) {
					mean[j] += v / float64(ix.Ratio)
				}
			}
			RMSNorm(mean, mean, knorm, float64(op.Eps))
			RoPE(mean, b*ix.Ratio, op.RopeDim, op.RopeBase)
			c.blocks = append(c.blocks, mean)
		}
	}
	return query
}

// visible returns the cells that the query at pos sees, ascending.
func visible(op *ops.Attention, w *ops.Window, c *kv, row, pos int, indexQuery []float64) []int {
	ix := op.Index
	var cells []int
	add := func(from, to int) {
		for ; from < to; from++ {
			cells = append(cells, from)
		}
	}
	if ix == nil {
		add(0, pos+1)
		return cells
	}
	blocks, budget := (pos+1)/ix.Ratio, ix.Budget/ix.Ratio
	if blocks <= budget {
		add(0, pos+1)
		return cells
	}
	score := make([]float64, blocks)
	for h := range ix.Heads {
		qh := part(indexQuery, row*ix.Heads+h, ix.Dim)
		for b := range score {
			score[b] += max(0, Dot(qh, c.blocks[b]))
		}
	}
	chosen, err := TopK(score, budget)
	if err != nil {
		w.Flags.Mark(row, ops.FlagState, op.Layer)
		// The row is marked; any valid selection will do.
		add(0, budget*ix.Ratio)
	}
	for _, b := range chosen {
		add(b*ix.Ratio, (b+1)*ix.Ratio)
	}
	add(blocks*ix.Ratio, pos+1)
	return cells
}
