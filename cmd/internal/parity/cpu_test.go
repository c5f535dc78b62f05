package parity

import (
	"math"
	"slices"
	"testing"

	"github.com/strata-engine/strata/backends/cpu/engine"
	"github.com/strata-engine/strata/sdk/stage"
	"github.com/strata-engine/strata/testdata"
)

// The CPU backend rounds activations to 16 bits, keys and values to float16, and
// computes in float32. Where the router's margin is tiny it then chooses another
// expert than the float64 device, which changes logits by far more than the
// rounding did; hence the rule is about the likeliest token and the mean
// divergence.
const (
	// margin is the difference of the two largest logits from which on the
	// likeliest token must be the same.
	margin = 0.1
	// meanDivergence bounds the mean Kullback-Leibler divergence over all
	// positions.
	meanDivergence = 5e-3
)

// divergence is KL(want ‖ got) of the distributions of logits.
func divergence(want, got []float32) float64 {
	a, b, sum := LogSumExp(want), LogSumExp(got), 0.0
	for i, v := range want {
		p := float64(v) - a
		sum += math.Exp(p) * (p - float64(got[i]) + b)
	}
	return sum
}

// TestCPUFollowsTheFloatPath runs the recorded prompts, with their recorded
// continuations, through the CPU backend and the float64 device, on the same
// file.
func TestCPUFollowsTheFloatPath(t *testing.T) {
	var recorded struct {
		Prompts map[string]struct{ IDs, Forced []int32 }
	}
	testdata.Load(t, "hf_fp32.json.gz", &recorded)
	pebble := map[string][]int32{}
	for name := range recorded.Prompts {
		if testing.Short() && name != "endoftext_inside" {
			continue
		}
		pebble[name] = slices.Concat(recorded.Prompts[name].IDs, recorded.Prompts[name].Forced)
	}
	var siblings map[string]struct {
		HF map[string]struct{ IDs []int32 } `json:"hf_fp32"`
	}
	testdata.Load(t, "tiny_siblings.json.gz", &siblings)
	sibling := func(arch string) map[string][]int32 {
		out := map[string][]int32{}
		for name, p := range siblings[arch].HF {
			if !testing.Short() || len(p.IDs) <= 100 {
				out[name] = p.IDs
			}
		}
		return out
	}
	for _, tc := range []struct {
		file    string
		prompts map[string][]int32
	}{
		{"pebble-q4-mtp.gguf", pebble},
		{"pebble-q8_0.gguf", pebble},
		{"tiny-qwen35moe-q8_0.gguf", sibling("qwen35moe")},
		{"tiny-qwen3next-q8_0.gguf", sibling("qwen3next")},
		{"tiny-qwen3moe-q8_0.gguf", sibling("qwen3moe")},
	} {
		if testing.Short() && tc.file == "pebble-q8_0.gguf" {
			continue
		}
		t.Run(tc.file, func(t *testing.T) {
			cpu, ref := Open(t, stage.New(engine.Program("test")), tc.file, ""), Open(t, Reference(), tc.file, "")
			if len(tc.prompts) == 0 {
				t.Fatal("no prompts")
			}
			positions, changed, sum, worst := 0, 0, 0.0, 0.0
			for name, tokens := range tc.prompts {
				cpu.Start()
				ref.Start()
				for at := 0; at < len(tokens); at += Rows {
					window := tokens[at:min(at+Rows, len(tokens))]
					want := make([][]float32, len(window))
					ref.Run(window, func(i int, logits []float32) { want[i] = slices.Clone(logits) })
					cpu.Run(window, func(i int, logits []float32) {
						kl := divergence(want[i], logits)
						positions++
						sum += kl
						worst = max(worst, kl)
						a, b := Argmax(want[i]), Argmax(logits)
						if a == b {
							return
						}
						changed++
						top := slices.Clone(want[i])
						slices.Sort(top)
						if m := top[len(top)-1] - top[len(top)-2]; m >= margin {
							t.Errorf("%s, position %d: token %d, want %d by a margin of %g", name, at+i, b, a, m)
						}
					})
				}
			}
			mean := sum / float64(positions)
			if !(mean <= meanDivergence) {
				t.Errorf("mean divergence %g", mean)
			}
			t.Logf("%d positions: likeliest token differs at %d, divergence %.2g in the mean, %.2g at most", positions, changed, mean, worst)
		})
	}
}
