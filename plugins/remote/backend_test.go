//go:build linux

package remote

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/strata-engine/strata/core"
	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/shm"
)

// roleVariable makes the test binary serve a backend instead of running the
// tests.
const roleVariable = "STRATA_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		goleak.VerifyTestMain(m)
	case "plain":
		sdk.Serve(func(hclog.Logger) (sdk.Backend, error) { return &plainBackend{}, nil })
	case "broken":
		sdk.Serve(func(hclog.Logger) (sdk.Backend, error) { return nil, errors.New("there is no such device") })
	default:
		sdk.Serve(func(hclog.Logger) (sdk.Backend, error) { return &testBackend{}, nil })
	}
}

// Tokens with a meaning for the test backend.
const (
	tokenSleep   = 90 + iota // a long step
	tokenSlow                // 200 ms
	tokenPanic               // a panic in the author's code
	tokenExit                // the process ends by itself
	tokenCrash               // a goroutine of the author's panics
	tokenFull                // ErrOutOfState
	tokenInvalid             // ErrInvalid
)

// The test model: what a window computes is a simple function of its input, so
// that every value can be checked.
const (
	testVocab   = 100
	testWidth   = 16
	testStreams = 2
	testLayers  = 4
)

// stderr is what a driver's C code writes to: go-plugin changes os.Stderr.
var stderr = os.Stderr

func logit(token int32, pos, v int) float32 { return float32(int(token)*1000+pos) + float32(v)/128 }

// plainBackend has no optional abilities.
type plainBackend struct {
	mu   sync.Mutex // protects the fields below
	req  sdk.LoadRequest
	seqs map[uint64]int // tokens executed
}

func (*plainBackend) Info() sdk.Info {
	return sdk.Info{Name: "test", Version: "1.2.3", Capabilities: []string{sdk.CapInvariant}}
}

func (*plainBackend) Probe(_ context.Context, _ sdk.ProbeRequest, resp *sdk.ProbeResponse) error {
	resp.Devices = []sdk.Device{{ID: "0", Name: "test device", MemoryTotal: 1 << 40, MemoryFree: 1 << 39, Threads: 3}}
	return nil
}

func (b *plainBackend) Load(ctx context.Context, req sdk.LoadRequest, resp *sdk.LoadResponse) error {
	for name := range req.Options {
		if name != "pause" {
			return fmt.Errorf("%w: unknown option %q", sdk.ErrInvalid, name)
		}
	}
	pause, _ := time.ParseDuration(req.Options["pause"])
	const total = 3 << 20
	for i, phase := range []string{"open", "map", "read"} {
		req.Progress(phase, int64(i+1)<<20, total)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.req, b.seqs = req, make(map[uint64]int)
	*resp = sdk.LoadResponse{LayoutID: "layout-" + req.Model.Hash, WeightBytes: total, MappedBytes: total / 2,
		StateBytesPerToken: 64, StateBytesPerSequence: 4096}
	return nil
}

func (b *plainBackend) OpenSequence(_ context.Context, req sdk.OpenSequenceRequest, _ *sdk.OpenSequenceResponse) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.seqs) >= b.req.MaxSequences {
		return fmt.Errorf("%w: %d sequences are open", sdk.ErrOutOfState, len(b.seqs))
	}
	b.seqs[req.Sequence] = 0
	return nil
}

func (b *plainBackend) CloseSequence(_ context.Context, req sdk.CloseSequenceRequest, _ *sdk.CloseSequenceResponse) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.seqs, req.Sequence)
	return nil
}

func (b *plainBackend) Step(ctx context.Context, req *sdk.StepRequest, resp *sdk.StepResponse) error {
	row, logits := 0, 0
	for _, s := range req.Segments {
		b.mu.Lock()
		at, ok := b.seqs[s.Sequence]
		b.mu.Unlock()
		if !ok {
			return fmt.Errorf("%w: %d", sdk.ErrUnknownSequence, s.Sequence)
		}
		if at != s.Pos {
			return fmt.Errorf("%w: sequence %d is at %d, not %d", sdk.ErrInvalid, s.Sequence, at, s.Pos)
		}
		for i, token := range s.Tokens {
			switch token {
			case tokenSleep:
				fmt.Fprintln(os.Stderr, "sleeping") // over gRPC
				time.Sleep(time.Hour)
			case tokenSlow:
				time.Sleep(200 * time.Millisecond)
			case tokenPanic:
				panic("a bad token")
			case tokenExit:
				fmt.Fprintln(stderr, "the device fell off the bus")
				os.Exit(9)
			case tokenCrash:
				go func() { panic("driver assertion failed") }()
				time.Sleep(time.Hour)
			case tokenFull:
				return fmt.Errorf("%w: 12 pages of 12 are in use", sdk.ErrOutOfState)
			case tokenInvalid:
				return fmt.Errorf("%w: this token is not liked", sdk.ErrInvalid)
			}
			resp.Rows[row] = sdk.RowFlags{Residual: token == 7, State: token == 8, Layer: int32(token) - 8}
			if resp.Output != nil {
				for c := range testWidth * testStreams {
					x := float32(token)
					if req.Input != nil {
						x = req.Input[row*testWidth*testStreams+c]
					}
					resp.Output[row*testWidth*testStreams+c] = x + float32(c)
				}
			}
			if slices.Contains(s.Logits, int32(i)) && resp.Logits != nil {
				for v := range testVocab {
					resp.Logits[logits*testVocab+v] = logit(token, s.Pos+i, v)
				}
				logits++
			}
			row++
		}
		b.mu.Lock()
		b.seqs[s.Sequence] += len(s.Tokens)
		b.mu.Unlock()
	}
	return nil
}

