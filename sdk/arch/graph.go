package arch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/strata-engine/strata/sdk/ops"
)

// Graph executes a stage on a device. Its methods are called from one goroutine
// at a time, ExpertUses excepted.
//
// What a row computes does not depend on where the model was cut: between stages
// the residual travels as the float32 rows that it is between operations anyway.
type Graph struct {
	cfg StageConfig
	dev ops.Device

	embed  *ops.Embed
	layers []*layer
	head   *ops.Head
	draft  *draftBlock

	layout ops.StateLayout
	// width is the residual's, vocab the logits'.
	width, vocab int
	// weightBytes are the bytes of the stage's tensors, mappedBytes those of them
	// that the device was given as they lie in the file.
	weightBytes, mappedBytes int64
	// uses counts per layer of the stage how often each expert was chosen.
	uses [][]uint64

	// r is the residual, x and y a half's input and output, gate what HyperMix
	// hands to HyperInject.
	r, x, y, gate, logits ops.Buffer
	flags, draftFlags     *ops.Flags
}

// newGraph walks the stage.
func newGraph(b *builder, a *architecture, cfg StageConfig) *Graph {
	g := &Graph{cfg: cfg, width: int(b.h.GetWidth()) * max(int(b.h.GetStreams()), 1), vocab: int(b.h.GetVocab())}
	if cfg.Embed {
		g.embed = a.embed(b)
	}
	for i := cfg.First; i < cfg.Last; i++ {
		l := a.layer(b, i)
		l.experts.moe.Uses = make([]uint64, l.experts.moe.Experts)
		g.uses = append(g.uses, l.experts.moe.Uses)
		g.layout.Layers = append(g.layout.Layers, l.state()...)
		g.layers = append(g.layers, l)
	}
	if cfg.Head {
		g.head = a.head(b)
	}
	g.layout.ID = fmt.Sprintf("%s/%d-%d/f16/%d", b.spec.GetHash(), cfg.First, cfg.Last, ops.PageTokens)
	if cfg.Draft {
		g.draft = a.draft(b)
		g.layout.ID += "/mtp"
		g.layout.Layers = append(g.layout.Layers, g.draft.state()...)
	}
	g.weightBytes, g.mappedBytes = b.bytes, b.mapped
	return g
}

// alloc makes the buffers.
func (g *Graph) alloc(dev ops.Device) error {
	g.dev = dev
	g.flags, g.draftFlags = ops.NewFlags(g.cfg.MaxRows), ops.NewFlags(g.cfg.MaxRows)
	x, streams := g.width, 1
	for _, l := range g.layers {
		if m := l.mixer.mix; m != nil {
			x, streams = m.Width, m.Streams
		}
	}
	rows := g.cfg.MaxRows
	var err error
	alloc := func(n int) ops.Buffer {
		b, e := dev.Alloc(n)
		err = errors.Join(err, e)
		return b
	}
	g.r, g.x, g.y, g.gate = alloc(rows*g.width), alloc(rows*x), alloc(rows*x), alloc(rows*streams)
	if g.cfg.Head {
		// A draft needs one row of logits.
		g.logits = alloc(max(g.cfg.MaxLogitRows, 1) * g.vocab)
	}
	if d := g.draft; d != nil {
		d.r, d.last, d.next = alloc(rows*g.width), alloc(g.width), alloc(g.width)
	}
	if err != nil {
		return fmt.Errorf("allocate activations: %w", err)
	}
	return nil
}

// Layout describes the state that a sequence keeps on the stage.
func (g *Graph) Layout() *ops.StateLayout { return &g.layout }

// ResidualWidth is the length of a residual row, Vocab that of a logits row.
func (g *Graph) ResidualWidth() int { return g.width }

// Vocab is the length of a logits row.
func (g *Graph) Vocab() int { return g.vocab }

// Head reports whether the stage holds the output head.
func (g *Graph) Head() bool { return g.cfg.Head }

// WeightBytes is how many bytes of the files the stage uses.
func (g *Graph) WeightBytes() int64 { return g.weightBytes }

// MappedBytes is the part of WeightBytes that the device was given as it lies in
// the files.
func (g *Graph) MappedBytes() int64 { return g.mappedBytes }

// ExpertUses returns, per layer of the stage, how often each expert was chosen.
// It may be called at any time. The MTP block does not count.
func (g *Graph) ExpertUses() [][]uint64 {
	out := make([][]uint64, len(g.uses))
	for i, layer := range g.uses {
		out[i] = make([]uint64, len(layer))
		for e := range layer {
			out[i][e] = atomic.LoadUint64(&layer[e])
		}
	}
	return out
}

