package stage

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/arch/archtest"
	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/ops/reference"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testDevice is the float64 device with hooks.
type testDevice struct {
	*reference.Device
	// room is how many tokens Reserve has room for, 0 for no bound.
	room int
	// onRun, where set, runs before every window.
	onRun func(ctx context.Context) error
	// released counts Release, closed says that Close was called.
	released int
	closed   bool
}

type testQueue struct {
	*reference.Queue
	d *testDevice
}

func (q testQueue) Embed(op *ops.Embed, w *ops.Window, r ops.Buffer) {
	if q.d.onRun != nil {
		q.Enqueue(q.d.onRun)
	}
	q.Queue.Embed(op, w, r)
}

func (d *testDevice) Queue() ops.Queue { return testQueue{d.Device.Queue().(*reference.Queue), d} }

func (d *testDevice) Reserve(s ops.State, tokens int) error {
	if d.room > 0 && tokens > d.room {
		return errors.New("no room")
	}
	return d.Device.Reserve(s, tokens)
}

func (d *testDevice) Release(x any) { d.released++ }
func (d *testDevice) Close() error  { d.closed = true; return nil }

// rig is a backend with a tiny model.
type rig struct {
	*Backend
	t   *testing.T
	dev *testDevice
}

func newBackend(t *testing.T) *rig {
	r := &rig{t: t, dev: &testDevice{Device: reference.New()}}
	r.Backend = New(Program{
		Info:  sdk.Info{Name: "test"},
		Probe: func(context.Context) ([]sdk.Device, error) { return []sdk.Device{{ID: "0"}}, nil },
		Open: func(_ context.Context, req *sdk.LoadRequest) (ops.Device, error) {
			for name := range req.Options {
				return nil, errors.New("unknown option " + name)
			}
			return r.dev, nil
		},
	})
	t.Cleanup(func() {
		if err := r.Unload(context.Background(), sdk.UnloadRequest{}, &sdk.UnloadResponse{}); err != nil {
			t.Error(err)
		}
	})
	return r
}

// request asks for the whole of a tiny qwen4exp model.
func request(spec *pb.ModelSpec) sdk.LoadRequest {
	return sdk.LoadRequest{
		Model: spec, Last: int(spec.Hyper.Layers), Embed: true, Head: true, Draft: true,
		Context: 32, MaxSequences: 2, MaxRows: 16, MaxLogitRows: 16,
		Progress: func(string, int64, int64) {},
	}
}

