package reference

import (
	"context"
	"sync/atomic"

	"github.com/strata-engine/strata/sdk/ops"
)

// MoE implements ops.Queue. Every expert runs once for all rows that chose it.
func (q *Queue) MoE(op *ops.MoE, w *ops.Window, x, y ops.Buffer) {
	q.Enqueue(func(context.Context) error {
		in := load(x, w.Rows, op.Width)
		p := make([]float64, w.Rows*op.Experts)
		MatMul(p, host(op.Router), 0, op.Experts, in, w.Rows)

		// Per expert the rows that chose it and their weights, rows ascending.
		rows, weights := make([][]int, op.Experts), make([][]float64, op.Experts)
		for row := range w.Rows {
			chosen, share := route(op, w, row, part(p, row, op.Experts))
			for i, e := range chosen {
				rows[e] = append(rows[e], row)
				weights[e] = append(weights[e], share[i])
			}
		}
		out := make([]float64, w.Rows*op.Width)
		for e := range op.Experts {
			if len(rows[e]) == 0 {
				continue
			}
			xs := make([]float64, 0, len(rows[e])*op.Width)
			for _, row := range rows[e] {
				xs = append(xs, part(in, row, op.Width)...)
			}
			for i, v := range expert(op, e, xs, len(rows[e])) {
				out[rows[e][i/op.Width]*op.Width+i%op.Width] += weights[e][i/op.Width] * v
			}
		}
		if op.SharedWidth > 0 {
			shared(op, in, out, w.Rows)
		}
		store(y, out)
		return nil
	})
}

// route turns a row's router scores into the chosen experts, ascending, and
// their weights.
func route(op *ops.MoE, w *ops.Window, row int, p []float64) (chosen []int, share []float64) {
	fault := !finite(p)
	if fault {
		w.Flags.Mark(row, ops.FlagResidual, op.Layer)
		// The row is marked; any valid experts will do.
		clear(p)
	}
	Softmax(p)
	chosen, err := TopK(p, op.Used)
	if err != nil {
		panic(err) // A softmax of finite scores has no NaN.
	}
	sum := 0.0
	for _, e := range chosen {
		sum += p[e]
	}
	for _, e := range chosen {
		share = append(share, p[e]/sum)
		if op.Uses != nil && !fault {
			atomic.AddUint64(&op.Uses[e], 1)
		}
	}
	return chosen, share
}

// expert runs expert e on rows of x.
func expert(op *ops.MoE, e int, x []float64, rows int) []float64 {
	f := op.ExpertWidth
	gate, up, y := make([]float64, rows*f), make([]float64, rows*f), make([]float64, rows*op.Width)
	if op.GateUp != nil {
		MatMul(gate, host(op.GateUp), e*2*f, f, x, rows)
		MatMul(up, host(op.GateUp), e*2*f+f, f, x, rows)
	} else {
		MatMul(gate, host(op.Gate), e*f, f, x, rows)
		MatMul(up, host(op.Up), e*f, f, x, rows)
	}
	scale(gate, op.GateScale, e)
	scale(up, op.UpScale, e)
	for i := range gate {
		gate[i] = SiLU(gate[i]) * up[i]
	}
	MatMul(y, host(op.Down), e*op.Width, op.Width, gate, rows)
	scale(y, op.DownScale, e)
	return y
}

// scale multiplies x by an expert's factor, where the file has one.
func scale(x []float64, factors ops.Weight, e int) {
	if factors == nil {
		return
	}
	f := host(factors).Matrix()[e]
	for i := range x {
		x[i] *= f
	}
}

// shared adds the shared expert's output to out.
func shared(op *ops.MoE, in, out []float64, rows int) {
	f := op.SharedWidth
	gate, up, y := make([]float64, rows*f), make([]float64, rows*f), make([]float64, rows*op.Width)
	MatMul(gate, host(op.SharedGateProj), 0, f, in, rows)
	MatMul(up, host(op.SharedUp), 0, f, in, rows)
	for i := range gate {
		gate[i] = SiLU(gate[i]) * up[i]
	}
	MatMul(y, host(op.SharedDown), 0, op.Width, gate, rows)
	open := host(op.SharedGate).Matrix()
	for row := range rows {
		g := Sigmoid(Dot(open, part(in, row, op.Width)))
		for j, v := range part(y, row, op.Width) {
			out[row*op.Width+j] += g * v
		}
	}
}
