package engine

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/strata-engine/strata/sdk/ops"
)

// state implements ops.State.
type state struct {
	layout *ops.StateLayout
	kv     map[int]*kvState
	delta  map[int]*deltaState
	ple    map[int]*pleState
	hidden map[int][]float32
	// fixed is what the state costs without pages.
	fixed int64
	freed bool
}

// Layout implements ops.State.
func (s *state) Layout() *ops.StateLayout { return s.layout }

// kvState is the state of an attention layer: pages of ops.PageTokens tokens.
type kvState struct {
	ops.KVState
	pages []*page
	// blocks is the number of leading blocks whose indexer key is in the pages.
	blocks int
}

// page holds the attention state of ops.PageTokens consecutive tokens.
type page struct {
	// keys and values are [kv head][token][dim] float16, raw the indexer's raw
	// keys [token][dim] float16.
	keys, values, raw []uint16
	// blockKeys are the indexer's keys of complete blocks, [block][dim]. They
	// follow from raw and are no part of the canonical state.
	blockKeys []float32
}

// deltaState is the state of a gated DeltaNet layer.
type deltaState struct {
	ops.DeltaState
	// s is [value head][key][value], conv [tap][channel], oldest first.
	s, conv []float32
}

// pleState is the state of an n-gram layer.
type pleState struct {
	ops.PLEState
	// conv is [tap][channel], oldest first.
	conv []float32
	// ids are the last tokens, latest first, -1 where there is none.
	ids []int32
}

// pageShape distinguishes pages that can replace each other.
type pageShape struct{ keys, values, raw, blockKeys int }

func (l *kvState) shape() pageShape {
	p := pageShape{
		keys:   l.Heads * ops.PageTokens * l.KeyDim,
		values: l.Heads * ops.PageTokens * l.ValueDim,
		raw:    ops.PageTokens * l.IndexDim,
	}
	if l.IndexDim > 0 {
		p.blockKeys = ops.PageTokens / l.IndexRatio * l.IndexDim
	}
	return p
}

func (p pageShape) bytes() int64 {
	return int64(p.keys+p.values+p.raw)*2 + int64(p.blockKeys)*4 + int64(unsafe.Sizeof(page{}))
}

// budget hands out state memory up to a limit. Pages of closed sequences are
// kept for the next ones, so that a busy server does not leave them to the
// garbage collector.
type budget struct {
	total, used int64
	// spare pages count as used; they are dropped where memory is short.
	spare map[pageShape][]*page
}

// take accounts for n bytes.
func (b *budget) take(n int64) error {
	if n > b.total-b.used {
		for shape, pages := range b.spare {
			b.used -= int64(len(pages)) * shape.bytes()
			delete(b.spare, shape)
		}
	}
	if n > b.total-b.used {
		return fmt.Errorf("%d bytes are wanted, %d of %d are free; the option %s sets the limit", n, b.total-b.used, b.total, optionStateBytes)
	}
	b.used += n
	return nil
}

func (b *budget) free(s *state) {
	if s.freed {
		return
	}
	s.freed = true
	b.used -= s.fixed
	for _, l := range s.kv {
		b.putPages(l.shape(), l.pages)
		l.pages = nil
	}
}

func (b *budget) putPages(shape pageShape, pages []*page) {
	if len(pages) == 0 {
		return
	}
	if b.spare == nil {
		b.spare = map[pageShape][]*page{}
	}
	b.spare[shape] = append(b.spare[shape], pages...)
}

func newPage(shape pageShape) *page {
	return &page{
		keys:      make([]uint16, shape.keys),
		values:    make([]uint16, shape.values),
		raw:       make([]uint16, shape.raw),
		blockKeys: make([]float32, shape.blockKeys),
	}
}

// NewState implements ops.Device.
func (d *Device) NewState(layout *ops.StateLayout) (ops.State, error) {
	s := &state{layout: layout, kv: map[int]*kvState{}, delta: map[int]*deltaState{}, ple: map[int]*pleState{}, hidden: map[int][]float32{}}
	_, s.fixed = layout.Bytes()
	for i := range layout.Layers {
		if kv := layout.Layers[i].KV; kv != nil && kv.IndexDim > 0 && (kv.IndexRatio < 1 || ops.PageTokens%kv.IndexRatio != 0) {
			return nil, fmt.Errorf("new state: layer %d has blocks of %d tokens, which do not fill a page of %d", layout.Layers[i].Layer, kv.IndexRatio, ops.PageTokens)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.budget.take(s.fixed); err != nil {
		return nil, fmt.Errorf("new state: %w", err)
	}
	for i := range layout.Layers {
		switch l := &layout.Layers[i]; {
		case l.KV != nil:
			s.kv[l.Layer] = &kvState{KVState: *l.KV}
		case l.Delta != nil:
			s.delta[l.Layer] = &deltaState{
				DeltaState: *l.Delta,
				s:          make([]float32, l.Delta.Heads*l.Delta.KeyDim*l.Delta.ValueDim),
				conv:       make([]float32, l.Delta.Taps*l.Delta.Channels),
			}
		case l.PLE != nil:
			p := &pleState{PLEState: *l.PLE, conv: make([]float32, l.PLE.Taps*l.PLE.Channels), ids: make([]int32, l.PLE.Tokens)}
			for i := range p.ids {
				p.ids[i] = -1
			}
			s.ple[l.Layer] = p
		case l.Hidden > 0:
			s.hidden[l.Layer] = make([]float32, l.Hidden)
		}
	}
	return s, nil
}

// Reserve implements ops.Device.
func (d *Device) Reserve(st ops.State, tokens int) error {
	s, err := own(st)
	if err != nil {
		return fmt.Errorf("reserve state: %w", err)
	}
	pages := (max(tokens, 0) + ops.PageTokens - 1) / ops.PageTokens
	short := false
	for _, l := range s.kv {
		short = short || pages > len(l.pages)
	}
	if !short {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// Spare pages are paid for. They are taken first and given back where the
	// rest cannot be had, so that nothing has changed then.
	got := map[*kvState][]*page{}
	var bytes int64
	for _, l := range s.kv {
		shape := l.shape()
		spare := d.budget.spare[shape]
		need := max(pages-len(l.pages), 0)
		n := min(need, len(spare))
		got[l] = append([]*page(nil), spare[len(spare)-n:]...)
		if n > 0 {
			d.budget.spare[shape] = spare[:len(spare)-n]
		}
		bytes += int64(need-n) * shape.bytes()
	}
	if err := d.budget.take(bytes); err != nil {
		for l, taken := range got {
			d.budget.putPages(l.shape(), taken)
		}
		return fmt.Errorf("reserve state for %d tokens: %w", tokens, err)
	}
	for l, taken := range got {
		l.pages = append(l.pages, taken...)
		for len(l.pages) < pages {
			l.pages = append(l.pages, newPage(l.shape()))
		}
	}
	return nil
}

// own returns the device's form of a state.
func own(st ops.State) (*state, error) {
	s, ok := st.(*state)
	if !ok {
		return nil, fmt.Errorf("%T is no state of this device", st)
	}
	if s.freed {
		return nil, errors.New("the state was released")
	}
	return s, nil
}
