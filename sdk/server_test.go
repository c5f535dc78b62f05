package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/sdktest"
	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

const (
	layers  = 4
	width   = 3
	streams = 2
	vocab   = 50
)

// request asks for layers [first, last) of the test's model.
func request(first, last int) *pb.LoadStageRequest {
	return &pb.LoadStageRequest{
		Model:        sdktest.Model(layers, width, streams, vocab),
		Stage:        &pb.Stage{First: int32(first), Last: int32(last), Embed: first == 0, Head: last == layers, Draft: last == layers},
		Context:      100,
		MaxSequences: 2,
		MaxRows:      16,
		MaxLogitRows: 8,
	}
}

func bounds(req *pb.LoadStageRequest) wire.Bounds {
	return wire.Bounds{
		MaxSequences: int(req.MaxSequences),
		MaxRows:      int(req.MaxRows),
		MaxLogitRows: int(req.MaxLogitRows),
		Width:        width * streams,
		Vocab:        vocab,
		Embed:        req.Stage.Embed,
		Head:         req.Stage.Head,
	}
}

// geometry is large enough for request.
func geometry(t testing.TB, req *pb.LoadStageRequest) shm.Geometry {
	t.Helper()
	in, out, err := bounds(req).SlotBytes()
	if err != nil {
		t.Fatal(err)
	}
	return shm.Geometry{Slots: 2, RequestBytes: in, ResultBytes: out}
}

// transports runs a test over the stream and, where there is shared memory, over
// the rings.
func transports(t *testing.T, test func(t *testing.T, options func(*pb.LoadStageRequest) sdktest.Options)) {
	t.Run("stream", func(t *testing.T) {
		test(t, func(*pb.LoadStageRequest) sdktest.Options { return sdktest.Options{} })
	})
	t.Run("rings", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("shared memory exists on Linux only")
		}
		test(t, func(req *pb.LoadStageRequest) sdktest.Options { return sdktest.Options{Data: geometry(t, req)} })
	})
}

