package engine

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/strata-engine/strata/sdk/ops"
)

// Export implements ops.Device.
func (d *Device) Export(st ops.State, tokens int) ([]ops.Section, error) {
	s, err := own(st)
	if err != nil {
		return nil, fmt.Errorf("export state: %w", err)
	}
	if tokens < 0 {
		return nil, fmt.Errorf("export state: negative number of tokens %d", tokens)
	}
	for layer, l := range s.kv {
		if cells := tokens - l.Lag; cells > len(l.pages)*ops.PageTokens {
			return nil, fmt.Errorf("export state: %d tokens of layer %d, there is room for %d", cells, layer, len(l.pages)*ops.PageTokens)
		}
	}
	var out []ops.Section
	for _, shape := range s.layout.Sections(tokens) {
		w := writer{make([]byte, 0, shape.Bytes)}
		s.visit(shape, tokens, &w)
		out = append(out, ops.Section{Layer: shape.Layer, Kind: shape.Kind, Data: w.data})
	}
	return out, nil
}

// Import implements ops.Device.
func (d *Device) Import(st ops.State, tokens int, sections []ops.Section) error {
	s, err := own(st)
	if err != nil {
		return fmt.Errorf("import state: %w", err)
	}
	if err := s.layout.CheckSections(tokens, sections); err != nil {
		return fmt.Errorf("import state: %w", err)
	}
	if err := d.Reserve(st, tokens); err != nil {
		return fmt.Errorf("import state: %w", err)
	}
	for i, shape := range s.layout.Sections(tokens) {
		s.visit(shape, tokens, &reader{sections[i].Data})
	}
	for _, l := range s.kv {
		l.blocks = 0 // follow from the raw keys, when they are next needed
	}
	return nil
}

// A visitor reads or writes numbers in the canonical order.
type visitor interface {
	halves([]uint16)
	singles([]float32)
	ids([]int32)
}

// visit passes the numbers of one section to v.
func (s *state) visit(shape ops.SectionShape, tokens int, v visitor) {
	switch shape.Kind {
	case ops.StateKV:
		l := s.kv[shape.Layer]
		l.eachPage(tokens, func(p *page, n int) { eachHead(p.keys, l.KeyDim, n, v) })
		l.eachPage(tokens, func(p *page, n int) { eachHead(p.values, l.ValueDim, n, v) })
	case ops.StateIndex:
		l := s.kv[shape.Layer]
		l.eachPage(tokens, func(p *page, n int) { v.halves(p.raw[:n*l.IndexDim]) })
	case ops.StateDelta:
		v.singles(s.delta[shape.Layer].s)
	case ops.StateConv:
		v.singles(s.delta[shape.Layer].conv)
	case ops.StatePLE:
		v.singles(s.ple[shape.Layer].conv)
		v.ids(s.ple[shape.Layer].ids)
	case ops.StateHidden:
		v.singles(s.hidden[shape.Layer])
	}
}

// eachPage calls f with every page that holds one of the tokens, and with how
// many.
func (l *kvState) eachPage(tokens int, f func(p *page, n int)) {
	cells := max(tokens-l.Lag, 0)
	for i := 0; i*ops.PageTokens < cells; i++ {
		f(l.pages[i], min(cells-i*ops.PageTokens, ops.PageTokens))
	}
}

// eachHead passes the first n tokens of every head of a page.
func eachHead(x []uint16, dim, n int, v visitor) {
	for per := ops.PageTokens * dim; len(x) > 0; x = x[per:] {
		v.halves(x[:n*dim])
	}
}

// writer appends little-endian numbers.
type writer struct{ data []byte }

func (w *writer) halves(x []uint16) {
	for _, v := range x {
		w.data = binary.LittleEndian.AppendUint16(w.data, v)
	}
}

func (w *writer) singles(x []float32) {
	for _, v := range x {
		w.data = binary.LittleEndian.AppendUint32(w.data, math.Float32bits(v))
	}
}

func (w *writer) ids(x []int32) {
	for _, v := range x {
		w.data = binary.LittleEndian.AppendUint32(w.data, uint32(v))
	}
}

// reader takes little-endian numbers; there are enough of them.
type reader struct{ data []byte }

func (r *reader) halves(x []uint16) {
	for i := range x {
		x[i] = binary.LittleEndian.Uint16(r.data[2*i:])
	}
	r.data = r.data[2*len(x):]
}

func (r *reader) singles(x []float32) {
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(r.data[4*i:]))
	}
	r.data = r.data[4*len(x):]
}

func (r *reader) ids(x []int32) {
	for i := range x {
		x[i] = int32(binary.LittleEndian.Uint32(r.data[4*i:]))
	}
	r.data = r.data[4*len(x):]
}
