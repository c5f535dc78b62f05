package engine

import (
	"math"

	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/sdk/ops"
)

// The QSA indexer: keys of blocks, scores, and the choice of blocks.

// sparse reports whether the query at pos has more complete blocks than it may
// choose.
func (b *boundAttention) sparse(pos int) bool {
	return b.Index != nil && (pos+1)/b.Index.Ratio > b.budget
}

// findBlocks lists the pages that hold blocks without a key yet, and finds out
// whether any row chooses blocks.
func (t *attentionTask) findBlocks() {
	count, last := 0, 0
	for i := range t.w.Segments {
		first, end := t.newBlocks(&t.w.Segments[i])
		count += end/t.pageBlocks() - first/t.pageBlocks() + 1
		last = max(last, t.w.Segments[i].Pos+len(t.w.Segments[i].Tokens)-1)
	}
	t.blockPages = t.queue.numbers.take(2 * count)[:0]
	for i := range t.w.Segments {
		first, end := t.newBlocks(&t.w.Segments[i])
		for at := first; at < end; at = (at/t.pageBlocks() + 1) * t.pageBlocks() {
			t.blockPages = append(t.blockPages, int32(i), int32(at/t.pageBlocks()))
		}
	}
	if t.sparse(last) {
		t.words = last/ops.PageTokens + 1
	}
}

// pageBlocks is the number of blocks in a page.
func (b *boundAttention) pageBlocks() int { return ops.PageTokens / b.Index.Ratio }

// newBlocks returns the range of complete blocks whose keys must be computed:
// those that end within the segment, and earlier ones that the state lacks.
func (b *boundAttention) newBlocks(seg *ops.Segment) (first, end int) {
	kv := seg.State.(*state).kv[b.Layer]
	return min(kv.blocks, seg.Pos/b.Index.Ratio), (seg.Pos + len(seg.Tokens)) / b.Index.Ratio
}

// Do implements pool.Task.
func (t *attentionBlocks) Do(chunk, worker int) {
	seg, page := &t.w.Segments[t.blockPages[2*chunk]], int(t.blockPages[2*chunk+1])
	x, perPage := t.Index, t.pageBlocks()
	first, end := t.newBlocks(seg)
	first, end = max(first, page*perPage), min(end, (page+1)*perPage)
	p := seg.State.(*state).kv[t.Layer].pages[page]
	half := t.RopeDim / 2
	tmp := t.queue.workers[worker].floats(0, t.RopeDim+x.Dim)
	cos, sin, raw := tmp[:half], tmp[half:t.RopeDim], tmp[t.RopeDim:]
	for block := first; block < end; block++ {
		at := block - page*perPage
		key := p.blockKeys[at*x.Dim:][:x.Dim]
		clear(key)
		for i := range x.Ratio {
			kernels.FromHalf(raw, p.raw[(at*x.Ratio+i)*x.Dim:])
			kernels.AddScaled(key, 1/float32(x.Ratio), raw)
		}
		kernels.Norm(key, key, t.indexKNorm, t.Eps)
		t.rotation(cos, sin, block*x.Ratio)
		rotate(key, cos, sin)
	}
}

// Do implements pool.Task: one row.
func (t *attentionSelect) Do(row, worker int) {
	seg := segment(t.w, row)
	pos := seg.Pos + row - seg.Row
	if !t.sparse(pos) {
		return
	}
	x := t.Index
	pages, perPage := seg.State.(*state).kv[t.Layer].pages, t.pageBlocks()
	n := (pos + 1) / x.Ratio
	w := &t.queue.workers[worker]
	scores := w.floats(0, n)
	queries := t.indexQueries[row*x.Heads*x.Dim:][:x.Heads*x.Dim]
	finite := true
	for j := range scores {
		key := pages[j/perPage].blockKeys[j%perPage*x.Dim:][:x.Dim]
		var sum float32
		for h := range x.Heads {
			// Written so that a NaN is added and not left out.
			if d := kernels.Dot(queries[h*x.Dim:][:x.Dim], key); !(d <= 0) {
				sum += d
			}
		}
		scores[j] = sum
		finite = finite && sum == sum
	}
	mask := t.masks[row*t.words:][:t.words]
	clear(mask)
	blockMask := uint64(1)<<x.Ratio - 1 // also right for 64: the shift gives 0
	show := func(j int) { mask[j/perPage] |= blockMask << (j % perPage * x.Ratio) }
	if finite {
		choose(scores, t.budget, show)
	} else {
		t.w.Flags.Mark(row, ops.FlagState, t.Layer)
		for j := range t.budget { // the row is marked; any valid choice will do
			show(j)
		}
	}
	for tail := n * x.Ratio; tail <= pos; tail++ {
		mask[tail/ops.PageTokens] |= 1 << (tail % ops.PageTokens)
	}
}

// choose calls show with the k largest of the scores, ties to the lower index,
// in ascending order. Scores are not negative and no NaN, so their bits order
// like they do; the k-th largest is found by its bytes, highest first.
func choose(scores []float32, k int, show func(int)) {
	var prefix, known uint32
	want := k // of those that share the prefix
	for shift := 24; shift >= 0; shift -= 8 {
		var count [256]int32
		for _, v := range scores {
			if b := math.Float32bits(v); b&known == prefix {
				count[b>>shift&0xff]++
			}
		}
		digit := 255
		for ; int(count[digit]) < want; digit-- {
			want -= int(count[digit])
		}
		prefix |= uint32(digit) << shift
		known |= 0xff << shift
	}
	// All above the threshold, and the first want that equal it.
	for j, v := range scores {
		b := math.Float32bits(v)
		if b == prefix && want > 0 {
			want--
		} else if b <= prefix {
			continue
		}
		show(j)
	}
}
