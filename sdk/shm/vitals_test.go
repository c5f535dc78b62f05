package shm

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestVitals(t *testing.T) {
	r, w := LocalVitals()
	before := Monotonic()
	w.SetState(StateLoading)
	w.SetLoad(30, 100)
	w.Begin(PhaseDecode)
	w.SetLayer(-1)
	w.End(10, 2)
	w.Begin(PhasePrefill)
	w.SetLayer(7)
	w.Beat()
	w.Beat()
	w.SetError("it broke")
	got, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]int64{"phase": got.PhaseSince, "beat": got.BeatTime} {
		if at < before || at > Monotonic() {
			t.Errorf("time of the %s is %d, not between %d and now", name, at, before)
		}
	}
	got.PhaseSince, got.BeatTime = 0, 0
	want := Vitals{
		Generation: 1, PID: os.Getpid(), State: StateLoading, Phase: PhasePrefill, Layer: 7, Beat: 2,
		Submitted: 2, Completed: 1, PrefillTokens: 10, DecodeTokens: 2, LoadBytes: 30, LoadTotal: 100,
		LastError: "it broke",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	w.SetLayer(-1)
	if got, err := r.Read(); err != nil || got.Layer != -1 {
		t.Errorf("layer is %d (%v)", got.Layer, err)
	}
}

func TestVitalsErrorText(t *testing.T) {
	r, w := LocalVitals()
	for _, text := range []string{"", "short", strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("ü", 300)} {
		w.SetError(text)
		v, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(text, v.LastError) || len(v.LastError) < min(len(text), 255) {
			t.Errorf("%d bytes became %q", len(text), v.LastError)
		}
	}
	// A text that was odd: the counter says that it is being written.
	word32(w.page.mem, vitalsErrorSeqAt).Add(1)
	if v, err := r.Read(); err != nil || v.LastError != "" {
		t.Errorf("a half-written error reads %q (%v)", v.LastError, err)
	}
	word32(w.page.mem, vitalsErrorSeqAt).Add(1)
	word32(w.page.mem, vitalsErrorBytesAt).Store(1 << 30)
	if v, err := r.Read(); err != nil || v.LastError != "" {
		t.Errorf("an error of 1 GiB reads %q (%v)", v.LastError, err)
	}
}

func TestVitalsClosed(t *testing.T) {
	r, w := LocalVitals()
	for range 2 {
		if err := errors.Join(r.Close(), w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	w.Beat()
	w.SetError("late")
	if _, err := r.Read(); !errors.Is(err, ErrClosed) {
		t.Errorf("read: %v", err)
	}
}

func TestVitalsHeader(t *testing.T) {
	for _, at := range []int{vitalsMagicAt, vitalsABIAt} {
		r, w := LocalVitals()
		word32(w.page.mem, at).Store(99)
		if _, err := r.Read(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("word %d: %v", at, err)
		}
	}
}

// TestVitalsRace lets writers and a reader meet; every text read is whole.
func TestVitalsRace(t *testing.T) {
	r, w := LocalVitals()
	texts := map[string]bool{"": true}
	var writers sync.WaitGroup
	stop := make(chan struct{})
	for _, c := range []string{"a", "b"} {
		text := strings.Repeat(c, 200)
		texts[text] = true
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					w.SetError(text)
				}
			}
		})
	}
	for deadline := time.Now().Add(100 * time.Millisecond); time.Now().Before(deadline); {
		v, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		if !texts[v.LastError] {
			t.Fatalf("read a mixture: %q", v.LastError)
		}
	}
	close(stop)
	writers.Wait()
}

func TestNames(t *testing.T) {
	for want, got := range map[string]string{
		"ready": StateReady.String(), "state-99": ProcessState(99).String(),
		"decode": PhaseDecode.String(), "phase-99": Phase(99).String(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if p, ok := LoadPhase("warm"); !ok || p != PhaseWarm {
		t.Errorf("LoadPhase(warm) = %v, %v", p, ok)
	}
	if _, ok := LoadPhase("decode"); ok {
		t.Error("decode is no phase of a load")
	}
}

func TestFloat32s(t *testing.T) {
	b := AlignedBytes(12)
	b[4], b[5], b[6], b[7] = 0, 0, 0x80, 0x3f
	v, err := Float32s(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]float32{0, 1, 0}, v); diff != "" {
		t.Error(diff)
	}
	for name, bad := range map[string][]byte{"odd length": b[:7], "not aligned": b[1:5]} {
		if _, err := Float32s(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if v, err := Float32s(nil); err != nil || len(v) != 0 {
		t.Errorf("Float32s(nil) = %v, %v", v, err)
	}
}