// loaded connects to a backend and loads a stage.
func loaded(t testing.TB, backend sdk.Backend, req *pb.LoadStageRequest, opts sdktest.Options) *sdktest.Pair {
	t.Helper()
	p := sdktest.Connect(t, backend, opts)
	if _, _, err := p.Load(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	return p
}

func open(t testing.TB, p *sdktest.Pair, id uint64) {
	t.Helper()
	if _, err := p.Client.OpenSequence(t.Context(), &pb.OpenSequenceRequest{Sequence: id}); err != nil {
		t.Fatal(err)
	}
}

// window is one segment that wants the logits of its last token.
func window(id uint64, pos int, tokens ...int32) *wire.Window {
	return &wire.Window{Segments: []wire.Segment{
		{Sequence: id, Pos: pos, Tokens: tokens, Logits: []int32{int32(len(tokens) - 1)}},
	}}
}

func argmax(v []float32) int32 { return int32(slices.Index(v, slices.Max(v))) }

func TestInfoAndProbe(t *testing.T) {
	transports(t, func(t *testing.T, options func(*pb.LoadStageRequest) sdktest.Options) {
		p := sdktest.Connect(t, &sdktest.Echo{Version: "1.2"}, options(request(0, layers)))
		info, err := p.Client.Info(t.Context(), &pb.InfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		want := &pb.InfoResponse{Name: "echo", Version: "1.2", Protocol: "v1alpha1", Calls: 1,
			Capabilities: []string{"draft", "experts", "invariant", "state"}}
		if p.Data != nil {
			want.Capabilities = append(want.Capabilities, "step.shm")
		}
		if diff := cmp.Diff(want, info, protocmp.Transform(), protocmp.IgnoreFields(info, "pid")); diff != "" {
			t.Error(diff)
		}
		probe, err := p.Client.Probe(t.Context(), &pb.ProbeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		device := &pb.Device{Id: "echo0", Name: "Echo", MemoryTotal: 1 << 30, MemoryFree: 1 << 29, Threads: 1}
		if diff := cmp.Diff([]*pb.Device{device}, probe.Devices, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestGenerate decodes with one stage and with a chain of two: the same tokens,
// those that the backend's arithmetic predicts. With rings no step is a call.
func TestGenerate(t *testing.T) {
	transports(t, func(t *testing.T, options func(*pb.LoadStageRequest) sdktest.Options) {
		for _, cuts := range [][]int{{0, layers}, {0, 1, layers}} {
			t.Run(fmt.Sprint(cuts), func(t *testing.T) {
				var stages []*sdktest.Pair
				var limits []wire.Bounds
				for i := range len(cuts) - 1 {
					req := request(cuts[i], cuts[i+1])
					stages = append(stages, loaded(t, &sdktest.Echo{}, req, options(req)))
					limits = append(limits, bounds(req))
					open(t, stages[i], 1)
				}
				before, err := stages[0].Client.Info(t.Context(), &pb.InfoRequest{})
				if err != nil {
					t.Fatal(err)
				}
				tokens := []int32{3, 1, 4, 1, 5}
				w := window(1, 0, tokens...)
				const steps = 20
				for range steps {
					var result wire.Result
					w.Width, w.Input = 0, nil
					for i, p := range stages {
						if result, err = p.Step(t.Context(), w, limits[i]); err != nil {
							t.Fatal(err)
						}
						w.Width, w.Input = width*streams, result.Matrix
					}
					if len(result.Matrix) != vocab || len(result.Rows) != w.Rows() {
						t.Fatalf("%d logits for %d rows", len(result.Matrix), len(result.Rows))
					}
					next := argmax(result.Matrix)
					if want := sdktest.EchoNext(tokens, vocab); next != want {
						t.Fatalf("after %v comes %d, want %d", tokens, next, want)
					}
					if got, want := result.Matrix[(next+1)%vocab], sdktest.EchoLogit(tokens, len(stages)); got != want {
						t.Fatalf("after %v another logit is %v, want %v", tokens, got, want)
					}
					w = window(1, len(tokens), next)
					tokens = append(tokens, next)
				}
				after, err := stages[0].Client.Info(t.Context(), &pb.InfoRequest{})
				if err != nil {
					t.Fatal(err)
				}
				calls := after.Calls - before.Calls - 1
				want := uint64(steps)
				if stages[0].Data != nil {
					want = 0
				}
				if calls != want {
					t.Errorf("%d calls for %d steps, want %d", calls, steps, want)
				}
				if stages[0].Vitals != nil {
					v, err := stages[0].Vitals.Read()
					if err != nil {
						t.Fatal(err)
					}
					if v.State != shm.StateReady || v.Phase != shm.PhaseIdle || v.Submitted != steps || v.Completed != steps ||
						v.PrefillTokens != 5 || v.DecodeTokens != steps-1 || v.Layer != cuts[1]-1 {
						t.Errorf("vitals are %+v", v)
					}
				}
			})
		}
	})
}

// TestBadWindows sends what the SDK promises to keep from an author.
func TestBadWindows(t *testing.T) {
	inner := request(1, 3)
	input := make([]float32, width*streams)
	segment := func(s wire.Segment) *wire.Window { return &wire.Window{Segments: []wire.Segment{s}} }
	tests := []struct {
		name  string
		stage *pb.LoadStageRequest
		w     *wire.Window
		want  wire.Status
		text  string
	}{
		{"empty window", nil, &wire.Window{}, wire.StatusInvalid, "empty"},
		{"empty segment", nil, segment(wire.Segment{Sequence: 1}), wire.StatusInvalid, "segment 0: no tokens"},
		{"sequence twice", nil, &wire.Window{Segments: []wire.Segment{
			{Sequence: 1, Tokens: []int32{1}}, {Sequence: 1, Pos: 1, Tokens: []int32{1}}}}, wire.StatusInvalid, "occurs twice"},
		{"token too large", nil, window(1, 0, 1, vocab), wire.StatusInvalid, "token 1 is 50"},
		{"token negative", nil, window(1, 0, -1), wire.StatusInvalid, "token 0 is -1"},
		{"too many rows", nil, window(1, 0, make([]int32, 17)...), wire.StatusInvalid, "17 rows"},
		{"too many logits rows", nil, segment(wire.Segment{Sequence: 1, Tokens: make([]int32, 9),
			Logits: []int32{0, 1, 2, 3, 4, 5, 6, 7, 8}}), wire.StatusInvalid, "9 logits rows"},
		{"beyond the context", nil, window(1, 99, 1, 2), wire.StatusInvalid, "positions 99 to 100"},
		{"logits index too large", nil, segment(wire.Segment{Sequence: 1, Tokens: []int32{1}, Logits: []int32{1}}),
			wire.StatusInvalid, "logits index 1"},
		{"logits index negative", nil, segment(wire.Segment{Sequence: 1, Tokens: []int32{1}, Logits: []int32{-1}}),
			wire.StatusInvalid, "logits index -1"},
		{"logits indices not ascending", nil, segment(wire.Segment{Sequence: 1, Tokens: []int32{1, 2}, Logits: []int32{1, 1}}),
			wire.StatusInvalid, "logits index 1 after 1"},
		{"input for the embedding", nil, &wire.Window{Segments: []wire.Segment{{Sequence: 1, Tokens: []int32{1}}},
			Width: width * streams, Input: input}, wire.StatusInvalid, "residual input"},
		{"input missing", inner, window(1, 0, 1), wire.StatusInvalid, "rows of 0 values"},
		{"input too narrow", inner, &wire.Window{Segments: []wire.Segment{{Sequence: 1, Tokens: []int32{1}}},
			Width: width, Input: input[:width]}, wire.StatusInvalid, "rows of 3 values"},
		{"unknown sequence", nil, window(9, 0, 1), wire.StatusUnknownSequence, "unknown sequence"},
		{"wrong position", nil, window(1, 5, 1), wire.StatusInvalid, "position 0, not 5"},
	}
	transports(t, func(t *testing.T, options func(*pb.LoadStageRequest) sdktest.Options) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				req := test.stage
				if req == nil {
					req = request(0, layers)
				}
				// Room for windows beyond the bounds: the check must refuse them, not the slot.
				opts := options(req)
				if opts.Data.Slots > 0 {
					opts.Data.RequestBytes *= 2
				}
				p := loaded(t, &sdktest.Echo{}, req, opts)
				open(t, p, 1)
				_, err := p.Step(t.Context(), test.w, bounds(req))
				var refused *sdktest.StatusError
				if !errors.As(err, &refused) || refused.Status != test.want || !strings.Contains(refused.Text, test.text) {
					t.Fatalf("got %v, want %v with %q", err, test.want, test.text)
				}
				// The backend goes on.
				good := window(1, 0, 1)
				if !req.Stage.Embed {
					good.Width, good.Input = width*streams, input
				}
				if _, err := p.Step(t.Context(), good, bounds(req)); err != nil {
					t.Errorf("the next step: %v", err)
				}
			})
		}
	})
}

// TestMalformedPayload sends bytes that are no window and no draft request.
func TestMalformedPayload(t *testing.T) {
	transports(t, func(t *testing.T, options func(*pb.LoadStageRequest) sdktest.Options) {
		req := request(0, layers)
		p := loaded(t, &sdktest.Echo{}, req, options(req))
		for _, kind := range []wire.Kind{wire.KindStep, wire.KindDraft} {
			for _, payload := range [][]byte{nil, {1}, bytes.Repeat([]byte{0xff}, 100)} {
				c, out, err := p.Do(t.Context(), kind, payload, 0)
				if err != nil {
					t.Fatal(err)
				}
				if c.Status != wire.StatusInvalid || !strings.Contains(wire.ParseError(out), "malformed") {
					t.Errorf("%v with %d bytes: %v %q", kind, len(payload), c.Status, out)
				}
			}
		}
	})
}

// TestBrokenRing pushes entries that no honest host pushes: the segment is
// poisoned, and the control plane still answers.
func TestBrokenRing(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("shared memory exists on Linux only")
	}
	tests := map[string]wire.Submission{
		"unknown kind":         {Number: 1, Generation: 7, Kind: 99},
		"slot out of range":    {Number: 1, Generation: 7, Kind: wire.KindStep, Slot: 2},
		"payload out of range": {Number: 1, Generation: 7, Kind: wire.KindStep, Bytes: 1 << 30},
		"another generation":   {Number: 1, Generation: 8, Kind: wire.KindStep},
	}
	for name, sub := range tests {
		t.Run(name, func(t *testing.T) {
			req := request(0, layers)
			p := loaded(t, &sdktest.Echo{}, req, sdktest.Options{Data: geometry(t, req)})
			var e shm.Entry
			sub.Put(&e)
			if err := p.Data.Submissions().Push(&e); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := p.Data.Completions().Pop(ctx, &e); !errors.Is(err, shm.ErrPoisoned) {
				t.Errorf("the host's wait ended with %v", err)
			}
			if _, err := p.Client.Unload(ctx, &pb.UnloadRequest{}); err != nil {
				t.Errorf("the control plane is gone: %v", err)
			}
			if v, err := p.Vitals.Read(); err != nil || !strings.Contains(v.LastError, "data segment") {
				t.Errorf("the last error is %q (%v)", v.LastError, err)
			}
		})
	}
}

// TestStepFails maps what an author's Step returns to what the host sees.
func TestStepFails(t *testing.T) {
	tests := []struct {
		name string
		step func(context.Context, *sdk.StepRequest) error
		want wire.Status
		text string
	}{
		{"out of state", func(context.Context, *sdk.StepRequest) error { return fmt.Errorf("grow: %w", sdk.ErrOutOfState) },
			wire.StatusOutOfState, "out of sequence state memory"},
		{"other error", func(context.Context, *sdk.StepRequest) error { return errors.New("device fell off the bus") },
			wire.StatusInternal, "device fell off the bus"},
		{"panic", func(_ context.Context, r *sdk.StepRequest) error { _ = r.Segments[7]; return nil },
			wire.StatusInternal, "backend panicked"},
		{"deadline", func(ctx context.Context, _ *sdk.StepRequest) error { <-ctx.Done(); return ctx.Err() },
			wire.StatusDeadline, "deadline"},
	}
	transports(t, func(t *testing.T, options func(*pb.LoadStageRequest) sdktest.Options) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				var log lockedBuffer
				req := request(0, layers)
				opts := options(req)
				opts.Logger = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Debug})
				fail := true
				p := loaded(t, &sdktest.Echo{OnStep: func(ctx context.Context, r *sdk.StepRequest) error {
					if fail {
						fail = false
						return test.step(ctx, r)
					}
					return nil
				}}, req, opts)
				open(t, p, 1)
				w := window(1, 0, 1)
				payload := shm.AlignedBytes(1 << 10)
				n, err := w.Put(payload)
				if err != nil {
					t.Fatal(err)
				}
				c, out, err := p.Do(t.Context(), wire.KindStep, payload[:n], 30*time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				if text := wire.ParseError(out); c.Status != test.want || !strings.Contains(text, test.text) || strings.Contains(text, "goroutine") {
					t.Errorf("got %v %q, want %v with %q", c.Status, text, test.want, test.text)
				}
				if c.Busy <= 0 {
					t.Errorf("busy for %v", c.Busy)
				}
				if _, err := p.Step(t.Context(), w, bounds(req)); err != nil {
					t.Errorf("the next step: %v", err)
				}
				if test.name == "panic" && !strings.Contains(log.String(), "goroutine") {
					t.Error("the log has no stack")
				}
			})
		}
	})
}

