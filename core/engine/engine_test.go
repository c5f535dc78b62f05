package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const vocab = 97

// rollingModel is a stage of a toy model whose next token is a rolling hash of
// everything before it, so that any lost, repeated or foreign token shows. The
// residual carries the hash from the stage with the embedding to the one with
// the head.
type rollingModel struct {
	core.Backend // the methods that the engine does not call
	embed, head  bool

	mu       sync.Mutex
	hash     map[core.SequenceID]uint32
	executed map[core.SequenceID]int
	windows  []int // rows per window
	gate     chan struct{}
	fail     error
	bad      map[int]core.RowFlags // by position
}

func newRolling(embed, head bool) *rollingModel {
	return &rollingModel{embed: embed, head: head, hash: map[core.SequenceID]uint32{}, executed: map[core.SequenceID]int{}, bad: map[int]core.RowFlags{}}
}

func roll(h uint32, token int32) uint32 { return (h*31 + uint32(token) + 7) % 1000003 }

func (m *rollingModel) OpenSequence(_ context.Context, id core.SequenceID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hash[id], m.executed[id] = 1, 0
	return nil
}

func (m *rollingModel) CloseSequence(_ context.Context, id core.SequenceID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.hash, id)
	delete(m.executed, id)
	return nil
}

func (m *rollingModel) open() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.hash)
}

func (m *rollingModel) Step(ctx context.Context, step *core.Step) (*core.Done, error) {
	if m.gate != nil {
		select {
		case <-m.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if step.Posted != nil {
		step.Posted()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return nil, m.fail
	}
	done := &core.Done{Release: func() {}}
	m.windows = append(m.windows, step.Window.Rows())
	row := 0
	for _, s := range step.Window.Segments {
		if _, ok := m.hash[s.Seq]; !ok || m.executed[s.Seq] != s.Pos {
			return nil, fmt.Errorf("segment at %d of sequence %d, executed %d: %w", s.Pos, s.Seq, m.executed[s.Seq], core.ErrUnknownSequence)
		}
		m.executed[s.Seq] += len(s.Tokens)
		for i, token := range s.Tokens {
			h := m.hash[s.Seq]
			if m.embed {
				h = roll(h, token)
			} else {
				h = uint32(step.Input[row])
			}
			m.hash[s.Seq] = h
			done.Rows = append(done.Rows, m.bad[s.Pos+i])
			if m.head && slices.Contains(s.Logits, i) {
				logits := make([]float32, vocab)
				logits[h%vocab] = 10
				done.Logits = append(done.Logits, logits...)
			}
			if !m.head {
				done.Output = append(done.Output, float32(h))
			}
			row++
		}
	}
	return done, nil
}

// expect computes the answer that an undisturbed model gives.
func expect(prompt []int32, n int) []int32 {
	h := uint32(1)
	for _, t := range prompt {
		h = roll(h, t)
	}
	var out []int32
	for range n {
		t := int32(h % vocab)
		out = append(out, t)
		h = roll(h, t)
	}
	return out
}

func start(t *testing.T, change func(*Config), stages ...*rollingModel) *Engine {
	t.Helper()
	cfg := Config{
		Model: &core.ModelSpec{Hyper: core.Hyper{Vocab: vocab, Layers: 2, Width: 1}},
		KV:    kv.New(1<<20, 8), Context: 256, Queue: 8, Sequences: 8, Rows: 32, Chunk: 16, StepTimeout: time.Minute,
	}
	for i, s := range stages {
		cfg.Stages = append(cfg.Stages, Stage{Device: fmt.Sprint("device", i), Backend: s})
	}
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
		for i, s := range stages {
			if n := s.open(); n != 0 {
				t.Errorf("stage %d: %d sequences left open", i, n)
			}
		}
		if st := cfg.KV.Stats(); st.Sequences != 0 || st.Reserved != 0 {
			t.Errorf("the store holds %+v", st)
		}
	})
	return e
}

func collect(t *testing.T, g *Generation) ([]int32, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var ids []int32
	for {
		token, err := g.Next(ctx)
		if err == io.EOF {
			return ids, nil
		}
		if err != nil {
			return ids, err
		}
		ids = append(ids, token.ID)
	}
}

func prompt(n, seed int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32((i*seed + seed) % vocab)
	}
	return p
}

func request(p []int32, n int) Request {
	return Request{Prompt: p, MaxTokens: n, LogProbs: -1}
}

