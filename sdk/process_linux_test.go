package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/sdktest"
	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

// process is a backend in a process of its own, started as a host does.
type process struct {
	client   *plugin.Client
	backend  pb.BackendClient
	pid      int
	lifeline *os.File
	// data and vitals are nil without shared memory.
	data   *shm.Data
	vitals *shm.VitalsReader
}

func startProcess(t testing.TB, role string, g shm.Geometry) *process {
	t.Helper()
	p := &process{}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lifeline = write
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{backendEnv + "=" + role, "TMPDIR=" + socketDir(t), sdk.EnvLifeline + "=3"}
	cmd.ExtraFiles = []*os.File{read}
	if g.Slots > 0 {
		if p.vitals, err = shm.CreateVitals(3); err != nil {
			t.Fatal(err)
		}
		if p.data, err = shm.CreateData(g, 3); err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, sdk.EnvVitals+"=4", sdk.EnvData+"=5")
		cmd.ExtraFiles = append(cmd.ExtraFiles, p.vitals.File(), p.data.File())
		t.Cleanup(func() {
			if err := errors.Join(p.vitals.Close(), p.data.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	p.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  sdk.Handshake,
		VersionedPlugins: sdk.Plugins(nil),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Cmd:              cmd,
		SkipHostEnv:      true,
		AutoMTLS:         true,
		StartTimeout:     10 * time.Second,
		Logger:           hclog.NewNullLogger(),
	})
	t.Cleanup(func() {
		p.client.Kill()
		write.Close()
	})
	rpc, err := p.client.Client()
	read.Close()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := rpc.Dispense(sdk.PluginName)
	if err != nil {
		t.Fatal(err)
	}
	p.backend = raw.(pb.BackendClient)
	info, err := p.backend.Info(t.Context(), &pb.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	p.pid = int(info.Pid)
	return p
}

// socketDir is short: the path of a socket is limited to about a hundred bytes.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (p *process) load(t testing.TB, req *pb.LoadStageRequest) {
	t.Helper()
	stream, err := p.backend.LoadStage(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if msg.GetResult() != nil {
			break
		}
	}
	if _, err := p.backend.OpenSequence(t.Context(), &pb.OpenSequenceRequest{Sequence: 1}); err != nil {
		t.Fatal(err)
	}
}

// push posts a window in slot 0.
func (p *process) push(w *wire.Window) error {
	slot, err := p.data.RequestSlot(0)
	if err != nil {
		return err
	}
	n, err := w.Put(slot)
	if err != nil {
		return err
	}
	var e shm.Entry
	wire.Submission{Number: 1, Generation: 3, Kind: wire.KindStep, Bytes: n}.Put(&e)
	return p.data.Submissions().Push(&e)
}

// pop waits for a result in slot 0.
func (p *process) pop(ctx context.Context, shape wire.ResultShape) (wire.Result, error) {
	var e shm.Entry
	if err := p.data.Completions().Pop(ctx, &e); err != nil {
		return wire.Result{}, err
	}
	c, err := wire.ParseCompletion(&e)
	if err != nil {
		return wire.Result{}, err
	}
	slot, err := p.data.ResultSlot(c.Slot)
	if err != nil {
		return wire.Result{}, err
	}
	if c.Status != wire.StatusOK {
		return wire.Result{}, &sdktest.StatusError{Status: c.Status, Text: wire.ParseError(slot[:c.Bytes])}
	}
	return wire.ParseResult(slot[:c.Bytes], shape, nil)
}

// TestProcess runs steps in a real process and ends it in the orderly way.
func TestProcess(t *testing.T) {
	req := request(0, layers)
	p := startProcess(t, "echo", geometry(t, req))
	p.load(t, req)
	if err := p.push(window(1, 0, 5, 6)); err != nil {
		t.Fatal(err)
	}
	result, err := p.pop(t.Context(), bounds(req).Shape(2, 1))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := argmax(result.Matrix), sdktest.EchoNext([]int32{5, 6}, vocab); got != want {
		t.Errorf("token %d, want %d", got, want)
	}
	first, err := p.vitals.Read()
	if err != nil {
		t.Fatal(err)
	}
	if first.PID != p.pid || first.State != shm.StateReady || first.Completed != 1 {
		t.Errorf("vitals are %+v", first)
	}
	time.Sleep(4 * shm.BeatInterval)
	second, err := p.vitals.Read()
	if err != nil {
		t.Fatal(err)
	}
	if second.Beat == first.Beat || second.BeatTime <= first.BeatTime {
		t.Errorf("the process does not beat: %+v", second)
	}
	begin := time.Now()
	p.client.Kill()
	if d := time.Since(begin); d > 1500*time.Millisecond {
		t.Errorf("the orderly end took %v", d)
	}
	last, err := p.vitals.Read()
	if err != nil {
		t.Fatal(err)
	}
	if last.State != shm.StateStopping || !gone(p.pid) {
		t.Errorf("after the end the vitals are %+v", last)
	}
}

// gone reports whether a process has ended and was reaped.
func gone(pid int) bool { return syscall.Kill(pid, 0) != nil }

// TestLifeline closes the pipe: the process dies within a second, at rest and
// with a step that never ends.
func TestLifeline(t *testing.T) {
	for _, role := range []string{"echo", "stuck"} {
		t.Run(role, func(t *testing.T) {
			req := request(0, layers)
			p := startProcess(t, role, geometry(t, req))
			p.load(t, req)
			if role == "stuck" {
				if err := p.push(window(1, 0, 5)); err != nil {
					t.Fatal(err)
				}
				for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
					if v, err := p.vitals.Read(); err != nil || time.Now().After(deadline) {
						t.Fatalf("the step did not begin: %v", err)
					} else if v.Submitted == 1 {
						break
					}
				}
			}
			begin := time.Now()
			if err := p.lifeline.Close(); err != nil {
				t.Fatal(err)
			}
			for !p.client.Exited() || !gone(p.pid) {
				if time.Since(begin) > time.Second {
					t.Fatal("the process outlives its host")
				}
				time.Sleep(time.Millisecond)
			}
			t.Logf("dead after %v", time.Since(begin))
		})
	}
}

