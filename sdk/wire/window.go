package wire

import "fmt"

// Segment is a run of consecutive tokens of one sequence within a window.
type Segment struct {
	// Sequence is the sequence's id.
	Sequence uint64
	// Pos is the position of the first token: the number of tokens executed so
	// far.
	Pos int
	// Tokens are the ids.
	Tokens []int32
	// Logits are the indices into Tokens whose logits row is wanted, ascending.
	Logits []int32
	// Checkpoint asks to keep a snapshot after the last token.
	Checkpoint bool
}

// Window is the payload of KindStep.
type Window struct {
	// Segments in row order.
	Segments []Segment
	// Width is the number of values per row of Input; 0 where there is none.
	Width int
	// Input is the previous stage's residual, [row][Width]; nil where Width is 0.
	Input []float32
}

// Rows is the number of tokens of all segments.
func (w *Window) Rows() int {
	n := 0
	for i := range w.Segments {
		n += len(w.Segments[i].Tokens)
	}
	return n
}

// LogitRows is the number of wanted logits rows of all segments.
func (w *Window) LogitRows() int {
	n := 0
	for i := range w.Segments {
		n += len(w.Segments[i].Logits)
	}
	return n
}

// Layout of a window: a header, one record per segment, the tokens of all
// segments, the logits indices of all segments, and at the next multiple of 64
// the input.
const (
	windowSegments    = 0
	windowRows        = 4
	windowLogitRows   = 8
	windowWidth       = 12
	windowReserved    = 16
	windowHeaderBytes = 32

	segmentSequence   = 0
	segmentPos        = 8
	segmentTokens     = 16
	segmentLogits     = 20
	segmentFlags      = 24
	segmentBytes      = 32
	segmentCheckpoint = 1
)

// windowInputAt is where the input of a window starts; the counts are within
// maxCount.
func windowInputAt(segments, rows, logitRows int) (int, error) {
	if segments < 0 || rows < 0 || logitRows < 0 || segments > maxCount || rows > maxCount || logitRows > maxCount {
		return 0, fmt.Errorf("%d segments, %d rows or %d logits rows are out of range", segments, rows, logitRows)
	}
	n := windowHeaderBytes + int64(segments)*segmentBytes + 4*(int64(rows)+int64(logitRows)) + alignment
	if int64(int(n)) != n {
		return 0, fmt.Errorf("%d segments, %d rows and %d logits rows are too many", segments, rows, logitRows)
	}
	return align(int(n) - alignment), nil
}

// WindowBytes is the largest encoding of a window with at most the given counts;
// width is the residual's, or 0 for a stage without input. It sizes request
// slots.
func WindowBytes(segments, rows, logitRows, width int) (int, error) {
	at, err := windowInputAt(segments, rows, logitRows)
	if err != nil {
		return 0, fmt.Errorf("size window: %w", err)
	}
	input, err := matrixBytes(rows, width)
	if err != nil {
		return 0, fmt.Errorf("size window: %w", err)
	}
	if at+input < 0 {
		return 0, fmt.Errorf("size window: %d rows of %d values are too many", rows, width)
	}
	return at + input, nil
}

// Put encodes w at the start of slot, which starts at a multiple of four bytes,
// and returns the number of bytes. ErrTooLarge where the slot is too small.
func (w *Window) Put(slot []byte) (int, error) {
	rows, logitRows := w.Rows(), w.LogitRows()
	total, err := WindowBytes(len(w.Segments), rows, logitRows, w.Width)
	if err != nil {
		return 0, fmt.Errorf("encode window: %w: %w", ErrTooLarge, err)
	}
	if total > len(slot) {
		return 0, fmt.Errorf("encode window: %w: %d rows need %d bytes of %d", ErrTooLarge, rows, total, len(slot))
	}
	if len(w.Input) != rows*w.Width {
		return 0, fmt.Errorf("encode window: input has %d values, want %d rows of %d", len(w.Input), rows, w.Width)
	}
	clear(slot[:windowHeaderBytes])
	le.PutUint32(slot[windowSegments:], uint32(len(w.Segments)))
	le.PutUint32(slot[windowRows:], uint32(rows))
	le.PutUint32(slot[windowLogitRows:], uint32(logitRows))
	le.PutUint32(slot[windowWidth:], uint32(w.Width))
	tokens := slot[windowHeaderBytes+len(w.Segments)*segmentBytes:]
	logits := tokens[4*rows:]
	for i := range w.Segments {
		s := &w.Segments[i]
		if s.Pos < 0 {
			return 0, fmt.Errorf("encode window: segment %d: position %d is negative", i, s.Pos)
		}
		record := slot[windowHeaderBytes+i*segmentBytes:][:segmentBytes]
		clear(record)
		le.PutUint64(record[segmentSequence:], s.Sequence)
		le.PutUint64(record[segmentPos:], uint64(s.Pos))
		le.PutUint32(record[segmentTokens:], uint32(len(s.Tokens)))
		le.PutUint32(record[segmentLogits:], uint32(len(s.Logits)))
		if s.Checkpoint {
			le.PutUint32(record[segmentFlags:], segmentCheckpoint)
		}
		tokens = putInt32s(tokens, s.Tokens)
		logits = putInt32s(logits, s.Logits)
	}
	if len(w.Input) > 0 {
		input, err := float32s(slot[total-4*len(w.Input) : total])
		if err != nil {
			return 0, fmt.Errorf("encode window: %w", err)
		}
		copy(input, w.Input)
	}
	return total, nil
}