func TestAnswers(t *testing.T) {
	for _, stages := range [][]*rollingModel{
		{newRolling(true, true)},
		{newRolling(true, false), newRolling(false, true)},
	} {
		t.Run(fmt.Sprint(len(stages), " stages"), func(t *testing.T) {
			e := start(t, nil, stages...)
			p := prompt(50, 3)
			g, err := e.Start(t.Context(), request(p, 20))
			if err != nil {
				t.Fatal(err)
			}
			got, err := collect(t, g)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(expect(p, 20), got); d != "" {
				t.Error(d)
			}
			if g.Finish() != FinishLength {
				t.Errorf("finish %q", g.Finish())
			}
			st := g.Stats()
			if st.Prompt != 50 || st.Generated != 20 || st.Cached != 0 {
				t.Errorf("stats %+v", st)
			}
			// 50 prompt rows in chunks of 16, then single rows.
			if d := cmp.Diff(append([]int{16, 16, 16, 2}, slices.Repeat([]int{1}, 19)...), stages[0].windows); d != "" {
				t.Error(d)
			}
			if s := e.Stats(); s.PromptTokens != 50 || s.GeneratedTokens != 20 || s.Overhead <= 0 {
				t.Errorf("totals %+v", s)
			}
		})
	}
}

func TestCompanyChangesNothing(t *testing.T) {
	e := start(t, func(c *Config) { c.Queue = 64; c.Sequences = 5 }, newRolling(true, false), newRolling(false, true))
	var wg sync.WaitGroup
	for i := range 40 {
		p := prompt(1+i*5%120, i+1)
		g, err := e.Start(t.Context(), request(p, 1+i%30))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			got, err := collect(t, g)
			if err != nil {
				t.Errorf("request %d: %v", i, err)
			}
			if d := cmp.Diff(expect(p, 1+i%30), got); d != "" {
				t.Errorf("request %d: %s", i, d)
			}
		})
	}
	wg.Wait()
}

func TestStopAndLimits(t *testing.T) {
	e := start(t, func(c *Config) { c.Context = 64 }, newRolling(true, true))
	p := prompt(10, 2)
	full := expect(p, 54)
	stop := full[7]
	at := slices.Index(full, stop)
	g, err := e.Start(t.Context(), Request{Prompt: p, Stop: []int32{stop}, LogProbs: -1})
	if err != nil {
		t.Fatal(err)
	}
	got, err := collect(t, g)
	if err != nil || g.Finish() != FinishStop {
		t.Fatalf("%v, finish %q", err, g.Finish())
	}
	if d := cmp.Diff(full[:at], got); d != "" {
		t.Error(d)
	}
	if st := g.Stats(); st.Generated != at+1 {
		t.Errorf("generated %d, want %d", st.Generated, at+1)
	}
	// Without a bound the answer fills the context.
	g, err = e.Start(t.Context(), request(p, 0))
	if err != nil {
		t.Fatal(err)
	}
	if got, err = collect(t, g); err != nil || len(got) != 54 || g.Finish() != FinishLength {
		t.Fatalf("%d tokens, %v, finish %q", len(got), err, g.Finish())
	}
	var over *ContextError
	if _, err := e.Start(t.Context(), request(prompt(64, 1), 1)); !errors.As(err, &over) || over.Prompt != 64 || over.Context != 64 {
		t.Errorf("prompt as long as the context: %v", err)
	}
	for _, bad := range [][]int32{nil, {vocab}, {-1}} {
		if _, err := e.Start(t.Context(), request(bad, 1)); err == nil {
			t.Errorf("prompt %v: no error", bad)
		}
	}
}

func TestLogProbs(t *testing.T) {
	e := start(t, nil, newRolling(true, true))
	g, err := e.Start(t.Context(), Request{Prompt: []int32{5}, MaxTokens: 1, LogProbs: 2})
	if err != nil {
		t.Fatal(err)
	}
	token, err := g.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := 10 - math.Log(math.Exp(10)+vocab-1)
	if math.Abs(float64(token.LogProb)-want) > 1e-5 || len(token.Top) != 2 || token.Top[0].ID != token.ID {
		t.Errorf("token %+v, want log-probability %v", token, want)
	}
}

func TestCancel(t *testing.T) {
	m := newRolling(true, true)
	m.gate = make(chan struct{})
	e := start(t, func(c *Config) { c.Sequences = 1; c.Queue = 2 }, m)
	ctx, cancel := context.WithCancel(t.Context())
	first, err := e.Start(ctx, request(prompt(40, 1), 100))
	if err != nil {
		t.Fatal(err)
	}
	queued, err := e.Start(t.Context(), request(prompt(9, 2), 3))
	if err != nil {
		t.Fatal(err)
	}
	third, err := e.Start(t.Context(), request(prompt(9, 3), 3))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Start(t.Context(), request(prompt(9, 4), 3)); !errors.Is(err, ErrBusy) {
		t.Fatalf("a full queue: %v", err)
	}
	more := request(prompt(9, 5), 3)
	more.Follows = true
	fourth, err := e.Start(t.Context(), more)
	if err != nil {
		t.Fatalf("a full queue, another answer to a queued request: %v", err)
	}
	fourth.Close()
	m.gate <- struct{}{} // one chunk of the first prompt
	queued.Close()
	cancel() // the first client goes away in prefill
	for !first.closed() {
		time.Sleep(time.Millisecond)
	}
	m.gate <- struct{}{}
	if got, err := collect(t, first); !errors.Is(err, context.Canceled) || len(got) != 0 {
		t.Fatalf("cancelled in prefill: %v, %v", got, err)
	}
	if _, err := collect(t, queued); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled in the queue: %v", err)
	}
	close(m.gate)
	got, err := collect(t, third)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(expect(prompt(9, 3), 3), got); d != "" {
		t.Error(d)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.windows) > 2+3 {
		t.Errorf("windows %v: an abandoned request was executed", m.windows)
	}
}

