package parity

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/backends/cpu/engine"
	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/stage"
	"github.com/strata-engine/strata/testdata"
)

// pipeline is a model on CPU backends, one stage after the other.
type pipeline struct {
	t      testing.TB
	hyper  *core.Hyper
	stages []*stage.Backend
	// at are the executed tokens of open sequences.
	at map[uint64]int
}

// openPipeline cuts a model behind the given layers.
func openPipeline(t testing.TB, file string, threads int, cuts ...int) *pipeline {
	t.Helper()
	m, err := model.Open(testdata.Model(t, file))
	if err != nil {
		t.Fatal(err)
	}
	p := &pipeline{t: t, hyper: &m.Spec.Hyper, at: map[uint64]int{}}
	spec, first := remote.ModelSpec(m.Spec), 0
	for _, last := range append(cuts, p.hyper.Layers) {
		b := stage.New(engine.Program("test"))
		err := b.Load(t.Context(), sdk.LoadRequest{
			Model: spec, First: first, Last: last,
			Embed: first == 0, Head: last == p.hyper.Layers, Draft: last == p.hyper.Layers && p.hyper.DraftLayers > 0,
			Context: 512, MaxSequences: 4, MaxRows: 512, MaxLogitRows: 512,
			Options:  map[string]string{"threads": strconv.Itoa(threads), "state_bytes": "100000000"},
			Progress: func(string, int64, int64) {},
		}, &sdk.LoadResponse{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Unload(context.Background(), sdk.UnloadRequest{}, &sdk.UnloadResponse{}); err != nil {
				t.Error(err)
			}
		})
		p.stages = append(p.stages, b)
		first = last
	}
	return p
}

// run is a part of a window.
type run struct {
	sequence uint64
	tokens   []int32
}

// step executes a window and returns the logits of its rows.
func (p *pipeline) step(runs ...run) [][]float32 {
	p.t.Helper()
	req, rows := &sdk.StepRequest{}, 0
	for _, r := range runs {
		if _, ok := p.at[r.sequence]; !ok {
			p.at[r.sequence] = 0
			for _, b := range p.stages {
				if err := b.OpenSequence(p.t.Context(), sdk.OpenSequenceRequest{Sequence: r.sequence}, &sdk.OpenSequenceResponse{}); err != nil {
					p.t.Fatal(err)
				}
			}
		}
		seg := sdk.Segment{Sequence: r.sequence, Pos: p.at[r.sequence], Tokens: r.tokens}
		for i := range r.tokens {
			seg.Logits = append(seg.Logits, int32(i))
		}
		p.at[r.sequence] += len(r.tokens)
		req.Segments = append(req.Segments, seg)
		rows += len(r.tokens)
	}
	var logits []float32
	for i, b := range p.stages {
		resp := &sdk.StepResponse{Rows: make([]sdk.RowFlags, rows)}
		part := *req
		if i < len(p.stages)-1 {
			resp.Output = make([]float32, rows*p.hyper.Width*max(p.hyper.Streams, 1))
			part.Segments = nil
			for _, s := range req.Segments {
				s.Logits = nil
				part.Segments = append(part.Segments, s)
			}
		} else {
			resp.Logits = make([]float32, rows*p.hyper.Vocab)
		}
		if err := b.Step(p.t.Context(), &part, resp); err != nil {
			p.t.Fatal(err)
		}
		for row, f := range resp.Rows {
			if f.Residual || f.Logits || f.State {
				p.t.Fatalf("row %d is not finite: %+v", row, f)
			}
		}
		req.Input, logits = resp.Output, resp.Logits
	}
	out := make([][]float32, rows)
	for i := range out {
		out[i] = logits[i*p.hyper.Vocab : (i+1)*p.hyper.Vocab]
	}
	return out
}

// chunked executes tokens of a sequence in windows of a size.
func (p *pipeline) chunked(sequence uint64, tokens []int32, size int) (logits [][]float32) {
	p.t.Helper()
	for len(tokens) > 0 {
		n := min(size, len(tokens))
		logits = append(logits, p.step(run{sequence, tokens[:n]})...)
		tokens = tokens[n:]
	}
	return logits
}

// guess is what the MTP block proposes after a sequence.
func (p *pipeline) guess(sequence uint64, next int32) *sdk.DraftResponse {
	p.t.Helper()
	resp := &sdk.DraftResponse{}
	if p.hyper.DraftLayers == 0 {
		return resp
	}
	err := p.stages[len(p.stages)-1].Draft(p.t.Context(), &sdk.DraftRequest{Sequence: sequence, Next: next, Count: 3}, resp)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp
}

