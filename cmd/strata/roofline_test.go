package main

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/testdata"
)

func TestTouched(t *testing.T) {
	spec := &core.ModelSpec{
		Hyper: core.Hyper{
			Layers: 2, DraftLayers: 1, Vocab: 1000, Experts: 32, ExpertsUsed: 4,
			PLE: &core.PLE{Layers: []int{0, 1}, Sizes: make([]int64, 8)},
		},
	}
	var want int64
	for _, x := range []struct {
		name string
		dims []int64
		size int64
		read int64
	}{
		{"token_embd.weight", []int64{64, 1000}, 34000, 34},
		{"per_layer_token_embd.weight", []int64{16, 5000}, 5000 * 17, 2 * 8 * 17},
		{"output.weight", []int64{64, 1000}, 34000, 34000},
		{"output_norm.weight", []int64{64}, 256, 256},
		{"blk.0.attn_q.weight", []int64{64, 64}, 4096, 4096},
		{"blk.1.ffn_gate_inp.weight", []int64{64, 32}, 8192, 8192},
		{"blk.1.ffn_gate_up_exps.weight", []int64{64, 32, 32}, 32 * 1152, 4 * 1152},
		{"blk.1.ffn_down_exps.weight", []int64{16, 64, 32}, 32 * 577, 4 * 577},
		{"blk.1.ffn_down_exps.scale", []int64{32}, 128, 16},
		{"blk.1.ffn_gate_shexp.weight", []int64{64, 16}, 2048, 2048},
		{"blk.2.ffn_gate_exps.weight", []int64{64, 16, 32}, 32 * 1000, 0},
		{"blk.2.nextn.eh_proj.weight", []int64{128, 64}, 9999, 0},
	} {
		spec.Tensors = append(spec.Tensors, core.Tensor{Name: x.name, Dims: x.dims, Bytes: x.size})
		want += x.read
	}
	if got := touched(spec); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}

// Of the model that comes with Strata, by another way: what is not read.
func TestTouchedOfAModel(t *testing.T) {
	file, err := model.Open(testdata.Model(t, "pebble-q4-mtp.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	h := &file.Spec.Hyper
	names := map[string]*core.Tensor{}
	var all, draft int64
	for i := range file.Spec.Tensors {
		x := &file.Spec.Tensors[i]
		names[x.Name] = x
		all += x.Bytes
		var block int
		if n, _ := fmt.Sscanf(x.Name, "blk.%d.", &block); n == 1 && block == 8 {
			draft += x.Bytes
		}
	}
	unread := draft
	embedding, table := names["token_embd.weight"], names["per_layer_token_embd.weight"]
	unread += embedding.Bytes / int64(h.Vocab) * int64(h.Vocab-1)
	unread += table.Bytes / table.Dims[1] * (table.Dims[1] - int64(len(h.PLE.Sizes)))
	for layer := range 8 {
		for _, part := range []string{"gate", "up", "down"} {
			x := names[fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer, part)]
			if x == nil {
				t.Fatalf("no experts %s in layer %d", part, layer)
			}
			unread += x.Bytes / 32 * 28
		}
	}
	if got := touched(file.Spec); got != all-unread || draft == 0 {
		t.Errorf("%d bytes, want %d - %d", got, all, unread)
	}
}

func TestShare(t *testing.T) {
	for _, x := range [][4]int64{
		{0, 1, 2, 0}, {10, 0, 3, 0}, {10, 3, 3, 10}, {10, 5, 3, 10}, {10, 1, 0, 10}, {10, 1, 3, 4}, {10, -1, 3, 0},
		{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64, math.MaxInt64 - 1},
	} {
		if got := share(x[0], x[1], x[2]); got != x[3] {
			t.Errorf("share(%d, %d, %d) = %d, want %d", x[0], x[1], x[2], got, x[3])
		}
	}
	for range 1000 {
		whole := rand.Int64N(math.MaxInt64-1) + 1
		n, part := rand.Int64(), rand.Int64N(whole)
		want := new(big.Int).Mul(big.NewInt(n), big.NewInt(part))
		want.Add(want, big.NewInt(whole-1)).Div(want, big.NewInt(whole))
		if got := share(n, part, whole); got != want.Int64() {
			t.Fatalf("share(%d, %d, %d) = %d, want %v", n, part, whole, got, want)
		}
	}
}

func TestNeed(t *testing.T) {
	if got := need(1000, 7, 50, 100, 3); got != 1000+3*(50+700) {
		t.Errorf("need = %d", got)
	}
}

func TestFits(t *testing.T) {
	const weights, perToken, perSequence = 1000 << 20, 1 << 20, 10 << 20 // 1110 MiB with a sequence of 100 tokens, 1440 MiB with 4
	for available, want := range map[int64]string{
		0:          "how much there is, is not known",
		1440 << 20: "1.41 GiB are available: it fits",
		1439 << 20: "it fits with fewer sequences or a smaller context",
		1110 << 20: "it fits with fewer sequences or a smaller context",
		1109 << 20: "it fits with a smaller context",
		999 << 20:  "the weights do not fit",
	} {
		if got := fits(weights, perToken, perSequence, 100, 4, available); !strings.Contains(got, want) || !strings.HasPrefix(got, "1.08 GiB with one sequence of 100 tokens, 1.41 GiB with 4; ") {
			t.Errorf("with %v: %s, want %q", size(available), got, want)
		}
	}
}

func TestInspectSaysWhatRunsHere(t *testing.T) {
	file := testdata.Model(t, "pebble-q4-mtp.gguf")
	code, stdout, stderr := command(t, nil, "", "inspect", file, "--context", "1000", "--plugins", filepath.Join(programs(t), "backends"))
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
	wants := []string{`for one sequence of 1000 tokens\n`, `(?m)^speed here +at most about \S+ tokens/s on this machine's CPU: it reads 7\.56 MiB for a token, and memory at \S+ GB/s$`}
	if runtime.GOOS == "linux" {
		wants = append(wants, `(?m)^memory here +\S+ MiB with one sequence of 1000 tokens, \S+ MiB with 8; \S+ GiB are available: it fits$`)
	}
	for _, want := range wants {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	// Without a backend that tells the memory, the rest is said all the same.
	code, stdout, stderr = command(t, nil, "", "inspect", file, "--plugins", t.TempDir())
	if code != 0 || stderr != "" || !strings.Contains(stdout, "is not known") || !strings.Contains(stdout, "speed here") {
		t.Errorf("exit code %d, standard error %q, standard output\n%s", code, stderr, stdout)
	}
}

func TestMeasureBandwidth(t *testing.T) {
	if got := measureBandwidth(64 << 20); got < 1e8 || got > 1e13 {
		t.Errorf("%g bytes per second", got)
	}
	if got := sum([]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}); got != 136 {
		t.Errorf("sum = %d", got)
	}
}
