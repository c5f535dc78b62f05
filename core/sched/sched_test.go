package sched

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestNext(t *testing.T) {
	tests := []struct {
		name    string
		pending []int
		limits  Limits
		want    []Pick
	}{
		{"nothing", nil, Limits{8, 4}, []Pick{}},
		{"idle", []int{0, 0}, Limits{8, 4}, []Pick{}},
		{"one decodes", []int{1}, Limits{8, 4}, []Pick{{0, 1}}},
		{"one prompt is cut", []int{10}, Limits{8, 4}, []Pick{{0, 4}}},
		{"decode before prompt", []int{10, 1}, Limits{8, 4}, []Pick{{1, 1}, {0, 4}}},
		{"prompts share the chunk", []int{3, 3, 3}, Limits{8, 4}, []Pick{{0, 3}, {1, 1}}},
		{"rows bound decodes", []int{1, 1, 1}, Limits{2, 4}, []Pick{{0, 1}, {1, 1}}},
		{"rows bound the prompt", []int{1, 1, 9}, Limits{3, 4}, []Pick{{0, 1}, {1, 1}, {2, 1}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var sequences []Sequence
			for _, p := range tt.pending {
				sequences = append(sequences, Sequence{Pending: p})
			}
			if d := cmp.Diff(tt.want, Next(sequences, tt.limits, []Pick{})); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestNextAlwaysAdvances: whatever is pending, the bounds hold, nothing is
// picked twice, every decoding sequence advances while rows suffice, and the
// oldest prompt advances while chunk and rows suffice.
func TestNextAlwaysAdvances(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pending := rapid.SliceOfN(rapid.IntRange(0, 20), 0, 12).Draw(t, "pending")
		limits := Limits{Rows: rapid.IntRange(1, 16).Draw(t, "rows"), Chunk: rapid.IntRange(1, 16).Draw(t, "chunk")}
		var sequences []Sequence
		decoding, oldest := 0, -1
		for i, p := range pending {
			sequences = append(sequences, Sequence{Pending: p})
			if p == 1 {
				decoding++
			}
			if p > 1 && oldest < 0 {
				oldest = i
			}
		}
		rows, prompts, picked := 0, 0, map[int]int{}
		for _, p := range Next(sequences, limits, nil) {
			if p.Rows < 1 || p.Rows > pending[p.Index] {
				t.Fatalf("pick %+v of %d pending", p, pending[p.Index])
			}
			if picked[p.Index] != 0 {
				t.Fatalf("sequence %d picked twice", p.Index)
			}
			picked[p.Index] = p.Rows
			rows += p.Rows
			if pending[p.Index] > 1 {
				prompts += p.Rows
			}
		}
		if rows > limits.Rows || prompts > limits.Chunk {
			t.Fatalf("%d rows, %d of prompts beyond %+v", rows, prompts, limits)
		}
		for i, p := range pending {
			if p == 1 && decoding <= limits.Rows && picked[i] != 1 {
				t.Fatalf("sequence %d decodes and was left out", i)
			}
		}
		if oldest >= 0 && decoding < limits.Rows && picked[oldest] == 0 {
			t.Fatalf("the oldest prompt was left out")
		}
	})
}
