// Package engine implements the block operations of sdk/ops on the processor:
// weights stay where they lie in the mapped model file, activations are float32,
// and every operation is cut into chunks that a pool of threads shares.
//
// A row's result does not depend on what else is in the window, on how a prompt
// was cut into windows or on the number of threads: products are those of
// package kernels, every other sum runs in one order within a row, DeltaNet runs
// in recurrent form, softmax runs over pages of fixed position, and experts add
// up in ascending order. Keys, values and raw indexer keys are kept as float16,
// the number format of the canonical state, so that a sequence that was exported
// and imported goes on with the same bits.
package engine

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/backends/cpu/pool"
	"github.com/strata-engine/strata/sdk/ops"
)

// Options are the device's settings.
type Options struct {
	// Threads is the number of threads that compute.
	Threads int
	// StateBytes bounds the memory for the state of all sequences: attention
	// pages, recurrent state and histories.
	StateBytes int64
}

// Names of the settings in a configuration file.
const (
	optionThreads    = "threads"
	optionStateBytes = "state_bytes"
)

// maxThreads bounds the setting; more are a mistake.
const maxThreads = 1024

// ParseOptions reads settings by name. Absent ones get their defaults: all
// hardware threads this process may use, and half of the memory that is
// available now, which leaves the other half to the page cache that holds the
// model.
func ParseOptions(settings map[string]string) (Options, error) {
	o := Options{Threads: pool.Available()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		value := settings[name]
		switch name {
		case optionThreads:
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > maxThreads {
				return Options{}, fmt.Errorf("option %s is %q and must be a number from 1 to %d", name, value, maxThreads)
			}
			o.Threads = n
		case optionStateBytes:
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 1 {
				return Options{}, fmt.Errorf("option %s is %q and must be a positive number of bytes", name, value)
			}
			o.StateBytes = n
		default:
			return Options{}, fmt.Errorf("unknown option %q; known are %s", name, strings.Join([]string{optionStateBytes, optionThreads}, ", "))
		}
	}
	if o.StateBytes == 0 {
		o.StateBytes = 4 << 30 // where nobody tells how much memory there is
		if _, free := memory(); free > 0 {
			o.StateBytes = max(free/2, 64<<20)
		}
	}
	return o, nil
}

// Device implements ops.Device.
type Device struct {
	pool  *pool.Pool
	queue *Queue

	mu sync.Mutex // guards budget
	// budget is the memory for state.
	budget budget
}

var _ ops.Device = (*Device)(nil)

// Open starts a device. Close it after use.
func Open(o Options) (*Device, error) {
	if o.Threads < 1 || o.Threads > maxThreads || o.StateBytes < 1 {
		return nil, fmt.Errorf("open CPU device: %d threads and %d bytes of state are out of range", o.Threads, o.StateBytes)
	}
	// The pool's threads hold their processors while they spin. Two more let the
	// rest of the program run beside them.
	if n := o.Threads + 2; runtime.GOMAXPROCS(0) < n {
		runtime.GOMAXPROCS(n)
	}
	d := &Device{pool: pool.New(o.Threads), budget: budget{total: o.StateBytes}}
	d.queue = &Queue{pool: d.pool, workers: make([]worker, o.Threads)}
	return d, nil
}

// Queue implements ops.Device.
func (d *Device) Queue() ops.Queue { return d.queue }

// Close implements ops.Device.
func (d *Device) Close() error {
	d.pool.Close()
	return nil
}

// buffer implements ops.Buffer.
type buffer struct{ data []float32 }

// Len implements ops.Buffer.
func (b *buffer) Len() int { return len(b.data) }

// Alloc implements ops.Device.
func (d *Device) Alloc(n int) (ops.Buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("allocate buffer: negative length %d", n)
	}
	return &buffer{make([]float32, n)}, nil
}

// Write implements ops.Device.
func (d *Device) Write(dst ops.Buffer, at int, src []float32) error {
	part, err := span(dst, at, len(src))
	if err != nil {
		return fmt.Errorf("write buffer: %w", err)
	}
	copy(part, src)
	return nil
}

// Read implements ops.Device.
func (d *Device) Read(dst []float32, src ops.Buffer, at int) error {
	part, err := span(src, at, len(dst))
	if err != nil {
		return fmt.Errorf("read buffer: %w", err)
	}
	copy(dst, part)
	return nil
}

// span returns n values of a buffer from index at on.
func span(b ops.Buffer, at, n int) ([]float32, error) {
	own, ok := b.(*buffer)
	if !ok {
		return nil, fmt.Errorf("%T is no buffer of this device", b)
	}
	if at < 0 || at > len(own.data) || n > len(own.data)-at {
		return nil, fmt.Errorf("%d values at %d of %d", n, at, len(own.data))
	}
	return own.data[at : at+n], nil
}

// Release implements ops.Device.
func (d *Device) Release(x any) {
	switch x := x.(type) {
	case *state:
		d.mu.Lock()
		defer d.mu.Unlock()
		d.budget.free(x)
	case *buffer:
		x.data = nil
	}
}

// weight implements ops.Weight: a tensor where it lies.
type weight struct {
	name   string
	dims   []int64
	matrix *kernels.Matrix

	once   sync.Once
	values []float32
}

// Dims implements ops.Weight.
func (w *weight) Dims() []int64 { return w.dims }

// Weight implements ops.Device.
func (d *Device) Weight(t ops.Tensor) (ops.Weight, error) {
	if len(t.Dims) == 0 {
		return nil, fmt.Errorf("use tensor %q: it has no extents", t.Name)
	}
	const most = 1 << 40 // the product of two such extents fits an int64
	rows := int64(1)
	for i, n := range t.Dims {
		if n <= 0 || n > most {
			return nil, fmt.Errorf("use tensor %q: extents %v", t.Name, t.Dims)
		}
		if i > 0 {
			if rows > most/n {
				return nil, fmt.Errorf("use tensor %q: extents %v are too large", t.Name, t.Dims)
			}
			rows *= n
		}
	}
	m, err := kernels.NewMatrix(t.Type, int(rows), int(t.Dims[0]), t.Data)
	if err != nil {
		return nil, fmt.Errorf("use tensor %q: %w", t.Name, err)
	}
	return &weight{name: t.Name, dims: slices.Clone(t.Dims), matrix: m}, nil
}

// floats returns all values of a small tensor, in place where possible.
func (w *weight) floats() []float32 {
	w.once.Do(func() {
		if w.values = w.matrix.Plain(); w.values != nil {
			return
		}
		m := w.matrix
		w.values = make([]float32, m.Rows*m.Cols)
		for i := range m.Rows {
			m.Row(w.values[i*m.Cols:(i+1)*m.Cols], i)
		}
	})
	return w.values
}
