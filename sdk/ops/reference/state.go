package reference

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/quant"
)

// State is the state of one sequence, everything in float64.
type State struct {
	layout *ops.StateLayout
	kv     map[int]*kv
	delta  map[int]*delta
	ple    map[int]*ple
	hidden map[int][]float64
}

// kv is the state of an attention layer.
type kv struct {
	ops.KVState
	// k is [cell][head][key dim], v [cell][head][value dim], index [cell][index
	// dim], raw; all have room for as many cells as were reserved.
	k, v, index []float64
	// blocks are the indexer's keys of complete blocks, normed and rotated.
	blocks [][]float64
}

// delta is the state of a gated DeltaNet layer.
type delta struct {
	ops.DeltaState
	// s is [head][key][value].
	s []float64
	// conv is [tap][channel], oldest first.
	conv []float64
}

// ple is the state of an n-gram layer.
type ple struct {
	ops.PLEState
	// conv is [tap][channel], oldest first.
	conv []float64
	// ids are the last tokens, latest first, -1 where there is none.
	ids []int32
}

// Layout implements ops.State.
func (s *State) Layout() *ops.StateLayout { return s.layout }

// Host returns the state itself; see the package's comment.
func (s *State) Host() *State { return s }

// NewState implements ops.Device.
func (d *Device) NewState(layout *ops.StateLayout) (ops.State, error) { return newState(layout), nil }

func newState(layout *ops.StateLayout) *State {
	s := &State{layout, map[int]*kv{}, map[int]*delta{}, map[int]*ple{}, map[int][]float64{}}
	for i := range layout.Layers {
		switch l := &layout.Layers[i]; {
		case l.KV != nil:
			s.kv[l.Layer] = &kv{KVState: *l.KV}
		case l.Delta != nil:
			s.delta[l.Layer] = &delta{
				DeltaState: *l.Delta,
				s:          make([]float64, l.Delta.Heads*l.Delta.KeyDim*l.Delta.ValueDim),
				conv:       make([]float64, l.Delta.Taps*l.Delta.Channels),
			}
		case l.PLE != nil:
			s.ple[l.Layer] = &ple{
				PLEState: *l.PLE,
				conv:     make([]float64, l.PLE.Taps*l.PLE.Channels),
				ids:      slices.Repeat([]int32{-1}, l.PLE.Tokens),
			}
		case l.Hidden > 0:
			s.hidden[l.Layer] = make([]float64, l.Hidden)
		}
	}
	return s
}

// Reserve implements ops.Device.
func (d *Device) Reserve(s ops.State, tokens int) error {
	for _, c := range state(s).kv {
		c.grow(tokens)
	}
	return nil
}

func (c *kv) grow(cells int) {
	grow := func(x []float64, n int) []float64 {
		if n > len(x) {
			x = append(x, make([]float64, n-len(x))...)
		}
		return x
	}
	c.k = grow(c.k, cells*c.Heads*c.KeyDim)
	c.v = grow(c.v, cells*c.Heads*c.ValueDim)
	c.index = grow(c.index, cells*c.IndexDim)
}

// cells is how many cells there is room for.
func (c *kv) cells() int { return len(c.k) / (c.Heads * c.KeyDim) }

// key and value return the key and the value of a head in a cell.
func (c *kv) key(cell, head int) []float64 {
	at := (cell*c.Heads + head) * c.KeyDim
	return c.k[at : at+c.KeyDim]
}

func (c *kv) value(cell, head int) []float64 {
	at := (cell*c.Heads + head) * c.ValueDim
	return c.v[at : at+c.ValueDim]
}

// raw returns the indexer's raw key in a cell.
func (c *kv) raw(cell int) []float64 { return c.index[cell*c.IndexDim : (cell+1)*c.IndexDim] }

// Export implements ops.Device. Keys, values and indexer keys are rounded to
// float16, the rest to float32.
func (d *Device) Export(st ops.State, tokens int) ([]ops.Section, error) {
	s := state(st)
	if tokens < 0 {
		return nil, fmt.Errorf("export state: negative number of tokens %d", tokens)
	}
	for layer, c := range s.kv {
		if cells := tokens - c.Lag; cells > c.cells() {
			return nil, fmt.Errorf("export state: layer %d has room for %d cells, %d tokens need %d", layer, c.cells(), tokens, cells)
		}
	}
	var out []ops.Section
	for _, shape := range s.layout.Sections(tokens) {
		w := coder{data: make([]byte, 0, shape.Bytes)}
		s.visit(shape, tokens, &w)
		out = append(out, ops.Section{Layer: shape.Layer, Kind: shape.Kind, Data: w.data})
	}
	return out, nil
}

// Import implements ops.Device.
func (d *Device) Import(st ops.State, tokens int, sections []ops.Section) error {
	s := state(st)
	if err := s.layout.CheckSections(tokens, sections); err != nil {
		return fmt.Errorf("import state: %w", err)
	}
	fresh := newState(s.layout)
	for _, c := range fresh.kv {
		c.grow(tokens)
	}
	for i, shape := range s.layout.Sections(tokens) {
		fresh.visit(shape, tokens, &coder{data: sections[i].Data, decode: true})
	}
	*s = *fresh
	return nil
}

// visit passes every number of a section to c in the canonical order.
func (s *State) visit(shape ops.SectionShape, tokens int, c *coder) {
	switch shape.Kind {
	case ops.StateKV:
		l := s.kv[shape.Layer]
		cells := max(tokens-l.Lag, 0)
		for _, part := range []func(cell, head int) []float64{l.key, l.value} {
			for page := 0; page < cells; page += ops.PageTokens {
				for head := range l.Heads {
					for cell := page; cell < min(page+ops.PageTokens, cells); cell++ {
						c.halves(part(cell, head))
					}
				}
			}
		}
	case ops.StateIndex:
		l := s.kv[shape.Layer]
		c.halves(l.index[:max(tokens-l.Lag, 0)*l.IndexDim])
	case ops.StateDelta:
		c.singles(s.delta[shape.Layer].s)
	case ops.StateConv:
		c.singles(s.delta[shape.Layer].conv)
	case ops.StatePLE:
		l := s.ple[shape.Layer]
		c.singles(l.conv)
		c.ids(l.ids)
	case ops.StateHidden:
		c.singles(s.hidden[shape.Layer])
	}
}

// coder appends numbers to data or, where decode is set, takes them from it.
type coder struct {
	data   []byte
	decode bool
}

func (c *coder) halves(x []float64) {
	for i := range x {
		if c.decode {
			x[i] = float64(quant.F16ToF32(binary.LittleEndian.Uint16(c.data)))
			c.data = c.data[2:]
		} else {
			c.data = binary.LittleEndian.AppendUint16(c.data, quant.F32ToF16(float32(x[i])))
		}
	}
}

func (c *coder) singles(x []float64) {
	for i := range x {
		if c.decode {
			x[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(c.data)))
			c.data = c.data[4:]
		} else {
			c.data = binary.LittleEndian.AppendUint32(c.data, math.Float32bits(float32(x[i])))
		}
	}
}

func (c *coder) ids(x []int32) {
	for i := range x {
		if c.decode {
			x[i] = int32(binary.LittleEndian.Uint32(c.data))
			c.data = c.data[4:]
		} else {
			c.data = binary.LittleEndian.AppendUint32(c.data, uint32(x[i]))
		}
	}
}

// state returns the reference form of a state.
func state(s ops.State) *State { return s.(interface{ Host() *State }).Host() }
