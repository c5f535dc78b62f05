package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/strata-engine/strata/backends/cpu/pool"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/ops/reference"
	"github.com/strata-engine/strata/sdk/quant"
)

func TestParseOptions(t *testing.T) {
	o, err := ParseOptions(nil)
	if err != nil {
		t.Fatal(err)
	}
	if o.Threads != pool.Available() || o.StateBytes < 64<<20 {
		t.Errorf("defaults are %+v", o)
	}
	o, err = ParseOptions(map[string]string{"threads": "3", "state_bytes": "1000"})
	if diff := cmp.Diff(Options{Threads: 3, StateBytes: 1000}, o); diff != "" || err != nil {
		t.Errorf("%s, error %v", diff, err)
	}
	for _, tc := range []struct {
		name, value, want string
	}{
		{"threads", "0", `option threads is "0" and must be a number from 1 to 1024`},
		{"threads", "1025", `option threads is "1025" and must be a number from 1 to 1024`},
		{"threads", "many", `option threads is "many" and must be a number from 1 to 1024`},
		{"state_bytes", "-1", `option state_bytes is "-1" and must be a positive number of bytes`},
		{"state_bytes", "99999999999999999999", `option state_bytes is "99999999999999999999" and must be a positive number of bytes`},
		{"thread", "2", `unknown option "thread"; known are state_bytes, threads`},
	} {
		_, err := ParseOptions(map[string]string{tc.name: tc.value})
		if err == nil || err.Error() != tc.want {
			t.Errorf("%s=%s: error %v, want %s", tc.name, tc.value, err, tc.want)
		}
	}
}

