package arch

import (
	"context"
	"errors"
	"fmt"

	"github.com/strata-engine/strata/sdk/ops"
)

// draftBlock is an MTP block (multi-token prediction): one layer behind the
// trunk that guesses the token after next from the trunk's last residual and the
// next token.
//
// The block has attention state of its own and so must see every token. Its row
// for token p (p ≥ 1) joins that token with the trunk's residual of token p-1
// and sits at position p-1 of the block's attention; so after n executed tokens
// the block has n-1 cells (ops.KVState.Lag). Run therefore runs the block's
// attention for every window behind the trunk; the residual of a window's last
// row is kept for the first row of the next (ops.Hidden). The rest of the block
// leaves no state and is not run then.
//
// To draft, the block runs one row, the kept residual with the chosen next
// token, at position n-1, then further rows at the following positions, each
// with the block's own last residual and own greedy token. What these rows write
// lies beyond the valid cells and is overwritten by the next window.
type draftBlock struct {
	join   *ops.Draft
	layer  *layer
	hidden *ops.Hidden
	head   *ops.Head

	// r is the block's residual while it follows the trunk; last is that of the
	// row drafted last, next of the one being drafted.
	r, last, next ops.Buffer
}

// state lists what the block keeps.
func (d *draftBlock) state() []ops.LayerState {
	s := d.layer.state()
	s[0].KV.Lag = 1
	return append(s, ops.LayerState{Layer: d.layer.index, Hidden: d.hidden.Width})
}

// followed is a window of the block's rows beside a window of the trunk.
type followed struct {
	w ops.Window
	// from says which row of the trunk's window a row continues, -1 for the kept
	// one.
	from []int
	// trunk are the rows of the trunk's window with the same token.
	trunk []int
}

// follow enqueues the block's attention for a window of the trunk. It returns
// nil without a block.
func (g *Graph) follow(q ops.Queue, w *ops.Window) *followed {
	d := g.draft
	if d == nil {
		return nil
	}
	f := &followed{}
	for _, seg := range w.Segments {
		tokens, pos := seg.Tokens, seg.Pos-1
		if seg.Pos == 0 {
			tokens, pos = seg.Tokens[1:], 0
		}
		if len(tokens) == 0 {
			continue
		}
		f.w.Segments = append(f.w.Segments, ops.Segment{State: seg.State, Pos: pos, Row: f.w.Rows, Tokens: tokens})
		f.w.Rows += len(tokens)
		skipped := len(seg.Tokens) - len(tokens)
		for i := range tokens {
			row := seg.Row + skipped + i
			f.trunk = append(f.trunk, row)
			if row == seg.Row {
				f.from = append(f.from, -1)
			} else {
				f.from = append(f.from, row-1)
			}
		}
	}
	g.draftFlags.Reset(f.w.Rows)
	f.w.Flags = g.draftFlags
	if f.w.Rows > 0 {
		q.Draft(d.join, &f.w, g.r, f.from, d.r)
		g.run(q, &d.layer.mixer, &f.w, d.r)
	}
	q.Hidden(d.hidden, w, g.r)
	return f
}

// merge marks the trunk's rows whose rows in the block were not finite: they
// wrote that to the block's state. layer is the block's.
func (f *followed) merge(flags *ops.Flags, layer int) {
	if f == nil {
		return
	}
	for i := range f.w.Rows {
		if residual, logits, state, _ := f.w.Flags.Row(i); residual || logits || state {
			flags.Mark(f.trunk[i], ops.FlagState, layer)
		}
	}
}

// Draft proposes up to count tokens to follow next, the token chosen after the
// executed tokens of a sequence (at least one); the state has room for executed
// + count tokens. It returns fewer where a proposal was not finite. The trunk's
// state does not change.
func (g *Graph) Draft(ctx context.Context, st ops.State, executed int, next int32, count int) (tokens []int32, logProbs []float32, err error) {
	logits := make([]float32, g.vocab)
	for i := range count {
		finite, err := g.DraftRow(ctx, st, executed-1+i, next, i > 0, logits)
		if err != nil {
			return nil, nil, err
		}
		if !finite {
			break
		}
		token, logProb := greedy(logits)
		tokens, logProbs = append(tokens, token), append(logProbs, logProb)
		next = token
	}
	return tokens, logProbs, nil
}

// DraftRow runs one row of the MTP block at a position of its attention and
// writes the logits of the token after next. Where chained is set, the row
// continues the row of the call before, else the residual kept from the last
// executed token. It reports whether everything was finite.
func (g *Graph) DraftRow(ctx context.Context, st ops.State, pos int, next int32, chained bool, logits []float32) (finite bool, err error) {
	d := g.draft
	if d == nil {
		return false, errors.New("draft: the stage has no MTP block")
	}
	if pos < 0 {
		return false, errors.New("draft: nothing was executed yet")
	}
	g.draftFlags.Reset(1)
	w := &ops.Window{Segments: []ops.Segment{{State: st, Pos: pos, Tokens: []int32{next}}}, Rows: 1, Flags: g.draftFlags}
	from := -1
	if chained {
		from = 0
	}
	q := g.dev.Queue()
	q.Draft(d.join, w, d.last, []int{from}, d.next)
	g.enqueue(q, d.layer, w, d.next)
	q.Head(d.head, w, d.next, []int{0}, g.logits)
	if err := q.Fence(ctx); err != nil {
		return false, fmt.Errorf("draft: %w", err)
	}
	d.last, d.next = d.next, d.last
	if err := g.dev.Read(logits, g.logits, 0); err != nil {
		return false, fmt.Errorf("draft: %w", err)
	}
	residual, bad, state, _ := g.draftFlags.Row(0)
	return !residual && !bad && !state, nil
}
