// Package shm is the shared memory between the host and a backend process: the
// data segment with its two rings and its payload slots, and the vitals page.
// docs/protocol.md describes every byte.
//
// Both halves use this package, and neither trusts the other: whatever is read
// from shared memory is checked against private copies before it is used, so
// that a broken peer yields an error, never a panic or an access out of bounds.
//
// Shared memory needs memfd_create and futexes, so it exists on Linux only;
// elsewhere creation answers ErrUnsupported and steps travel over gRPC.
package shm

import (
	"errors"
	"fmt"
)

// Sentinels that callers branch on. Every error of a ring other than ErrFull,
// ErrInterrupted and the context's means that the segment is of no more use.
var (
	// ErrUnsupported: this platform has no sealed memory files.
	ErrUnsupported = errors.New("shared memory is not supported on this platform")
	// ErrCorrupt: the peer, or whoever made the segment, broke the protocol.
	ErrCorrupt = errors.New("shared memory is corrupt")
	// ErrPoisoned: one side has declared the segment dead.
	ErrPoisoned = errors.New("shared memory is poisoned")
	// ErrGeneration: an entry or the segment belongs to another incarnation.
	ErrGeneration = errors.New("shared memory is of another generation")
	// ErrFull: the ring has no room for another entry.
	ErrFull = errors.New("ring is full")
	// ErrInterrupted: Interrupt was called.
	ErrInterrupted = errors.New("ring wait was interrupted")
	// ErrClosed: this side has closed its mapping.
	ErrClosed = errors.New("shared memory is closed")
)

// ABI is the version of the layouts in this package. A segment of another
// version is refused.
const ABI = 1

// pageBytes is the size of a header and the alignment of slots. It is a constant
// of the ABI and not the machine's page size.
const pageBytes = 4096

// corrupt returns an ErrCorrupt that says what was found.
func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