func TestProgram(t *testing.T) {
	p := Program("v1")
	if p.Info.Name != "cpu" || p.Info.Version != "v1" || !slices.Contains(p.Info.Capabilities, sdk.CapInvariant) {
		t.Errorf("info %+v", p.Info)
	}
	devices, err := p.Probe(t.Context())
	if err != nil || len(devices) != 1 {
		t.Fatalf("devices %v, error %v", devices, err)
	}
	d := devices[0]
	if d.ID != "cpu" || d.Name == "" || d.Threads < 1 || d.MemoryFree > d.MemoryTotal {
		t.Errorf("device %+v", d)
	}
	for _, req := range []sdk.LoadRequest{{Device: "gpu"}, {Options: map[string]string{"x": "1"}}} {
		if _, err := p.Open(t.Context(), &req); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%+v: error %v", req, err)
		}
	}
	dev, err := p.Open(t.Context(), &sdk.LoadRequest{Device: "cpu", Options: map[string]string{"threads": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

func TestBuffers(t *testing.T) {
	d := open(t, 1)
	b, err := d.Alloc(4)
	if err != nil || b.Len() != 4 {
		t.Fatalf("buffer %v, error %v", b, err)
	}
	if err := d.Write(b, 1, []float32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	got := make([]float32, 2)
	if err := d.Read(got, b, 2); err != nil || got[0] != 2 || got[1] != 3 {
		t.Errorf("read %v, error %v", got, err)
	}
	if _, err := d.Alloc(-1); err == nil {
		t.Error("a buffer of negative length")
	}
	for _, at := range []int{-1, 3, 5, math.MaxInt} {
		if err := d.Write(b, at, got); err == nil {
			t.Errorf("wrote 2 values at %d of 4", at)
		}
		if err := d.Read(got, b, at); err == nil {
			t.Errorf("read 2 values at %d of 4", at)
		}
	}
	foreign, err := reference.New().Alloc(4)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Write(foreign, 0, got); err == nil {
		t.Error("wrote to another device's buffer")
	}
	d.Release(b)
	if err := d.Read(got, b, 0); err == nil {
		t.Error("read from a released buffer")
	}
}

func TestWeightErrors(t *testing.T) {
	d := open(t, 1)
	for _, tc := range []struct {
		tensor ops.Tensor
		want   string
	}{
		{ops.Tensor{Name: "a"}, `use tensor "a": it has no extents`},
		{ops.Tensor{Name: "a", Dims: []int64{0}}, `use tensor "a": extents [0]`},
		{ops.Tensor{Name: "a", Dims: []int64{32, -1}, Type: quant.Q8_0}, `use tensor "a": extents [32 -1]`},
		{ops.Tensor{Name: "a", Dims: []int64{32, 1 << 30, 1 << 30}, Type: quant.Q8_0}, `use tensor "a": extents [32 1073741824 1073741824] are too large`},
		{ops.Tensor{Name: "a", Dims: []int64{32, 2}, Type: quant.Q8_0, Data: make([]byte, 67)}, `67 bytes do not hold 2 rows of 32 values of Q8_0`},
		{ops.Tensor{Name: "a", Dims: []int64{32}, Type: 999}, `unknown tensor type 999`},
	} {
		if _, err := d.Weight(tc.tensor); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: error %v, want %s", tc.tensor, err, tc.want)
		}
	}
}

// kvLayout costs a page for every 64 tokens of layer 0, and 100 bytes otherwise.
func kvLayout() *ops.StateLayout {
	return &ops.StateLayout{ID: "kv", Layers: []ops.LayerState{
		{Layer: 0, KV: &ops.KVState{Heads: 2, KeyDim: 8, ValueDim: 8, IndexDim: 4, IndexRatio: 4}},
		{Layer: 1, Hidden: 25},
	}}
}

func TestStateBudget(t *testing.T) {
	layout := kvLayout()
	page := (&kvState{KVState: *layout.Layers[0].KV}).shape().bytes()
	d, err := Open(Options{Threads: 1, StateBytes: 3*page + 200})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	newState := func() ops.State {
		t.Helper()
		s, err := d.NewState(layout)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := newState(), newState()
	if err := d.Reserve(a, 65); err != nil { // two pages
		t.Fatal(err)
	}
	if err := d.Reserve(b, 65); err == nil {
		t.Error("four pages of three")
	}
	if n := len(b.(*state).kv[0].pages); n != 0 {
		t.Errorf("a failed Reserve left %d pages", n)
	}
	if err := d.Reserve(b, 64); err != nil {
		t.Error(err)
	}
	if _, err := d.NewState(layout); err == nil || !strings.Contains(err.Error(), "the option state_bytes") {
		t.Errorf("a third state: error %v", err)
	}
	for _, tokens := range []int{0, 1, 128, -5} {
		if err := d.Reserve(a, tokens); err != nil {
			t.Errorf("%d tokens are reserved already: %v", tokens, err)
		}
	}
	// What is released can be had again, by other sequences.
	d.Release(a)
	d.Release(a)
	if err := d.Reserve(a, 1); err == nil {
		t.Error("reserved for a released state")
	}
	if err := d.Reserve(b, 192); err != nil {
		t.Error(err)
	}
	d.Release(b)
	// Spare pages give way to a state that is not made of pages.
	big := &ops.StateLayout{ID: "big", Layers: []ops.LayerState{{Layer: 0, Hidden: int(3*page+200) / 4}}}
	s, err := d.NewState(big)
	if err != nil {
		t.Fatal(err)
	}
	d.Release(s)
	if d.budget.used != 0 {
		t.Errorf("%d bytes are used in the end", d.budget.used)
	}
}

// The budget after any order of opening, growing and closing.
func TestStateBudgetAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layouts := []*ops.StateLayout{kvLayout(), {ID: "other", Layers: []ops.LayerState{{Layer: 3, KV: &ops.KVState{Heads: 1, KeyDim: 4, ValueDim: 4}}, {Layer: 4, Hidden: 3}}}}
		d := &Device{budget: budget{total: 40_000}}
		tokens := map[ops.State]int{}
		pick := func() ops.State {
			var all []ops.State
			for s := range tokens {
				all = append(all, s)
			}
			if len(all) == 0 {
				t.Skip("no state")
			}
			return all[rapid.IntRange(0, len(all)-1).Draw(t, "state")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				if s, err := d.NewState(layouts[rapid.IntRange(0, 1).Draw(t, "layout")]); err == nil {
					tokens[s] = 0
				}
			},
			"reserve": func(t *rapid.T) {
				s, n := pick(), rapid.IntRange(0, 400).Draw(t, "tokens")
				if err := d.Reserve(s, n); err == nil {
					tokens[s] = max(tokens[s], n)
				}
			},
			"release": func(t *rapid.T) {
				s := pick()
				d.Release(s)
				delete(tokens, s)
			},
			"": func(t *rapid.T) {
				want := int64(0)
				for shape, pages := range d.budget.spare {
					want += int64(len(pages)) * shape.bytes()
				}
				seen := map[*page]bool{}
				for s, n := range tokens {
					own := s.(*state)
					want += own.fixed
					for _, l := range own.kv {
						want += int64(len(l.pages)) * l.shape().bytes()
						if room := len(l.pages) * ops.PageTokens; room < n || room >= n+ops.PageTokens {
							t.Fatalf("room for %d of %d tokens", room, n)
						}
						for _, p := range l.pages {
							if seen[p] {
								t.Fatal("two sequences share a page")
							}
							seen[p] = true
						}
					}
				}
				if d.budget.used != want || want > d.budget.total {
					t.Fatalf("%d bytes used of %d, want %d", d.budget.used, d.budget.total, want)
				}
			},
		})
	})
}

