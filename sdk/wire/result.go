package wire

import (
	"fmt"
	"strings"
)

// RowFlags says where a row was not finite.
type RowFlags struct {
	// Residual, Logits and State are set where a NaN or an infinity was seen in
	// the row's residual stream, in its logits, or in anything it wrote to
	// persistent state.
	Residual, Logits, State bool
	// Layer is the first layer where a flag was raised, -1 for the embedding, the
	// number of layers for the final mixer, norm and head. Meaningful only where
	// a flag is set.
	Layer int32
}

// MatrixKind says what a result's matrix is.
type MatrixKind uint32

// The kinds.
const (
	// MatrixOutput: the residual for the next stage, one row per row of the
	// window.
	MatrixOutput MatrixKind = iota + 1
	// MatrixLogits: the wanted logits rows in order.
	MatrixLogits
)

// ResultShape is the size of the result of a step. Both sides know it before the
// step runs: from the window, and from whether the stage holds the head.
type ResultShape struct {
	// Rows is the number of rows of the window.
	Rows int
	// Kind, MatrixRows and Width describe the matrix.
	Kind       MatrixKind
	MatrixRows int
	Width      int
}

// Result is the payload of StatusOK for KindStep.
type Result struct {
	// Rows has one entry per row of the window.
	Rows []RowFlags
	// Matrix is [MatrixRows][Width]; it aliases the payload.
	Matrix []float32
}

// Layout of a result: a header, one record per row, and at the next multiple of
// 64 the matrix.
const (
	resultRows        = 0
	resultKind        = 4
	resultMatrixRows  = 8
	resultWidth       = 12
	resultReserved    = 16
	resultHeaderBytes = 32

	rowFlagBits  = 0
	rowLayer     = 4
	rowFlagBytes = 8
	rowResidual  = 1
	rowLogits    = 2
	rowState     = 4
)

// matrixAt and Bytes: where the matrix starts, and where the payload ends.
func (s ResultShape) matrixAt() int { return align(resultHeaderBytes + s.Rows*rowFlagBytes) }

// Bytes is the length of the encoding. It sizes result slots.
func (s ResultShape) Bytes() (int, error) {
	if s.Rows < 0 || s.Rows > maxCount || int64(s.Rows)*rowFlagBytes > 1<<30 {
		return 0, fmt.Errorf("size result: %d rows are out of range", s.Rows)
	}
	n, err := matrixBytes(s.MatrixRows, s.Width)
	if err != nil {
		return 0, fmt.Errorf("size result: %w", err)
	}
	if s.matrixAt()+n < 0 {
		return 0, fmt.Errorf("size result: %d rows of %d values are too many", s.MatrixRows, s.Width)
	}
	return s.matrixAt() + n, nil
}

// MinResultBytes is the least size of a result slot: the room for an error text.
const MinResultBytes = 4096

// ResultMatrix is the place of the matrix in a result slot, to be filled in
// place before PutResult. ErrTooLarge where the slot is too small.
func ResultMatrix(slot []byte, s ResultShape) ([]float32, error) {
	total, err := s.Bytes()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	if total > len(slot) {
		return nil, fmt.Errorf("place result: %w: %d bytes of %d", ErrTooLarge, total, len(slot))
	}
	m, err := float32s(slot[s.matrixAt():total])
	if err != nil {
		return nil, fmt.Errorf("place result: %w", err)
	}
	return m, nil
}

// PutResult encodes all of a result but the matrix, which ResultMatrix placed,
// and returns the number of bytes.
func PutResult(slot []byte, s ResultShape, rows []RowFlags) (int, error) {
	if len(rows) != s.Rows {
		return 0, fmt.Errorf("encode result: flags for %d rows, the window has %d", len(rows), s.Rows)
	}
	total, err := s.Bytes()
	if err != nil || total > len(slot) {
		return 0, fmt.Errorf("encode result: %w", ErrTooLarge)
	}
	clear(slot[:resultHeaderBytes])
	le.PutUint32(slot[resultRows:], uint32(s.Rows))
	le.PutUint32(slot[resultKind:], uint32(s.Kind))
	le.PutUint32(slot[resultMatrixRows:], uint32(s.MatrixRows))
	le.PutUint32(slot[resultWidth:], uint32(s.Width))
	for i, f := range rows {
		record := slot[resultHeaderBytes+i*rowFlagBytes:]
		bits := uint32(0)
		if f.Residual {
			bits |= rowResidual
		}
		if f.Logits {
			bits |= rowLogits
		}
		if f.State {
			bits |= rowState
		}
		le.PutUint32(record[rowFlagBits:], bits)
		le.PutUint32(record[rowLayer:], uint32(f.Layer))
	}
	return total, nil
}

// ParseResult decodes the payload of a step whose result must have the given
// shape. Matrix aliases the payload; rows is reused if large enough.
func ParseResult(payload []byte, want ResultShape, rows []RowFlags) (Result, error) {
	total, err := want.Bytes()
	if err != nil {
		return Result{}, fmt.Errorf("decode result: %w", err)
	}
	if len(payload) != total {
		return Result{}, fmt.Errorf("decode result: %w", malformed("%d bytes, want %d", len(payload), total))
	}
	got := [4]uint32{le.Uint32(payload[resultRows:]), le.Uint32(payload[resultKind:]),
		le.Uint32(payload[resultMatrixRows:]), le.Uint32(payload[resultWidth:])}
	if got != [4]uint32{uint32(want.Rows), uint32(want.Kind), uint32(want.MatrixRows), uint32(want.Width)} {
		return Result{}, fmt.Errorf("decode result: %w", malformed("shape %v is not what the window asked for", got))
	}
	if err := reserved(payload[resultReserved:resultHeaderBytes]); err != nil {
		return Result{}, fmt.Errorf("decode result: %w", err)
	}
	r := Result{Rows: resize(rows, want.Rows)}
	for i := range r.Rows {
		record := payload[resultHeaderBytes+i*rowFlagBytes:]
		bits := le.Uint32(record[rowFlagBits:])
		if bits&^uint32(rowResidual|rowLogits|rowState) != 0 {
			return Result{}, fmt.Errorf("decode result: %w", malformed("row %d: flags %#x", i, bits))
		}
		r.Rows[i] = RowFlags{
			Residual: bits&rowResidual != 0,
			Logits:   bits&rowLogits != 0,
			State:    bits&rowState != 0,
			Layer:    int32(le.Uint32(record[rowLayer:])),
		}
	}
	if r.Matrix, err = float32s(payload[want.matrixAt():]); err != nil {
		return Result{}, fmt.Errorf("decode result: %w", err)
	}
	return r, nil
}

// PutError encodes the payload of a status other than StatusOK: the start of the
// text, as far as it fits.
func PutError(slot []byte, text string) int { return copy(slot, text) }

// ParseError decodes the payload of a status other than StatusOK. At most
// MinResultBytes of it are used, and what is not UTF-8 is dropped.
func ParseError(payload []byte) string {
	return strings.ToValidUTF8(string(payload[:min(len(payload), MinResultBytes)]), "")
}
