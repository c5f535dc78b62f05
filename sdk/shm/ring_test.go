package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var small = Geometry{Slots: 3, RequestBytes: 100, ResultBytes: 5000}

// heapData returns both sides of a segment in this process's memory, so that the
// logic of the rings is tested on every platform.
func heapData(t testing.TB, g Geometry) (host, backend *Data) {
	t.Helper()
	g, err := g.rounded()
	if err != nil {
		t.Fatal(err)
	}
	mem := AlignedBytes(int(g.bytes()))
	formatData(mem, g, 5)
	if backend, err = openData(mem); err != nil {
		t.Fatal(err)
	}
	return newData(mem, g, 5), backend
}

// numbered returns an entry of generation 5 that carries n.
func numbered(n uint64) *Entry {
	var e Entry
	binary.LittleEndian.PutUint64(e[:], n)
	binary.LittleEndian.PutUint64(e[entryGeneration:], 5)
	binary.LittleEndian.PutUint64(e[56:], ^n)
	return &e
}

func number(t *testing.T, e *Entry) uint64 {
	t.Helper()
	n := binary.LittleEndian.Uint64(e[:])
	if *numbered(n) != *e {
		t.Fatalf("entry %d is damaged: %x", n, e[:])
	}
	return n
}

func TestGeometry(t *testing.T) {
	g, err := small.rounded()
	if err != nil {
		t.Fatal(err)
	}
	want := Geometry{Slots: 3, RequestBytes: 4096, ResultBytes: 8192}
	if diff := cmp.Diff(want, g); diff != "" {
		t.Error(diff)
	}
	for slots, capacity := range map[int]int{1: 1, 2: 2, 3: 4, 4: 4, 5: 8, MaxSlots: MaxSlots} {
		if got := (Geometry{Slots: slots}).capacity(); got != capacity {
			t.Errorf("capacity for %d slots is %d, want %d", slots, got, capacity)
		}
	}
	for _, bad := range []Geometry{
		{Slots: 0, RequestBytes: 1, ResultBytes: 1},
		{Slots: -1, RequestBytes: 1, ResultBytes: 1},
		{Slots: MaxSlots + 1, RequestBytes: 1, ResultBytes: 1},
		{Slots: 1, RequestBytes: 0, ResultBytes: 1},
		{Slots: 1, RequestBytes: 1, ResultBytes: -1},
	} {
		if _, err := CreateData(bad, 1); err == nil {
			t.Errorf("CreateData(%+v) succeeded", bad)
		}
	}
	if _, err := CreateData(small, 0); err == nil {
		t.Error("CreateData accepted generation 0")
	}
}

// TestRingModel compares a ring with a plain queue under any order of calls.
func TestRingModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		host, backend := heapData(t, Geometry{Slots: rapid.IntRange(1, 9).Draw(rt, "slots"), RequestBytes: 1, ResultBytes: 1})
		producer, consumer := host.Submissions(), backend.Submissions()
		consumer.SetSpin(0)
		// Cursors near their overflow.
		start := rapid.SampledFrom([]uint32{0, ^uint32(0), ^uint32(0) - 5}).Draw(rt, "start")
		producer.pushed, consumer.popped = start, start
		producer.tail.Store(start)
		producer.head.Store(start)
		capacity := host.Geometry().capacity()

		var queue []uint64
		var next uint64
		var e Entry
		interrupted := false
		rt.Repeat(map[string]func(*rapid.T){
			"push": func(rt *rapid.T) {
				next++
				err := producer.Push(numbered(next))
				if len(queue) == capacity {
					if !errors.Is(err, ErrFull) {
						rt.Fatalf("push to a full ring: %v", err)
					}
					next--
					return
				}
				if err != nil {
					rt.Fatalf("push: %v", err)
				}
				queue = append(queue, next)
			},
			"pop": func(rt *rapid.T) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if len(queue) == 0 {
					cancel()
				}
				err := consumer.Pop(ctx, &e)
				switch {
				case interrupted:
					if !errors.Is(err, ErrInterrupted) {
						rt.Fatalf("pop after an interrupt: %v", err)
					}
					interrupted = false
				case len(queue) == 0:
					if !errors.Is(err, context.Canceled) {
						rt.Fatalf("pop from an empty ring: %v", err)
					}
				default:
					if err != nil {
						rt.Fatalf("pop: %v", err)
					}
					if got := number(t, &e); got != queue[0] {
						rt.Fatalf("popped %d, want %d", got, queue[0])
					}
					queue = queue[1:]
				}
			},
			"interrupt": func(rt *rapid.T) {
				consumer.Interrupt()
				interrupted = true
			},
		})
	})
}