func TestNewStateRefusesBlocksAcrossPages(t *testing.T) {
	d := open(t, 1)
	layout := kvLayout()
	layout.Layers[0].KV.IndexRatio = 5
	if _, err := d.NewState(layout); err == nil {
		t.Error("blocks of 5 tokens")
	}
}

func TestImportChecksFirst(t *testing.T) {
	sc := attentionScenario("attention", ops.Attention{Width: 32, Heads: 2, KVHeads: 1, HeadDim: 8, ValueDim: 8, RopeDim: 4, RopeBase: 1e4}, nil, quant.F32)
	s := begin(t, &sc, open(t, 1)).run(plan{{{0, 10}}})
	good, err := s.dev.Export(s.states[0], 10)
	if err != nil {
		t.Fatal(err)
	}
	bad := slices.Clone(good)
	bad[0].Data = slices.Clone(bad[0].Data)
	bad[0].Data[1] = 0x7c // an infinity
	for name, sections := range map[string][]ops.Section{"none": nil, "infinite": bad, "short": {{Layer: 2, Kind: ops.StateKV, Data: good[0].Data[2:]}}} {
		if err := s.dev.Import(s.states[0], 10, sections); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	again, err := s.dev.Export(s.states[0], 10)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(good, again); diff != "" {
		t.Errorf("a failed import changed the state: %s", diff)
	}
	for _, tokens := range []int{-1, 65} {
		if _, err := s.dev.Export(s.states[0], tokens); err == nil {
			t.Errorf("exported %d tokens", tokens)
		}
	}
}

// A misuse is an error of the next Fence, once, and never a panic.
func TestMisuseIsAnError(t *testing.T) {
	d := open(t, 2)
	m, other := maker{t, d}, maker{t, reference.New()}
	q := d.Queue()
	buf := func(n int) ops.Buffer {
		b, err := d.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	window := func(tokens ...int32) *ops.Window {
		return &ops.Window{Segments: []ops.Segment{{Tokens: tokens}}, Rows: len(tokens), Flags: ops.NewFlags(len(tokens))}
	}
	embed := &ops.Embed{Table: m.make("table", quant.F32, 8, 5), Streams: 1, Width: 8}
	norm := &ops.Norm{Width: 8, Weight: m.positive("norm", 8)}
	for _, tc := range []struct {
		name string
		do   func()
		want string
	}{
		{"token", func() { q.Embed(embed, window(1, 5), buf(16)) }, "token id 5, the table has 5 rows"},
		{"buffer", func() { q.Embed(embed, window(1, 2), buf(15)) }, "16 values at 0 of 15"},
		{"foreign weight", func() {
			q.Norm(&ops.Norm{Width: 8, Weight: other.positive("norm", 8)}, window(1), buf(8), buf(8))
		}, "no weight of this device"},
		{"no weight", func() { q.Norm(&ops.Norm{Width: 8}, window(1), buf(8), buf(8)) }, "no weight of this device"},
		{"extents", func() { q.Norm(&ops.Norm{Width: 9, Weight: norm.Weight}, window(1), buf(9), buf(9)) }, "want 1 rows of 9"},
		{"rows", func() {
			w := window(1)
			w.Rows = 2
			q.Norm(norm, w, buf(16), buf(16))
		}, "a window of 2 rows"},
		{"flags", func() {
			w := window(1)
			w.Flags = nil
			q.Norm(norm, w, buf(8), buf(8))
		}, "without flags"},
		{"head", func() {
			q.Head(&ops.Head{Width: 8, Vocab: 5, Output: embed.Table}, window(1, 2), buf(16), []int{1, 0}, buf(10))
		}, "row 0 after 1 of 2"},
		{"state", func() { q.Hidden(&ops.Hidden{Width: 8}, window(1), buf(8)) }, "no state of this device"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.do()
			q.Norm(norm, window(1), buf(8), buf(8)) // does not hide the error
			if err := q.Fence(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %s", err, tc.want)
			}
			if err := q.Fence(t.Context()); err != nil {
				t.Errorf("the error came twice: %v", err)
			}
		})
	}
	sc := attentionScenario("attention", ops.Attention{Width: 32, Heads: 2, KVHeads: 1, HeadDim: 8, ValueDim: 8, RopeDim: 4, RopeBase: 1e4}, nil, quant.F32)
	attend := sc.build(m)
	st, err := d.NewState(&sc.layout)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Reserve(st, 64); err != nil {
		t.Fatal(err)
	}
	w := window(1)
	w.Segments[0].State, w.Segments[0].Pos = st, 64
	attend(q, w, []ops.Buffer{buf(32), buf(32)})
	if err := q.Fence(t.Context()); err == nil || !strings.Contains(err.Error(), "position 64 was not reserved, there is room for 64") {
		t.Errorf("error %v", err)
	}
}

// A context that has ended stops the queue between operations, and the queue can
// be used again.
func TestFenceLooksAtItsContext(t *testing.T) {
	d := open(t, 2)
	m, q := maker{t, d}, d.Queue()
	norm := &ops.Norm{Width: 8, Weight: m.positive("norm", 8)}
	x, err := d.Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	w := &ops.Window{Segments: []ops.Segment{{Tokens: []int32{0}}}, Rows: 1, Flags: ops.NewFlags(1)}
	before := []float32{1, 2, 3, 4, 5, 6, 7, 8}
	if err := d.Write(x, 0, before); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q.Norm(norm, w, x, x)
	if err := q.Fence(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	after := make([]float32, 8)
	if err := d.Read(after, x, 0); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("an operation ran: %s", diff)
	}
	q.Norm(norm, w, x, x)
	if err := q.Fence(t.Context()); err != nil {
		t.Error(err)
	}
}

// choose agrees with a sorted list, ties included.
func TestChoose(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		scores := make([]float32, 1+rng.IntN(200))
		levels := 1 + rng.IntN(300)
		want := make([]float64, len(scores))
		for i := range scores {
			scores[i] = float32(rng.IntN(levels)) / 7
			if rng.IntN(50) == 0 {
				scores[i] = float32(math.Inf(1))
			}
			want[i] = float64(scores[i])
		}
		k := 1 + rng.IntN(len(scores))
		var got []int
		choose(scores, k, func(i int) { got = append(got, i) })
		top, err := reference.TopK(want, k)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(top, got); diff != "" {
			t.Fatalf("%d of %v: %s", k, scores, diff)
		}
	}
}

