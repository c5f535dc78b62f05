package reference

import (
	"context"
	"math"

	"github.com/strata-engine/strata/sdk/ops"
)

// DeltaNet implements ops.Queue. Heads run at once, each over its sequence's
// tokens in order.
func (q *Queue) DeltaNet(op *ops.DeltaNet, w *ops.Window, x, y ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		keys, values := op.KeyHeads*op.KeyDim, op.ValueHeads*op.ValueDim
		channels := 2*keys + values
		in := load(x, w.Rows, op.Width)
		qkv, z := make([]float64, w.Rows*channels), make([]float64, w.Rows*values)
		MatMul(qkv, host(op.QKV), 0, channels, in, w.Rows)
		MatMul(z, host(op.Gate), 0, values, in, w.Rows)
		beta, alpha := betaAlpha(op, in, w.Rows)
		for _, x := range [][]float64{qkv, beta, alpha} {
			markRows(w, op.Layer, x)
		}

		kernel, dt, a, norm := host(op.Conv).Matrix(), host(op.DtBias).Matrix(), host(op.A).Matrix(), host(op.Norm).Matrix()
		out := make([]float64, w.Rows*values)
		for s := range w.Segments {
			seg := &w.Segments[s]
			st := state(seg.State).delta[op.Layer]
			n := len(seg.Tokens)
			mixed := make([]float64, n*channels)
			for i := range n {
				row := part(qkv, seg.Row+i, channels)
				for ch := range channels {
					sum := kernel[ch*op.Taps+op.Taps-1] * row[ch]
					for t := range op.Taps - 1 {
						sum += kernel[ch*op.Taps+t] * st.conv[t*channels+ch]
					}
					mixed[i*channels+ch] = SiLU(sum)
				}
				push(st.conv, row)
				for h := range 2 * op.KeyHeads {
					head := mixed[i*channels+h*op.KeyDim : i*channels+(h+1)*op.KeyDim]
					L2Norm(head, 1e-6)
					if h < op.KeyHeads {
						for j := range head {
							head[j] /= math.Sqrt(float64(op.KeyDim))
						}
					}
				}
			}
			parallel(op.ValueHeads, n*values*op.KeyDim*4, func(lo, hi int) {
				for h := lo; h < hi; h++ {
					kh := h % op.KeyHeads
					if op.Grouped {
						kh = h / (op.ValueHeads / op.KeyHeads)
					}
					s := part(st.s, h, op.KeyDim*op.ValueDim)
					for i := range n {
						row, m := seg.Row+i, part(mixed, i, channels)
						o := out[row*values+h*op.ValueDim : row*values+(h+1)*op.ValueDim]
						g := a[h] * Softplus(alpha[row*op.ValueHeads+h]+dt[h])
						DeltaStep(s, part(m, kh, op.KeyDim), part(m[keys:], kh, op.KeyDim), part(m[2*keys:], h, op.ValueDim),
							Sigmoid(beta[row*op.ValueHeads+h]), math.Exp(g), o)
						if !finite(o) || !finite(s) {
							w.Flags.Mark(row, ops.FlagState, op.Layer)
						}
						RMSNorm(o, o, norm, float64(op.Eps))
						for j := range o {
							gate := z[row*values+h*op.ValueDim+j]
							if op.GateKind == ops.GateSiLU {
								o[j] *= SiLU(gate)
							} else {
								o[j] *= Sigmoid(gate)
							}
						}
					}
				}
			})
		}
		res := make([]float64, w.Rows*op.Width)
		MatMul(res, host(op.Out), 0, op.Width, out, w.Rows)
		store(y, res)
		return nil
	})
}

// betaAlpha computes the inputs of β and of the decay, each [row][value head].
func betaAlpha(op *ops.DeltaNet, in []float64, rows int) (beta, alpha []float64) {
	beta, alpha = make([]float64, rows*op.ValueHeads), make([]float64, rows*op.ValueHeads)
	if op.BetaAlpha == nil {
		MatMul(beta, host(op.Beta), 0, op.ValueHeads, in, rows)
		MatMul(alpha, host(op.Alpha), 0, op.ValueHeads, in, rows)
		return beta, alpha
	}
	both, per := make([]float64, rows*2*op.ValueHeads), op.ValueHeads/op.KeyHeads
	MatMul(both, host(op.BetaAlpha), 0, 2*op.ValueHeads, in, rows)
	for i := range rows * op.KeyHeads {
		group := part(both, i, 2*per)
		copy(part(beta, i, per), group)
		copy(part(alpha, i, per), group[per:])
	}
	return beta, alpha
}

// markRows marks the rows of x, which go to persistent state, that are not
// finite.
func markRows(w *ops.Window, layer int, x []float64) {
	width := len(x) / max(w.Rows, 1)
	for row := range w.Rows {
		if !finite(part(x, row, width)) {
			w.Flags.Mark(row, ops.FlagState, layer)
		}
	}
}