// sameLogits compares bits.
func sameLogits(t *testing.T, got, want [][]float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
	for i := range want {
		for j := range want[i] {
			if math.Float32bits(got[i][j]) != math.Float32bits(want[i][j]) {
				t.Fatalf("row %d, logit %d: %g, want %g", i, j, got[i][j], want[i][j])
			}
		}
	}
}

// TestCPUIsInvariant: identical bits of all logits and drafts whatever the
// windows, the company, the number of threads, the split into stages, and
// whether the state went out and in on the way.
func TestCPUIsInvariant(t *testing.T) {
	var prompts map[string]struct{ IDs []int32 }
	testdata.Load(t, "prompts.json.gz", &prompts)
	// Long enough for sparse attention; the others keep it company.
	tokens, other, third := prompts["text_300"].IDs, prompts["unicode"].IDs, prompts["endoftext_inside"].IDs
	if testing.Short() {
		tokens, other, third = tokens[:50], other[:30], third[:10]
	}
	for _, file := range []string{"pebble-q4-mtp.gguf", "tiny-qwen35moe-q8_0.gguf", "tiny-qwen3next-q8_0.gguf", "tiny-qwen3moe-q8_0.gguf"} {
		if testing.Short() && file == "pebble-q4-mtp.gguf" {
			continue // the largest, and what its layers do is tested in backends/cpu
		}
		t.Run(file, func(t *testing.T) {
			next := int32(1000)
			p := openPipeline(t, file, 1)
			want := p.chunked(1, tokens, len(tokens))
			draft := p.guess(1, next)
			check := func(name string, p *pipeline, compute func(p *pipeline) [][]float32) {
				t.Run(name, func(t *testing.T) {
					p.t = t
					sameLogits(t, compute(p), want)
					if diff := cmp.Diff(draft, p.guess(1, next)); diff != "" {
						t.Errorf("draft: %s", diff)
					}
				})
			}
			sizes, threads := []int{1, 7, 64, 257}, []int{2, 3, 4, 5}
			if testing.Short() {
				sizes, threads = []int{7}, []int{3}
			}
			for i, size := range sizes {
				check(fmt.Sprintf("windows of %d", size), openPipeline(t, file, 1+i), func(p *pipeline) [][]float32 {
					return p.chunked(1, tokens, size)
				})
			}
			for _, n := range threads {
				check(fmt.Sprintf("%d threads", n), openPipeline(t, file, n), func(p *pipeline) [][]float32 {
					return p.chunked(1, tokens, len(tokens))
				})
			}
			check("company", openPipeline(t, file, 2), func(p *pipeline) (logits [][]float32) {
				rest, a, b := tokens, other, third
				for len(rest) > 0 {
					n, i, j := min(41, len(rest)), min(13, len(a)), min(3, len(b))
					runs := []run{{2, a[:i]}, {1, rest[:n]}, {3, b[:j]}}
					if j == 0 {
						runs = runs[:2]
					}
					if i == 0 {
						runs = runs[1:]
					}
					logits = append(logits, p.step(runs...)[i:i+n]...)
					rest, a, b = rest[n:], a[i:], b[j:]
				}
				return logits
			})
			for cut := 1; cut < p.hyper.Layers; cut += 2 {
				check(fmt.Sprintf("cut behind layer %d", cut-1), openPipeline(t, file, 2, cut), func(p *pipeline) [][]float32 {
					return p.chunked(1, tokens, 100)
				})
				if testing.Short() {
					break
				}
			}
			check("state out and in", openPipeline(t, file, 2, 2), func(p *pipeline) [][]float32 {
				half := len(tokens) - 20
				logits := p.chunked(7, tokens[:half], 150)
				for _, b := range p.stages {
					resp := &sdk.CheckpointResponse{}
					if err := b.Checkpoint(p.t.Context(), sdk.CheckpointRequest{Sequence: 7}, resp); err != nil {
						p.t.Fatal(err)
					}
					if err := b.Restore(p.t.Context(), sdk.RestoreRequest{Sequence: 1, State: resp.State}, &sdk.RestoreResponse{}); err != nil {
						p.t.Fatal(err)
					}
				}
				p.at[1] = half
				return append(logits, p.chunked(1, tokens[half:], 1)...)
			})
		})
	}
}