// route agrees with a softmax over all experts, renormalised over the best.
func TestRoute(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 2000 {
		n := 1 + rng.IntN(40)
		scores, p := make([]float32, n), make([]float64, n)
		for i := range scores {
			scores[i] = float32(rng.IntN(12)) / 2
			p[i] = float64(scores[i])
		}
		k := 1 + rng.IntN(n)
		chosen, share := make([]int32, k), make([]float32, k)
		route(scores, chosen, share)
		reference.Softmax(p)
		top, err := reference.TopK(p, k)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, e := range top {
			sum += p[e]
		}
		for i, e := range chosen {
			if !slices.Contains(top, int(e)) {
				t.Fatalf("expert %d of %v, want %v", e, scores, top)
			}
			if math.Abs(float64(share[i])-p[e]/sum) > 1e-6 {
				t.Fatalf("share %g of expert %d, want %g", share[i], e, p[e]/sum)
			}
			if i > 0 && scores[chosen[i-1]] < scores[e] {
				t.Fatalf("experts %v are not in the order of their scores", chosen)
			}
		}
	}
}

// The indexer never compares a NaN: it flags the row.
func TestNaNScoreIsAFault(t *testing.T) {
	for _, sc := range scenarios() {
		if sc.name != "sparse attention" {
			continue
		}
		d := open(t, 2)
		s := begin(t, &sc, d).run(plan{{{0, 100}}})
		// A key of a complete block, behind the back of the operation.
		p := s.states[0].(*state).kv[2].pages[0]
		p.blockKeys[3*16] = float32(math.NaN())
		s.run(plan{{{0, 2}}})
		for pos := 100; pos < 102; pos++ {
			if !s.results[place{0, pos}].state {
				t.Errorf("position %d is not flagged", pos)
			}
		}
		return
	}
	t.Fatal(fmt.Errorf("no scenario for sparse attention"))
}
