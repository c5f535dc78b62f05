package engine

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/ops/reference"
)

// mixed are windows of several sequences and sizes; sequence 0 gets 150 tokens.
var mixed = plan{
	{{0, 5}},
	{{0, 1}, {1, 3}},
	{{1, 1}, {2, 40}, {0, 1}},
	{{0, 70}, {1, 2}},
	{{0, 1}},
	{{0, 72}},
}

func TestOperationsMatchTheReference(t *testing.T) {
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			begin(t, &sc, open(t, 2)).run(mixed).near(begin(t, &sc, reference.New()).run(mixed))
		})
	}
}

// chunks cuts a sequence's tokens into windows.
func chunks(sequence, tokens, size int) (p plan) {
	for ; tokens > 0; tokens -= size {
		p = append(p, []part{{sequence, min(size, tokens)}})
	}
	return p
}

// Identical bits whatever the window size, the company, the number of threads,
// and whether the state went out and in.
func TestOperationsAreInvariant(t *testing.T) {
	tokens := 300
	if testing.Short() {
		tokens = 130
	}
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			want := begin(t, &sc, open(t, 1)).run(chunks(0, tokens, tokens))
			for i, size := range []int{1, 7, 64, 257} {
				t.Run(fmt.Sprintf("windows of %d", size), func(t *testing.T) {
					begin(t, &sc, open(t, 1+i)).run(chunks(0, tokens, size)).sameBits(want, 0)
				})
			}
			for threads := 2; threads <= 5; threads++ {
				t.Run(fmt.Sprintf("%d threads", threads), func(t *testing.T) {
					begin(t, &sc, open(t, threads)).run(chunks(0, tokens, tokens)).sameBits(want, 0)
				})
			}
			t.Run("company", func(t *testing.T) {
				s := begin(t, &sc, open(t, 3))
				for left := tokens; left > 0; {
					n := min(left, 1+left%23)
					s.window([]part{{1, 3}, {0, n}, {2, 17}})
					left -= n
				}
				s.sameBits(want, 0)
			})
			t.Run("state out and in", func(t *testing.T) {
				s := begin(t, &sc, open(t, 2))
				for left := tokens; left > 0; {
					n := min(left, 37)
					s.window([]part{{0, n}})
					s.swap(0)
					left -= n
				}
				s.sameBits(want, 0)
			})
		})
	}
}

// What is exported agrees with the reference's export: the same sections, and
// numbers as near as their format allows.
func TestExportMatchesTheReference(t *testing.T) {
	for _, sc := range scenarios() {
		if len(sc.layout.Layers) == 0 {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			got, want := begin(t, &sc, open(t, 2)).run(mixed), begin(t, &sc, reference.New()).run(mixed)
			for sequence, n := range got.at {
				a, err := got.dev.Export(got.states[sequence], n)
				if err != nil {
					t.Fatal(err)
				}
				b, err := want.dev.Export(want.states[sequence], n)
				if err != nil {
					t.Fatal(err)
				}
				if len(a) != len(b) {
					t.Fatalf("%d sections, want %d", len(a), len(b))
				}
				// The reference takes the device's state and goes on.
				if err := want.dev.Import(want.states[sequence], n, a); err != nil {
					t.Fatal(err)
				}
				// The device takes the reference's state, and gives it back unchanged.
				if err := got.dev.Import(got.states[sequence], n, b); err != nil {
					t.Fatal(err)
				}
				c, err := got.dev.Export(got.states[sequence], n)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(b, c); diff != "" {
					t.Errorf("imported and exported again: %s", diff)
				}
			}
			more := plan{{{0, 3}, {1, 1}}}
			got.run(more).near(want.run(more))
		})
	}
}

// A row that is not finite is flagged like the reference flags it, and changes
// nothing for other sequences.
func TestNonFiniteRowsAreFlagged(t *testing.T) {
	p := plan{{{0, 9}, {1, 9}}, {{1, 4}, {0, 2}}}
	for _, sc := range scenarios() {
		if sc.name == "embed" {
			continue // has no input but tokens
		}
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
			t.Run(fmt.Sprintf("%s/%g", sc.name, bad), func(t *testing.T) {
				spoil := func(buffer int, at place, x []float32) {
					if buffer == 0 && at == (place{0, 5}) {
						x[len(x)/2] = bad
					}
				}
				clean := begin(t, &sc, open(t, 2)).run(p)
				got, want := begin(t, &sc, open(t, 2)), begin(t, &sc, reference.New())
				got.spoil, want.spoil = spoil, spoil
				got.run(p)
				want.run(p)
				got.sameBits(clean, 1)
				for at, w := range want.results {
					g := got.results[at]
					if g.residual != w.residual || g.logits != w.logits || g.state != w.state {
						t.Errorf("sequence %d, position %d: residual %v, logits %v, state %v; want %v, %v, %v",
							at.sequence, at.pos, g.residual, g.logits, g.state, w.residual, w.logits, w.state)
					}
				}
			})
		}
	}
}

// In the long run an operation allocates nothing.
func TestOperationsAllocateNothing(t *testing.T) {
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			dev := open(t, 2)
			enqueue := sc.build(maker{t, dev})
			st, err := dev.NewState(&sc.layout)
			if err != nil {
				t.Fatal(err)
			}
			if err := dev.Reserve(st, 300); err != nil {
				t.Fatal(err)
			}
			var buffers []ops.Buffer
			for _, width := range sc.widths {
				b, err := dev.Alloc(width)
				if err != nil {
					t.Fatal(err)
				}
				if err := dev.Write(b, 0, input(0, 0, 0, width)); err != nil {
					t.Fatal(err)
				}
				buffers = append(buffers, b)
			}
			w := &ops.Window{Segments: []ops.Segment{{State: st, Pos: 250, Tokens: []int32{1}}}, Rows: 1, Flags: ops.NewFlags(1)}
			// Pages below the position that no row was computed for are read all the
			// same; they hold zeros.
			ctx := t.Context()
			n := testing.AllocsPerRun(50, func() {
				enqueue(dev.Queue(), w, buffers)
				if err := dev.Queue().Fence(ctx); err != nil {
					t.Fatal(err)
				}
			})
			// The harness itself allocates the list of logits rows and of draft
			// sources.
			if n > 1 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
