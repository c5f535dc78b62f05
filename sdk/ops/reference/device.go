// Package reference implements the block operations of sdk/ops in the plainest
// way: float64 arithmetic within an operation, float32 buffers between them,
// attention and recurrent state kept in float64. It is the oracle of every other
// device.
//
// The author of a device can start from it: embed *Device and *Queue and replace
// one operation at a time. An operation of Queue finds its arguments by a method
// Host, so an author's own buffers, weights and states work with it as long as
// they embed *Buffer, *Weight and *State. A replaced operation passes its work to
// Queue.Enqueue, which keeps the order.
//
// It is invariant: a row's result depends on nothing but its own sequence's
// earlier tokens, to the last bit.
package reference

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/quant"
)

// Device keeps everything in host memory.
type Device struct {
	queue *Queue
}

var _ ops.Device = (*Device)(nil)

// New returns a device.
func New() *Device { return &Device{queue: &Queue{}} }

// Queue implements ops.Device.
func (d *Device) Queue() ops.Queue { return d.queue }

// Close implements ops.Device.
func (d *Device) Close() error { return nil }

// Release implements ops.Device. The garbage collector does the work.
func (d *Device) Release(any) {}

// Buffer is a buffer in host memory.
type Buffer struct{ data []float32 }

// Len implements ops.Buffer.
func (b *Buffer) Len() int { return len(b.data) }

// Host returns the values in place.
func (b *Buffer) Host() []float32 { return b.data }

// Alloc implements ops.Device.
func (d *Device) Alloc(n int) (ops.Buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("allocate buffer: negative length %d", n)
	}
	return &Buffer{make([]float32, n)}, nil
}

// Write implements ops.Device.
func (d *Device) Write(dst ops.Buffer, at int, src []float32) error {
	b := floats(dst)
	if at < 0 || at > len(b) || len(src) > len(b)-at {
		return fmt.Errorf("write buffer: %d values at %d, it holds %d", len(src), at, len(b))
	}
	copy(b[at:], src)
	return nil
}

// Read implements ops.Device.
func (d *Device) Read(dst []float32, src ops.Buffer, at int) error {
	b := floats(src)
	if at < 0 || at > len(b) || len(dst) > len(b)-at {
		return fmt.Errorf("read buffer: %d values at %d, it holds %d", len(dst), at, len(b))
	}
	copy(dst, b[at:])
	return nil
}

// Weight is a tensor, decoded to float64 when it is first used.
type Weight struct {
	tensor ops.Tensor
	// rowBytes is the length of a row in the file.
	rowBytes int
	once     sync.Once
	matrix   []float64
}

// Dims implements ops.Weight.
func (w *Weight) Dims() []int64 { return w.tensor.Dims }

// Host returns the weight itself; see the package's comment.
func (w *Weight) Host() *Weight { return w }

// Width is the length of a row.
func (w *Weight) Width() int { return int(w.tensor.Dims[0]) }

// Rows is the number of rows, all dimensions but the first together.
func (w *Weight) Rows() int { return len(w.tensor.Data) / w.rowBytes }

// Row decodes row i into dst, which has the length of a row.
func (w *Weight) Row(i int, dst []float64) {
	row := make([]float32, w.Width())
	// The lengths were checked by Device.Weight, so decoding cannot fail.
	if err := quant.Dequantize(w.tensor.Type, row, w.tensor.Data[i*w.rowBytes:(i+1)*w.rowBytes]); err != nil {
		panic(err)
	}
	for j, v := range row {
		dst[j] = float64(v)
	}
}

// Matrix returns all values, row after row. They are decoded once and kept.
func (w *Weight) Matrix() []float64 {
	w.once.Do(func() {
		w.matrix = make([]float64, w.Rows()*w.Width())
		for i := range w.Rows() {
			w.Row(i, w.matrix[i*w.Width():(i+1)*w.Width()])
		}
	})
	return w.matrix
}

// Weight implements ops.Device.
func (d *Device) Weight(t ops.Tensor) (ops.Weight, error) {
	if len(t.Dims) == 0 || t.Dims[0] <= 0 || t.Dims[0] > math.MaxInt32 {
		return nil, fmt.Errorf("weight %q: extents %v", t.Name, t.Dims)
	}
	row, err := t.Type.RowBytes(int(t.Dims[0]))
	if err != nil {
		return nil, fmt.Errorf("weight %q: %w", t.Name, err)
	}
	rest := len(t.Data)
	for _, n := range t.Dims[1:] {
		if n <= 0 || int64(rest)%n != 0 {
			return nil, fmt.Errorf("weight %q: %d bytes do not hold %v values of %s", t.Name, len(t.Data), t.Dims, t.Type)
		}
		rest /= int(n)
	}
	if rest != row {
		return nil, fmt.Errorf("weight %q: %d bytes do not hold %v values of %s", t.Name, len(t.Data), t.Dims, t.Type)
	}
	return &Weight{tensor: t, rowBytes: row}, nil
}

// floats returns the values of a buffer in host memory.
func floats(b ops.Buffer) []float32 { return b.(interface{ Host() []float32 }).Host() }

// host returns the reference form of a weight, nil for none.
func host(w ops.Weight) *Weight {
	if w == nil {
		return nil
	}
	return w.(interface{ Host() *Weight }).Host()
}

// parallel calls f for ranges that cover [0, n) from several goroutines, where
// the work, in multiplications, is worth it.
func parallel(n, work int, f func(lo, hi int)) {
	workers := min(runtime.GOMAXPROCS(0), n, work/20_000)
	if workers <= 1 {
		f(0, n)
		return
	}
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { f(i*n/workers, (i+1)*n/workers) })
	}
	wg.Wait()
}