func (b *plainBackend) Unload(context.Context, sdk.UnloadRequest, *sdk.UnloadResponse) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seqs = nil
	return nil
}

// testBackend has all abilities.
type testBackend struct{ plainBackend }

func (b *testBackend) Draft(_ context.Context, req *sdk.DraftRequest, resp *sdk.DraftResponse) error {
	for i := range req.Count {
		resp.Tokens = append(resp.Tokens, (req.Next+int32(i)+1)%testVocab)
		resp.LogProbs = append(resp.LogProbs, -float32(i)/4)
	}
	return nil
}

// sectionBytes makes a state of several messages.
const sectionBytes = sdk.StateChunkBytes + 12345

func (b *testBackend) Checkpoint(_ context.Context, req sdk.CheckpointRequest, resp *sdk.CheckpointResponse) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.seqs[req.Sequence]
	if !ok {
		return fmt.Errorf("%w: %d", sdk.ErrUnknownSequence, req.Sequence)
	}
	resp.State = sdk.State{LayoutID: "layout-" + b.req.Model.Hash, Tokens: at, Sections: []sdk.StateSection{
		{Layer: 0, Kind: uint8(core.StateKV), Data: bytes.Repeat([]byte{byte(at), 2, 3}, sectionBytes/3)},
		{Layer: 1, Kind: uint8(core.StateDelta)},
		{Layer: 3, Kind: uint8(core.StateConv), Data: binary.LittleEndian.AppendUint64(nil, uint64(at))},
	}}
	return nil
}

func (b *testBackend) Restore(_ context.Context, req sdk.RestoreRequest, _ *sdk.RestoreResponse) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := req.State
	if want := "layout-" + b.req.Model.Hash; s.LayoutID != want {
		return fmt.Errorf("%w: the state is of layout %s, this stage has %s", sdk.ErrInvalid, s.LayoutID, want)
	}
	if len(s.Sections) != 3 || len(s.Sections[0].Data) != sectionBytes/3*3 || binary.LittleEndian.Uint64(s.Sections[2].Data) != uint64(s.Tokens) {
		return fmt.Errorf("%w: sections", sdk.ErrInvalid)
	}
	b.seqs[req.Sequence] = s.Tokens
	return nil
}

func (b *testBackend) ExpertUses(_ context.Context, _ sdk.ExpertUsesRequest, resp *sdk.ExpertUsesResponse) error {
	for layer := b.req.First; layer < b.req.Last; layer++ {
		resp.Uses = append(resp.Uses, []uint64{uint64(layer), 1 << 40, 0})
	}
	return nil
}

var (
	_ sdk.Backend            = (*plainBackend)(nil)
	_ sdk.BackendWithDraft   = (*testBackend)(nil)
	_ sdk.BackendWithState   = (*testBackend)(nil)
	_ sdk.BackendWithExperts = (*testBackend)(nil)
)

func testModel() *core.ModelSpec {
	return &core.ModelSpec{Architecture: "test", Hash: "abc", Hyper: core.Hyper{
		Layers: testLayers, DraftLayers: 1, Width: testWidth, Streams: testStreams, Vocab: testVocab, Context: 4096,
		Kinds: make([]core.LayerKind, testLayers+1),
	}}
}

func loadRequest(stage core.Stage) core.LoadRequest {
	return core.LoadRequest{Model: testModel(), Stage: stage, Context: 4096, MaxSequences: 3, MaxRows: 64, MaxLogitRows: 8}
}

var wholeModel = core.Stage{First: 0, Last: testLayers, Embed: true, Head: true, Draft: true}

// eachTransport runs a test over both ways that steps can travel.
func eachTransport(t *testing.T, test func(t *testing.T, cfg Config)) {
	for _, transport := range []Transport{TransportShm, TransportGRPC} {
		t.Run(string(transport), func(t *testing.T) {
			test(t, testConfig(t, transport))
		})
	}
}