// Run executes a window and waits. The states in w have room for its positions.
// Input is the previous stage's residual, [row][residual width], nil where the
// stage has the embedding; output receives the stage's own, nil where the stage
// has the head. Logits receives the wanted rows (indices into the window,
// ascending), [len(rows)][vocabulary]; both are empty without the head.
//
// Run sets w.Flags, which stay valid until the next call. After an error the
// states of the window's sequences are undefined.
func (g *Graph) Run(ctx context.Context, w *ops.Window, input []float32, rows []int, output, logits []float32) error {
	if err := g.checkRun(w, input, rows, output, logits); err != nil {
		return fmt.Errorf("run window: %w", err)
	}
	g.flags.Reset(w.Rows)
	w.Flags = g.flags
	q := g.dev.Queue()
	if g.embed != nil {
		q.Embed(g.embed, w, g.r)
	} else if err := g.dev.Write(g.r, 0, input); err != nil {
		return fmt.Errorf("run window: %w", err)
	}
	for _, l := range g.layers {
		if g.cfg.Report != nil {
			g.cfg.Report(ctx, l.index)
		}
		g.enqueue(q, l, w, g.r)
	}
	draft := g.follow(q, w)
	if len(rows) > 0 {
		q.Head(g.head, w, g.r, rows, g.logits)
	}
	if err := q.Fence(ctx); err != nil {
		return fmt.Errorf("run window: %w", err)
	}
	draft.merge(w.Flags, g.cfg.Last)
	if len(output) > 0 {
		if err := g.dev.Read(output, g.r, 0); err != nil {
			return fmt.Errorf("run window: %w", err)
		}
	}
	if len(logits) > 0 {
		if err := g.dev.Read(logits, g.logits, 0); err != nil {
			return fmt.Errorf("run window: %w", err)
		}
	}
	return nil
}

func (g *Graph) checkRun(w *ops.Window, input []float32, rows []int, output, logits []float32) error {
	in, out := w.Rows*g.width, w.Rows*g.width
	if g.cfg.Embed {
		in = 0
	}
	if g.cfg.Head {
		out = 0
	}
	switch {
	case w.Rows < 1 || w.Rows > g.cfg.MaxRows:
		return fmt.Errorf("%d rows, 1 to %d are possible", w.Rows, g.cfg.MaxRows)
	case len(rows) > 0 && !g.cfg.Head:
		return errors.New("logits are wanted of a stage without the head")
	case len(rows) > g.cfg.MaxLogitRows:
		return fmt.Errorf("%d rows of logits, at most %d are possible", len(rows), g.cfg.MaxLogitRows)
	case len(input) != in:
		return fmt.Errorf("input of %d values, must be %d", len(input), in)
	case len(output) != out:
		return fmt.Errorf("output of %d values, must be %d", len(output), out)
	case len(logits) != len(rows)*g.vocab:
		return fmt.Errorf("logits of %d values, must be %d", len(logits), len(rows)*g.vocab)
	}
	last := -1
	for _, row := range rows {
		if row <= last || row >= w.Rows {
			return fmt.Errorf("rows of logits %v are not ascending within %d rows", rows, w.Rows)
		}
		last = row
	}
	return nil
}

// enqueue enqueues a layer.
func (g *Graph) enqueue(q ops.Queue, l *layer, w *ops.Window, r ops.Buffer) {
	if l.ple != nil {
		q.PLE(l.ple, w, r)
	}
	g.run(q, &l.mixer, w, r)
	g.write(q, &l.mixer, w, r)
	g.run(q, &l.experts, w, r)
	g.write(q, &l.experts, w, r)
}

// run reads the residual and computes a half's output.
func (g *Graph) run(q ops.Queue, h *half, w *ops.Window, r ops.Buffer) {
	if h.mix != nil {
		q.HyperMix(h.mix, w, r, g.x, g.gate)
	} else {
		q.Norm(h.norm, w, r, g.x)
	}
	switch {
	case h.delta != nil:
		q.DeltaNet(h.delta, w, g.x, g.y)
	case h.attention != nil:
		q.Attention(h.attention, w, g.x, g.y)
	default:
		q.MoE(h.moe, w, g.x, g.y)
	}
}

// write adds a half's output to the residual.
func (g *Graph) write(q ops.Queue, h *half, w *ops.Window, r ops.Buffer) {
	if h.inject != nil {
		q.HyperInject(h.inject, w, r, g.gate, g.y)
	} else {
		q.Add(h.add, w, r, g.y)
	}
}

// greedy returns the token with the largest logit, the lower one of equals, and
// its natural log-probability.
func greedy(logits []float32) (token int32, logProb float32) {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - float64(logits[best]))
	}
	return int32(best), float32(-math.Log(sum))
}
