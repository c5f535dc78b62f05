//go:build linux

package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/plugins/runner"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/sdktest"
)

// roleVariable makes the test binary play another process.
const roleVariable = "STRATA_TEST_ROLE"

const (
	vocab      = 50
	tokenSleep = 49
)

func TestMain(m *testing.M) {
	echo := &sdktest.Echo{OnStep: func(_ context.Context, req *sdk.StepRequest) error {
		if req.Segments[0].Tokens[0] == tokenSleep {
			time.Sleep(time.Hour)
		}
		return nil
	}}
	switch os.Getenv(roleVariable) {
	case "":
		goleak.VerifyTestMain(m)
		return
	case "tracer":
		trace()
		return
	case "no stage":
		echo.OnLoad = func(context.Context, sdk.LoadRequest) error { return errors.New("weights do not fit") }
	case "slow":
		echo.OnLoad = func(ctx context.Context, _ sdk.LoadRequest) error {
			<-ctx.Done()
			return ctx.Err()
		}
	case "dies in load":
		echo.OnLoad = func(context.Context, sdk.LoadRequest) error { os.Exit(4); return nil }
	}
	sdk.Serve(func(hclog.Logger) (sdk.Backend, error) { return echo, nil })
}

// trace keeps a process from being reaped until standard input ends: a tracer
// looks at its tracee's end before the parent may.
func trace() {
	pid, err := strconv.Atoi(os.Getenv("STRATA_TEST_PID"))
	if err != nil {
		panic(err)
	}
	runtime.LockOSThread() // a tracer is a thread
	if unix.PtraceSeize(pid) != nil {
		return
	}
	fmt.Println("traced")
	io.Copy(io.Discard, os.Stdin)
}

func eachTransport(t *testing.T, test func(t *testing.T, transport remote.Transport)) {
	for _, transport := range []remote.Transport{remote.TransportShm, remote.TransportGRPC} {
		t.Run(string(transport), func(t *testing.T) { test(t, transport) })
	}
}

func newDevice(t *testing.T, transport remote.Transport, role string) *Device {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := New(Config{
		Name:         "echo0",
		Program:      remote.Config{Path: self, Env: []string{roleVariable + "=" + role}, Transport: transport},
		DrainTimeout: time.Second,
	})
	t.Cleanup(func() {
		begin := time.Now()
		if err := d.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 6*time.Second {
			t.Errorf("stop took %s", took)
		}
	})
	return d
}

func request() core.LoadRequest {
	return core.LoadRequest{
		Model:   &core.ModelSpec{Hash: "00", Hyper: core.Hyper{Layers: 2, DraftLayers: 1, Width: 8, Vocab: vocab, Context: 512, Kinds: make([]core.LayerKind, 3)}},
		Stage:   core.Stage{Last: 2, Embed: true, Head: true},
		Context: 512, MaxSequences: 2, MaxRows: 16, MaxLogitRows: 2,
	}
}

