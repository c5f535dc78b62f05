package parity

import (
	"math"
	"slices"
	"testing"

	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/sdk/arch"
	"github.com/strata-engine/strata/sdk/mapping"
	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/ops/reference"
	"github.com/strata-engine/strata/testdata"
)

// drafts are recorded guesses of the MTP block with its sidecar pebble-mtp-bf16.
type drafts struct {
	Prompts map[string]struct {
		// DraftTop5 has, per position p of the prompt and the recorded greedy
		// tokens, the likeliest tokens p+2 given the trunk's residual of p and token
		// p+1.
		DraftTop5 [][][2]float64 `json:"draft_top5"`
		// NextToken follows the prompt, Chained are three drafts after it.
		NextToken int32 `json:"next_token"`
		Chained   [][2]float64
	}
}

// TestDraftChains drafts after prompts that were executed in long windows.
func TestDraftChains(t *testing.T) {
	var want drafts
	testdata.Load(t, "mtp_reference.json.gz", &want)
	var prompts map[string]struct{ IDs []int32 }
	testdata.Load(t, "prompts.json.gz", &prompts)
	r := Open(t, Reference(), "pebble-bf16.gguf", "pebble-mtp-bf16.gguf")
	for _, name := range names(want.Prompts) {
		t.Run(name, func(t *testing.T) {
			p := want.Prompts[name]
			r.Start()
			r.Run(prompts[name].IDs, nil)
			// Twice: a draft leaves nothing behind that the next one sees.
			for range 2 {
				tokens, logProbs := r.Draft(p.NextToken, len(p.Chained))
				if len(tokens) != len(p.Chained) {
					t.Fatalf("%d drafts, want %d", len(tokens), len(p.Chained))
				}
				for i, c := range p.Chained {
					if tokens[i] != int32(c[0]) || math.Abs(float64(logProbs[i])-c[1]) > tolerance {
						t.Errorf("draft %d is %d with %g, want %d with %g", i, tokens[i], logProbs[i], int32(c[0]), c[1])
					}
				}
			}
		})
	}
}

// TestDraftDistributions drafts after every token, executed one at a time.
func TestDraftDistributions(t *testing.T) {
	var want drafts
	testdata.Load(t, "mtp_reference.json.gz", &want)
	var forced struct {
		Prompts map[string]struct{ IDs, Forced []int32 }
	}
	testdata.Load(t, "hf_fp32.json.gz", &forced)
	file, err := model.Open(testdata.Model(t, "pebble-bf16.gguf"), model.WithDraft(testdata.Model(t, "pebble-mtp-bf16.gguf")))
	if err != nil {
		t.Fatal(err)
	}
	spec := remote.ModelSpec(file.Spec)
	files, err := mapping.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	dev := reference.New()
	g, err := arch.Build(t.Context(), spec, files, dev, arch.StageConfig{
		Last: file.Spec.Hyper.Layers, Embed: true, Head: true, Draft: true, MaxRows: 1,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	logits := make([]float32, g.Vocab())
	for _, name := range names(want.Prompts) {
		t.Run(name, func(t *testing.T) {
			top, tokens := want.Prompts[name].DraftTop5, slices.Concat(forced.Prompts[name].IDs, forced.Prompts[name].Forced)
			if len(top) != len(tokens)-1 {
				t.Fatalf("%d distributions for %d tokens", len(top), len(tokens))
			}
			st, err := dev.NewState(g.Layout())
			if err != nil {
				t.Fatal(err)
			}
			if err := dev.Reserve(st, len(tokens)); err != nil {
				t.Fatal(err)
			}
			worst := 0.0
			for p := range top {
				w := &ops.Window{Segments: []ops.Segment{{State: st, Pos: p, Tokens: tokens[p : p+1]}}, Rows: 1}
				if err := g.Run(t.Context(), w, nil, nil, nil, nil); err != nil {
					t.Fatal(err)
				}
				finite, err := g.DraftRow(t.Context(), st, p, tokens[p+1], false, logits)
				if err != nil || !finite {
					t.Fatalf("position %d: finite %v, error %v", p, finite, err)
				}
				d := topDeviation(top[p], logits, LogSumExp(logits))
				if !(d <= tolerance) {
					t.Errorf("position %d deviates by %g", p, d)
				}
				worst = max(worst, d)
			}
			t.Logf("largest deviation %.2g over %d positions", worst, len(top))
		})
	}
}