// lockedBuffer is written by the executor and read by the test.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestReplacedSlices refuses a backend that does not fill the response in place.
func TestReplacedSlices(t *testing.T) {
	req := request(0, layers)
	p := loaded(t, replacing{&sdktest.Echo{}}, req, sdktest.Options{})
	open(t, p, 1)
	_, err := p.Step(t.Context(), window(1, 0, 1), bounds(req))
	var refused *sdktest.StatusError
	if !errors.As(err, &refused) || refused.Status != wire.StatusInternal || !strings.Contains(refused.Text, "replaced a slice") {
		t.Errorf("got %v", err)
	}
}

type replacing struct{ sdk.Backend }

func (r replacing) Step(_ context.Context, _ *sdk.StepRequest, resp *sdk.StepResponse) error {
	resp.Logits = make([]float32, len(resp.Logits))
	return nil
}

// TestMissingAbilities asks a backend without any optional interface.
func TestMissingAbilities(t *testing.T) {
	req := request(0, layers)
	p := loaded(t, replacing{&sdktest.Echo{}}, req, sdktest.Options{})
	payload := make([]byte, 16)
	n, err := wire.DraftRequest{Sequence: 1, Count: 1}.Put(payload)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := p.Do(t.Context(), wire.KindDraft, payload[:n], 0)
	if err != nil || c.Status != wire.StatusUnimplemented {
		t.Errorf("draft: %v, %v", c.Status, err)
	}
	_, err = p.Client.ExpertUses(t.Context(), &pb.ExpertUsesRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("expert uses: %v", err)
	}
	checkpoint, err := p.Client.Checkpoint(t.Context(), &pb.CheckpointRequest{})
	if err == nil {
		_, err = checkpoint.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("checkpoint: %v", err)
	}
	restore, err := p.Client.Restore(t.Context())
	if err == nil {
		_, err = restore.CloseAndRecv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("restore: %v", err)
	}
}