func testConfig(t *testing.T, transport Transport) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	req := loadRequest(wholeModel)
	req.Stage.Embed, req.Stage.Head = false, true // slots for any stage
	return Config{Name: "test", Path: self, Env: []string{roleVariable + "=full"}, Transport: transport, Bounds: BoundsOf(&req)}
}

func start(t *testing.T, cfg Config) *Backend {
	t.Helper()
	b, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		begin := time.Now()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d > 6*time.Second {
			t.Errorf("close took %s", d)
		}
	})
	if b.Transport() != cfg.Transport {
		t.Fatalf("transport %s, want %s", b.Transport(), cfg.Transport)
	}
	return b
}

// load starts a backend, loads the whole model and opens sequence 1.
func load(t *testing.T, cfg Config) (*Backend, core.Backend) {
	t.Helper()
	b := start(t, cfg)
	result, err := b.LoadStage(t.Context(), loadRequest(wholeModel), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.OpenSequence(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	return b, b.Able(result.Capabilities)
}

func one(seq core.SequenceID, pos int, token int32) *core.Step {
	return &core.Step{Window: core.Window{Segments: []core.Segment{{Seq: seq, Pos: pos, Tokens: []int32{token}, Logits: []int{0}}}}}
}

func TestLifeCycle(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		ctx := t.Context()
		b := start(t, cfg)
		info, err := b.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		want := core.Info{Name: "test", Version: "1.2.3", Protocol: "v1alpha1", PID: b.PID(),
			Capabilities: []string{"draft", "experts", "invariant", "state"}}
		if cfg.Transport == TransportShm {
			want.Capabilities = append(want.Capabilities, core.CapSharedMemory)
		}
		slices.Sort(info.Capabilities)
		if diff := cmp.Diff(want, info); diff != "" {
			t.Error(diff)
		}
		devices, err := b.Probe(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]core.Device{{ID: "0", Name: "test device", MemoryTotal: 1 << 40, MemoryFree: 1 << 39, Threads: 3}}, devices); diff != "" {
			t.Error(diff)
		}
		if err := b.Ping(ctx); err != nil {
			t.Error(err)
		}
		if _, err := b.Step(ctx, one(1, 0, 1)); err == nil || !strings.Contains(err.Error(), "no stage") {
			t.Errorf("step before load: %v", err)
		}

		req := loadRequest(wholeModel)
		req.Options = map[string]string{"fast": "yes"}
		if _, err := b.LoadStage(ctx, req, nil); err == nil || !strings.Contains(err.Error(), `unknown option "fast"`) {
			t.Errorf("load with a bad option: %v", err)
		}
		req.Options = map[string]string{"pause": "120ms"}
		var seen []core.LoadProgress
		result, err := b.LoadStage(ctx, req, func(p core.LoadProgress) { seen = append(seen, p) })
		if err != nil {
			t.Fatal(err)
		}
		if result.LayoutID != "layout-abc" || result.WeightBytes != 3<<20 || result.MappedBytes != 3<<19 ||
			result.StateBytesPerToken != 64 || result.StateBytesPerSequence != 4096 {
			t.Errorf("result %+v", result)
		}
		if len(seen) < 2 || seen[len(seen)-1] != (core.LoadProgress{Phase: "read", Bytes: 3 << 20, Total: 3 << 20}) {
			t.Errorf("progress %v", seen)
		}
		for i := 1; i < len(seen); i++ {
			if seen[i].Bytes < seen[i-1].Bytes {
				t.Errorf("progress went back: %v", seen)
			}
		}

		for seq := core.SequenceID(1); seq <= 3; seq++ {
			if err := b.OpenSequence(ctx, seq); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.OpenSequence(ctx, 4); !errors.Is(err, core.ErrOutOfState) || !strings.Contains(err.Error(), "3 sequences are open") {
			t.Errorf("open too many: %v", err)
		}
		for range 2 {
			if err := b.CloseSequence(ctx, 2); err != nil {
				t.Error(err)
			}
		}
		if v, err := b.Vitals(); err != nil || v.PID != b.PID() || v.State != shm.StateReady || v.LoadBytes != 3<<20 {
			t.Errorf("vitals %+v, %v", v, err)
		}
		if err := b.Drain(ctx); err != nil {
			t.Error(err)
		}
		if _, err := b.Step(ctx, one(1, 0, 1)); err == nil || !strings.Contains(err.Error(), "draining") {
			t.Errorf("step after drain: %v", err)
		}
		if err := b.Unload(ctx); err != nil {
			t.Error(err)
		}
		if _, err := b.Step(ctx, one(1, 0, 1)); err == nil || !strings.Contains(err.Error(), "no stage") {
			t.Errorf("step after unload: %v", err)
		}
		if _, err := b.LoadStage(ctx, loadRequest(wholeModel), nil); err != nil {
			t.Errorf("load again: %v", err)
		}
		begin := time.Now()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d > 2*time.Second {
			t.Errorf("a graceful close took %s", d)
		}
		if _, err := b.Info(ctx); !errors.Is(err, core.ErrBackendGone) || !strings.Contains(err.Error(), "it was closed") {
			t.Errorf("info after close: %v", err)
		}
		if _, err := b.Step(ctx, one(1, 0, 1)); !errors.Is(err, core.ErrBackendGone) {
			t.Errorf("step after close: %v", err)
		}
	})
}

