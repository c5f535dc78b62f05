package parity

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/testdata"
)

// tolerance bounds the difference of logarithms from the recorded ones. Where
// router or selection margins are tiny, two correct engines may choose other
// experts or blocks and differ by far more; the float64 device never does, so
// the tests grant no exceptions.
const tolerance = 1e-3

// names are the prompts to run, sorted. With -short, for race detectors and
// emulated machines, they are one of plain text, one that resets the n-gram
// context, and those that the caller cannot do without.
func names[V any](prompts map[string]V, needed ...string) []string {
	if testing.Short() {
		return append([]string{"endoftext_inside", "plain_bible"}, needed...)
	}
	return slices.Sorted(maps.Keys(prompts))
}

// distribution is a recorded one: the logarithm of the sum of the exponentials
// of the logits, and the likeliest tokens with their log-probabilities.
type distribution struct {
	LSE float64
	Top [][2]float64
}

// deviation is the largest difference of logits from the recorded distribution.
func (d *distribution) deviation(logits []float32) float64 {
	lse := LogSumExp(logits)
	return max(math.Abs(lse-d.LSE), topDeviation(d.Top, logits, lse))
}

func topDeviation(top [][2]float64, logits []float32, lse float64) float64 {
	worst := 0.0
	for _, t := range top {
		worst = max(worst, math.Abs(float64(logits[int(t[0])])-lse-t[1]))
	}
	return worst
}

// compare runs tokens and compares the distribution after every one.
func compare(t *testing.T, r *Runner, tokens []int32, want []distribution) {
	t.Helper()
	if len(want) != len(tokens) {
		t.Fatalf("%d distributions for %d tokens", len(want), len(tokens))
	}
	worst := 0.0
	r.Start()
	r.Run(tokens, func(i int, logits []float32) {
		d := want[i].deviation(logits)
		if !(d <= tolerance) {
			t.Errorf("position %d deviates by %g", i, d)
		}
		worst = max(worst, d)
	})
	t.Logf("largest deviation %.2g over %d positions", worst, len(tokens))
}

// chain executes a prompt and then greedy tokens.
func chain(r *Runner, prompt []int32, count int) []int32 {
	r.Start()
	var next int32
	keep := func(_ int, logits []float32) { next = Argmax(logits) }
	r.Run(prompt[:len(prompt)-1], nil)
	r.Run(prompt[len(prompt)-1:], keep)
	out := []int32{next}
	for len(out) < count {
		r.Run([]int32{next}, keep)
		out = append(out, next)
	}
	return out
}

func TestPebbleDistributions(t *testing.T) {
	var want struct {
		Prompts map[string]struct {
			IDs, Forced []int32
			Positions   []distribution
		}
	}
	testdata.Load(t, "hf_fp32.json.gz", &want)
	r := Open(t, Reference(), "pebble-bf16.gguf", "")
	for _, name := range names(want.Prompts, "text_300") {
		t.Run(name, func(t *testing.T) {
			// text_300 is long enough for sparse attention.
			p := want.Prompts[name]
			compare(t, r, slices.Concat(p.IDs, p.Forced), p.Positions)
		})
	}
}

func TestPebbleGreedyChains(t *testing.T) {
	var want struct {
		Prompts map[string]struct {
			IDs, Greedy []int32
		}
	}
	testdata.Load(t, "numpy64_greedy_and_margins.json.gz", &want)
	r := Open(t, Reference(), "pebble-bf16.gguf", "")
	for _, name := range names(want.Prompts) {
		t.Run(name, func(t *testing.T) {
			p := want.Prompts[name]
			if len(p.Greedy) != 64 {
				t.Fatalf("a recorded chain of %d tokens", len(p.Greedy))
			}
			if diff := cmp.Diff(p.Greedy, chain(r, p.IDs, len(p.Greedy))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSiblings(t *testing.T) {
	var want map[string]struct {
		HF map[string]struct {
			IDs, Greedy []int32
			Positions   []distribution
		} `json:"hf_fp32"`
	}
	testdata.Load(t, "tiny_siblings.json.gz", &want)
	for _, arch := range []string{"qwen35moe", "qwen3next", "qwen3moe"} {
		t.Run(arch, func(t *testing.T) {
			r := Open(t, Reference(), "tiny-"+arch+"-bf16.gguf", "")
			prompts := want[arch].HF
			if len(prompts) < 4 {
				t.Fatalf("%d prompts are recorded", len(prompts))
			}
			for _, name := range slices.Sorted(maps.Keys(prompts)) {
				if testing.Short() && len(prompts[name].IDs) > 200 {
					continue
				}
				t.Run(name, func(t *testing.T) {
					p := prompts[name]
					compare(t, r, p.IDs, p.Positions)
					if diff := cmp.Diff(p.Greedy, chain(r, p.IDs, len(p.Greedy))); diff != "" {
						t.Errorf("greedy chain: %s", diff)
					}
				})
			}
		})
	}
}