// step executes one token and checks what comes back.
func step(t *testing.T, b core.Backend, seq core.SequenceID, tokens []int32) {
	t.Helper()
	pos := len(tokens) - 1
	done, err := b.Step(t.Context(), &core.Step{Window: core.Window{Segments: []core.Segment{
		{Seq: seq, Pos: pos, Tokens: tokens[pos:], Logits: []int{0}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer done.Release()
	next := sdktest.EchoNext(tokens, vocab)
	for v, x := range done.Logits {
		want := sdktest.EchoLogit(tokens, 1)
		if int32(v) == next {
			want += 1000
		}
		if x != want {
			t.Fatalf("logit %d is %v, want %v", v, x, want)
		}
	}
}

func await(t *testing.T, d *Device, want State, limit time.Duration) Status {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		s := d.Status()
		if s.State == want {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("state %s (%v), want %s within %s", s.State, s.Err, want, limit)
		}
	}
}

func alive(pid int) bool { return unix.Kill(pid, 0) == nil }

func TestLifeCycle(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport remote.Transport) {
		d := newDevice(t, transport, "echo")
		if s := d.Status(); s.State != StateStopped || s.Name != "echo0" || s.Since.IsZero() || d.Backend() != nil {
			t.Errorf("before the start: %+v", s)
		}
		if err := d.Stop(t.Context()); err != nil {
			t.Errorf("stop before the start: %v", err)
		}
		for start := 1; start <= 2; start++ {
			if err := d.Start(t.Context(), request()); err != nil {
				t.Fatal(err)
			}
			s := d.Status()
			if s.State != StateReady || s.Err != nil || s.Starts != start || s.Transport != transport || !alive(s.PID) ||
				s.Result.WeightBytes != 1000 || s.Progress != (core.LoadProgress{Phase: "warm", Bytes: 1000, Total: 1000}) {
				t.Errorf("ready: %+v", s)
			}
			if err := d.Start(t.Context(), request()); !errors.Is(err, ErrRunning) {
				t.Errorf("second start: %v", err)
			}
			b := d.Backend()
			if _, ok := b.(core.BackendWithState); !ok {
				t.Error("the stage's abilities are missing")
			}
			if _, ok := b.(core.BackendWithDraft); ok {
				t.Error("a stage without the MTP block drafts")
			}
			if err := b.OpenSequence(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			for tokens := []int32{}; len(tokens) < 20; {
				tokens = append(tokens, int32(len(tokens)))
				step(t, b, 1, tokens)
			}
			if err := d.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if alive(s.PID) {
				t.Error("the process is still there")
			}
			if s := d.Status(); s.State != StateStopped || s.PID != 0 || s.Err != nil || d.Backend() != nil {
				t.Errorf("stopped: %+v", s)
			}
			if err := b.OpenSequence(t.Context(), 2); !errors.Is(err, core.ErrBackendGone) {
				t.Errorf("the old backend: %v", err)
			}
		}
	})
}

func TestFailedStarts(t *testing.T) {
	for _, c := range []struct{ role, want string }{
		{"no stage", "weights do not fit"},
		{"dies in load", "exit status 4"},
	} {
		t.Run(c.role, func(t *testing.T) {
			eachTransport(t, func(t *testing.T, transport remote.Transport) {
				d := newDevice(t, transport, c.role)
				for range 2 {
					err := d.Start(t.Context(), request())
					if err == nil || !strings.HasPrefix(err.Error(), "start device echo0: ") || !strings.Contains(err.Error(), c.want) {
						t.Fatalf("start: %v, want %q", err, c.want)
					}
					s := d.Status()
					if s.State != StateFailed || s.PID != 0 || s.Err == nil || !strings.Contains(s.Err.Error(), c.want) || s.ErrTime.IsZero() {
						t.Errorf("status %+v", s)
					}
					if d.Backend() != nil {
						t.Error("a failed device has a backend")
					}
				}
			})
		})
	}
	t.Run("no program", func(t *testing.T) {
		d := New(Config{Name: "x", Program: remote.Config{Path: "/nowhere/strata-backend-x"}})
		if err := d.Start(t.Context(), request()); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("start: %v", err)
		}
		if s := d.Status(); s.State != StateFailed {
			t.Errorf("status %+v", s)
		}
	})
	t.Run("context", func(t *testing.T) {
		d := newDevice(t, remote.TransportShm, "slow")
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := d.Start(ctx, request()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("start: %v", err)
		}
		if s := d.Status(); s.State != StateFailed {
			t.Errorf("status %+v", s)
		}
	})
}

func TestStopWhileLoading(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport remote.Transport) {
		d := newDevice(t, transport, "slow")
		started := make(chan error)
		go func() { started <- d.Start(t.Context(), request()) }()
		s := await(t, d, StateLoading, 5*time.Second)
		for end := time.Now().Add(5 * time.Second); d.Status().Progress.Bytes != 1000; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("progress %+v", d.Status().Progress)
			}
		}
		if !alive(s.PID) || d.Backend() != nil {
			t.Errorf("loading: %+v", s)
		}
		begin := time.Now()
		if err := d.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 4*time.Second {
			t.Errorf("stop took %s", took)
		}
		if err := <-started; !errors.Is(err, ErrStopped) {
			t.Errorf("start: %v", err)
		}
		if alive(s.PID) {
			t.Error("the process is still there")
		}
		if s := d.Status(); s.State != StateStopped || s.Err != nil {
			t.Errorf("status %+v", s)
		}
	})
}