func TestStepData(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		ctx := t.Context()
		b, _ := load(t, cfg)
		if err := b.OpenSequence(ctx, 2); err != nil {
			t.Fatal(err)
		}
		step := &core.Step{Window: core.Window{Segments: []core.Segment{
			{Seq: 1, Tokens: []int32{5, 6, 7, 8, 9}, Logits: []int{1, 4}},
			{Seq: 2, Tokens: []int32{40, 41}, Logits: nil, Checkpoint: true},
		}}}
		done, err := b.Step(ctx, step)
		if err != nil {
			t.Fatal(err)
		}
		wantRows := []core.RowFlags{{Layer: -3}, {Layer: -2}, {Residual: true, Layer: -1}, {State: true, Layer: 0}, {Layer: 1}, {Layer: 32}, {Layer: 33}}
		if diff := cmp.Diff(wantRows, done.Rows); diff != "" {
			t.Error(diff)
		}
		var want []float32
		for _, at := range []int{1, 4} {
			for v := range testVocab {
				want = append(want, logit(int32(5+at), at, v))
			}
		}
		if diff := cmp.Diff(want, done.Logits); diff != "" {
			t.Error(diff)
		}
		if done.Output != nil || done.Busy <= 0 {
			t.Errorf("output %v, busy %v", done.Output, done.Busy)
		}
		done.Release()
		done.Release() // once too often does no harm
		for pos := 5; pos < 40; pos++ {
			done, err := b.Step(ctx, one(1, pos, int32(pos)))
			if err != nil {
				t.Fatal(err)
			}
			if done.Logits[3] != logit(int32(pos), pos, 3) {
				t.Errorf("logit %v at %d", done.Logits[3], pos)
			}
			done.Release()
		}

		for _, c := range []struct {
			name string
			step *core.Step
			is   error
			want string
		}{
			{"unknown sequence", one(9, 0, 1), core.ErrUnknownSequence, "9"},
			{"full", one(1, 40, tokenFull), core.ErrOutOfState, "12 pages of 12"},
			{"invalid", one(1, 40, tokenInvalid), nil, "this token is not liked"},
			{"panic", one(1, 40, tokenPanic), nil, "panicked: a bad token"},
			{"token", one(1, 40, testVocab), nil, "vocabulary has 100"},
			{"position", one(1, 41, 1), nil, "is at 40, not 41"},
			{"negative position", one(1, -1, 1), nil, "negative"},
			{"empty", &core.Step{}, nil, "empty"},
			{"surplus input", &core.Step{Window: one(1, 40, 1).Window, Input: make([]float32, testWidth*testStreams)}, nil, "input"},
			{"logits index", &core.Step{Window: core.Window{Segments: []core.Segment{{Seq: 1, Pos: 40, Tokens: []int32{1}, Logits: []int{-1}}}}}, nil, "logits of row -1"},
			{"too long", &core.Step{Window: core.Window{Segments: []core.Segment{{Seq: 1, Pos: 40, Tokens: make([]int32, 65)}}}}, nil, "65 rows"},
		} {
			_, err := b.Step(ctx, c.step)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%s: %v is not %v", c.name, err, c.is)
			}
		}
		// All of that did no harm.
		done, err = b.Step(ctx, one(1, 40, 3))
		if err != nil {
			t.Fatal(err)
		}
		done.Release()
	})
}

// TestMiddleStage checks the residual in and out of a stage without embedding
// and head.
func TestMiddleStage(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		ctx := t.Context()
		req := loadRequest(core.Stage{First: 1, Last: 3})
		cfg.Bounds = BoundsOf(&req)
		b := start(t, cfg)
		result, err := b.LoadStage(ctx, req, nil)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(result.Capabilities, core.CapDraft) {
			t.Error("a stage without the head drafts")
		}
		if err := b.OpenSequence(ctx, 1); err != nil {
			t.Fatal(err)
		}
		const width = testWidth * testStreams
		step := &core.Step{Window: core.Window{Segments: []core.Segment{{Seq: 1, Tokens: []int32{1, 2, 3}, Logits: []int{2}}}}}
		for i := range 3 * width {
			step.Input = append(step.Input, float32(i)/8)
		}
		done, err := b.Step(ctx, step)
		if err != nil {
			t.Fatal(err)
		}
		defer done.Release()
		var want []float32
		for i, x := range step.Input {
			want = append(want, x+float32(i%width))
		}
		if diff := cmp.Diff(want, done.Output); diff != "" {
			t.Error(diff)
		}
		if done.Logits != nil {
			t.Errorf("logits from a stage without the head: %v", done.Logits)
		}
		step.Input = step.Input[1:]
		if _, err := b.Step(ctx, step); err == nil {
			t.Error("an input that is too short was taken")
		}
	})
}