func TestDraft(t *testing.T) {
	transports(t, func(t *testing.T, options func(*pb.LoadStageRequest) sdktest.Options) {
		req := request(0, layers)
		p := loaded(t, &sdktest.Echo{}, req, options(req))
		open(t, p, 1)
		tokens := []int32{3, 1, 4}
		if _, err := p.Step(t.Context(), window(1, 0, tokens...), bounds(req)); err != nil {
			t.Fatal(err)
		}
		draft := func(d wire.DraftRequest) (wire.Status, []byte) {
			t.Helper()
			payload := make([]byte, 16)
			if _, err := d.Put(payload); err != nil {
				t.Fatal(err)
			}
			c, out, err := p.Do(t.Context(), wire.KindDraft, payload, 0)
			if err != nil {
				t.Fatal(err)
			}
			return c.Status, out
		}
		code, out := draft(wire.DraftRequest{Sequence: 1, Next: 7, Count: 4})
		if code != wire.StatusOK {
			t.Fatalf("%v: %s", code, out)
		}
		result, err := wire.ParseDraftResult(out, 4)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, 7)
		for _, got := range result.Tokens {
			if want := sdktest.EchoNext(tokens, vocab); got != want {
				t.Errorf("after %v: %d, want %d", tokens, got, want)
			}
			tokens = append(tokens, got)
		}
		if len(result.Tokens) != 4 || len(result.LogProbs) != 4 {
			t.Errorf("%d tokens and %d log-probabilities", len(result.Tokens), len(result.LogProbs))
		}
		if code, _ := draft(wire.DraftRequest{Sequence: 9, Next: 7, Count: 1}); code != wire.StatusUnknownSequence {
			t.Errorf("unknown sequence: %v", code)
		}
		if code, _ := draft(wire.DraftRequest{Sequence: 1, Next: vocab, Count: 1}); code != wire.StatusInvalid {
			t.Errorf("token outside the vocabulary: %v", code)
		}
	})
}

