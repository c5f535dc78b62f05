package host

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/engine"
	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/core/sampler"
	"github.com/strata-engine/strata/testdata"
)

// programs is the folder with the backend that the tests start.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "strata-host-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "strata-backend-cpu"), "../../../backends/cpu")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	code := 1
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the backend: %v\n%s", err, out)
	} else if code = m.Run(); code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// pebble starts the default model on the given devices.
func pebble(t testing.TB, change func(*config.Config), devices ...config.Device) *Host {
	t.Helper()
	file, err := OpenModel(testdata.Model(t, "pebble-q4-mtp.gguf"), "")
	if err != nil {
		t.Fatal(err)
	}
	return startFile(t, file, change, devices...)
}

func startFile(t testing.TB, file *model.File, change func(*config.Config), devices ...config.Device) *Host {
	t.Helper()
	cfg := config.Defaults()
	cfg.Context, cfg.Plugins.Dir = 4096, programs
	if len(devices) > 0 {
		cfg.Devices = devices
	}
	if change != nil {
		change(&cfg)
	}
	h, err := Start(t.Context(), &cfg, file, nil, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := h.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return h
}

// prompts are the recorded prompts by name.
func prompts(t testing.TB) map[string][]int32 {
	var file map[string]struct {
		IDs []int32 `json:"ids"`
	}
	testdata.Load(t, "prompts.json.gz", &file)
	out := map[string][]int32{}
	for name, p := range file {
		out[name] = p.IDs
	}
	if len(out) == 0 {
		t.Fatal("no prompts recorded")
	}
	return out
}

func generate(t testing.TB, h *Host, prompt []int32, n int, cfg sampler.Config) []int32 {
	t.Helper()
	g, err := h.Engine.Start(t.Context(), engine.Request{Prompt: prompt, MaxTokens: n, Sampler: cfg, LogProbs: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var ids []int32
	for {
		token, err := g.Next(t.Context())
		if err == io.EOF {
			return ids
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, token.ID)
	}
}

// TestSplitAndTransportChangeNothing: the same tokens come out whether the model
// is in one process or in two, over shared memory or gRPC.
func TestSplitAndTransportChangeNothing(t *testing.T) {
	all := prompts(t)
	names := []string{"chat_default", "tool_call_think", "text_300"}
	seeded := sampler.Config{Temperature: 1, TopK: 20, TopP: 0.95, Seed: 7}
	var want [][]int32
	for _, tt := range []struct {
		name    string
		devices []config.Device
	}{
		{"one process", []config.Device{{Backend: "cpu"}}},
		{"one process, gRPC", []config.Device{{Backend: "cpu", Transport: "grpc"}}},
		{"two processes", []config.Device{{Backend: "cpu", Layers: "0-3"}, {Backend: "cpu", Layers: "4-7"}}},
		{"cut at the n-gram layer, one thread and three", []config.Device{
			{Backend: "cpu", Layers: "0-0", Options: map[string]string{"threads": "1"}},
			{Backend: "cpu", Layers: "1-7", Options: map[string]string{"threads": "3"}, Transport: "grpc"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := pebble(t, nil, tt.devices...)
			var got [][]int32
			for _, name := range names {
				if all[name] == nil {
					t.Fatalf("no prompt %s", name)
				}
				got = append(got, generate(t, h, all[name], 32, sampler.Config{}), generate(t, h, all[name], 16, seeded))
			}
			if want == nil {
				want = got
			} else if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestConcurrentAnswers: requests that run together get the answers they get
// alone.
func TestConcurrentAnswers(t *testing.T) {
	h := pebble(t, func(c *config.Config) { c.MaxSequences, c.PrefillChunk = 4, 64 })
	all := prompts(t)
	var names []string
	for name, ids := range all {
		if len(ids) < 400 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	alone := make([][]int32, len(names))
	for i, name := range names {
		alone[i] = generate(t, h, all[name], 12, sampler.Config{})
	}
	running := make([]*engine.Generation, len(names))
	for i, name := range names {
		g, err := h.Engine.Start(t.Context(), engine.Request{Prompt: all[name], MaxTokens: 12, LogProbs: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		running[i] = g
	}
	for i, g := range running {
		var got []int32
		for {
			token, err := g.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, token.ID)
		}
		if d := cmp.Diff(alone[i], got); d != "" {
			t.Errorf("%s: %s", names[i], d)
		}
	}
}

// TestDraftFromTheBackend: the MTP block is loaded and proposes through the
// process boundary; most of its first proposals are what the trunk chooses too.
func TestDraftFromTheBackend(t *testing.T) {
	h := pebble(t, func(c *config.Config) { c.Model.UseDraft = true })
	b, ok := h.Backend(0).(core.BackendWithDraft)
	if !ok {
		t.Fatal("the stage announces no drafts")
	}
	prompt := prompts(t)["tool_call_think"]
	answer := generate(t, h, prompt, 24, sampler.Config{})
	const id = 1 << 40 // far from the engine's own
	if err := b.OpenSequence(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	defer b.CloseSequence(context.Background(), id)
	step := func(pos int, tokens ...int32) {
		done, err := b.Step(t.Context(), &core.Step{Window: core.Window{Segments: []core.Segment{{Seq: id, Pos: pos, Tokens: tokens}}}})
		if err != nil {
			t.Fatal(err)
		}
		done.Release()
	}
	step(0, prompt...)
	accepted := 0
	for i, next := range answer[:len(answer)-1] {
		drafts, err := b.Draft(t.Context(), id, next, 3)
		if err != nil {
			t.Fatal(err)
		}
		if len(drafts.Tokens) != 3 || len(drafts.LogProbs) != 3 {
			t.Fatalf("drafts %+v", drafts)
		}
		if drafts.Tokens[0] == answer[i+1] {
			accepted++
		}
		step(len(prompt)+i, next)
	}
	if accepted*2 < len(answer) {
		t.Errorf("%d of %d proposals are the trunk's choice", accepted, len(answer)-1)
	}
}

// TestExpertUses: the backends' routing counters reach the pool.
func TestExpertUses(t *testing.T) {
	h := pebble(t, nil, config.Device{Backend: "cpu", Layers: "0-3"}, config.Device{Backend: "cpu", Layers: "4-7"})
	prompt := prompts(t)["chat_default"]
	n := len(generate(t, h, prompt, 5, sampler.Config{}))
	for range 2 { // counting twice counts nothing twice
		if err := h.CountExperts(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	executed := uint64(len(prompt) + n - 1) // the last token was not executed
	stats := h.Experts.Stats()
	if want := executed * 8 * 4; stats.Uses != want { // 8 layers, 4 experts of 32 a token
		t.Errorf("%d uses, want %d", stats.Uses, want)
	}
	if stats.ByTier[core.TierPageCache] != 8*32 {
		t.Errorf("experts by tier: %v", stats.ByTier)
	}
}

func TestStartRefuses(t *testing.T) {
	file, err := OpenModel(testdata.Model(t, "pebble-q4-mtp.gguf"), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		change func(*config.Config)
	}{
		{"no such backend", func(c *config.Config) { c.Devices = []config.Device{{Backend: "abacus"}} }},
		{"layers beyond the model", func(c *config.Config) { c.Devices = []config.Device{{Backend: "cpu", Layers: "0-99"}} }},
		{"unknown option", func(c *config.Config) {
			c.Devices = []config.Device{{Backend: "cpu", Options: map[string]string{"thread": "2"}}}
		}},
		{"second of two devices", func(c *config.Config) {
			c.Devices = []config.Device{{Backend: "cpu", Layers: "0-3"}, {Backend: "cpu", Layers: "4-7", Options: map[string]string{"threads": "many"}}}
		}},
		{"context beyond the model's", func(c *config.Config) { c.Context = 1 << 20 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config.Defaults()
			cfg.Plugins.Dir, cfg.Context = programs, 4096
			tt.change(&cfg)
			h, err := Start(t.Context(), &cfg, file, nil, hclog.NewNullLogger())
			if err == nil {
				h.Stop(context.Background())
				t.Fatal("no error")
			}
			t.Log(err)
		})
	}
}

// BenchmarkStart measures from nothing to ready: reading the model file, the
// backend's process, loading.
func BenchmarkStart(b *testing.B) {
	path := testdata.Model(b, "pebble-q4-mtp.gguf")
	for b.Loop() {
		file, err := OpenModel(path, "")
		if err != nil {
			b.Fatal(err)
		}
		cfg := config.Defaults()
		cfg.Plugins.Dir = programs
		h, err := Start(b.Context(), &cfg, file, nil, hclog.NewNullLogger())
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := h.Stop(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkFirstToken measures from a prompt of 20 tokens to its first token.
func BenchmarkFirstToken(b *testing.B) {
	h := pebble(b, nil)
	prompt := prompts(b)["chat_default"][:20]
	for b.Loop() {
		generate(b, h, prompt, 1, sampler.Config{})
	}
}

// BenchmarkDecode measures one sequence's decode, and the host's part of it: all
// of a step but the backend's own work. On all processors the two compete for
// them; with one left over for the host they do not.
func BenchmarkDecode(b *testing.B) {
	prompt := prompts(b)["chat_default"]
	const n = 256
	for _, threads := range []int{1, runtime.NumCPU()} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			h := pebble(b, func(c *config.Config) { c.Threads = threads })
			var decode time.Duration
			tokens := 0
			for b.Loop() {
				g, err := h.Engine.Start(b.Context(), engine.Request{Prompt: prompt, MaxTokens: n, LogProbs: -1})
				if err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = g.Next(b.Context())
				}
				if err != io.EOF {
					b.Fatal(err)
				}
				decode += g.Stats().Decode
				tokens += g.Stats().Generated - 1
			}
			b.ReportMetric(float64(tokens)/decode.Seconds(), "tokens/s")
			b.ReportMetric(float64(h.Engine.Stats().Overhead)/1e3, "µs-host/step")
		})
	}
}

// BenchmarkPrefill measures reading the longest recorded prompt.
func BenchmarkPrefill(b *testing.B) {
	h := pebble(b, nil)
	var prompt []int32
	for _, ids := range prompts(b) {
		if len(ids) > len(prompt) {
			prompt = ids
		}
	}
	var prefill time.Duration
	tokens := 0
	for b.Loop() {
		g, err := h.Engine.Start(b.Context(), engine.Request{Prompt: prompt, MaxTokens: 1, LogProbs: -1})
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = g.Next(b.Context())
		}
		if err != io.EOF {
			b.Fatal(err)
		}
		prefill += g.Stats().Prefill
		tokens += len(prompt)
	}
	b.ReportMetric(float64(tokens)/prefill.Seconds(), "tokens/s")
}
