// Package parity compares what the engine computes with recorded reference
// outputs: the distributions and greedy chains of other implementations of the
// same mathematics (testdata/fixtures). Its tests run models end to end from the
// file: core/model reads it, sdk/arch builds the graph, sdk/stage executes it on
// a device.
package parity

import (
	"context"
	"math"
	"testing"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/ops/reference"
	"github.com/strata-engine/strata/sdk/stage"
	"github.com/strata-engine/strata/testdata"
)

// Rows is the number of rows of the longest window of a Runner.
const Rows = 64

// Runner runs one sequence at a time on a backend that holds a whole model.
type Runner struct {
	t       testing.TB
	backend sdk.BackendWithDraft
	hyper   *core.Hyper
	// sequence and executed are the open sequence.
	sequence uint64
	executed int
}

// Reference returns a backend on the float64 device.
func Reference() sdk.BackendWithDraft {
	return stage.New(stage.Program{
		Open: func(context.Context, *sdk.LoadRequest) (ops.Device, error) { return reference.New(), nil },
	})
}

// Open loads a model by its base name, with an MTP sidecar unless that name is
// empty. The test is skipped where a file is missing.
func Open(t testing.TB, backend sdk.BackendWithDraft, name, draft string) *Runner {
	t.Helper()
	var options []model.Option
	if draft != "" {
		options = append(options, model.WithDraft(testdata.Model(t, draft)))
	}
	file, err := model.Open(testdata.Model(t, name), options...)
	if err != nil {
		t.Fatal(err)
	}
	h := &file.Spec.Hyper
	err = backend.Load(t.Context(), sdk.LoadRequest{
		Model: remote.ModelSpec(file.Spec),
		Last:  h.Layers, Embed: true, Head: true, Draft: draft != "",
		Context: h.Context, MaxSequences: 1, MaxRows: Rows, MaxLogitRows: Rows,
		Progress: func(string, int64, int64) {},
	}, &sdk.LoadResponse{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.Unload(context.Background(), sdk.UnloadRequest{}, &sdk.UnloadResponse{}); err != nil {
			t.Error(err)
		}
	})
	return &Runner{t: t, backend: backend, hyper: h}
}

// Start begins a new sequence.
func (r *Runner) Start() {
	r.t.Helper()
	ctx := r.t.Context()
	if err := r.backend.CloseSequence(ctx, sdk.CloseSequenceRequest{Sequence: r.sequence}, &sdk.CloseSequenceResponse{}); err != nil {
		r.t.Fatal(err)
	}
	r.sequence++
	r.executed = 0
	if err := r.backend.OpenSequence(ctx, sdk.OpenSequenceRequest{Sequence: r.sequence}, &sdk.OpenSequenceResponse{}); err != nil {
		r.t.Fatal(err)
	}
}

// Run executes tokens and calls each, where it is not nil, with every token's
// index and logits. It fails the test where a row is not finite.
func (r *Runner) Run(tokens []int32, each func(i int, logits []float32)) {
	r.t.Helper()
	for at := 0; at < len(tokens); at += Rows {
		window := tokens[at:min(at+Rows, len(tokens))]
		req := &sdk.StepRequest{Segments: []sdk.Segment{{Sequence: r.sequence, Pos: r.executed, Tokens: window}}}
		resp := &sdk.StepResponse{Rows: make([]sdk.RowFlags, len(window))}
		if each != nil {
			for i := range window {
				req.Segments[0].Logits = append(req.Segments[0].Logits, int32(i))
			}
			resp.Logits = make([]float32, len(window)*r.hyper.Vocab)
		}
		if err := r.backend.Step(r.t.Context(), req, resp); err != nil {
			r.t.Fatal(err)
		}
		for i, f := range resp.Rows {
			if f.Residual || f.Logits || f.State {
				r.t.Fatalf("position %d is not finite: %+v", r.executed+i, f)
			}
		}
		r.executed += len(window)
		if each != nil {
			for i := range window {
				each(at+i, resp.Logits[i*r.hyper.Vocab:(i+1)*r.hyper.Vocab])
			}
		}
	}
}

// Draft returns proposals for the tokens after next.
func (r *Runner) Draft(next int32, count int) (tokens []int32, logProbs []float32) {
	r.t.Helper()
	var resp sdk.DraftResponse
	if err := r.backend.Draft(r.t.Context(), &sdk.DraftRequest{Sequence: r.sequence, Next: next, Count: count}, &resp); err != nil {
		r.t.Fatal(err)
	}
	return resp.Tokens, resp.LogProbs
}

// LogSumExp is log Σ exp(logits).
func LogSumExp(logits []float32) float64 {
	top := float64(logits[Argmax(logits)])
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	return top + math.Log(sum)
}

// Argmax is the index of the largest logit, the lower one of equals.
func Argmax(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}