func load1(t *testing.T) *rig {
	t.Helper()
	r := newBackend(t)
	if err := r.Load(t.Context(), request(archtest.New("qwen4exp").Write(t)), &sdk.LoadResponse{}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) open(id uint64) error {
	return r.OpenSequence(r.t.Context(), sdk.OpenSequenceRequest{Sequence: id}, &sdk.OpenSequenceResponse{})
}

func (r *rig) mustOpen(ids ...uint64) {
	r.t.Helper()
	for _, id := range ids {
		if err := r.open(id); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) close(id uint64) {
	r.t.Helper()
	if err := r.CloseSequence(r.t.Context(), sdk.CloseSequenceRequest{Sequence: id}, &sdk.CloseSequenceResponse{}); err != nil {
		r.t.Fatal(err)
	}
}

// step executes segments with the logits of every last row.
func (r *rig) step(ctx context.Context, segments ...sdk.Segment) ([]float32, []sdk.RowFlags, error) {
	rows := 0
	for i := range segments {
		rows += len(segments[i].Tokens)
		if n := len(segments[i].Tokens); n > 0 {
			segments[i].Logits = []int32{int32(n - 1)}
		}
	}
	resp := &sdk.StepResponse{Rows: make([]sdk.RowFlags, rows), Logits: make([]float32, len(segments)*archtest.Vocab)}
	err := r.Step(ctx, &sdk.StepRequest{Segments: segments}, resp)
	return resp.Logits, resp.Rows, err
}

func segment(id uint64, pos int, tokens ...int32) sdk.Segment {
	return sdk.Segment{Sequence: id, Pos: pos, Tokens: tokens}
}

func (r *rig) mustStep(segments ...sdk.Segment) []float32 {
	r.t.Helper()
	logits, _, err := r.step(r.t.Context(), segments...)
	if err != nil {
		r.t.Fatal(err)
	}
	return logits
}

func TestLoadDescribesTheStage(t *testing.T) {
	r := newBackend(t)
	spec := archtest.New("qwen4exp").Write(t)
	var bytes, total int64
	req := request(spec)
	req.Progress = func(_ string, b, n int64) { bytes, total = b, n }
	var resp sdk.LoadResponse
	if err := r.Load(t.Context(), req, &resp); err != nil {
		t.Fatal(err)
	}
	used := spec.Shards[0].Size
	for _, tensor := range spec.Tensors {
		if strings.HasPrefix(tensor.Name, "blk.4.indexer") {
			used -= tensor.Bytes
		}
	}
	if resp.WeightBytes != used || resp.MappedBytes != used || bytes != used || total != used {
		t.Errorf("%d weight bytes, %d mapped, progress %d of %d; want %d", resp.WeightBytes, resp.MappedBytes, bytes, total, used)
	}
	// Layer 3 keeps keys, values and indexer keys, the MTP block keys and values.
	if want := int64(2*(8+8)+8+2*(8+8)) * 2; resp.StateBytesPerToken != want {
		t.Errorf("%d bytes of state per token, want %d", resp.StateBytesPerToken, want)
	}
	if want := int64(3*(6*4*4+3*40)+9*64+2+64) * 4; resp.StateBytesPerSequence != want {
		t.Errorf("%d bytes of state per sequence, want %d", resp.StateBytesPerSequence, want)
	}
	if resp.LayoutID != "0123456789abcdef/0-4/f16/64/mtp" {
		t.Errorf("layout %q", resp.LayoutID)
	}
	if want := []string{sdk.CapState, sdk.CapExperts, sdk.CapDraft}; !slices.Equal(resp.Capabilities, want) {
		t.Errorf("capabilities %v, want %v", resp.Capabilities, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(req *sdk.LoadRequest)
		want   string
	}{
		{"incomplete model", func(req *sdk.LoadRequest) { req.Model.Tensors = req.Model.Tensors[1:] }, "missing tensors: blk.0.attn_gate.weight"},
		{"option", func(req *sdk.LoadRequest) { req.Options = map[string]string{"turbo": "1"} }, "unknown option turbo"},
		{"changed file", func(req *sdk.LoadRequest) { os.Truncate(req.Model.Shards[0].Path, 100) }, "model.bin has 100 bytes"},
		{"range", func(req *sdk.LoadRequest) { req.Model.Tensors[3].Offset = 1 << 40 }, "are not within"},
		{"layers", func(req *sdk.LoadRequest) { req.Last = 3 }, "the head goes with the last layer"},
		{"context", func(req *sdk.LoadRequest) { req.Context = 0 }, "must be positive"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newBackend(t)
			req := request(archtest.New("qwen4exp").Write(t))
			tt.change(&req)
			if err := r.Load(t.Context(), req, &sdk.LoadResponse{}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v does not contain %q", err, tt.want)
			}
			if err := r.open(1); !errors.Is(err, sdk.ErrInvalid) {
				t.Errorf("opened a sequence after a failed load: %v", err)
			}
			// A good load still works.
			if err := r.Load(t.Context(), request(archtest.New("qwen4exp").Write(t)), &sdk.LoadResponse{}); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("twice", func(t *testing.T) {
		r := load1(t)
		err := r.Load(t.Context(), request(archtest.New("qwen4exp").Write(t)), &sdk.LoadResponse{})
		if err == nil || !strings.Contains(err.Error(), "a stage is loaded already") {
			t.Errorf("error %v", err)
		}
	})
}

func TestNothingLoaded(t *testing.T) {
	r := newBackend(t)
	ctx := t.Context()
	_, _, err := r.step(ctx, segment(1, 0, 1))
	for name, err := range map[string]error{
		"open": r.open(1), "step": err,
		"draft":      r.Draft(ctx, &sdk.DraftRequest{Sequence: 1, Count: 1}, &sdk.DraftResponse{}),
		"checkpoint": r.Checkpoint(ctx, sdk.CheckpointRequest{Sequence: 1}, &sdk.CheckpointResponse{}),
		"restore":    r.Restore(ctx, sdk.RestoreRequest{Sequence: 1}, &sdk.RestoreResponse{}),
		"uses":       r.ExpertUses(ctx, sdk.ExpertUsesRequest{}, &sdk.ExpertUsesResponse{}),
	} {
		if !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	r.close(1)
}

func TestStepChecksBeforeItExecutes(t *testing.T) {
	r := load1(t)
	r.mustOpen(1, 2)
	r.mustStep(segment(1, 0, 1, 2, 3))
	tests := []struct {
		name     string
		segments []sdk.Segment
		want     string
		is       error
	}{
		{"unknown", []sdk.Segment{segment(1, 3, 4), segment(9, 0, 1)}, "sequence 9", sdk.ErrUnknownSequence},
		{"ahead", []sdk.Segment{segment(2, 0, 4), segment(1, 4, 1)}, "sequence 1: invalid request: the segment starts at position 4, but 3 tokens are executed", sdk.ErrInvalid},
		{"behind", []sdk.Segment{segment(1, 2, 1)}, "starts at position 2, but 3", sdk.ErrInvalid},
		{"twice", []sdk.Segment{segment(1, 3, 1), segment(1, 4, 1)}, "twice in the window", sdk.ErrInvalid},
		{"empty", []sdk.Segment{segment(1, 3)}, "the segment is empty", sdk.ErrInvalid},
		{"beyond the context", []sdk.Segment{segment(1, 3, make([]int32, 30)...)}, "30 tokens at position 3, the stage was loaded for 32", sdk.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := r.step(t.Context(), tt.segments...)
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v does not contain %q", err, tt.want)
			}
		})
	}
	t.Run("no room", func(t *testing.T) {
		r.dev.room = 4
		defer func() { r.dev.room = 0 }()
		if _, _, err := r.step(t.Context(), segment(1, 3, 4), segment(2, 0, 1, 2, 3, 4, 5)); !errors.Is(err, sdk.ErrOutOfState) {
			t.Errorf("error %v", err)
		}
	})
	// None of it was executed or left a mark.
	got := r.mustStep(segment(1, 3, 4), segment(2, 0, 1))
	fresh := load1(t)
	fresh.mustOpen(1, 2)
	want := fresh.mustStep(segment(1, 0, 1, 2, 3, 4), segment(2, 0, 1))
	if !slices.Equal(got, want) {
		t.Error("refused windows changed the state")
	}
}

// TestSplitStages: every stage is told which logits are wanted, the one with the
// head answers.
func TestSplitStages(t *testing.T) {
	whole := load1(t)
	whole.mustOpen(1)
	want := whole.mustStep(segment(1, 0, 1, 2, 3))

	first, second := newBackend(t), newBackend(t)
	spec := archtest.New("qwen4exp").Write(t)
	req := request(spec)
	req.Last, req.Head, req.Draft = 2, false, false
	if err := first.Load(t.Context(), req, &sdk.LoadResponse{}); err != nil {
		t.Fatal(err)
	}
	req = request(spec)
	req.First, req.Embed = 2, false
	if err := second.Load(t.Context(), req, &sdk.LoadResponse{}); err != nil {
		t.Fatal(err)
	}
	first.mustOpen(1)
	second.mustOpen(1)
	seg := segment(1, 0, 1, 2, 3)
	seg.Logits = []int32{2}
	residual, logits := make([]float32, 3*64), make([]float32, archtest.Vocab)
	if err := first.Step(t.Context(), &sdk.StepRequest{Segments: []sdk.Segment{seg}}, &sdk.StepResponse{Rows: make([]sdk.RowFlags, 3), Output: residual}); err != nil {
		t.Fatal(err)
	}
	if err := second.Step(t.Context(), &sdk.StepRequest{Segments: []sdk.Segment{seg}, Input: residual}, &sdk.StepResponse{Rows: make([]sdk.RowFlags, 3), Logits: logits}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(logits, want) {
		t.Error("two stages answer other logits than one")
	}
}

func TestOpenRefuses(t *testing.T) {
	r := load1(t)
	r.mustOpen(1)
	if err := r.open(1); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("opened twice: %v", err)
	}
	r.mustOpen(2)
	if err := r.open(3); !errors.Is(err, sdk.ErrOutOfState) {
		t.Errorf("opened more than MaxSequences: %v", err)
	}
	r.close(1)
	r.close(1)
	r.mustOpen(3)
	if _, _, err := r.step(t.Context(), segment(1, 0, 1)); !errors.Is(err, sdk.ErrUnknownSequence) {
		t.Errorf("a step of a closed sequence: %v", err)
	}
	if r.dev.released != 1 {
		t.Errorf("%d states released, want 1", r.dev.released)
	}
}

func TestFailedStepBreaksItsSequences(t *testing.T) {
	r := load1(t)
	r.mustOpen(1, 2)
	boom := errors.New("boom")
	r.dev.onRun = func(context.Context) error { return boom }
	if _, _, err := r.step(t.Context(), segment(1, 0, 1, 2)); !errors.Is(err, boom) {
		t.Fatalf("error %v", err)
	}
	r.dev.onRun = nil
	if _, _, err := r.step(t.Context(), segment(1, 0, 1)); !errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), "failed half way") {
		t.Errorf("a broken sequence: %v", err)
	}
	if err := r.Checkpoint(t.Context(), sdk.CheckpointRequest{Sequence: 1}, &sdk.CheckpointResponse{}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("checkpoint of a broken sequence: %v", err)
	}
	r.mustStep(segment(2, 0, 1))
	r.close(1)
	r.mustOpen(3)

	// Also where the device panics, which the SDK turns into an error.
	r.dev.onRun = func(context.Context) error { panic("boom") }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _, _ = r.step(t.Context(), segment(3, 0, 1))
	}()
	r.dev.onRun = nil
	if _, _, err := r.step(t.Context(), segment(3, 0, 1)); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a sequence after a panic: %v", err)
	}
	r.mustStep(segment(2, 1, 1))

	// And where the caller gives up.
	ctx, cancel := context.WithCancel(t.Context())
	r.dev.onRun = func(context.Context) error { cancel(); return nil }
	if _, _, err := r.step(ctx, segment(2, 2, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	r.dev.onRun = nil
	if _, _, err := r.step(t.Context(), segment(2, 2, 1)); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a sequence after giving up: %v", err)
	}
}

func TestNonFiniteRowsAreReportedAndNotUsedAgain(t *testing.T) {
	m := archtest.New("qwen4exp")
	m.Tensors["token_embd.weight"].Values[5*16] = float32(math.NaN())
	r := newBackend(t)
	if err := r.Load(t.Context(), request(m.Write(t)), &sdk.LoadResponse{}); err != nil {
		t.Fatal(err)
	}
	r.mustOpen(1, 2)
	_, rows, err := r.step(t.Context(), segment(1, 0, 1, 5), segment(2, 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	if rows[0] != (sdk.RowFlags{}) || rows[2] != (sdk.RowFlags{}) {
		t.Errorf("flags of good rows: %+v, %+v", rows[0], rows[2])
	}
	if want := (sdk.RowFlags{Residual: true, Logits: true, State: true, Layer: -1}); rows[1] != want {
		t.Errorf("flags %+v, want %+v", rows[1], want)
	}
	if err := r.Checkpoint(t.Context(), sdk.CheckpointRequest{Sequence: 1}, &sdk.CheckpointResponse{}); err == nil || !strings.Contains(err.Error(), "not finite at position 1") {
		t.Errorf("checkpoint of state that is not finite: %v", err)
	}
	r.mustStep(segment(2, 1, 3))
}

func TestCloseDuringStep(t *testing.T) {
	r := load1(t)
	r.mustOpen(1)
	r.dev.onRun = func(context.Context) error {
		r.close(1)
		if r.dev.released != 0 {
			t.Error("a state in use was released")
		}
		return nil
	}
	r.mustStep(segment(1, 0, 1))
	if r.dev.released != 1 {
		t.Errorf("%d states released, want 1", r.dev.released)
	}
	if _, _, err := r.step(t.Context(), segment(1, 1, 1)); !errors.Is(err, sdk.ErrUnknownSequence) {
		t.Errorf("error %v", err)
	}
}

func TestCheckpointAndRestore(t *testing.T) {
	r := load1(t)
	r.mustOpen(1)
	r.mustStep(segment(1, 0, 1, 2, 3, 4, 5))
	var saved sdk.CheckpointResponse
	if err := r.Checkpoint(t.Context(), sdk.CheckpointRequest{Sequence: 1}, &saved); err != nil {
		t.Fatal(err)
	}
	if saved.State.Tokens != 5 {
		t.Errorf("%d tokens", saved.State.Tokens)
	}
	restore := func(id uint64, change func(s *sdk.State)) error {
		s := saved.State
		s.Sections = slices.Clone(s.Sections)
		change(&s)
		return r.Restore(t.Context(), sdk.RestoreRequest{Sequence: id, State: s}, &sdk.RestoreResponse{})
	}
	for name, change := range map[string]func(s *sdk.State){
		"layout":   func(s *sdk.State) { s.LayoutID = "other" },
		"tokens":   func(s *sdk.State) { s.Tokens = 6 },
		"negative": func(s *sdk.State) { s.Tokens = -1 },
		"context":  func(s *sdk.State) { s.Tokens = 33 },
		"sections": func(s *sdk.State) { s.Sections = s.Sections[1:] },
	} {
		if err := restore(2, change); !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if err := restore(1, func(*sdk.State) {}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("restored an open sequence: %v", err)
	}
	if err := restore(2, func(*sdk.State) {}); err != nil {
		t.Fatal(err)
	}
	a, b := r.mustStep(segment(1, 5, 6)), r.mustStep(segment(2, 5, 6))
	for i := range a {
		if math.Abs(float64(a[i]-b[i])) > 2e-2 {
			t.Fatalf("logit %d is %g after restoring, want %g", i, b[i], a[i])
		}
	}
}

func TestDraft(t *testing.T) {
	r := load1(t)
	r.mustOpen(1)
	draft := func(id uint64, count int) (sdk.DraftResponse, error) {
		var resp sdk.DraftResponse
		err := r.Draft(t.Context(), &sdk.DraftRequest{Sequence: id, Next: 3, Count: count}, &resp)
		return resp, err
	}
	if _, err := draft(9, 1); !errors.Is(err, sdk.ErrUnknownSequence) {
		t.Errorf("unknown sequence: %v", err)
	}
	if _, err := draft(1, 1); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("nothing executed: %v", err)
	}
	r.mustStep(segment(1, 0, make([]int32, 16)...))
	r.mustStep(segment(1, 16, make([]int32, 13)...))
	if _, err := draft(1, 0); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("no proposals: %v", err)
	}
	resp, err := draft(1, 2)
	if err != nil || len(resp.Tokens) != 2 || len(resp.LogProbs) != 2 {
		t.Errorf("%+v, error %v", resp, err)
	}
	for _, p := range resp.LogProbs {
		if !(p <= 0) {
			t.Errorf("log-probability %g", p)
		}
	}
	// 29 of 32 positions are executed.
	if resp, err = draft(1, 100); err != nil || len(resp.Tokens) != 3 {
		t.Errorf("%d proposals to the end of the context, error %v", len(resp.Tokens), err)
	}
	r.mustStep(segment(1, 29, 1, 2, 3))
	if resp, err = draft(1, 1); err != nil || len(resp.Tokens) != 0 {
		t.Errorf("%d proposals beyond the context, error %v", len(resp.Tokens), err)
	}
}

func TestUnload(t *testing.T) {
	r := load1(t)
	r.mustOpen(1, 2)
	for range 2 {
		if err := r.Unload(t.Context(), sdk.UnloadRequest{}, &sdk.UnloadResponse{}); err != nil {
			t.Fatal(err)
		}
	}
	if !r.dev.closed || r.dev.released != 2 {
		t.Errorf("closed %v, %d states released", r.dev.closed, r.dev.released)
	}
	if err := r.Load(t.Context(), request(archtest.New("qwen4exp").Write(t)), &sdk.LoadResponse{}); err != nil {
		t.Error(err)
	}
	r.mustOpen(1)
}

// TestOthersBesideSteps opens, closes and counts while windows run.
func TestOthersBesideSteps(t *testing.T) {
	r := load1(t)
	r.mustOpen(1)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for id := uint64(2); ; id++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := r.open(id); err != nil {
				t.Error(err)
				return
			}
			if err := r.ExpertUses(t.Context(), sdk.ExpertUsesRequest{}, &sdk.ExpertUsesResponse{}); err != nil {
				t.Error(err)
				return
			}
			r.close(id)
		}
	})
	for pos := range 20 {
		r.mustStep(segment(1, pos, int32(pos)))
	}
	close(stop)
	wg.Wait()
	var uses sdk.ExpertUsesResponse
	if err := r.ExpertUses(t.Context(), sdk.ExpertUsesRequest{}, &uses); err != nil {
		t.Fatal(err)
	}
	sum := uint64(0)
	for _, n := range uses.Uses[2] {
		sum += n
	}
	if sum != 40 {
		t.Errorf("%d uses of experts in layer 2, want 40", sum)
	}
}
