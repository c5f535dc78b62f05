package engine

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/strata-engine/strata/backends/cpu/kernels"
	"github.com/strata-engine/strata/sdk/ops"
)

// boundAttention is an Attention ready to run.
type boundAttention struct {
	*ops.Attention
	q, k, v, out, indexQ, indexK         *kernels.Matrix
	qNorm, kNorm, indexQNorm, indexKNorm []float32
	// perHead is the number of rows of q for a head.
	perHead int
	// frequencies are the angles per position of the rotated pairs.
	frequencies []float64
	// budget is the number of blocks that a query may choose.
	budget int
	want   ops.KVState
}

// Attention implements ops.Queue.
func (q *Queue) Attention(op *ops.Attention, w *ops.Window, x, y ops.Buffer) {
	b, err := bind(q, op, func(b *binder) *boundAttention { return bindAttention(b, op) }, "attention", op.Layer)
	if err != nil {
		q.enqueue(call{}, err)
		return
	}
	o := of(w)
	c := call{run: (*Queue).runAttention, layer: op.Layer, op: b, w: w, a: o.rows(x, op.Width), b: o.rows(y, op.Width)}
	for i := range w.Segments {
		if err := b.checkState(&w.Segments[i]); err != nil {
			o.fail("%w", err)
		}
	}
	q.enqueue(c, named("attention", op.Layer, o.err))
}

func bindAttention(b *binder, op *ops.Attention) *boundAttention {
	if op.KVHeads < 1 || op.Heads < 1 || op.Heads%op.KVHeads != 0 || op.HeadDim < 1 || op.ValueDim < 1 ||
		op.RopeDim < 0 || op.RopeDim%2 != 0 || op.RopeDim > op.HeadDim {
		b.check(false, "%d heads of %d and %d, %d key/value heads, %d rotated dimensions", op.Heads, op.HeadDim, op.ValueDim, op.KVHeads, op.RopeDim)
		return nil
	}
	t := &boundAttention{Attention: op, perHead: op.HeadDim, want: ops.KVState{Heads: op.KVHeads, KeyDim: op.HeadDim, ValueDim: op.ValueDim}}
	if op.Gated {
		t.perHead += op.ValueDim
	}
	t.q = b.matrix(op.Q, "Q", op.Heads*t.perHead, op.Width)
	t.k = b.matrix(op.K, "K", op.KVHeads*op.HeadDim, op.Width)
	t.v = b.matrix(op.V, "V", op.KVHeads*op.ValueDim, op.Width)
	t.out = b.matrix(op.Out, "Out", op.Width, op.Heads*op.ValueDim)
	t.qNorm = b.vector(op.QNorm, "QNorm", 1, op.HeadDim)
	t.kNorm = b.vector(op.KNorm, "KNorm", 1, op.HeadDim)
	for i := range op.RopeDim / 2 {
		t.frequencies = append(t.frequencies, math.Pow(op.RopeBase, -2*float64(i)/float64(op.RopeDim)))
	}
	if x := op.Index; x != nil {
		if x.Heads < 1 || x.Dim < op.RopeDim || x.Ratio < 1 || ops.PageTokens%x.Ratio != 0 || x.Budget < x.Ratio {
			b.check(false, "an indexer of %d heads of %d, blocks of %d and a budget of %d tokens", x.Heads, x.Dim, x.Ratio, x.Budget)
			return nil
		}
		t.indexQ = b.matrix(x.Q, "Index.Q", x.Heads*x.Dim, op.Width)
		t.indexK = b.matrix(x.K, "Index.K", x.Dim, op.Width)
		t.indexQNorm = b.vector(x.QNorm, "Index.QNorm", 1, x.Dim)
		t.indexKNorm = b.vector(x.KNorm, "Index.KNorm", 1, x.Dim)
		t.budget = x.Budget / x.Ratio
		t.want.IndexDim, t.want.IndexRatio = x.Dim, x.Ratio
	}
	return t
}

// checkState checks that a segment's state has the layer and room for the rows.
func (b *boundAttention) checkState(seg *ops.Segment) error {
	s, err := own(seg.State)
	if err != nil {
		return err
	}
	kv := s.kv[b.Layer]
	if kv == nil {
		return fmt.Errorf("the state has no such layer")
	}
	have := kv.KVState
	have.Lag = 0
	if have != b.want {
		return fmt.Errorf("the state has a layer of %+v, want %+v", have, b.want)
	}
	if room := len(kv.pages) * ops.PageTokens; seg.Pos > room-len(seg.Tokens) {
		return fmt.Errorf("position %d was not reserved, there is room for %d", seg.Pos+len(seg.Tokens)-1, room)
	}
	return nil
}