// TestPingPong sends entries both ways between two goroutines, with and without
// spinning.
func TestPingPong(t *testing.T) {
	for name, spin := range map[string]time.Duration{"spin": DefaultSpin, "sleep": 0} {
		t.Run(name, func(t *testing.T) {
			host, backend := heapData(t, small)
			host.Completions().SetSpin(spin)
			backend.Submissions().SetSpin(spin)
			const n = 3000
			failed := make(chan error, 1)
			go func() {
				var e Entry
				for range n {
					if err := backend.Submissions().Pop(t.Context(), &e); err != nil {
						failed <- err
						return
					}
					if err := backend.Completions().Push(&e); err != nil {
						failed <- err
						return
					}
				}
				failed <- nil
			}()
			var e Entry
			for i := range uint64(n) {
				if err := host.Submissions().Push(numbered(i)); err != nil {
					t.Fatal(err)
				}
				if err := host.Completions().Pop(t.Context(), &e); err != nil {
					t.Fatal(err)
				}
				if got := number(t, &e); got != i {
					t.Fatalf("got %d, want %d", got, i)
				}
			}
			if err := <-failed; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestWaiterEnds checks everything that ends a wait, for a waiter that sleeps.
func TestWaiterEnds(t *testing.T) {
	tests := []struct {
		name string
		end  func(host, backend *Data, cancel func())
		want error
	}{
		{"poison by the peer", func(host, _ *Data, _ func()) { host.Poison() }, ErrPoisoned},
		{"poison by this side", func(_, backend *Data, _ func()) { backend.Poison() }, ErrPoisoned},
		{"interrupt", func(_, backend *Data, _ func()) { backend.Submissions().Interrupt() }, ErrInterrupted},
		{"close", func(_, backend *Data, _ func()) { backend.Close() }, ErrClosed},
		{"context", func(_, _ *Data, cancel func()) { cancel() }, context.Canceled},
		{"generation", func(host, _ *Data, _ func()) { host.generationWord.Store(6) }, ErrGeneration},
		{"cursor", func(host, _ *Data, _ func()) { host.submissions.tail.Store(77) }, ErrCorrupt},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			host, backend := heapData(t, small)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := make(chan error, 1)
			go func() {
				var e Entry
				result <- backend.Submissions().Pop(ctx, &e)
			}()
			time.Sleep(15 * time.Millisecond)
			test.end(host, backend, cancel)
			select {
			case err := <-result:
				if !errors.Is(err, test.want) {
					t.Errorf("the wait ended with %v, want %v", err, test.want)
				}
			case <-time.After(2 * time.Second):
				t.Fatal("the wait did not end")
			}
		})
	}
}

// TestPoisonIsFinal checks that nothing works after a poison, not even what was
// queued before it.
func TestPoisonIsFinal(t *testing.T) {
	host, backend := heapData(t, small)
	if err := host.Submissions().Push(numbered(1)); err != nil {
		t.Fatal(err)
	}
	host.Poison()
	var e Entry
	if err := backend.Submissions().Pop(t.Context(), &e); !errors.Is(err, ErrPoisoned) {
		t.Errorf("pop: %v", err)
	}
	if err := backend.Completions().Push(numbered(1)); !errors.Is(err, ErrPoisoned) {
		t.Errorf("push: %v", err)
	}
}

// TestClosed checks that a closed side answers, and that its slots are gone.
func TestClosed(t *testing.T) {
	host, _ := heapData(t, small)
	for range 2 {
		if err := host.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var e Entry
	if err := host.Submissions().Push(&e); !errors.Is(err, ErrClosed) {
		t.Errorf("push: %v", err)
	}
	if err := host.Completions().Pop(t.Context(), &e); !errors.Is(err, ErrClosed) {
		t.Errorf("pop: %v", err)
	}
	if _, err := host.RequestSlot(0); !errors.Is(err, ErrClosed) {
		t.Errorf("request slot: %v", err)
	}
	host.Poison()
	host.Submissions().Interrupt()
}

// TestSlots checks the extent of every slot: none overlaps another.
func TestSlots(t *testing.T) {
	host, backend := heapData(t, small)
	for i := range uint32(small.Slots) {
		request, err := host.RequestSlot(i)
		if err != nil {
			t.Fatal(err)
		}
		result, err := host.ResultSlot(i)
		if err != nil {
			t.Fatal(err)
		}
		if len(request) != 4096 || len(result) != 8192 {
			t.Fatalf("slot %d has %d and %d bytes", i, len(request), len(result))
		}
		for j := range request {
			request[j] = byte(2*i + 1)
		}
		for j := range result {
			result[j] = byte(2*i + 2)
		}
	}
	for i := range uint32(small.Slots) {
		request, _ := backend.RequestSlot(i)
		result, _ := backend.ResultSlot(i)
		if request[0] != byte(2*i+1) || request[4095] != byte(2*i+1) || result[0] != byte(2*i+2) || result[8191] != byte(2*i+2) {
			t.Errorf("slot %d overlaps another", i)
		}
	}
	for _, bad := range []uint32{3, 4, 1 << 31, ^uint32(0)} {
		if _, err := host.RequestSlot(bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("request slot %d: %v", bad, err)
		}
		if _, err := host.ResultSlot(bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("result slot %d: %v", bad, err)
		}
	}
	if err := host.Submissions().Push(numbered(1)); err != nil {
		t.Errorf("the slots overlap the rings: %v", err)
	}
}

// TestCorruptCursors sets the peer's cursor to what it cannot be on a fresh ring
// of four entries.
func TestCorruptCursors(t *testing.T) {
	for _, tail := range []uint32{5, 100, 1 << 31, ^uint32(0)} {
		host, backend := heapData(t, small)
		host.submissions.tail.Store(tail)
		var e Entry
		if err := backend.Submissions().Pop(t.Context(), &e); !errors.Is(err, ErrCorrupt) {
			t.Errorf("pop with tail %d: %v", tail, err)
		}
	}
	for _, head := range []uint32{1, 100, 1 << 31, ^uint32(4)} {
		host, backend := heapData(t, small)
		backend.submissions.head.Store(head)
		if err := host.Submissions().Push(numbered(1)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("push with head %d: %v", head, err)
		}
	}
}

func TestGenerationOfEntry(t *testing.T) {
	host, backend := heapData(t, small)
	e := numbered(1)
	binary.LittleEndian.PutUint64(e[entryGeneration:], 4)
	if err := host.Submissions().Push(e); err != nil {
		t.Fatal(err)
	}
	if err := backend.Submissions().Pop(t.Context(), e); !errors.Is(err, ErrGeneration) {
		t.Errorf("pop: %v", err)
	}
}

// TestCorruptHeaders changes every word of the header.
func TestCorruptHeaders(t *testing.T) {
	g, err := small.rounded()
	if err != nil {
		t.Fatal(err)
	}
	fresh := func() []byte {
		mem := AlignedBytes(int(g.bytes()))
		formatData(mem, g, 5)
		return mem
	}
	for _, at := range []int{dataMagicAt, dataABIAt, dataSlotsAt, dataRequestBytesAt, dataRequestBytesAt + 4,
		dataResultBytesAt, dataResultBytesAt + 4, dataBytesAt, dataBytesAt + 4} {
		for _, value := range []uint32{0, 2, 4097, 1 << 20, 1 << 31, ^uint32(0)} {
			mem := fresh()
			if word := word32(mem, at); word.Load() == value {
				continue
			} else {
				word.Store(value)
			}
			if _, err := openData(mem); !errors.Is(err, ErrCorrupt) {
				t.Errorf("word %d = %#x: %v", at, value, err)
			}
		}
	}
	mem := fresh()
	word64(mem, dataGenerationAt).Store(0)
	if _, err := openData(mem); !errors.Is(err, ErrCorrupt) {
		t.Errorf("generation 0: %v", err)
	}
	if _, err := openData(fresh()[:len(mem)-pageBytes]); !errors.Is(err, ErrCorrupt) {
		t.Errorf("short segment: %v", err)
	}
	mem = fresh()
	d, err := openData(mem)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Completions().Push(numbered(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := openData(mem); !errors.Is(err, ErrCorrupt) {
		t.Errorf("second attachment: %v", err)
	}
}

// FuzzData treats bytes as a segment that an enemy made: header, cursors and
// entries. Nothing may panic, whatever it answers.
func FuzzData(f *testing.F) {
	g, err := Geometry{Slots: 2, RequestBytes: 1, ResultBytes: 1}.rounded()
	if err != nil {
		f.Fatal(err)
	}
	good := make([]byte, 64)
	aligned := AlignedBytes(int(g.bytes()))
	formatData(aligned, g, 5)
	copy(good, aligned)
	f.Add(good, uint32(1), uint32(0), numbered(1)[:])
	f.Add(good, uint32(77), uint32(9), []byte{1})
	f.Add([]byte("STRADAT1"), uint32(0), uint32(0), []byte{})
	f.Fuzz(func(t *testing.T, header []byte, tail, head uint32, entry []byte) {
		mem := AlignedBytes(int(g.bytes()))
		copy(mem[:pageBytes], header)
		d, err := openData(mem)
		if err != nil {
			return
		}
		copy(d.submissions.entries, entry)
		d.submissions.tail.Store(tail)
		d.completions.head.Store(head)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var e Entry
		for range 3 {
			if d.Submissions().Pop(ctx, &e) == nil && d.Completions().Push(&e) != nil {
				return
			}
			slot := binary.LittleEndian.Uint32(e[20:])
			if b, err := d.RequestSlot(slot); err == nil {
				b[len(b)-1] = 1
			}
		}
	})
}