// WindowDecoder decodes windows and reuses its memory: what Decode returns is
// valid until the next call.
type WindowDecoder struct {
	window   Window
	segments []Segment
	ints     []int32
}

// Decode checks and decodes a payload. Input aliases it; the rest is copied. The
// window is well formed, nothing more: whether tokens, positions and counts suit
// the stage is the caller's to check.
func (d *WindowDecoder) Decode(payload []byte) (*Window, error) {
	if len(payload) < windowHeaderBytes {
		return nil, fmt.Errorf("decode window: %w", malformed("%d bytes, the header has %d", len(payload), windowHeaderBytes))
	}
	segments := le.Uint32(payload[windowSegments:])
	rows := le.Uint32(payload[windowRows:])
	logitRows := le.Uint32(payload[windowLogitRows:])
	width := le.Uint32(payload[windowWidth:])
	if segments > maxCount || rows > maxCount || logitRows > maxCount || width > maxCount {
		return nil, fmt.Errorf("decode window: %w", malformed("counts %d, %d, %d, %d", segments, rows, logitRows, width))
	}
	total, err := WindowBytes(int(segments), int(rows), int(logitRows), int(width))
	if err != nil || total != len(payload) {
		return nil, fmt.Errorf("decode window: %w",
			malformed("%d bytes for %d segments, %d rows, %d logits rows, width %d", len(payload), segments, rows, logitRows, width))
	}
	if err := reserved(payload[windowReserved:windowHeaderBytes]); err != nil {
		return nil, fmt.Errorf("decode window: %w", err)
	}
	d.segments = resize(d.segments, int(segments))
	d.ints = resize(d.ints, int(rows)+int(logitRows))
	at := windowHeaderBytes + int(segments)*segmentBytes
	getInt32s(d.ints, payload[at:])
	tokens, logits := d.ints[:rows], d.ints[rows:]
	for i := range d.segments {
		record := payload[windowHeaderBytes+i*segmentBytes:][:segmentBytes]
		nTokens, nLogits := le.Uint32(record[segmentTokens:]), le.Uint32(record[segmentLogits:])
		pos, flags := le.Uint64(record[segmentPos:]), le.Uint32(record[segmentFlags:])
		if uint64(nTokens) > uint64(len(tokens)) || uint64(nLogits) > uint64(len(logits)) {
			return nil, fmt.Errorf("decode window: %w", malformed("segment %d: more tokens or logits than the window", i))
		}
		if pos > maxCount || flags&^uint32(segmentCheckpoint) != 0 || le.Uint32(record[segmentFlags+4:]) != 0 {
			return nil, fmt.Errorf("decode window: %w", malformed("segment %d: position %d, flags %#x", i, pos, flags))
		}
		d.segments[i] = Segment{
			Sequence:   le.Uint64(record[segmentSequence:]),
			Pos:        int(pos),
			Tokens:     tokens[:nTokens:nTokens],
			Logits:     logits[:nLogits:nLogits],
			Checkpoint: flags&segmentCheckpoint != 0,
		}
		tokens, logits = tokens[nTokens:], logits[nLogits:]
	}
	if len(tokens) != 0 || len(logits) != 0 {
		return nil, fmt.Errorf("decode window: %w", malformed("%d tokens and %d logits belong to no segment", len(tokens), len(logits)))
	}
	d.window = Window{Segments: d.segments, Width: int(width)}
	if n := int(rows) * int(width) * 4; n > 0 {
		if d.window.Input, err = float32s(payload[total-n:]); err != nil {
			return nil, fmt.Errorf("decode window: %w", err)
		}
	}
	return &d.window, nil
}

// putInt32s encodes v at the start of b and returns the rest of b.
func putInt32s(b []byte, v []int32) []byte {
	for i, x := range v {
		le.PutUint32(b[4*i:], uint32(x))
	}
	return b[4*len(v):]
}

// getInt32s decodes len(v) values from the start of b.
func getInt32s(v []int32, b []byte) {
	for i := range v {
		v[i] = int32(le.Uint32(b[4*i:]))
	}
}

// resize returns s with length n, with new memory where it is too small.
func resize[T any](s []T, n int) []T {
	if n > cap(s) {
		return make([]T, n)
	}
	return s[:n]
}