// TestState moves a sequence from one backend to another.
func TestState(t *testing.T) {
	transports(t, func(t *testing.T, options func(*pb.LoadStageRequest) sdktest.Options) {
		req := request(0, layers)
		from := loaded(t, &sdktest.Echo{}, req, options(req))
		to := loaded(t, &sdktest.Echo{}, req, options(req))
		open(t, from, 1)
		tokens := []int32{3, 1, 4}
		if _, err := from.Step(t.Context(), window(1, 0, tokens...), bounds(req)); err != nil {
			t.Fatal(err)
		}
		checkpoint, err := from.Client.Checkpoint(t.Context(), &pb.CheckpointRequest{Sequence: 1})
		if err != nil {
			t.Fatal(err)
		}
		var messages []*pb.StateMessage
		for {
			msg, err := checkpoint.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			messages = append(messages, msg)
		}
		if len(messages) != 1+layers || messages[0].GetHeader().GetTokens() != 3 {
			t.Fatalf("%d messages, the first is %v", len(messages), messages[0])
		}
		restore := func(messages ...*pb.StateMessage) error {
			stream, err := to.Client.Restore(t.Context())
			if err != nil {
				return err
			}
			for _, m := range messages {
				if stream.Send(m) != nil {
					break
				}
			}
			_, err = stream.CloseAndRecv()
			return err
		}
		messages[0].GetHeader().Sequence = 8
		bad := map[string][]*pb.StateMessage{
			"nothing":            nil,
			"no header":          messages[1:],
			"two headers":        {messages[0], messages[0]},
			"a section missing":  messages[:layers],
			"a section twice":    {messages[0], messages[1], messages[1]},
			"a section too long": append(slices.Clone(messages), messages[layers]),
			"out of order":       {messages[0], messages[2]},
		}
		for name, m := range bad {
			if err := restore(m...); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := restore(messages...); err != nil {
			t.Fatal(err)
		}
		if err := restore(messages...); status.Code(err) != codes.InvalidArgument {
			t.Errorf("restore into an open sequence: %v", err)
		}
		result, err := to.Step(t.Context(), window(8, 3, 9), bounds(req))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := argmax(result.Matrix), sdktest.EchoNext(append(tokens, 9), vocab); got != want {
			t.Errorf("the restored sequence continues with %d, want %d", got, want)
		}
		missing, err := from.Client.Checkpoint(t.Context(), &pb.CheckpointRequest{Sequence: 77})
		if err == nil {
			_, err = missing.Recv()
		}
		if status.Code(err) != codes.NotFound {
			t.Errorf("checkpoint of an unknown sequence: %v", err)
		}
	})
}

func TestLoad(t *testing.T) {
	p := sdktest.Connect(t, &sdktest.Echo{}, sdktest.Options{})
	result, progress, err := p.Load(t.Context(), request(1, 3))
	if err != nil {
		t.Fatal(err)
	}
	want := &pb.LoadResult{LayoutId: "echo-00-1-3", WeightBytes: 1000, MappedBytes: 1000, StateBytesPerSequence: 8,
		Capabilities: []string{"experts", "invariant", "state"}}
	if diff := cmp.Diff(want, result, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	// Reports come faster than they are sent; the last is always sent.
	if n := len(progress); n < 1 || n > 5 || progress[n-1].Phase != "warm" || progress[n-1].Bytes != 1000 {
		t.Errorf("progress was %v", progress)
	}
	if _, _, err := p.Load(t.Context(), request(1, 3)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second load: %v", err)
	}
}

func TestBadLoads(t *testing.T) {
	change := func(f func(*pb.LoadStageRequest)) *pb.LoadStageRequest {
		req := request(0, layers)
		f(req)
		return req
	}
	p := sdktest.Connect(t, &sdktest.Echo{}, sdktest.Options{})
	for name, req := range map[string]*pb.LoadStageRequest{
		"nothing":            {},
		"no hyper":           change(func(r *pb.LoadStageRequest) { r.Model.Hyper = nil }),
		"no vocabulary":      change(func(r *pb.LoadStageRequest) { r.Model.Hyper.Vocab = 0 }),
		"absurd width":       change(func(r *pb.LoadStageRequest) { r.Model.Hyper.Width = math.MaxInt32 }),
		"no layers":          change(func(r *pb.LoadStageRequest) { r.Stage.Last = 0 }),
		"negative layer":     change(func(r *pb.LoadStageRequest) { r.Stage.First = -1 }),
		"too many layers":    change(func(r *pb.LoadStageRequest) { r.Stage.Last = layers + 1 }),
		"no embedding":       change(func(r *pb.LoadStageRequest) { r.Stage.Embed = false }),
		"no head":            change(func(r *pb.LoadStageRequest) { r.Stage.Head, r.Stage.Draft = false, false }),
		"no draft block":     change(func(r *pb.LoadStageRequest) { r.Model.Hyper.DraftLayers = 0 }),
		"no context":         change(func(r *pb.LoadStageRequest) { r.Context = 0 }),
		"no rows":            change(func(r *pb.LoadStageRequest) { r.MaxRows = -1 }),
		"unknown option":     change(func(r *pb.LoadStageRequest) { r.Options = map[string]string{"colour": "blue"} }),
		"unknown device":     change(func(r *pb.LoadStageRequest) { r.Device = "echo9" }),
		"head in the middle": change(func(r *pb.LoadStageRequest) { r.Stage.Last = 2 }),
	} {
		if _, _, err := p.Load(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := p.Load(t.Context(), request(0, layers)); err != nil {
		t.Errorf("a good load after bad ones: %v", err)
	}
}

// TestSmallSlots loads a stage whose windows would not fit the segment.
func TestSmallSlots(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("shared memory exists on Linux only")
	}
	p := sdktest.Connect(t, &sdktest.Echo{}, sdktest.Options{Data: shm.Geometry{Slots: 1, RequestBytes: 1, ResultBytes: 1}})
	req := request(0, layers)
	req.MaxRows = 4096
	if _, _, err := p.Load(t.Context(), req); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "data segment") {
		t.Errorf("load: %v", err)
	}
}

// TestCancelledLoad gives up while a load runs; nothing stays loaded.
func TestCancelledLoad(t *testing.T) {
	started := make(chan struct{})
	first := true
	backend := &sdktest.Echo{OnLoad: func(ctx context.Context, _ sdk.LoadRequest) error {
		if first {
			first = false
			close(started)
			<-ctx.Done()
			// A backend that finishes all the same.
		}
		return nil
	}}
	p := sdktest.Connect(t, backend, sdktest.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	if _, _, err := p.Load(ctx, request(0, layers)); status.Code(err) != codes.Canceled {
		t.Errorf("load: %v", err)
	}
	if _, _, err := p.Load(t.Context(), request(0, layers)); err != nil {
		t.Errorf("the next load: %v", err)
	}
}

// TestLifeCycle checks the refusals before a load, while draining, and after an
// unload.
func TestLifeCycle(t *testing.T) {
	transports(t, func(t *testing.T, options func(*pb.LoadStageRequest) sdktest.Options) {
		req := request(0, layers)
		p := sdktest.Connect(t, &sdktest.Echo{}, options(req))
		step := func(pos int) error {
			_, err := p.Step(t.Context(), window(1, pos, 2), bounds(req))
			return err
		}
		refused := func(when string, err error) {
			t.Helper()
			var refusal *sdktest.StatusError
			if !errors.As(err, &refusal) || refusal.Status != wire.StatusUnavailable {
				t.Errorf("step %s: %v", when, err)
			}
		}
		refused("before the load", step(0))
		if _, _, err := p.Load(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		open(t, p, 1)
		if err := step(0); err != nil {
			t.Fatal(err)
		}
		open(t, p, 2)
		_, err := p.Client.OpenSequence(t.Context(), &pb.OpenSequenceRequest{Sequence: 3})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("one sequence too many: %v", err)
		}
		for range 2 {
			if _, err := p.Client.CloseSequence(t.Context(), &pb.CloseSequenceRequest{Sequence: 2}); err != nil {
				t.Error(err)
			}
		}
		uses, err := p.Client.ExpertUses(t.Context(), &pb.ExpertUsesRequest{})
		if err != nil || len(uses.Layers) != layers || uses.Layers[0].Uses[0] != 1 {
			t.Errorf("expert uses are %v, %v", uses, err)
		}
		if _, err := p.Client.Drain(t.Context(), &pb.DrainRequest{}); err != nil {
			t.Fatal(err)
		}
		refused("while draining", step(1))
		if _, err := p.Client.Unload(t.Context(), &pb.UnloadRequest{}); err != nil {
			t.Fatal(err)
		}
		refused("after the unload", step(1))
		if _, _, err := p.Load(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		open(t, p, 1)
		if err := step(0); err != nil {
			t.Errorf("step after a second load: %v", err)
		}
	})
}

// TestDrainWaits starts a drain while a step runs.
func TestDrainWaits(t *testing.T) {
	transports(t, func(t *testing.T, options func(*pb.LoadStageRequest) sdktest.Options) {
		started, finish := make(chan struct{}), make(chan struct{})
		req := request(0, layers)
		p := loaded(t, &sdktest.Echo{OnStep: func(context.Context, *sdk.StepRequest) error {
			close(started)
			<-finish
			return nil
		}}, req, options(req))
		open(t, p, 1)
		stepped := make(chan error, 1)
		go func() {
			_, err := p.Step(t.Context(), window(1, 0, 2), bounds(req))
			stepped <- err
		}()
		<-started
		drained := make(chan error, 1)
		go func() {
			_, err := p.Client.Drain(t.Context(), &pb.DrainRequest{})
			drained <- err
		}()
		// Sequences open while a step runs.
		open(t, p, 2)
		select {
		case <-drained:
			t.Error("the drain did not wait for the step")
		case <-time.After(50 * time.Millisecond):
		}
		close(finish)
		if err := errors.Join(<-stepped, <-drained); err != nil {
			t.Error(err)
		}
	})
}

// TestStreamProtocol sends messages that no honest host sends.
func TestStreamProtocol(t *testing.T) {
	var e shm.Entry
	wire.Submission{Number: 1, Generation: 1, Kind: wire.KindStep, Bytes: 5}.Put(&e)
	p := sdktest.Connect(t, &sdktest.Echo{}, sdktest.Options{})
	for name, msg := range map[string]*pb.StepMessage{
		"empty":                   {},
		"entry too short":         {Entry: e[:63]},
		"entry malformed":         {Entry: make([]byte, 64)},
		"payload of other length": {Entry: e[:], Payload: []byte("1234")},
	} {
		stream, err := p.Client.Steps(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(msg); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// panicking is a backend whose every method panics.
type panicking struct {
	sdk.Backend
	sdk.BackendWithState
	sdk.BackendWithExperts
}

func (panicking) Info() sdk.Info { return sdk.Info{Name: "panicking"} }
func (panicking) Probe(context.Context, sdk.ProbeRequest, *sdk.ProbeResponse) error {
	panic("probe")
}
func (panicking) Load(context.Context, sdk.LoadRequest, *sdk.LoadResponse) error { panic("load") }
func (panicking) OpenSequence(context.Context, sdk.OpenSequenceRequest, *sdk.OpenSequenceResponse) error {
	panic("open")
}
func (panicking) CloseSequence(context.Context, sdk.CloseSequenceRequest, *sdk.CloseSequenceResponse) error {
	panic("close")
}
func (panicking) Step(context.Context, *sdk.StepRequest, *sdk.StepResponse) error { panic("step") }
func (panicking) Unload(context.Context, sdk.UnloadRequest, *sdk.UnloadResponse) error {
	panic("unload")
}

// TestPanicsInCalls turns a panic in any method into an error of that call. The
// optional interfaces are nil, so their methods panic too.
func TestPanicsInCalls(t *testing.T) {
	p := sdktest.Connect(t, panicking{}, sdktest.Options{})
	ctx := t.Context()
	calls := map[string]func() error{
		"probe": func() error { _, err := p.Client.Probe(ctx, &pb.ProbeRequest{}); return err },
		"load":  func() error { _, _, err := p.Load(ctx, request(0, layers)); return err },
		"open":  func() error { _, err := p.Client.OpenSequence(ctx, &pb.OpenSequenceRequest{}); return err },
		"close": func() error { _, err := p.Client.CloseSequence(ctx, &pb.CloseSequenceRequest{}); return err },
		"uses":  func() error { _, err := p.Client.ExpertUses(ctx, &pb.ExpertUsesRequest{}); return err },
		"checkpoint": func() error {
			stream, err := p.Client.Checkpoint(ctx, &pb.CheckpointRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	}
	for name, call := range calls {
		if err := call(); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "panicked") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := p.Client.Info(ctx, &pb.InfoRequest{}); err != nil {
		t.Errorf("info: %v", err)
	}
}

// TestGoPlugin dispenses the service as go-plugin does.
func TestGoPlugin(t *testing.T) {
	server := sdk.NewServer(sdk.ServerOptions{Backend: &sdktest.Echo{}})
	client, _ := plugin.TestPluginGRPCConn(t, false, sdk.Plugins(server)[sdk.ProtocolVersion])
	defer func() {
		// It asks the server to stop, too.
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	raw, err := client.Dispense(sdk.PluginName)
	if err != nil {
		t.Fatal(err)
	}
	info, err := raw.(pb.BackendClient).Info(t.Context(), &pb.InfoRequest{})
	if err != nil || info.Name != "echo" {
		t.Errorf("info is %v, %v", info, err)
	}
}

// TestEvents subscribes and sees a panic reported.
func TestEvents(t *testing.T) {
	req := request(0, layers)
	p := loaded(t, &sdktest.Echo{OnStep: func(context.Context, *sdk.StepRequest) error { panic("boom") }}, req, sdktest.Options{})
	open(t, p, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := p.Client.Events(ctx, &pb.EventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// The stream is registered some time after the call: panic until it reports.
	got := make(chan *pb.Event, 1)
	go func() {
		if e, err := events.Recv(); err == nil {
			got <- e
		}
		close(got)
	}()
	for deadline := time.Now().Add(5 * time.Second); ; {
		if _, err := p.Step(t.Context(), window(1, 0, 1), bounds(req)); err == nil {
			t.Fatal("the step did not fail")
		}
		select {
		case e := <-got:
			if e.GetKind() != "panic" || e.GetMessage() != "step" {
				t.Errorf("event is %v", e)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("no event arrived")
		}
	}
}
