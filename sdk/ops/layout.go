package ops

import (
	"encoding/binary"
	"fmt"
	"math"
)

// SectionShape is a section without its data.
type SectionShape struct {
	// Layer and Kind are as in Section.
	Layer int
	Kind  StateKind
	// Bytes is the length of the data.
	Bytes int
}

// Sections lists the sections of the canonical state of a sequence with the
// given number of executed tokens, in order.
func (l *StateLayout) Sections(tokens int) []SectionShape {
	var out []SectionShape
	for i := range l.Layers {
		p := &l.Layers[i]
		add := func(kind StateKind, bytes int) {
			out = append(out, SectionShape{Layer: p.Layer, Kind: kind, Bytes: bytes})
		}
		switch {
		case p.KV != nil:
			cells := max(tokens-p.KV.Lag, 0)
			add(StateKV, cells*p.KV.Heads*(p.KV.KeyDim+p.KV.ValueDim)*2)
			if p.KV.IndexDim > 0 {
				add(StateIndex, cells*p.KV.IndexDim*2)
			}
		case p.Delta != nil:
			add(StateDelta, p.Delta.Heads*p.Delta.KeyDim*p.Delta.ValueDim*4)
			add(StateConv, p.Delta.Taps*p.Delta.Channels*4)
		case p.PLE != nil:
			add(StatePLE, (p.PLE.Taps*p.PLE.Channels+p.PLE.Tokens)*4)
		case p.Hidden > 0:
			add(StateHidden, p.Hidden*4)
		}
	}
	return out
}

// Bytes is what a sequence costs in the canonical layout: bytes for each
// executed token, and bytes whatever its length.
func (l *StateLayout) Bytes() (perToken, fixed int64) {
	for i := range l.Layers {
		p := &l.Layers[i]
		switch {
		case p.KV != nil:
			perToken += int64(p.KV.Heads*(p.KV.KeyDim+p.KV.ValueDim)+p.KV.IndexDim) * 2
		case p.Delta != nil:
			fixed += int64(p.Delta.Heads*p.Delta.KeyDim*p.Delta.ValueDim+p.Delta.Taps*p.Delta.Channels) * 4
		case p.PLE != nil:
			fixed += int64(p.PLE.Taps*p.PLE.Channels+p.PLE.Tokens) * 4
		case p.Hidden > 0:
			fixed += int64(p.Hidden) * 4
		}
	}
	return perToken, fixed
}

// CheckSections reports what is wrong with the canonical state of a sequence
// with the given number of executed tokens: sections missing, in another order
// or of another length, or numbers that are not finite. Devices call it before
// they import.
func (l *StateLayout) CheckSections(tokens int, sections []Section) error {
	if tokens < 0 {
		return fmt.Errorf("check state: negative number of tokens %d", tokens)
	}
	want := l.Sections(tokens)
	if len(sections) != len(want) {
		return fmt.Errorf("check state: %d sections, the layout %q has %d", len(sections), l.ID, len(want))
	}
	for i, w := range want {
		s := &sections[i]
		if s.Layer != w.Layer || s.Kind != w.Kind || len(s.Data) != w.Bytes {
			return fmt.Errorf("check state: section %d is layer %d, kind %d, %d bytes; the layout %q has layer %d, kind %d, %d bytes there for %d tokens",
				i, s.Layer, s.Kind, len(s.Data), l.ID, w.Layer, w.Kind, w.Bytes, tokens)
		}
		if !finiteSection(s, l.ids(s)) {
			return fmt.Errorf("check state: layer %d, kind %d holds numbers that are not finite", s.Layer, s.Kind)
		}
	}
	return nil
}

// ids is how many token ids end the data of s.
func (l *StateLayout) ids(s *Section) int {
	if s.Kind == StatePLE {
		for i := range l.Layers {
			if p := &l.Layers[i]; p.PLE != nil && p.Layer == s.Layer {
				return p.PLE.Tokens
			}
		}
	}
	return 0
}

func finiteSection(s *Section, ids int) bool {
	switch s.Kind {
	case StateKV, StateIndex:
		for d := s.Data; len(d) >= 2; d = d[2:] {
			if binary.LittleEndian.Uint16(d)&0x7c00 == 0x7c00 {
				return false
			}
		}
	default:
		for d := s.Data[:len(s.Data)-4*ids]; len(d) >= 4; d = d[4:] {
			if binary.LittleEndian.Uint32(d)&0x7f800000 == 0x7f800000 {
				return false
			}
		}
	}
	return true
}

// Finite16 reports whether v is finite also when rounded to float16, the number
// format of the paged kinds of state.
func Finite16(v float64) bool {
	// 65520 is the midpoint between the largest float16 and the next power of
	// two; from there on rounding gives an infinity.
	return math.Abs(v) < 65520
}
