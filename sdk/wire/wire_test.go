package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/strata-engine/strata/sdk/shm"
)

// floats returns n distinct values.
func floats(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i) + 0.5
	}
	return v
}

func example() *Window {
	return &Window{
		Segments: []Segment{
			{Sequence: 1 << 40, Pos: 17, Tokens: []int32{5, -1, 1 << 30}, Logits: []int32{0, 2}, Checkpoint: true},
			{Sequence: 2, Tokens: []int32{9}},
		},
		Width: 6,
		Input: floats(24),
	}
}

// encode puts a window into memory of exactly its size.
func encode(t testing.TB, w *Window) []byte {
	t.Helper()
	n, err := WindowBytes(len(w.Segments), w.Rows(), w.LogitRows(), w.Width)
	if err != nil {
		t.Fatal(err)
	}
	b := shm.AlignedBytes(n)
	got, err := w.Put(b)
	if err != nil {
		t.Fatal(err)
	}
	if got != n {
		t.Fatalf("encoded %d bytes, sized %d", got, n)
	}
	return b
}

func TestWindowRoundTrip(t *testing.T) {
	tests := map[string]*Window{
		"example":  example(),
		"no input": {Segments: []Segment{{Sequence: 3, Pos: 1, Tokens: []int32{1}, Logits: []int32{0}}}},
		"empty":    {},
	}
	var d WindowDecoder
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := d.Decode(encode(t, want))
			if err != nil {
				t.Fatal(err)
			}
			equate := cmp.Comparer(func(a, b []int32) bool { return fmt.Sprint(a) == fmt.Sprint(b) })
			segments := cmp.Comparer(func(a, b []Segment) bool {
				if len(a) != len(b) {
					return false
				}
				for i := range a {
					if !cmp.Equal(a[i], b[i], equate) {
						return false
					}
				}
				return true
			})
			if diff := cmp.Diff(want, got, segments); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestWindowLayout fixes the bytes that docs/protocol.md lists.
func TestWindowLayout(t *testing.T) {
	got := encode(t, example())
	var want []byte
	u32 := func(v ...uint32) {
		for _, x := range v {
			want = binary.LittleEndian.AppendUint32(want, x)
		}
	}
	u64 := func(v uint64) { want = binary.LittleEndian.AppendUint64(want, v) }
	u32(2, 4, 2, 6, 0, 0, 0, 0) // segments, rows, logits rows, width, reserved
	u64(1 << 40)                // sequence
	u64(17)                     // position
	u32(3, 2, 1, 0)             // tokens, logits, flags, reserved
	u64(2)
	u64(0)
	u32(1, 0, 0, 0)
	u32(5, 0xffffffff, 1<<30, 9) // tokens
	u32(0, 2)                    // logits
	if len(want) != 120 {
		t.Fatalf("the test counts %d bytes", len(want))
	}
	if diff := cmp.Diff(want, got[:120]); diff != "" {
		t.Error(diff)
	}
	if len(got) != 128+4*24 {
		t.Errorf("%d bytes", len(got))
	}
	if v := math.Float32frombits(binary.LittleEndian.Uint32(got[128:])); v != 0.5 {
		t.Errorf("the input starts with %v", v)
	}
}

func TestWindowPutErrors(t *testing.T) {
	w := example()
	n, err := WindowBytes(2, 4, 2, 6)
	if err != nil {
		t.Fatal(err)
	}
	for _, short := range []int{0, 31, n - 1} {
		if _, err := w.Put(shm.AlignedBytes(short)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d bytes: %v", short, err)
		}
	}
	big := shm.AlignedBytes(1 << 16)
	w.Input = w.Input[:23]
	if _, err := w.Put(big); err == nil {
		t.Error("an input of a wrong length was encoded")
	}
	w = example()
	w.Segments[0].Pos = -1
	if _, err := w.Put(big); err == nil {
		t.Error("a negative position was encoded")
	}
	w = example()
	if _, err := w.Put(big[1:]); err == nil {
		t.Error("an input was encoded into memory that is not aligned")
	}
	for _, bad := range [][4]int{{-1, 1, 1, 1}, {1, -1, 1, 1}, {1, 1, -1, 1}, {1, 1, 1, -1}, {1, 1 << 28, 1, 1 << 28},
		{1, math.MaxInt, 1, 1}, {1, 1, 1, math.MaxInt}} {
		if n, err := WindowBytes(bad[0], bad[1], bad[2], bad[3]); err == nil {
			t.Errorf("WindowBytes%v = %d", bad, n)
		}
	}
}

// TestWindowCorrupt changes every word of the header and the records.
func TestWindowCorrupt(t *testing.T) {
	good := encode(t, example())
	var d WindowDecoder
	// Words whose value is free: the sequence ids.
	free := map[int]bool{32: true, 36: true, 64: true, 68: true}
	for at := 0; at < windowHeaderBytes+2*segmentBytes; at += 4 {
		for _, value := range []uint32{1, 3, 7, 1 << 28, 1<<28 + 1, 1 << 31, ^uint32(0)} {
			bad := shm.AlignedBytes(len(good))
			copy(bad, good)
			old := le.Uint32(bad[at:])
			if free[at] || old == value {
				continue
			}
			le.PutUint32(bad[at:], value)
			_, err := d.Decode(bad)
			// Positions up to 2^28 are well formed.
			fine := (at == 40 || at == 72) && value <= maxCount || at == segmentFlags+64 && value == 1
			if !fine && !errors.Is(err, ErrMalformed) {
				t.Errorf("word %d = %#x: %v", at, value, err)
			}
		}
	}
	for n := range good {
		if _, err := d.Decode(good[:n]); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := d.Decode(append(good, 0)); !errors.Is(err, ErrMalformed) {
		t.Errorf("a byte too many: %v", err)
	}
}

func TestResultRoundTrip(t *testing.T) {
	for name, shape := range map[string]ResultShape{
		"output":    {Rows: 3, Kind: MatrixOutput, MatrixRows: 3, Width: 5},
		"logits":    {Rows: 3, Kind: MatrixLogits, MatrixRows: 2, Width: 11},
		"no logits": {Rows: 3, Kind: MatrixLogits, MatrixRows: 0, Width: 11},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := shape.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			slot := shm.AlignedBytes(n)
			matrix, err := ResultMatrix(slot, shape)
			if err != nil {
				t.Fatal(err)
			}
			copy(matrix, floats(len(matrix)))
			rows := []RowFlags{{Layer: 4}, {Residual: true, State: true, Layer: -1}, {Logits: true, Layer: 24}}
			if got, err := PutResult(slot, shape, rows); err != nil || got != n {
				t.Fatalf("PutResult = %d, %v, want %d", got, err, n)
			}
			got, err := ParseResult(slot, shape, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(rows, got.Rows); diff != "" {
				t.Error(diff)
			}
			if len(got.Matrix) != shape.MatrixRows*shape.Width {
				t.Errorf("%d values", len(got.Matrix))
			}
			for i, v := range got.Matrix {
				if v != float32(i)+0.5 {
					t.Fatalf("value %d is %v", i, v)
				}
			}
		})
	}
}

func TestResultErrors(t *testing.T) {
	shape := ResultShape{Rows: 2, Kind: MatrixLogits, MatrixRows: 1, Width: 4}
	n, err := shape.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	slot := shm.AlignedBytes(n)
	if _, err := PutResult(slot, shape, make([]RowFlags, 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := PutResult(slot, shape, make([]RowFlags, 3)); err == nil {
		t.Error("flags for too many rows were encoded")
	}
	if _, err := PutResult(slot[:n-1], shape, make([]RowFlags, 2)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("short slot: %v", err)
	}
	if _, err := ResultMatrix(slot[:n-1], shape); !errors.Is(err, ErrTooLarge) {
		t.Errorf("short slot: %v", err)
	}
	for at := 0; at < resultHeaderBytes; at += 4 {
		bad := shm.AlignedBytes(n)
		copy(bad, slot)
		le.PutUint32(bad[at:], 77)
		if _, err := ParseResult(bad, shape, nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("word %d: %v", at, err)
		}
	}
	bad := shm.AlignedBytes(n)
	copy(bad, slot)
	le.PutUint32(bad[resultHeaderBytes:], 8)
	if _, err := ParseResult(bad, shape, nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("unknown flag: %v", err)
	}
	for n := range slot {
		if _, err := ParseResult(slot[:n], shape, nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, bad := range []ResultShape{{Rows: -1}, {Rows: math.MaxInt}, {MatrixRows: 1 << 28, Width: 1 << 28}, {MatrixRows: -1, Width: -1}} {
		if n, err := bad.Bytes(); err == nil {
			t.Errorf("%+v has %d bytes", bad, n)
		}
	}
}

func TestErrorText(t *testing.T) {
	slot := make([]byte, MinResultBytes)
	for _, text := range []string{"", "step: out of memory", strings.Repeat("é", MinResultBytes)} {
		n := PutError(slot, text)
		got := ParseError(slot[:n])
		if !strings.HasPrefix(text, got) || len(got) < min(len(text), MinResultBytes-1) {
			t.Errorf("%d bytes became %d", len(text), len(got))
		}
	}
	if got := ParseError([]byte{'a', 0xff, 'b'}); got != "ab" {
		t.Errorf("invalid text became %q", got)
	}
}

func TestDraftRoundTrip(t *testing.T) {
	slot := make([]byte, 100)
	request := DraftRequest{Sequence: 1 << 50, Next: 7, Count: 3}
	n, err := request.Put(slot)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseDraftRequest(slot[:n])
	if err != nil || got != request {
		t.Errorf("request became %+v, %v", got, err)
	}
	for _, want := range []DraftResult{
		{Tokens: []int32{}, LogProbs: []float32{}},
		{Tokens: []int32{4, -5, 6}, LogProbs: []float32{-0.5, -1, -2}},
	} {
		n, err := want.Put(slot)
		if err != nil || n != DraftResultBytes(len(want.Tokens)) {
			t.Fatalf("Put = %d, %v", n, err)
		}
		got, err := ParseDraftResult(slot[:n], 3)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if _, err := ParseDraftResult(slot[:n], len(want.Tokens)-1); !errors.Is(err, ErrMalformed) {
			t.Errorf("more than asked for: %v", err)
		}
		for short := range n {
			if _, err := ParseDraftResult(slot[:short], 3); !errors.Is(err, ErrMalformed) {
				t.Errorf("%d bytes of %d: %v", short, n, err)
			}
		}
	}
	for _, count := range []int{-1, 0, MaxDrafts + 1} {
		if _, err := (DraftRequest{Count: count}).Put(slot); err == nil {
			t.Errorf("%d proposals were encoded", count)
		}
		bad := make([]byte, draftRequestBytes)
		le.PutUint32(bad[draftCount:], uint32(count))
		if _, err := ParseDraftRequest(bad); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d proposals: %v", count, err)
		}
	}
	if _, err := (DraftResult{Tokens: []int32{1}}).Put(slot); err == nil {
		t.Error("a result without its log-probabilities was encoded")
	}
	if _, err := (DraftResult{Tokens: []int32{1}, LogProbs: []float32{1}}).Put(slot[:15]); !errors.Is(err, ErrTooLarge) {
		t.Errorf("short slot: %v", err)
	}
	if _, err := request.Put(slot[:15]); !errors.Is(err, ErrTooLarge) {
		t.Errorf("short slot: %v", err)
	}
}

func TestEntries(t *testing.T) {
	var e shm.Entry
	s := Submission{Number: 9, Generation: 1 << 60, Kind: KindDraft, Slot: 3, Bytes: 1 << 20, Remaining: time.Second}
	s.Put(&e)
	if got, err := ParseSubmission(&e); err != nil || got != s {
		t.Errorf("submission became %+v, %v", got, err)
	}
	want := shm.Entry{}
	le.PutUint64(want[0:], 9)
	le.PutUint64(want[8:], 1<<60)
	le.PutUint32(want[16:], 2)
	le.PutUint32(want[20:], 3)
	le.PutUint64(want[24:], 1<<20)
	le.PutUint64(want[32:], 1e9)
	if diff := cmp.Diff(want, e); diff != "" {
		t.Error(diff)
	}
	c := Completion{Number: 9, Generation: 7, Status: StatusDeadline, Slot: 2, Bytes: 5, Busy: time.Minute}
	c.Put(&e)
	if got, err := ParseCompletion(&e); err != nil || got != c {
		t.Errorf("completion became %+v, %v", got, err)
	}
	bad := map[string]func(*shm.Entry){
		"empty":            func(e *shm.Entry) { *e = shm.Entry{} },
		"number 0":         func(e *shm.Entry) { le.PutUint64(e[0:], 0) },
		"code 0":           func(e *shm.Entry) { le.PutUint32(e[16:], 0) },
		"unknown code":     func(e *shm.Entry) { le.PutUint32(e[16:], 99) },
		"payload too long": func(e *shm.Entry) { le.PutUint64(e[24:], 1<<63) },
		"time too long":    func(e *shm.Entry) { le.PutUint64(e[32:], 1<<63) },
		"reserved":         func(e *shm.Entry) { e[63] = 1 },
	}
	for name, damage := range bad {
		c.Put(&e)
		damage(&e)
		if _, err := ParseCompletion(&e); !errors.Is(err, ErrMalformed) {
			t.Errorf("completion, %s: %v", name, err)
		}
		s.Put(&e)
		damage(&e)
		if _, err := ParseSubmission(&e); !errors.Is(err, ErrMalformed) {
			t.Errorf("submission, %s: %v", name, err)
		}
	}
	// A negative time never reaches the wire.
	s.Remaining = -1
	s.Put(&e)
	if got, err := ParseSubmission(&e); err != nil || got.Remaining != 0 {
		t.Errorf("a deadline in the past became %v, %v", got.Remaining, err)
	}
}

func TestSlotBytes(t *testing.T) {
	b := Bounds{MaxSequences: 100, MaxRows: 8, MaxLogitRows: 4, Width: 16, Vocab: 1000, Head: true}
	request, result, err := b.SlotBytes()
	if err != nil {
		t.Fatal(err)
	}
	// 8 segments of one row each is the worst case.
	if want := align(32+8*32+8*4+4*4) + 8*16*4; request != want {
		t.Errorf("request slots have %d bytes, want %d", request, want)
	}
	if want := align(32+8*8) + 4*1000*4; result != want {
		t.Errorf("result slots have %d bytes, want %d", result, want)
	}
	b.Embed, b.Head = true, false
	request, result, err = b.SlotBytes()
	if err != nil {
		t.Fatal(err)
	}
	if want := align(32 + 8*32 + 8*4 + 4*4); request != want {
		t.Errorf("request slots have %d bytes, want %d", request, want)
	}
	if result != MinResultBytes {
		t.Errorf("result slots have %d bytes, want %d", result, MinResultBytes)
	}
	b.MaxRows, b.Width = 1<<28, 1<<28
	if _, _, err := b.SlotBytes(); err == nil {
		t.Error("absurd bounds have a size")
	}
}

func TestNames(t *testing.T) {
	for want, got := range map[string]string{
		"draft": KindDraft.String(), "step": KindStep.String(), "kind-9": Kind(9).String(),
		"deadline": StatusDeadline.String(), "internal": StatusInternal.String(), "status-99": Status(99).String(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestAnyWindow encodes and decodes windows of any shape.
func TestAnyWindow(t *testing.T) {
	var d WindowDecoder
	rapid.Check(t, func(rt *rapid.T) {
		w := &Window{Width: rapid.IntRange(0, 9).Draw(rt, "width")}
		for range rapid.IntRange(0, 5).Draw(rt, "segments") {
			w.Segments = append(w.Segments, Segment{
				Sequence:   rapid.Uint64().Draw(rt, "sequence"),
				Pos:        rapid.IntRange(0, maxCount).Draw(rt, "pos"),
				Tokens:     append([]int32{}, rapid.SliceOfN(rapid.Int32(), 0, 9).Draw(rt, "tokens")...),
				Logits:     append([]int32{}, rapid.SliceOfN(rapid.Int32(), 0, 9).Draw(rt, "logits")...),
				Checkpoint: rapid.Bool().Draw(rt, "checkpoint"),
			})
		}
		if n := w.Rows() * w.Width; n > 0 {
			w.Input = floats(n)
		}
		got, err := d.Decode(encode(t, w))
		if err != nil {
			rt.Fatal(err)
		}
		if len(w.Segments) == 0 {
			w.Segments = got.Segments
		}
		if diff := cmp.Diff(w, got); diff != "" {
			rt.Fatal(diff)
		}
	})
}

// aligned returns a copy that starts where a payload would.
func aligned(b []byte) []byte {
	a := shm.AlignedBytes(len(b))
	copy(a, b)
	return a
}

// FuzzWindow decodes any bytes; what decodes encodes to the same bytes, but for
// the padding.
func FuzzWindow(f *testing.F) {
	f.Add(encode(f, example()))
	f.Add(encode(f, &Window{}))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		payload := aligned(b)
		var d WindowDecoder
		w, err := d.Decode(payload)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		again := encode(t, w)
		end := windowHeaderBytes + len(w.Segments)*segmentBytes + 4*(w.Rows()+w.LogitRows())
		if diff := cmp.Diff(payload[:end], again[:end]); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(payload[align(end):], again[align(end):]); diff != "" {
			t.Error(diff)
		}
	})
}

func FuzzResult(f *testing.F) {
	shape := ResultShape{Rows: 2, Kind: MatrixLogits, MatrixRows: 1, Width: 4}
	n, err := shape.Bytes()
	if err != nil {
		f.Fatal(err)
	}
	slot := shm.AlignedBytes(n)
	if _, err := PutResult(slot, shape, make([]RowFlags, 2)); err != nil {
		f.Fatal(err)
	}
	f.Add(slot, 2, 1, 4)
	f.Add([]byte("xyz"), -1, 1<<40, 1<<40)
	f.Fuzz(func(t *testing.T, b []byte, rows, matrixRows, width int) {
		r, err := ParseResult(aligned(b), ResultShape{Rows: rows, Kind: MatrixLogits, MatrixRows: matrixRows, Width: width}, nil)
		if err == nil && (len(r.Rows) != rows || len(r.Matrix) != matrixRows*width) {
			t.Errorf("%d rows and %d values", len(r.Rows), len(r.Matrix))
		}
	})
}

func FuzzDraft(f *testing.F) {
	f.Add(make([]byte, 16))
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseDraftRequest(b); err == nil && (r.Count < 1 || r.Count > MaxDrafts) {
			t.Errorf("%d proposals", r.Count)
		}
		if r, err := ParseDraftResult(b, 2); err == nil && (len(r.Tokens) > 2 || len(r.LogProbs) != len(r.Tokens)) {
			t.Errorf("%d tokens and %d log-probabilities", len(r.Tokens), len(r.LogProbs))
		}
	})
}

func FuzzEntry(f *testing.F) {
	var e shm.Entry
	Submission{Number: 1, Generation: 1, Kind: KindStep, Bytes: 10}.Put(&e)
	f.Add(e[:])
	Completion{Number: 1, Generation: 1, Status: StatusInternal, Slot: 4, Busy: 3}.Put(&e)
	f.Add(e[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again shm.Entry
		copy(e[:], b)
		if s, err := ParseSubmission(&e); err == nil {
			if s.Put(&again); again != e {
				t.Errorf("submission %+v encodes to %x", s, again)
			}
		}
		if c, err := ParseCompletion(&e); err == nil {
			if c.Put(&again); again != e {
				t.Errorf("completion %+v encodes to %x", c, again)
			}
		}
	})
}

func BenchmarkWindow(b *testing.B) {
	w := &Window{Segments: []Segment{{Sequence: 1, Pos: 100, Tokens: []int32{7}, Logits: []int32{0}}}, Width: 2048, Input: floats(2048)}
	n, err := WindowBytes(1, 1, 1, 2048)
	if err != nil {
		b.Fatal(err)
	}
	slot := shm.AlignedBytes(n)
	var d WindowDecoder
	b.ReportAllocs()
	for b.Loop() {
		n, err := w.Put(slot)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := d.Decode(slot[:n]); err != nil {
			b.Fatal(err)
		}
	}
}
