package engine

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"

	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/quant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, threads int) *Device {
	t.Helper()
	d, err := Open(Options{Threads: threads, StateBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// seeded returns a generator that depends on the arguments alone.
func seeded(args ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, args...)
	return rand.New(rand.NewPCG(h.Sum64(), 1))
}

// maker makes the same weights on any device: what a tensor holds follows from
// its name.
type maker struct {
	t   testing.TB
	dev ops.Device
}

// make returns a weight with values around 1/sqrt(row length).
func (m maker) make(name string, typ quant.Type, dims ...int64) ops.Weight {
	m.t.Helper()
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	rng := seeded(name, dims)
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(rng.NormFloat64() / math.Sqrt(float64(dims[0])))
	}
	w, err := m.dev.Weight(ops.Tensor{Name: name, Type: typ, Dims: dims, Data: encode(typ, values)})
	if err != nil {
		m.t.Fatal(err)
	}
	return w
}

// positive returns a vector of weights around 1, as norms have.
func (m maker) positive(name string, n int64) ops.Weight { return m.shifted(name, n, 1) }

// shifted returns a vector around a value.
func (m maker) shifted(name string, n int64, around float32) ops.Weight {
	m.t.Helper()
	rng := seeded(name, n)
	values := make([]float32, n)
	for i := range values {
		values[i] = around * float32(1+0.2*rng.NormFloat64())
	}
	w, err := m.dev.Weight(ops.Tensor{Name: name, Type: quant.F32, Dims: []int64{n}, Data: encode(quant.F32, values)})
	if err != nil {
		m.t.Fatal(err)
	}
	return w
}

// encode writes values in a format. For formats whose blocks are not easily
// found, the integers are arbitrary and only the magnitude is that of values.
func encode(typ quant.Type, values []float32) []byte {
	var out []byte
	switch typ {
	case quant.F32:
		for _, v := range values {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		}
		return out
	case quant.BF16:
		for _, v := range values {
			out = binary.LittleEndian.AppendUint16(out, quant.F32ToBF16(v))
		}
		return out
	}
	n := typ.BlockValues()
	for ; len(values) > 0; values = values[n:] {
		largest := float32(0)
		for _, v := range values[:n] {
			largest = max(largest, float32(math.Abs(float64(v))))
		}
		block := make([]byte, typ.BlockBytes())
		for i := range block {
			block[i] = byte(math.Float32bits(values[i%n]) >> 3)
		}
		scale := func(at int, levels float32) {
			binary.LittleEndian.PutUint16(block[at:], quant.F32ToF16(largest/levels))
		}
		switch typ {
		case quant.Q8_0:
			scale(0, 127)
			for i, v := range values[:n] {
				block[2+i] = byte(int8(v / largest * 127))
			}
		case quant.IQ4_NL:
			scale(0, 127)
		case quant.Q4_K:
			scale(0, 15*63)
			scale(2, 2*63)
		default:
			panic(typ)
		}
		out = append(out, block...)
	}
	return out
}

// scenario is an operation with everything to run it.
type scenario struct {
	name   string
	layout ops.StateLayout
	// widths are those of the row buffers; each is filled before a window and
	// outputs are the indices of those that are read afterwards.
	widths, outputs []int
	// vocab bounds token ids.
	vocab int32
	// build makes the operation and returns how to enqueue it.
	build func(m maker) func(q ops.Queue, w *ops.Window, b []ops.Buffer)
	// tolerance is the largest deviation from the float64 reference, as a part of
	// a row's largest value.
	tolerance float64
}

// part is a number of tokens of a sequence in a window.
type part struct{ sequence, tokens int }

// plan is a list of windows.
type plan [][]part

// tokenAt and input are what a sequence has at a position, whatever the window.
func tokenAt(sequence, pos int, vocab int32) int32 {
	return int32(seeded("token", sequence, pos).Uint32() % uint32(max(vocab, 1)))
}

func input(buffer, sequence, pos, width int) []float32 {
	rng := seeded("input", buffer, sequence, pos)
	x := make([]float32, width)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// place names a row.
type place struct{ sequence, pos int }

// result is what a row gave.
type result struct {
	values                  []float32
	residual, logits, state bool
}

// session runs a scenario on one device.
type session struct {
	t       testing.TB
	sc      *scenario
	dev     ops.Device
	enqueue func(q ops.Queue, w *ops.Window, b []ops.Buffer)
	states  map[int]ops.State
	at      map[int]int
	results map[place]result
	// spoil, where set, changes inputs.
	spoil func(buffer int, p place, x []float32)
}

func begin(t testing.TB, sc *scenario, dev ops.Device) *session {
	return &session{
		t: t, sc: sc, dev: dev, enqueue: sc.build(maker{t, dev}),
		states: map[int]ops.State{}, at: map[int]int{}, results: map[place]result{},
	}
}

func (s *session) run(p plan) *session {
	s.t.Helper()
	for _, window := range p {
		s.window(window)
	}
	return s
}

func (s *session) window(parts []part) {
	s.t.Helper()
	w := &ops.Window{}
	buffers := make([][]float32, len(s.sc.widths))
	for _, p := range parts {
		if s.states[p.sequence] == nil {
			st, err := s.dev.NewState(&s.sc.layout)
			if err != nil {
				s.t.Fatal(err)
			}
			s.states[p.sequence] = st
		}
		pos := s.at[p.sequence]
		if err := s.dev.Reserve(s.states[p.sequence], pos+p.tokens); err != nil {
			s.t.Fatal(err)
		}
		seg := ops.Segment{State: s.states[p.sequence], Pos: pos, Row: w.Rows}
		for i := range p.tokens {
			seg.Tokens = append(seg.Tokens, tokenAt(p.sequence, pos+i, s.sc.vocab))
			for b, width := range s.sc.widths {
				x := input(b, p.sequence, pos+i, width)
				if s.spoil != nil {
					s.spoil(b, place{p.sequence, pos + i}, x)
				}
				buffers[b] = append(buffers[b], x...)
			}
		}
		s.at[p.sequence] += p.tokens
		w.Segments = append(w.Segments, seg)
		w.Rows += p.tokens
	}
	w.Flags = ops.NewFlags(w.Rows)
	var dev []ops.Buffer
	for _, x := range buffers {
		b, err := s.dev.Alloc(len(x))
		if err != nil {
			s.t.Fatal(err)
		}
		if err := s.dev.Write(b, 0, x); err != nil {
			s.t.Fatal(err)
		}
		dev = append(dev, b)
	}
	s.enqueue(s.dev.Queue(), w, dev)
	if err := s.dev.Queue().Fence(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	for _, o := range s.sc.outputs {
		if err := s.dev.Read(buffers[o], dev[o], 0); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, seg := range w.Segments {
		sequence := -1
		for n, st := range s.states {
			if st == seg.State {
				sequence = n
			}
		}
		for i := range seg.Tokens {
			row, r := seg.Row+i, result{}
			for _, o := range s.sc.outputs {
				width := s.sc.widths[o]
				r.values = append(r.values, buffers[o][row*width:(row+1)*width]...)
			}
			r.residual, r.logits, r.state, _ = w.Flags.Row(row)
			s.results[place{sequence, seg.Pos + i}] = r
		}
	}
}

// swap replaces the state of a sequence by what is exported of it.
func (s *session) swap(sequence int) {
	s.t.Helper()
	old, n := s.states[sequence], s.at[sequence]
	sections, err := s.dev.Export(old, n)
	if err != nil {
		s.t.Fatal(err)
	}
	s.dev.Release(old)
	st, err := s.dev.NewState(&s.sc.layout)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.dev.Import(st, n, sections); err != nil {
		s.t.Fatal(err)
	}
	s.states[sequence] = st
}

// sameBits compares the rows of a sequence with those of another session.
func (s *session) sameBits(want *session, sequence int) {
	s.t.Helper()
	for p, w := range want.results {
		if p.sequence != sequence {
			continue
		}
		g, ok := s.results[p]
		if !ok {
			s.t.Fatalf("%v was not computed", p)
		}
		for i := range w.values {
			if math.Float32bits(g.values[i]) != math.Float32bits(w.values[i]) {
				s.t.Fatalf("position %d, value %d: %g, want %g", p.pos, i, g.values[i], w.values[i])
			}
		}
	}
}

// close16 compares with the reference.
func (s *session) near(want *session) {
	s.t.Helper()
	worst := 0.0
	for p, w := range want.results {
		g := s.results[p]
		largest := 0.0
		for _, v := range w.values {
			largest = max(largest, math.Abs(float64(v)))
		}
		for i := range w.values {
			d := math.Abs(float64(g.values[i])-float64(w.values[i])) / largest
			worst = max(worst, d)
			if !(d <= s.sc.tolerance) {
				s.t.Fatalf("sequence %d, position %d, value %d: %g, want %g (%.2g of %g)", p.sequence, p.pos, i, g.values[i], w.values[i], d, largest)
			}
		}
		if g.residual || g.logits || g.state {
			s.t.Fatalf("sequence %d, position %d is flagged: %+v", p.sequence, p.pos, g)
		}
	}
	s.t.Logf("largest deviation %.2g of a row's largest value", worst)
}
