package engine

import (
	"github.com/strata-engine/strata/backends/cpu/kernels"
)

// tile is how many activation rows are multiplied with an unpacked weight row
// before the next is unpacked: enough to make unpacking cheap, few enough that
// the activations stay in the cache.
const tile = 32

// Sizes of a chunk in multiplications: enough to be worth a claim, and few
// enough that no thread has to wait long for the last one.
const (
	smallChunk = 12_000
	largeChunk = 300_000
)

// line is how many results a chunk has in a row at least, where there is enough
// to do for everybody: a cache line of them.
const line = 16

// chunkRows returns how many of n weight rows make a chunk where each row costs
// the given number of multiplications and is met by so many tiles.
func (q *Queue) chunkRows(n, cost, tiles int) int {
	threads := q.pool.Threads()
	even := pieces(n*tiles, 6*threads)
	low := max(pieces(smallChunk, max(cost, 1)), line)
	high := max(low, largeChunk/max(cost, 1))
	return max(1, min(max(even, low), high, pieces(n*tiles, threads), n))
}

// pieces is the number of pieces of the given size that cover n.
func pieces(n, size int) int { return (n + size - 1) / size }

// chunksOfRows is how many activation rows a chunk of elementwise work has.
const rowsPerChunk = 8

// quantizeTask rounds activation rows.
type quantizeTask struct {
	rows kernels.Rows
	n    int
}

// Do implements pool.Task.
func (t *quantizeTask) Do(chunk, _ int) {
	from := chunk * rowsPerChunk
	to := min(from+rowsPerChunk, t.n)
	per := t.rows.Width / kernels.BlockValues
	kernels.Quantize(t.rows.Blocks[from*per:to*per], t.rows.Floats[from*t.rows.Width:to*t.rows.Width])
}

// activations returns n rows in the forms that the matrices read.
func (q *Queue) activations(x []float32, n, width int, matrices ...*kernels.Matrix) kernels.Rows {
	r := kernels.Rows{Width: width, Floats: x}
	for _, m := range matrices {
		if m != nil && m.Quantized() {
			r.Blocks = q.blocks.take(n * width / kernels.BlockValues)
			q.quantize = quantizeTask{rows: r, n: n}
			q.pool.Run(pieces(n, rowsPerChunk), &q.quantize)
			break
		}
	}
	return r
}

// product is a range of a matrix's rows and where its products with an
// activation row go: that of row first+j to out[row·stride + at + j].
type product struct {
	m          *kernels.Matrix
	first, n   int
	out        []float32
	stride, at int
}

// multiplyTask multiplies several matrices with the same activation rows.
type multiplyTask struct {
	q        *Queue
	in       kernels.Rows
	n, tiles int
	per      int // weight rows in a chunk
	products [8]product
	count    int
}

// begin starts a list of products of n activation rows.
func (t *multiplyTask) begin(q *Queue, in kernels.Rows, n int) {
	clear(t.products[:])
	*t = multiplyTask{q: q, in: in, n: n}
}

// add adds rows [first, first+n) of m. A nil matrix adds nothing.
func (t *multiplyTask) add(m *kernels.Matrix, first, n int, out []float32, stride, at int) {
	if m != nil {
		t.products[t.count] = product{m, first, n, out, stride, at}
		t.count++
	}
}

// all adds a whole matrix whose products are the rows of out.
func (t *multiplyTask) all(m *kernels.Matrix, out []float32) {
	if m != nil {
		t.add(m, 0, m.Rows, out, m.Rows, 0)
	}
}

// split cuts the products into chunks and returns their number.
func (t *multiplyTask) split() int {
	if t.n == 0 {
		return 0
	}
	t.q.needIndex(t.n)
	t.tiles = pieces(t.n, tile)
	rows := 0
	for i := range t.count {
		rows += t.products[i].n
	}
	t.per = t.q.chunkRows(rows, t.in.Width*min(t.n, tile), t.tiles)
	chunks := 0
	for i := range t.count {
		chunks += pieces(t.products[i].n, t.per) * t.tiles
	}
	return chunks
}

// run computes the products.
func (t *multiplyTask) run() { t.q.pool.Run(t.split(), t) }

// Do implements pool.Task.
func (t *multiplyTask) Do(chunk, worker int) {
	from := chunk % t.tiles * tile
	to := min(from+tile, t.n)
	chunk /= t.tiles
	for i := range t.count {
		p := &t.products[i]
		if n := pieces(p.n, t.per); chunk >= n {
			chunk -= n
			continue
		}
		first := chunk * t.per
		last := min(first+t.per, p.n)
		p.m.Mul(p.out[from*p.stride+p.at+first:], p.stride, p.first+first, p.first+last, &t.in, t.q.index(from, to), &t.q.workers[worker].mul)
		return
	}
}