func calls(t *testing.T, b *Backend) uint64 {
	t.Helper()
	resp, err := b.rpc.Info(t.Context(), &pb.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Calls
}

// TestNoMessagePerToken counts what crosses the control plane during a thousand
// steps: nothing with shared memory, one message a step without.
func TestNoMessagePerToken(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		b, _ := load(t, cfg)
		before := calls(t, b)
		var host, busy []time.Duration
		for pos := range 1000 {
			begin := time.Now()
			done, err := b.Step(t.Context(), one(1, pos, int32(pos%80)))
			if err != nil {
				t.Fatal(err)
			}
			host = append(host, time.Since(begin)-done.Busy)
			busy = append(busy, done.Busy)
			if got, want := done.Logits[99], logit(int32(pos%80), pos, 99); got != want {
				t.Fatalf("step %d: %v, want %v", pos, got, want)
			}
			done.Release()
		}
		want := uint64(1)
		if cfg.Transport == TransportGRPC {
			want += 1000
		}
		if got := calls(t, b) - before; got != want {
			t.Errorf("%d calls, want %d", got, want)
		}
		slices.Sort(host)
		slices.Sort(busy)
		t.Logf("host side of a step: median %s, 99 %% %s; backend: median %s", host[500], host[990], busy[500])
	})
}

func TestAbilities(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		ctx := t.Context()
		_, able := load(t, cfg)
		draft, err := able.(core.BackendWithDraft).Draft(ctx, 1, 98, 3)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(core.DraftResult{Tokens: []int32{99, 0, 1}, LogProbs: []float32{0, -0.25, -0.5}}, draft); diff != "" {
			t.Error(diff)
		}
		for _, count := range []int{0, -1, 1 << 20} {
			if _, err := able.(core.BackendWithDraft).Draft(ctx, 1, 98, count); err == nil {
				t.Errorf("%d proposals were made", count)
			}
		}
		uses, err := able.(core.BackendWithExperts).ExpertUses(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([][]uint64{{0, 1 << 40, 0}, {1, 1 << 40, 0}, {2, 1 << 40, 0}, {3, 1 << 40, 0}}, uses); diff != "" {
			t.Error(diff)
		}

		done, err := able.Step(ctx, one(1, 0, 5))
		if err != nil {
			t.Fatal(err)
		}
		done.Release()
		stateful := able.(core.BackendWithState)
		state, err := stateful.Checkpoint(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		if state.LayoutID != "layout-abc" || state.Tokens != 1 || len(state.Sections) != 3 ||
			!bytes.Equal(state.Sections[0].Data, bytes.Repeat([]byte{1, 2, 3}, sectionBytes/3)) ||
			state.Sections[2].Kind != core.StateConv || state.Sections[2].Layer != 3 {
			t.Errorf("state %q with %d tokens, %d sections", state.LayoutID, state.Tokens, len(state.Sections))
		}
		if err := stateful.Restore(ctx, 2, state); err != nil {
			t.Fatal(err)
		}
		if done, err = able.Step(ctx, one(2, 1, 6)); err != nil {
			t.Fatal(err)
		}
		done.Release()
		if _, err := stateful.Checkpoint(ctx, 77); !errors.Is(err, core.ErrUnknownSequence) {
			t.Errorf("checkpoint of an unknown sequence: %v", err)
		}
		foreign := *state
		foreign.LayoutID = "another"
		if err := stateful.Restore(ctx, 3, &foreign); err == nil || !strings.Contains(err.Error(), "layout another") {
			t.Errorf("restore of foreign state: %v", err)
		}
	})
}

func TestAble(t *testing.T) {
	b := &Backend{}
	for _, capabilities := range [][]string{
		nil, {"draft"}, {"state"}, {"experts"}, {"draft", "state"}, {"draft", "experts"}, {"experts", "state"}, {"state", "experts", "draft", "invariant"},
	} {
		able := b.Able(capabilities)
		_, draft := able.(core.BackendWithDraft)
		_, state := able.(core.BackendWithState)
		_, experts := able.(core.BackendWithExperts)
		for name, has := range map[string]bool{core.CapDraft: draft, core.CapState: state, core.CapExperts: experts} {
			if has != slices.Contains(capabilities, name) {
				t.Errorf("%v: %s is %v", capabilities, name, has)
			}
		}
	}
}