// attentionTask is the state of an Attention; its regions have types of their
// own.
type attentionTask struct {
	*boundAttention
	queue *Queue
	w     *ops.Window
	// queries are [row][head][perHead], keys [row][kv head][dim] and so values;
	// indexQueries [row][index head][dim], indexKeys [row][dim]. out is
	// [row][head][value].
	queries, keys, values, indexQueries, indexKeys, out []float32
	// pieces are the runs of consecutive rows of a segment that are computed
	// together, in groups of three: segment, first row, end.
	pieces []int32
	// masks are the visible tokens of each row, one word a page, for rows that
	// choose blocks.
	masks []uint64
	words int // of a row
	// blockPages are the pages whose block keys are computed, in groups of two:
	// segment, page.
	blockPages []int32
	// split is the number of parts into which the heads of a kv head are cut.
	split int
}

type (
	attentionPrepare attentionTask // norm and rotation; writes keys and values
	attentionBlocks  attentionTask // keys of blocks
	attentionSelect  attentionTask // scores blocks and chooses
	attentionAttend  attentionTask // softmax and values
)

// attendRows is how many rows share a page's converted keys and values.
const attendRows = 16

func (q *Queue) runAttention(c *call) error {
	b, n := c.op.(*boundAttention), c.w.Rows
	t := &q.attention
	*t = attentionTask{boundAttention: b, queue: q, w: c.w}
	t.queries = q.floats.take(n * b.Heads * b.perHead)
	t.keys, t.values = q.floats.take(n*b.KVHeads*b.HeadDim), q.floats.take(n*b.KVHeads*b.ValueDim)
	t.out = q.floats.take(n * b.Heads * b.ValueDim)
	in := q.activations(c.a, n, b.Width, b.q, b.k, b.v, b.indexQ, b.indexK)
	m := &q.multiply
	m.begin(q, in, n)
	m.all(b.q, t.queries)
	m.all(b.k, t.keys)
	m.all(b.v, t.values)
	if b.Index != nil {
		t.indexQueries, t.indexKeys = q.floats.take(n*b.Index.Heads*b.Index.Dim), q.floats.take(n*b.Index.Dim)
		m.all(b.indexQ, t.indexQueries)
		m.all(b.indexK, t.indexKeys)
	}
	m.run()

	q.pool.Run(pieces(n, rowsPerChunk), (*attentionPrepare)(t))
	if b.Index != nil {
		t.findBlocks()
		q.pool.Run(len(t.blockPages)/2, (*attentionBlocks)(t))
		for i := range c.w.Segments {
			seg := &c.w.Segments[i]
			kv := seg.State.(*state).kv[b.Layer]
			_, kv.blocks = b.newBlocks(seg)
		}
		if t.words > 0 {
			t.masks = q.masks.take(n * t.words)
			q.pool.Run(n, (*attentionSelect)(t))
		}
	}

	t.cut()
	q.pool.Run(len(t.pieces)/3*b.KVHeads*t.split, (*attentionAttend)(t))

	m.begin(q, q.activations(t.out, n, b.Heads*b.ValueDim, b.out), n)
	m.all(b.out, c.b)
	m.run()
	return nil
}

// rotation fills the cosines and sines of a position.
func (b *boundAttention) rotation(cos, sin []float32, pos int) {
	for i, f := range b.frequencies {
		s, c := math.Sincos(float64(pos) * f)
		cos[i], sin[i] = float32(c), float32(s)
	}
}

// rotate turns the pairs (i, i+len(cos)) of x.
func rotate(x, cos, sin []float32) {
	half := len(cos)
	low, high := x[:half], x[half:2*half]
	sin, high = sin[:half], high[:half]
	for i, c := range cos {
		a, b, s := low[i], high[i], sin[i]
		low[i] = float32(a*c) - float32(b*s)
		high[i] = float32(b*c) + float32(a*s)
	}
}

// Do implements pool.Task.
func (t *attentionPrepare) Do(chunk, worker int) {
	half := t.RopeDim / 2
	table := t.queue.workers[worker].floats(0, t.RopeDim)
	cos, sin := table[:half], table[half:]
	for row := chunk * rowsPerChunk; row < min((chunk+1)*rowsPerChunk, t.w.Rows); row++ {
		seg := segment(t.w, row)
		kv := seg.State.(*state).kv[t.Layer]
		pos := seg.Pos + row - seg.Row
		t.rotation(cos, sin, pos)
		for h := range t.Heads {
			q := t.queries[(row*t.Heads+h)*t.perHead:][:t.HeadDim]
			kernels.Norm(q, q, t.qNorm, t.Eps)
			rotate(q, cos, sin)
		}
		p, at := kv.pages[pos/ops.PageTokens], pos%ops.PageTokens
		finite := true
		for h := range t.KVHeads {
			k := t.keys[(row*t.KVHeads+h)*t.HeadDim:][:t.HeadDim]
			kernels.Norm(k, k, t.kNorm, t.Eps)
			rotate(k, cos, sin)
			cell := h*ops.PageTokens + at
			finite = kernels.ToHalf(p.keys[cell*t.HeadDim:], k) && finite
			finite = kernels.ToHalf(p.values[cell*t.ValueDim:], t.values[(row*t.KVHeads+h)*t.ValueDim:][:t.ValueDim]) && finite
		}
		if x := t.Index; x != nil {
			for h := range x.Heads {
				q := t.indexQueries[(row*x.Heads+h)*x.Dim:][:x.Dim]
				kernels.Norm(q, q, t.indexQNorm, t.Eps)
				rotate(q, cos, sin)
			}
			finite = kernels.ToHalf(p.raw[at*x.Dim:], t.indexKeys[row*x.Dim:][:x.Dim]) && finite
		}
		if !finite {
			t.w.Flags.Mark(row, ops.FlagState, t.Layer)
		}
	}
}