func TestProgress(t *testing.T) {
	m := newRolling(true, true)
	m.gate = make(chan struct{})
	e := start(t, nil, m)
	g, err := e.Start(t.Context(), request(prompt(40, 1), 2))
	if err != nil {
		t.Fatal(err)
	}
	until := func(want Progress) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			p := g.Progress()
			took := p.Prefill
			if p.Prefill = 0; p == want {
				if took <= 0 {
					t.Errorf("%+v took %v", p, took)
				}
				return
			}
			if time.Now().After(end) {
				t.Fatalf("progress %+v, want %+v", p, want)
			}
		}
	}
	until(Progress{Phase: PhasePrefill, Prompt: 40})
	m.gate <- struct{}{}
	until(Progress{Phase: PhasePrefill, Read: 16, Prompt: 40})
	m.gate <- struct{}{}
	until(Progress{Phase: PhasePrefill, Read: 32, Prompt: 40})
	m.gate <- struct{}{}
	until(Progress{Phase: PhaseDecode, Read: 40, Prompt: 40})
	close(m.gate)
	if _, err := collect(t, g); err != nil {
		t.Fatal(err)
	}
	until(Progress{Phase: PhaseDone, Read: 40, Prompt: 40})
	if p, s := g.Progress(), g.Stats(); p.Prefill != s.Prefill {
		t.Errorf("prefill took %v by the progress and %v by the measurements", p.Prefill, s.Prefill)
	}
}

func TestNonFiniteEndsOnlyItsRequest(t *testing.T) {
	m := newRolling(true, true)
	m.bad[30] = core.RowFlags{State: true, Layer: 1}
	e := start(t, nil, m)
	long, err := e.Start(t.Context(), request(prompt(40, 1), 5))
	if err != nil {
		t.Fatal(err)
	}
	short, err := e.Start(t.Context(), request(prompt(5, 1), 5))
	if err != nil {
		t.Fatal(err)
	}
	var bad *NonFiniteError
	if _, err := collect(t, long); !errors.As(err, &bad) || bad.Position != 30 || bad.Layer != 1 {
		t.Errorf("got %v", err)
	}
	if got, err := collect(t, short); err != nil || !slices.Equal(got, expect(prompt(5, 1), 5)) {
		t.Errorf("neighbour: %v, %v", got, err)
	}
}

func TestBackendGone(t *testing.T) {
	m := newRolling(true, true)
	m.fail = fmt.Errorf("killed: %w", core.ErrBackendGone)
	e := start(t, nil, m)
	g, err := e.Start(t.Context(), request(prompt(5, 1), 5))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t, g); !errors.Is(err, core.ErrBackendGone) {
		t.Fatalf("got %v", err)
	}
	if _, err := e.Start(t.Context(), request(prompt(5, 1), 5)); !errors.Is(err, core.ErrBackendGone) || !errors.Is(e.Down(), core.ErrBackendGone) {
		t.Fatalf("a later request: %v", err)
	}
}

func TestDrain(t *testing.T) {
	e := start(t, nil, newRolling(true, true))
	g, err := e.Start(t.Context(), request(prompt(5, 1), 50))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := collect(t, g); err != nil || len(got) != 50 {
		t.Fatalf("%d tokens, %v", len(got), err)
	}
	if _, err := e.Start(t.Context(), request(prompt(5, 1), 5)); !errors.Is(err, ErrClosed) {
		t.Fatalf("after drain: %v", err)
	}
}

// TestChurn starts and cancels at random moments; the checks are those of
// start's clean-up.
func TestChurn(t *testing.T) {
	e := start(t, func(c *Config) { c.Queue = 200; c.Sequences = 3 }, newRolling(true, false), newRolling(false, true))
	var wg sync.WaitGroup
	for i := range 200 {
		p := prompt(1+i*7%90, i+1)
		g, err := e.Start(t.Context(), request(p, 40))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if i%3 == 0 {
				time.Sleep(time.Duration(i*37%500) * time.Microsecond)
				g.Close()
			}
			got, err := collect(t, g)
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if !slices.Equal(got, expect(p, 40)[:len(got)]) {
				t.Errorf("request %d: wrong tokens", i)
			}
			if i%3 != 0 && len(got) != 40 {
				t.Errorf("request %d: %d tokens, %v", i, len(got), err)
			}
		})
	}
	wg.Wait()
}
