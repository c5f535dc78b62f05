package engine

import (
	"context"
	"fmt"

	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/backends/cpu/pool"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/ops"
)

// Queue implements ops.Queue. Operations are checked when they are enqueued and
// executed by Fence, which between two of them looks at its context and reports
// the layer.
type Queue struct {
	pool    *pool.Pool
	workers []worker

	calls []call
	// err is the first error of an operation that could not be enqueued.
	err error

	// bound holds what was found out about operations, by their pointer.
	bound map[any]any

	// What follows belongs to the operation that runs; it is reused by the next.
	floats  arena[float32]
	blocks  arena[kernels.Block]
	numbers arena[int32]
	masks   arena[uint64]

	// consecutive is 0, 1, 2, ...: the index of all rows.
	consecutive []int32

	// One task of each kind, so that regions allocate nothing.
	quantize  quantizeTask
	multiply  multiplyTask
	embedding embedTask
	mix       mixTask
	inject    injectTask
	norm      normTask
	add       addTask
	delta     deltaTask
	attention attentionTask
	moe       moeTask
	ple       pleTask
	head      headTask
	draft     draftTask
}

var _ ops.Queue = (*Queue)(nil)

// worker is the memory of one thread.
type worker struct {
	mul  kernels.Scratch
	tmp  [2][]float32
	soft []kernels.Softmax
}

// sums returns n sums for attention.
func (w *worker) sums(n int) []kernels.Softmax {
	if cap(w.soft) < n {
		w.soft = make([]kernels.Softmax, n)
	}
	return w.soft[:n]
}

// floats returns n values of temporary memory; slots are independent.
func (w *worker) floats(slot, n int) []float32 {
	if cap(w.tmp[slot]) < n {
		w.tmp[slot] = make([]float32, n)
	}
	return w.tmp[slot][:n]
}

// arena hands out temporary memory that all of an operation's threads share.
type arena[T any] struct {
	memory       []T
	used, wanted int
}

// reset takes everything back. Memory grows to what the last operation wanted,
// so that in the long run nothing is allocated.
func (a *arena[T]) reset() {
	if a.wanted > len(a.memory) {
		a.memory = make([]T, a.wanted)
	}
	a.used, a.wanted = 0, 0
}

// take returns n values; their content is undefined.
func (a *arena[T]) take(n int) []T {
	a.wanted += n
	if n > len(a.memory)-a.used {
		return make([]T, n)
	}
	a.used += n
	return a.memory[a.used-n : a.used : a.used]
}

// call is an operation that waits for Fence.
type call struct {
	run func(q *Queue, c *call) error
	// layer is where it belongs in the model.
	layer int
	// op is what bind found out.
	op any
	w  *ops.Window
	// a to c are the buffers in the order of the operation's arguments.
	a, b, c []float32
	rows    []int
}

// enqueue adds a call, or keeps its error.
func (q *Queue) enqueue(c call, err error) {
	switch {
	case q.err != nil:
	case err != nil:
		q.err = err
	default:
		q.calls = append(q.calls, c)
	}
}

// Fence implements ops.Queue.
func (q *Queue) Fence(ctx context.Context) error {
	calls, err := q.calls, q.err
	q.calls, q.err = q.calls[:0], nil
	defer clear(calls)
	for i := range calls {
		if err != nil {
			break
		}
		if err = ctx.Err(); err != nil {
			break
		}
		sdk.ReportLayer(ctx, calls[i].layer)
		q.floats.reset()
		q.blocks.reset()
		q.numbers.reset()
		q.masks.reset()
		err = calls[i].run(q, &calls[i])
	}
	return err
}

// index returns the rows [from, to) as an index for Matrix.Mul.
func (q *Queue) index(from, to int) []int32 { return q.consecutive[from:to] }

// needIndex makes index valid for rows below n. It is called between regions.
func (q *Queue) needIndex(n int) {
	for i := len(q.consecutive); i < n; i++ {
		q.consecutive = append(q.consecutive, int32(i))
	}
}

// bind returns what is known about an operation, finding it out by make the first
// time. Operations do not change.
func bind[T any](q *Queue, op any, find func(b *binder) *T, what string, layer int) (*T, error) {
	if known, ok := q.bound[op]; ok {
		return known.(*T), nil
	}
	b := &binder{}
	t := find(b)
	if b.err != nil {
		return nil, fmt.Errorf("%s of layer %d: %w", what, layer, b.err)
	}
	if q.bound == nil {
		q.bound = map[any]any{}
	}
	q.bound[op] = t
	return t, nil
}

// binder turns an operation's weights into matrices and vectors. It keeps the
// first error.
type binder struct{ err error }

// check keeps an error where ok is false.
func (b *binder) check(ok bool, format string, args ...any) {
	if !ok && b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

// weight returns a weight with the given number of values.
func (b *binder) weight(w ops.Weight, name string, rows, cols int) *weight {
	own, ok := w.(*weight)
	if !ok || own == nil {
		b.check(false, "%s is %T, no weight of this device", name, w)
		return nil
	}
	m := own.matrix
	if m.Rows != rows || m.Cols != cols {
		b.check(false, "%s (tensor %q) has extents %v, want %d rows of %d", name, own.name, own.dims, rows, cols)
		return nil
	}
	return own
}

// matrix returns a weight of shape [rows][cols].
func (b *binder) matrix(w ops.Weight, name string, rows, cols int) *kernels.Matrix {
	if own := b.weight(w, name, rows, cols); own != nil {
		return own.matrix
	}
	return nil
}

// vector returns the values of a small weight of shape [rows][cols].
func (b *binder) vector(w ops.Weight, name string, rows, cols int) []float32 {
	if own := b.weight(w, name, rows, cols); own != nil {
		return own.floats()
	}
	return nil
}

// optional is vector for a weight that may be absent.
func (b *binder) optional(w ops.Weight, name string, rows, cols int) []float32 {
	if w == nil {
		return nil
	}
	return b.vector(w, name, rows, cols)
}

// operands checks buffers and a window's segments.
type operands struct {
	w   *ops.Window
	err error
}

// of starts the check of an operation's operands.
func of(w *ops.Window) operands {
	o := operands{w: w}
	next := 0
	for i := range w.Segments {
		s := &w.Segments[i]
		if s.Row != next || len(s.Tokens) > w.Rows-next || s.Pos < 0 {
			o.fail("segment %d has %d tokens from row %d and position %d on, in a window of %d rows", i, len(s.Tokens), s.Row, s.Pos, w.Rows)
			return o
		}
		next += len(s.Tokens)
	}
	if next != w.Rows || w.Flags == nil || w.Flags.Rows() < w.Rows {
		o.fail("a window of %d rows with segments of %d, or without flags for them", w.Rows, next)
	}
	return o
}

func (o *operands) fail(format string, args ...any) {
	if o.err == nil {
		o.err = fmt.Errorf(format, args...)
	}
}

// buffer returns the first n values of a buffer.
func (o *operands) buffer(b ops.Buffer, n int) []float32 {
	data, err := span(b, 0, n)
	if err != nil {
		o.fail("%w", err)
	}
	return data
}

// rows returns one row of the given width for each row of the window.
func (o *operands) rows(b ops.Buffer, width int) []float32 { return o.buffer(b, o.w.Rows*width) }

// named adds the operation's name to an error.
func named(what string, layer int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s of layer %d: %w", what, layer, err)
}