// cut makes the pieces of rows that attend together.
func (t *attentionTask) cut() {
	count := 0
	for i := range t.w.Segments {
		count += pieces(len(t.w.Segments[i].Tokens), attendRows)
	}
	t.pieces = t.queue.numbers.take(3 * count)[:0]
	for i := range t.w.Segments {
		seg := &t.w.Segments[i]
		end := seg.Row + len(seg.Tokens)
		for row := seg.Row; row < end; row += attendRows {
			t.pieces = append(t.pieces, int32(i), int32(row), int32(min(row+attendRows, end)))
		}
	}
	t.split = 1
	for group := t.Heads / t.KVHeads; t.split < group && count*t.KVHeads*t.split < t.queue.pool.Threads(); {
		t.split++
	}
}

// visible returns which tokens of a page the query of a row sees.
func (t *attentionAttend) visible(row, pos, page int) uint64 {
	if t.sparse(pos) {
		return t.masks[row*t.words+page]
	}
	if last := pos - page*ops.PageTokens; last < ops.PageTokens-1 {
		return 1<<(last+1) - 1
	}
	return math.MaxUint64
}

// Do implements pool.Task.
func (t *attentionAttend) Do(chunk, worker int) {
	group := t.Heads / t.KVHeads
	part := chunk % t.split
	kvHead := chunk / t.split % t.KVHeads
	piece := t.pieces[chunk/t.split/t.KVHeads*3:][:3]
	seg, from, to := &t.w.Segments[piece[0]], int(piece[1]), int(piece[2])
	kv := seg.State.(*state).kv[t.Layer]
	firstHead, lastHead := kvHead*group+part*group/t.split, kvHead*group+(part+1)*group/t.split
	heads := lastHead - firstHead

	w := &t.queue.workers[worker]
	keys, values := w.floats(0, ops.PageTokens*t.HeadDim), w.floats(1, ops.PageTokens*t.ValueDim)
	var sums [attendRows][]kernels.Softmax
	all := w.sums((to - from) * heads)
	for row := from; row < to; row++ {
		sums[row-from] = all[(row-from)*heads:][:heads]
		for h := range heads {
			sums[row-from][h].Reset(t.out[(row*t.Heads+firstHead+h)*t.ValueDim:][:t.ValueDim])
		}
	}
	scale := float32(1 / math.Sqrt(float64(t.HeadDim)))
	first := seg.Pos + from - seg.Row
	last := seg.Pos + to - 1 - seg.Row
	var masks [attendRows]uint64
	for page := 0; page <= last/ops.PageTokens; page++ {
		var union uint64
		for row := from; row < to; row++ {
			masks[row-from] = 0
			if pos := first + row - from; page <= pos/ops.PageTokens {
				masks[row-from] = t.visible(row, pos, page)
				union |= masks[row-from]
			}
		}
		if union == 0 {
			continue
		}
		p := kv.pages[page]
		for rest := union; rest != 0; rest &= rest - 1 {
			at := bits.TrailingZeros64(rest)
			cell := kvHead*ops.PageTokens + at
			kernels.FromHalf(keys[at*t.HeadDim:][:t.HeadDim], p.keys[cell*t.HeadDim:])
			kernels.FromHalf(values[at*t.ValueDim:][:t.ValueDim], p.values[cell*t.ValueDim:])
		}
		for row := from; row < to; row++ {
			var seen [ops.PageTokens]int32
			n := 0
			for rest := masks[row-from]; rest != 0; rest &= rest - 1 {
				seen[n] = int32(bits.TrailingZeros64(rest))
				n++
			}
			if n == 0 {
				continue
			}
			for h := range heads {
				var scores [ops.PageTokens]float32
				q := t.queries[(row*t.Heads+firstHead+h)*t.perHead:][:t.HeadDim]
				for i, at := range seen[:n] {
					scores[i] = kernels.Dot(q, keys[int(at)*t.HeadDim:][:t.HeadDim]) * scale
				}
				sums[row-from][h].Add(scores[:n], values, seen[:n])
			}
		}
	}
	for row := from; row < to; row++ {
		for h := range heads {
			sums[row-from][h].Finish()
			if !t.Gated {
				continue
			}
			at := row*t.Heads + firstHead + h
			o, gate := t.out[at*t.ValueDim:][:t.ValueDim], t.queries[at*t.perHead+t.HeadDim:][:t.ValueDim]
			kernels.Sigmoids(gate, gate)
			for i, g := range gate {
				o[i] *= g
			}
		}
	}
}
