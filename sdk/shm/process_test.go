package shm

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// peer is what the test binary does as the backend's process: it attaches the
// segment on descriptor 3 and the vitals page on 4, and answers every entry.
func peer(role string) error {
	data, err := AttachData(os.NewFile(3, "data"))
	if err != nil {
		return err
	}
	vitals, err := AttachVitals(os.NewFile(4, "vitals"))
	if err != nil {
		return err
	}
	if strings.HasSuffix(role, "-sleep") {
		data.Submissions().SetSpin(0)
	}
	vitals.SetState(StateReady)
	vitals.SetPhase(PhaseDecode)
	vitals.SetError("nothing yet")
	vitals.Beat()
	var e Entry
	for {
		err := data.Submissions().Pop(context.Background(), &e)
		if errors.Is(err, ErrPoisoned) {
			vitals.SetError("poisoned")
			return nil
		}
		if err != nil {
			return err
		}
		vitals.Begin(PhaseDecode)
		if role == "stuck" {
			time.Sleep(time.Hour)
		}
		vitals.End(0, 1)
		if err := data.Completions().Push(&e); err != nil {
			return err
		}
	}
}

// startPeer runs the test binary as another process.
func startPeer(t testing.TB, role string) (*Data, *VitalsReader, *exec.Cmd) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("shared memory exists on Linux only")
	}
	data, err := CreateData(small, 5)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { data.Close() })
	vitals, err := CreateVitals(5)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vitals.Close() })
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), peerEnv+"="+role)
	cmd.ExtraFiles = []*os.File{data.File(), vitals.File()}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		data.Poison()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return data, vitals, cmd
}

func roundTrip(ctx context.Context, d *Data, e *Entry) error {
	if err := d.Submissions().Push(e); err != nil {
		return err
	}
	return d.Completions().Pop(ctx, e)
}

func TestTwoProcesses(t *testing.T) {
	for _, role := range []string{"echo", "echo-sleep"} {
		t.Run(role, func(t *testing.T) {
			data, vitals, cmd := startPeer(t, role)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			const n = 2000
			for i := range uint64(n) {
				e := numbered(i)
				if err := roundTrip(ctx, data, e); err != nil {
					t.Fatal(err)
				}
				if got := number(t, e); got != i {
					t.Fatalf("got %d, want %d", got, i)
				}
			}
			v, err := vitals.Read()
			if err != nil {
				t.Fatal(err)
			}
			if v.PID != cmd.Process.Pid || v.Submitted != n || v.Completed != n || v.DecodeTokens != n || v.Beat != 1 {
				t.Errorf("vitals are %+v", v)
			}
			data.Poison()
			if err := cmd.Wait(); err != nil {
				t.Errorf("the poisoned peer: %v", err)
			}
			if v, err := vitals.Read(); err != nil || v.LastError != "poisoned" {
				t.Errorf("last error is %q (%v)", v.LastError, err)
			}
		})
	}
}

// TestDeadPeer checks that a waiter of a peer that died, or is stuck, ends with
// its context, and at once with a poison.
func TestDeadPeer(t *testing.T) {
	for _, role := range []string{"dead", "stuck"} {
		t.Run(role, func(t *testing.T) {
			data, vitals, cmd := startPeer(t, role)
			if role == "dead" {
				// It must not take the entry first.
				waitFor(t, vitals, func(v Vitals) bool { return v.Beat > 0 })
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				cmd.Wait()
			}
			if err := data.Submissions().Push(numbered(1)); err != nil {
				t.Fatal(err)
			}
			if role == "stuck" {
				waitFor(t, vitals, func(v Vitals) bool { return v.Submitted == 1 && v.Completed == 0 })
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			var e Entry
			if err := data.Completions().Pop(ctx, &e); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("pop: %v", err)
			}
			result := make(chan error, 1)
			go func() { result <- data.Completions().Pop(t.Context(), &e) }()
			time.Sleep(15 * time.Millisecond)
			data.Poison()
			if err := <-result; !errors.Is(err, ErrPoisoned) {
				t.Errorf("pop after poison: %v", err)
			}
		})
	}
}

func waitFor(t *testing.T, r *VitalsReader, done func(Vitals) bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		v, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		if done(v) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("vitals stay at %+v", v)
		}
		time.Sleep(time.Millisecond)
	}
}

// BenchmarkRoundTrip measures a submission and its completion between two
// processes.
func BenchmarkRoundTrip(b *testing.B) {
	for _, role := range []string{"echo", "echo-sleep"} {
		b.Run(role, func(b *testing.B) {
			data, _, _ := startPeer(b, role)
			if role == "echo-sleep" {
				data.Completions().SetSpin(0)
			}
			e := numbered(1)
			if err := roundTrip(b.Context(), data, e); err != nil {
				b.Fatal(err)
			}
			times := make([]time.Duration, 0, 1<<16)
			for b.Loop() {
				begin := time.Now()
				if err := roundTrip(b.Context(), data, e); err != nil {
					b.Fatal(err)
				}
				if len(times) < cap(times) {
					times = append(times, time.Since(begin))
				}
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "p50-us")
			b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1e3, "p99-us")
		})
	}
}
