package ops

import "sync/atomic"

// FlagKind says where something was not finite.
type FlagKind uint8

// The places.
const (
	// FlagResidual: the row's residual stream, or the router's scores.
	FlagResidual FlagKind = iota
	// FlagLogits: the row's logits.
	FlagLogits
	// FlagState: something the row wrote to persistent state, or selection
	// scores computed from it.
	FlagState
	flagKinds
)

// Flags collects, per row of a window, where numbers were not finite and in
// which layer first. Safe for concurrent use.
type Flags struct {
	// rows holds per row and kind the lowest marked layer + 2, or 0.
	rows [][flagKinds]atomic.Uint32
}

// NewFlags returns flags for n rows, all clear.
func NewFlags(n int) *Flags { return &Flags{rows: make([][flagKinds]atomic.Uint32, n)} }

// Reset clears the flags and sets their number of rows, reusing memory.
func (f *Flags) Reset(n int) {
	if n > cap(f.rows) {
		f.rows = make([][flagKinds]atomic.Uint32, n)
		return
	}
	f.rows = f.rows[:n]
	for i := range f.rows {
		for k := range f.rows[i] {
			f.rows[i][k].Store(0)
		}
	}
}

// Rows is the number of rows.
func (f *Flags) Rows() int { return len(f.rows) }

// Mark records that row was not finite in layer (-1 for the embedding). The
// lowest layer wins.
func (f *Flags) Mark(row int, kind FlagKind, layer int) {
	cell, mark := &f.rows[row][kind], uint32(layer+2)
	for {
		old := cell.Load()
		if old != 0 && old <= mark {
			return
		}
		if cell.CompareAndSwap(old, mark) {
			return
		}
	}
}

// Row returns which kinds are marked for a row and the first layer of any.
func (f *Flags) Row(row int) (residual, logits, state bool, layer int) {
	first := uint32(0)
	for k := range f.rows[row] {
		if v := f.rows[row][k].Load(); v != 0 && (first == 0 || v < first) {
			first = v
		}
	}
	r := &f.rows[row]
	return r[FlagResidual].Load() != 0, r[FlagLogits].Load() != 0, r[FlagState].Load() != 0, int(first) - 2
}
