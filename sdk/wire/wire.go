// Package wire is the encoding of steps: the 64-byte entries that say what to do
// and what came of it, and the payloads that go with them. Both transports, the
// shared-memory rings and the gRPC stream, carry exactly these bytes;
// docs/protocol.md lists them. Everything is little endian.
//
// Decoders trust nothing: every count is checked against the bytes that are
// there before it is used. What decides about indexing (counts, tokens, flags)
// is copied out of the payload, because a peer could change shared memory after
// the check; only the float32 matrices alias it.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/strata-engine/strata/sdk/shm"
)

// Sentinels that callers branch on.
var (
	// ErrMalformed: the bytes break the encoding.
	ErrMalformed = errors.New("malformed message")
	// ErrTooLarge: what is to be encoded does not fit its slot.
	ErrTooLarge = errors.New("message does not fit its slot")
)

// alignment of the matrices within a payload, for vector loads and device copies.
const alignment = 64

var le = binary.LittleEndian

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// align rounds n up to the alignment; n is far below the largest int.
func align(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// maxCount bounds every count in a payload, so that products of two counts and a
// size fit 64 bits.
const maxCount = 1 << 28

// reserved checks bytes that a later version may give a meaning.
func reserved(b []byte) error {
	for _, x := range b {
		if x != 0 {
			return malformed("reserved bytes are not zero")
		}
	}
	return nil
}

// matrixBytes is the size of rows x width float32 values, or an error where that
// does not fit an int.
func matrixBytes(rows, width int) (int, error) {
	n := int64(rows) * int64(width)
	if rows < 0 || width < 0 || rows > maxCount || width > maxCount || n > (1<<40) || int64(int(n*4)) != n*4 {
		return 0, fmt.Errorf("a matrix of %d x %d values is too large", rows, width)
	}
	return int(n * 4), nil
}

// float32s views part of a payload; the offset and length were checked.
func float32s(b []byte) ([]float32, error) {
	v, err := shm.Float32s(b)
	if err != nil {
		return nil, malformed("%v", err)
	}
	return v, nil
}
