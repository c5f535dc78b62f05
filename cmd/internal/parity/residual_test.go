package parity

import (
	"math"
	"testing"

	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/sdk/arch"
	"github.com/strata-engine/strata/sdk/mapping"
	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/ops/reference"
	"github.com/strata-engine/strata/testdata"
)

// TestResidualNorms cuts the model between all layers and compares what crosses.
func TestResidualNorms(t *testing.T) {
	var want map[string]struct {
		// ResidualL2 has, per layer boundary, the norm at every position or at the
		// last one alone.
		ResidualL2 [][]float64 `json:"residual_l2"`
	}
	testdata.Load(t, "residual_norms.json.gz", &want)
	var prompts map[string]struct{ IDs []int32 }
	testdata.Load(t, "prompts.json.gz", &prompts)
	file, err := model.Open(testdata.Model(t, "pebble-bf16.gguf"))
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
	// The first stage is the embedding alone, then comes one stage per layer.
	var stages []*arch.Graph
	for i := range file.Spec.Hyper.Layers + 1 {
		g, err := arch.Build(t.Context(), spec, files, dev, arch.StageConfig{First: max(i-1, 0), Last: i, Embed: i == 0, MaxRows: 512}, nil)
		if err != nil {
			t.Fatal(err)
		}
		stages = append(stages, g)
	}
	for name, p := range want {
		if testing.Short() && len(prompts[name].IDs) > 100 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			tokens := prompts[name].IDs
			var rows []float32
			for i, g := range stages {
				st, err := dev.NewState(g.Layout())
				if err != nil {
					t.Fatal(err)
				}
				if err := dev.Reserve(st, len(tokens)); err != nil {
					t.Fatal(err)
				}
				out := make([]float32, len(tokens)*g.ResidualWidth())
				w := &ops.Window{Segments: []ops.Segment{{State: st, Tokens: tokens}}, Rows: len(tokens)}
				if err := g.Run(t.Context(), w, rows, nil, out, nil); err != nil {
					t.Fatal(err)
				}
				rows = out
				norms := p.ResidualL2[i]
				// A single norm is that of the last position.
				first := len(tokens) - len(norms)
				for j, n := range norms {
					if got := norm(rows[(first+j)*g.ResidualWidth() : (first+j+1)*g.ResidualWidth()]); math.Abs(got-n) > tolerance {
						t.Errorf("boundary %d, position %d: norm %g, want %g", i, first+j, got, n)
					}
				}
			}
		})
	}
}

func norm(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}