func TestPlainBackend(t *testing.T) {
	cfg := testConfig(t, TransportAuto)
	cfg.Env = []string{roleVariable + "=plain"}
	cfg.Transport = TransportShm // what auto means here
	b := start(t, cfg)
	result, err := b.LoadStage(t.Context(), loadRequest(wholeModel), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := b.Able(result.Capabilities).(core.BackendWithState); ok {
		t.Error("a backend without state has it")
	}
	if _, err := (counter{b}).ExpertUses(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("expert uses: %v", err)
	}
}

func TestCancelAndDeadline(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		cfg.Slots = 2
		b, _ := load(t, cfg)
		// Two steps are given up while the backend works on the first.
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(30*time.Millisecond, cancel)
		begin := time.Now()
		if _, err := b.Step(ctx, one(1, 0, tokenSlow)); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled step: %v", err)
		}
		if d := time.Since(begin); d > 100*time.Millisecond {
			t.Errorf("the cancelled step returned after %s", d)
		}
		step := one(1, 1, 2)
		step.Deadline = time.Now().Add(30 * time.Millisecond)
		if _, err := b.Step(t.Context(), step); !errors.Is(err, core.ErrStepDeadline) {
			t.Errorf("step past its deadline: %v", err)
		}
		// A deadline of the context is the context's.
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
		if _, err := b.Step(ctx, one(1, 2, 2)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("step past its context's deadline: %v", err)
		}
		cancel()
		step = one(1, 2, 2)
		step.Deadline = time.Now().Add(-time.Second)
		if _, err := b.Step(t.Context(), step); !errors.Is(err, core.ErrStepDeadline) {
			t.Errorf("step past its deadline from the start: %v", err)
		}
		// Both slots belong to the backend until it has answered; then this works,
		// and it is told the position that the executed steps led to.
		done, err := b.Step(t.Context(), one(1, 2, 3))
		if err != nil {
			// The backend gave up the second step at its deadline.
			if done, err = b.Step(t.Context(), one(1, 1, 3)); err != nil {
				t.Fatal(err)
			}
		}
		done.Release()
		if b.Late() != 2 {
			t.Errorf("%d late answers, want 2", b.Late())
		}
	})
}

func TestConcurrentSteps(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		cfg.Slots = 2
		b, _ := load(t, cfg)
		for _, seq := range []core.SequenceID{2, 3} {
			if err := b.OpenSequence(t.Context(), seq); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for seq := core.SequenceID(1); seq <= 3; seq++ {
			wg.Go(func() {
				for pos := range 200 {
					done, err := b.Step(t.Context(), one(seq, pos, int32(seq)))
					if err != nil {
						t.Errorf("sequence %d: %v", seq, err)
						return
					}
					if got, want := done.Logits[9], logit(int32(seq), pos, 9); got != want {
						t.Errorf("sequence %d, position %d: %v, want %v", seq, pos, got, want)
					}
					done.Release()
				}
			})
		}
		wg.Wait()
		// Unreleased results keep their slots, and Close does not take their memory.
		first, err := b.Step(t.Context(), one(1, 200, 4))
		if err != nil {
			t.Fatal(err)
		}
		second, err := b.Step(t.Context(), one(1, 201, 5))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if _, err := b.Step(ctx, one(1, 202, 6)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third slot: %v", err)
		}
		waiting := make(chan error)
		go func() {
			done, err := b.Step(t.Context(), one(1, 202, 6))
			if err == nil {
				done.Release()
			}
			waiting <- err
		}()
		time.Sleep(20 * time.Millisecond)
		second.Release()
		if err := <-waiting; err != nil {
			t.Errorf("the step that waited for a slot: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if first.Logits[9] != logit(4, 200, 9) {
			t.Error("the result changed")
		}
		first.Release()
	})
}

// inFlight posts a step that does not end and returns how long after the cause it
// did, and its error.
func inFlight(t *testing.T, b *Backend, token int32, cause func()) (time.Duration, error) {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		_, err := b.Step(t.Context(), one(1, 0, token))
		result <- err
	}()
	time.Sleep(50 * time.Millisecond)
	begin := time.Now()
	cause()
	select {
	case err := <-result:
		return time.Since(begin), err
	case <-time.After(20 * time.Second):
		t.Fatal("the step did not return")
		return 0, nil
	}
}

