package wire

import (
	"fmt"
	"time"

	"github.com/strata-engine/strata/sdk/shm"
)

// Kind says what a submission asks for.
type Kind uint32

// The kinds. Zero is none, so that an empty entry means nothing.
const (
	// KindStep: execute a window; the payload is a Window.
	KindStep Kind = iota + 1
	// KindDraft: propose tokens; the payload is a DraftRequest.
	KindDraft
)

// String returns the kind's name as used in logs.
func (k Kind) String() string {
	switch k {
	case KindStep:
		return "step"
	case KindDraft:
		return "draft"
	}
	return fmt.Sprintf("kind-%d", uint32(k))
}

// Status says what came of a submission.
type Status uint32

// The statuses. With StatusOK the payload is the result, otherwise an error text
// in UTF-8. Zero is none, so that an empty entry is not a success.
const (
	StatusOK Status = iota + 1
	// StatusInvalid: the request can never work as it is.
	StatusInvalid
	// StatusUnknownSequence: a sequence is not open.
	StatusUnknownSequence
	// StatusOutOfState: no memory for the state of more tokens; nothing was
	// executed.
	StatusOutOfState
	// StatusDeadline: the backend gave up at the deadline.
	StatusDeadline
	// StatusUnavailable: no stage is loaded, or the backend is draining.
	StatusUnavailable
	// StatusUnimplemented: the stage has no such ability.
	StatusUnimplemented
	// StatusInternal: the backend failed.
	StatusInternal
)

var statusNames = [...]string{"none", "ok", "invalid", "unknown-sequence", "out-of-state", "deadline", "unavailable",
	"unimplemented", "internal"}

// String returns the status's name as used in logs.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status-%d", uint32(s))
}

// Submission is an entry of the submission ring.
type Submission struct {
	// Number counts the submissions of an incarnation, from 1.
	Number uint64
	// Generation is the incarnation.
	Generation uint64
	// Kind says what the payload is.
	Kind Kind
	// Slot holds the payload and will hold the result. 0 over a stream.
	Slot uint32
	// Bytes is the length of the payload.
	Bytes int
	// Remaining is the time left until the deadline; 0: none.
	Remaining time.Duration
}

// Completion is an entry of the completion ring. Completions come in the order
// of the submissions.
type Completion struct {
	// Number, Generation and Slot are those of the submission.
	Number     uint64
	Generation uint64
	Status     Status
	Slot       uint32
	// Bytes is the length of the payload.
	Bytes int
	// Busy is the time from taking the submission off the queue to this answer.
	Busy time.Duration
}

// Layout of an entry. Both kinds have the same shape.
const (
	entryNumber     = 0
	entryGeneration = 8
	entryCode       = 16
	entrySlot       = 20
	entryBytes      = 24
	entryTime       = 32
	entryReserved   = 40
)

// Put encodes s.
func (s Submission) Put(e *shm.Entry) {
	putEntry(e, s.Number, s.Generation, uint32(s.Kind), s.Slot, s.Bytes, s.Remaining)
}

// Put encodes c.
func (c Completion) Put(e *shm.Entry) {
	putEntry(e, c.Number, c.Generation, uint32(c.Status), c.Slot, c.Bytes, c.Busy)
}

func putEntry(e *shm.Entry, number, generation uint64, code, slot uint32, bytes int, t time.Duration) {
	*e = shm.Entry{}
	le.PutUint64(e[entryNumber:], number)
	le.PutUint64(e[entryGeneration:], generation)
	le.PutUint32(e[entryCode:], code)
	le.PutUint32(e[entrySlot:], slot)
	le.PutUint64(e[entryBytes:], uint64(max(bytes, 0)))
	le.PutUint64(e[entryTime:], uint64(max(t, 0)))
}

// ParseSubmission decodes an entry. Slot and Bytes are only known to be
// representable: the caller checks them against its slots.
func ParseSubmission(e *shm.Entry) (Submission, error) {
	if err := checkEntry(e); err != nil {
		return Submission{}, fmt.Errorf("parse submission: %w", err)
	}
	s := Submission{
		Number:     le.Uint64(e[entryNumber:]),
		Generation: le.Uint64(e[entryGeneration:]),
		Kind:       Kind(le.Uint32(e[entryCode:])),
		Slot:       le.Uint32(e[entrySlot:]),
		Bytes:      int(le.Uint64(e[entryBytes:])),
		Remaining:  time.Duration(le.Uint64(e[entryTime:])),
	}
	if s.Kind < KindStep || s.Kind > KindDraft {
		return Submission{}, fmt.Errorf("parse submission: %w", malformed("unknown kind %d", uint32(s.Kind)))
	}
	return s, nil
}

// ParseCompletion decodes an entry. Slot and Bytes are only known to be
// representable: the caller checks them against its slots.
func ParseCompletion(e *shm.Entry) (Completion, error) {
	if err := checkEntry(e); err != nil {
		return Completion{}, fmt.Errorf("parse completion: %w", err)
	}
	c := Completion{
		Number:     le.Uint64(e[entryNumber:]),
		Generation: le.Uint64(e[entryGeneration:]),
		Status:     Status(le.Uint32(e[entryCode:])),
		Slot:       le.Uint32(e[entrySlot:]),
		Bytes:      int(le.Uint64(e[entryBytes:])),
		Busy:       time.Duration(le.Uint64(e[entryTime:])),
	}
	if c.Status < StatusOK || c.Status > StatusInternal {
		return Completion{}, fmt.Errorf("parse completion: %w", malformed("unknown status %d", uint32(c.Status)))
	}
	return c, nil
}

// maxEntryTime keeps a time.Duration positive and sums of a few of them too.
const maxEntryTime = uint64(1) << 61

func checkEntry(e *shm.Entry) error {
	if n := le.Uint64(e[entryNumber:]); n == 0 {
		return malformed("number is zero")
	}
	if n := le.Uint64(e[entryBytes:]); n > 1<<40 || uint64(int(n)) != n {
		return malformed("a payload of %d bytes", n)
	}
	if t := le.Uint64(e[entryTime:]); t > maxEntryTime {
		return malformed("a time of %d ns", t)
	}
	return reserved(e[entryReserved:])
}