// TestByHand starts the program without a host.
func TestByHand(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), backendEnv+"=echo")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !bytes.Contains(out, []byte("This binary is a plugin")) {
		t.Errorf("it ended with %v and said %q", err, out)
	}
}

// TestBadDescriptors starts the program with descriptors that are none.
func TestBadDescriptors(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for setting, want := range map[string]string{
		sdk.EnvData + "=x":      "want the number",
		sdk.EnvVitals + "=2":    "want the number",
		sdk.EnvLifeline + "=-1": "want the number",
		sdk.EnvData + "=3":      "attach data segment",
		sdk.EnvVitals + "=3":    "attach vitals page",
		sdk.EnvData + "=99":     "attach data segment",
	} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), backendEnv+"=echo", setting,
			sdk.Handshake.MagicCookieKey+"="+sdk.Handshake.MagicCookieValue)
		cmd.ExtraFiles = []*os.File{file}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), want) {
			t.Errorf("%s: it ended with %v and said %q", setting, err, out)
		}
	}
}

// BenchmarkStep measures one decode step of a backend that does nothing, through
// the whole data plane, between two processes.
func BenchmarkStep(b *testing.B) {
	req := request(0, layers)
	req.Context = 1 << 30
	percentiles := func(b *testing.B, step func(pos int) error) {
		times := make([]time.Duration, 0, 1<<16)
		for pos := 0; b.Loop(); pos++ {
			begin := time.Now()
			if err := step(pos); err != nil {
				b.Fatal(err)
			}
			if len(times) < cap(times) {
				times = append(times, time.Since(begin))
			}
		}
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "p50-us")
		b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1e3, "p99-us")
	}
	b.Run("rings", func(b *testing.B) {
		p := startProcess(b, "echo", geometry(b, req))
		p.load(b, req)
		percentiles(b, func(pos int) error {
			if err := p.push(window(1, pos, 5)); err != nil {
				return err
			}
			_, err := p.pop(b.Context(), bounds(req).Shape(1, 1))
			return err
		})
	})
	b.Run("stream", func(b *testing.B) {
		p := startProcess(b, "echo", shm.Geometry{})
		p.load(b, req)
		stream, err := p.backend.Steps(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		payload := shm.AlignedBytes(4096)
		percentiles(b, func(pos int) error {
			n, err := window(1, pos, 5).Put(payload)
			if err != nil {
				return err
			}
			var e shm.Entry
			wire.Submission{Number: uint64(pos) + 1, Generation: 3, Kind: wire.KindStep, Bytes: n}.Put(&e)
			if err := stream.Send(&pb.StepMessage{Entry: e[:], Payload: payload[:n]}); err != nil {
				return err
			}
			msg, err := stream.Recv()
			if err != nil {
				return err
			}
			_, err = wire.ParseResult(msg.Payload, bounds(req).Shape(1, 1), nil)
			return err
		})
	})
}