func TestProcessEnds(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		for _, c := range []struct {
			name  string
			token int32
			kill  bool
			want  string
		}{
			{"killed", tokenSleep, true, "signal: killed; its last words: sleeping"},
			{"exit", tokenExit, false, "exit status 9; its last words: the device fell off the bus"},
			{"crash", tokenCrash, false, "exit status 2; its last words: panic: driver assertion failed"},
		} {
			t.Run(c.name, func(t *testing.T) {
				b, able := load(t, cfg)
				took, err := inFlight(t, b, c.token, func() {
					if c.kill {
						if err := unix.Kill(b.PID(), unix.SIGKILL); err != nil {
							t.Error(err)
						}
					}
				})
				if !errors.Is(err, core.ErrBackendGone) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("step: %v, want %q", err, c.want)
				}
				if took > 250*time.Millisecond {
					t.Errorf("the step failed after %s", took)
				}
				<-b.Reaped()
				if err := b.Err(); !errors.Is(err, core.ErrBackendGone) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("err: %v", err)
				}
				ctx := t.Context()
				for name, call := range map[string]func() error{
					"step":       func() error { _, err := able.Step(ctx, one(1, 0, 1)); return err },
					"draft":      func() error { _, err := able.(core.BackendWithDraft).Draft(ctx, 1, 1, 1); return err },
					"checkpoint": func() error { _, err := able.(core.BackendWithState).Checkpoint(ctx, 1); return err },
					"restore":    func() error { return able.(core.BackendWithState).Restore(ctx, 1, &core.State{}) },
					"uses":       func() error { _, err := able.(core.BackendWithExperts).ExpertUses(ctx); return err },
					"open":       func() error { return able.OpenSequence(ctx, 5) },
					"probe":      func() error { _, err := able.Probe(ctx); return err },
					"drain":      func() error { return able.Drain(ctx) },
					"ping":       func() error { return b.Ping(ctx) },
					"load":       func() error { _, err := able.LoadStage(ctx, loadRequest(wholeModel), nil); return err },
					"unload":     func() error { return able.Unload(ctx) },
				} {
					begin := time.Now()
					if err := call(); !errors.Is(err, core.ErrBackendGone) || !strings.Contains(err.Error(), c.want) {
						t.Errorf("%s: %v", name, err)
					}
					if d := time.Since(begin); d > 250*time.Millisecond {
						t.Errorf("%s took %s", name, d)
					}
				}
				begin := time.Now()
				if err := b.Close(); err != nil {
					t.Error(err)
				}
				if d := time.Since(begin); d > time.Second {
					t.Errorf("close took %s", d)
				}
			})
		}
	})
}

// freeze stops every thread of the backend's process.
func freeze(t *testing.T, b *Backend) {
	t.Helper()
	pid := b.PID()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		running := slices.ContainsFunc(stats, func(path string) bool {
			b, err := os.ReadFile(path)
			return err == nil && !bytes.Contains(b, []byte(") T "))
		})
		if !running {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the process does not stop")
		}
	}
}

func TestFrozenProcess(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		b, _ := load(t, cfg)
		freeze(t, b)
		step := one(1, 0, 1)
		step.Deadline = time.Now().Add(150 * time.Millisecond)
		begin := time.Now()
		if _, err := b.Step(t.Context(), step); !errors.Is(err, core.ErrStepDeadline) {
			t.Errorf("step: %v", err)
		}
		if d := time.Since(begin); d > 400*time.Millisecond {
			t.Errorf("the step returned after %s", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := b.OpenSequence(ctx, 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("open: %v", err)
		}
		if err := b.Ping(ctx); err == nil {
			t.Error("a frozen process answers")
		}
		begin = time.Now()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d > 6*time.Second {
			t.Errorf("close took %s", d)
		}
	})
}

func TestKill(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		b, _ := load(t, cfg)
		took, err := inFlight(t, b, tokenSleep, func() {
			if err := b.Kill("no progress for 3 s in decode"); err != nil {
				t.Error(err)
			}
		})
		if !errors.Is(err, core.ErrBackendGone) || !strings.Contains(err.Error(), "no progress for 3 s in decode") {
			t.Errorf("step: %v", err)
		}
		if took > 250*time.Millisecond {
			t.Errorf("the step failed after %s", took)
		}
	})
}

func TestCancelledLoad(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		b := start(t, cfg)
		req := loadRequest(wholeModel)
		req.Options = map[string]string{"pause": "10s"}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := b.LoadStage(ctx, req, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("load: %v", err)
		}
		if _, err := b.LoadStage(t.Context(), loadRequest(wholeModel), nil); err != nil {
			t.Errorf("load again: %v", err)
		}
	})
}

func TestStageLargerThanSegment(t *testing.T) {
	cfg := testConfig(t, TransportShm)
	cfg.Bounds.MaxRows, cfg.Bounds.MaxLogitRows = 8, 1
	b := start(t, cfg)
	req := loadRequest(wholeModel)
	req.MaxLogitRows = 64
	if _, err := b.LoadStage(t.Context(), req, nil); err == nil || !strings.Contains(err.Error(), "data segment has slots of") {
		t.Errorf("load: %v", err)
	}
}