func TestUnexpectedEnd(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport remote.Transport) {
		d := newDevice(t, transport, "echo")
		other := newDevice(t, transport, "echo")
		for _, d := range []*Device{d, other} {
			if err := d.Start(t.Context(), request()); err != nil {
				t.Fatal(err)
			}
			if err := d.Backend().OpenSequence(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		failed := make(chan error)
		b := d.Backend()
		go func() {
			_, err := b.Step(t.Context(), &core.Step{Window: core.Window{Segments: []core.Segment{{Seq: 1, Tokens: []int32{tokenSleep}}}}})
			failed <- err
		}()
		time.Sleep(50 * time.Millisecond)
		begin := time.Now()
		if err := unix.Kill(d.Status().PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, core.ErrBackendGone) || !strings.Contains(err.Error(), "signal: killed") {
			t.Errorf("step in flight: %v", err)
		}
		if took := time.Since(begin); took > 250*time.Millisecond {
			t.Errorf("the step failed after %s", took)
		}
		s := await(t, d, StateFailed, time.Second)
		if !errors.Is(s.Err, core.ErrBackendGone) || !strings.Contains(s.Err.Error(), "signal: killed") || d.Backend() != nil {
			t.Errorf("status %+v", s)
		}
		// The other device does not care, and this one can be started again.
		step(t, other.Backend(), 1, []int32{3})
		for end := time.Now().Add(3 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			err := d.Start(t.Context(), request())
			if err == nil {
				break
			}
			if !errors.Is(err, ErrRunning) || time.Now().After(end) { // the owner still cleans up
				t.Fatal(err)
			}
		}
		s = d.Status()
		if s.State != StateReady || s.Starts != 2 || s.Err == nil {
			t.Errorf("status after a new start: %+v", s)
		}
	})
}

func TestStopFrozen(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport remote.Transport) {
		d := newDevice(t, transport, "echo")
		if err := d.Start(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
		pid := d.Status().PID
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := d.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 6*time.Second {
			t.Errorf("stop took %s", took)
		}
		if alive(pid) {
			t.Error("the process is still there")
		}
	})
}

// TestStuckProcess: nothing is started on a device whose process does not end.
func TestStuckProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := New(Config{Name: "echo0", Program: remote.Config{Path: self, Env: []string{roleVariable + "=echo"}, ReapTimeout: 200 * time.Millisecond}})
	if err := d.Start(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	defer d.Stop(t.Context())
	pid := d.Status().PID
	tracer := exec.Command("/proc/self/exe")
	tracer.Env = append(os.Environ(), roleVariable+"=tracer", "STRATA_TEST_PID="+strconv.Itoa(pid))
	letGo, err := tracer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := tracer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(said).ReadString('\n'); line != "traced\n" {
		tracer.Wait()
		t.Skip("NOT RUN: this system does not let a process trace another")
	}
	begin := time.Now()
	if err := d.Stop(t.Context()); !errors.Is(err, runner.ErrNotReaped) {
		t.Errorf("stop: %v", err)
	}
	if took := time.Since(begin); took > 6*time.Second {
		t.Errorf("stop took %s", took)
	}
	if s := d.Status(); s.State != StateFailed || !errors.Is(s.Err, runner.ErrNotReaped) || s.PID != pid {
		t.Errorf("status %+v", s)
	}
	if err := d.Start(t.Context(), request()); !errors.Is(err, runner.ErrNotReaped) || !strings.Contains(err.Error(), strconv.Itoa(pid)) {
		t.Errorf("start: %v", err)
	}
	letGo.Close()
	if err := tracer.Wait(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(3 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := d.Start(t.Context(), request())
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
