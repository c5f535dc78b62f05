package shm

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLayout fixes the bytes that docs/protocol.md lists.
func TestLayout(t *testing.T) {
	le := binary.LittleEndian
	host, backend := heapData(t, small)
	want := append([]byte("STRADAT1"), make([]byte, 56)...)
	le.PutUint32(want[8:], 1)
	le.PutUint32(want[12:], 3)
	le.PutUint64(want[16:], 4096)
	le.PutUint64(want[24:], 8192)
	// Two rings of 384 + 4 x 64 bytes lie between the header and the slots.
	le.PutUint64(want[32:], 4096+4096+3*(4096+8192))
	le.PutUint64(want[40:], 5)
	if diff := cmp.Diff(want, host.mem[:64]); diff != "" {
		t.Error(diff)
	}

	if err := host.Submissions().Push(numbered(1)); err != nil {
		t.Fatal(err)
	}
	if err := host.Submissions().Push(numbered(2)); err != nil {
		t.Fatal(err)
	}
	var e Entry
	if err := backend.Submissions().Pop(t.Context(), &e); err != nil {
		t.Fatal(err)
	}
	if err := backend.Completions().Push(numbered(3)); err != nil {
		t.Fatal(err)
	}
	const submissions, completions = 4096, 4096 + 384 + 4*64
	for name, word := range map[string]struct {
		at   int
		want uint32
	}{
		"submissions.tail": {submissions, 2},
		"submissions.head": {submissions + 128, 1},
		"completions.tail": {completions, 1},
		"completions.head": {completions + 128, 0},
	} {
		if got := le.Uint32(host.mem[word.at:]); got != word.want {
			t.Errorf("%s is %d, want %d", name, got, word.want)
		}
	}
	for name, entry := range map[string]struct{ at, want int }{
		"submission 1": {submissions + 384, 1},
		"submission 2": {submissions + 384 + 64, 2},
		"completion":   {completions + 384, 3},
	} {
		if got := number(t, (*Entry)(host.mem[entry.at:])); got != uint64(entry.want) {
			t.Errorf("%s is %d, want %d", name, got, entry.want)
		}
	}
	host.Poison()
	if host.mem[48] != 1 || host.mem[submissions+256] == 0 || host.mem[completions+256] == 0 {
		t.Error("the poison or a bell is elsewhere")
	}

	request, err := host.RequestSlot(2)
	if err != nil {
		t.Fatal(err)
	}
	result, err := host.ResultSlot(1)
	if err != nil {
		t.Fatal(err)
	}
	request[0], result[0] = 0xaa, 0xbb
	if host.mem[8192+2*4096] != 0xaa || host.mem[8192+3*4096+8192] != 0xbb {
		t.Error("a slot is elsewhere")
	}
}

// TestVitalsLayout fixes the words of the vitals page.
func TestVitalsLayout(t *testing.T) {
	le := binary.LittleEndian
	_, w := LocalVitals()
	w.SetState(StateDraining)
	w.Beat()
	w.Begin(PhasePrefill)
	w.Begin(PhasePrefill)
	w.End(3, 4)
	w.SetPhase(PhaseRestore)
	w.SetLayer(-1)
	w.SetLoad(5, 6)
	w.SetError("oh")
	mem := w.page.mem
	if string(mem[:8]) != "STRAVIT1" || string(mem[256:259]) != "oh\x00" {
		t.Errorf("magic %q, error %q", mem[:8], mem[256:259])
	}
	for at, want := range map[int]uint32{8: 1, 32: 4, 96: 10, 100: 0xffffffff, 192: 2, 196: 2} {
		if got := le.Uint32(mem[at:]); got != want {
			t.Errorf("word at %d is %d, want %d", at, got, want)
		}
	}
	for at, want := range map[int]uint64{16: 1, 64: 1, 80: 2, 88: 1, 112: 3, 120: 4, 128: 5, 136: 6} {
		if got := le.Uint64(mem[at:]); got != want {
			t.Errorf("word at %d is %d, want %d", at, got, want)
		}
	}
	for _, at := range []int{72, 104} {
		if le.Uint64(mem[at:]) == 0 {
			t.Errorf("the time at %d is missing", at)
		}
	}
}