func TestEvents(t *testing.T) {
	cfg := testConfig(t, TransportShm)
	b, _ := load(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	cancelled, err := b.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	events, err := b.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range cancelled {
	}
	// The stream is open on the backend's side a moment later than here.
	var e core.Event
	for pos := 0; e.Kind == "" && pos < 100; pos++ {
		if _, err := b.Step(t.Context(), one(1, 0, tokenPanic)); err == nil {
			t.Fatal("no panic")
		}
		select {
		case e = <-events:
		case <-time.After(50 * time.Millisecond):
		}
	}
	if e.Kind != "panic" || time.Since(e.Time) > time.Minute {
		t.Errorf("event %+v", e)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	for range events { // ends
	}
}

func TestTwoBackends(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		a, _ := load(t, cfg)
		b, _ := load(t, cfg)
		if a.process.PID() == b.PID() || a.generation == b.generation {
			t.Error("the two are one")
		}
		_, err := inFlight(t, a, tokenSleep, func() { unix.Kill(a.process.PID(), unix.SIGKILL) })
		if !errors.Is(err, core.ErrBackendGone) {
			t.Errorf("step on the killed one: %v", err)
		}
		done, err := b.Step(t.Context(), one(1, 0, 5))
		if err != nil {
			t.Fatal(err)
		}
		done.Release()
	})
}

func TestStartErrors(t *testing.T) {
	base := testConfig(t, TransportAuto)
	script := func(name, text string) func(*Config) {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return func(c *Config) { c.Path = path }
	}
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"missing program", func(c *Config) { c.Path = "/nowhere/strata-backend-x" }, "there is no such file"},
		{"not a backend", func(c *Config) { c.Path = "/bin/false" }, "not a Strata backend"},
		{"other words", script("words", "echo hello; exec sleep 10"), "last words: hello): it is not a Strata backend"},
		{"other version", script("version", "echo '1|99|unix|/nowhere|grpc'; exec sleep 10"), "for another version of Strata, or none: incompatible API version with plugin. Plugin version: 99"},
		{"other protocol", script("protocol", "echo '1|1|unix|/nowhere|netrpc'; exec sleep 10"), `unsupported plugin protocol "netrpc"`},
		{"device", func(c *Config) { c.Env = []string{roleVariable + "=broken"} }, "there is no such device"},
		{"transport", func(c *Config) { c.Transport = "pigeon" }, `transport "pigeon"`},
		{"slots", func(c *Config) { c.Slots = 1 }, "1 slots"},
		{"bounds", func(c *Config) { c.Bounds.MaxRows = -1 }, "out of range"},
		{"hash", func(c *Config) { c.SHA256 = make([]byte, 32) }, "SHA-256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := base
			c.change(&cfg)
			var logged bytes.Buffer
			cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &logged, Level: hclog.Warn})
			begin := time.Now()
			b, err := Start(t.Context(), cfg)
			if strings.Contains(logged.String(), "gracefully") {
				t.Errorf("the log says more than the error: %s", logged.String())
			}
			if err == nil {
				b.Close()
				t.Fatal("no error")
			}
			if !strings.HasPrefix(err.Error(), "start backend test: ") || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want %q", err, c.want)
			}
			if d := time.Since(begin); d > 3*time.Second {
				t.Errorf("took %s", d)
			}
		})
	}
	t.Run("silent", func(t *testing.T) {
		cfg := base
		cfg.Path = "/bin/sleep"
		if _, err := os.Stat(cfg.Path); err != nil {
			t.Skip("NOT RUN: there is no /bin/sleep")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := Start(ctx, cfg); err == nil {
			t.Error("no error")
		}
		cfg.Path, cfg.StartTimeout = "/usr/bin/yes", time.Second
		if _, err := os.Stat(cfg.Path); err == nil {
			if _, err := Start(t.Context(), cfg); err == nil {
				t.Error("no error")
			}
		}
	})
}

func TestNoLeak(t *testing.T) {
	eachTransport(t, func(t *testing.T, cfg Config) {
		t.Setenv("TMPDIR", t.TempDir())
		round := func() {
			b, err := Start(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
		fds := func() int {
			entries, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			return len(entries)
		}
		round()
		before := fds()
		for range 5 {
			round()
		}
		for end := time.Now().Add(3 * time.Second); fds() > before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d descriptors, %d before", fds(), before)
			}
		}
		if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
			t.Errorf("%d files are left, %v", len(left), err)
		}
		if out, err := exec.Command("sh", "-c", "ls -l /proc/self/fd").CombinedOutput(); err != nil || bytes.Contains(out, []byte("memfd")) {
			t.Errorf("children inherit shared memory: %v\n%s", err, out)
		}
	})
}
