package wire

import (
	"fmt"
	"math"
)

// DraftRequest is the payload of KindDraft.
type DraftRequest struct {
	// Sequence is the sequence's id, Next the token chosen after its last
	// executed token, Count how many proposals to make.
	Sequence uint64
	Next     int32
	Count    int
}

// DraftResult is the payload of StatusOK for KindDraft.
type DraftResult struct {
	// Tokens are the proposals in order, LogProbs their natural
	// log-probabilities.
	Tokens   []int32
	LogProbs []float32
}

// MaxDrafts bounds DraftRequest.Count. A result of that many fits every slot.
const MaxDrafts = 256

// Layout of a draft request, and of a draft result: a header, the tokens, the
// log-probabilities.
const (
	draftSequence     = 0
	draftNext         = 8
	draftCount        = 12
	draftRequestBytes = 16

	draftResultCount       = 0
	draftResultReserved    = 4
	draftResultHeaderBytes = 8
)

// Put encodes r at the start of slot and returns the number of bytes.
func (r DraftRequest) Put(slot []byte) (int, error) {
	if r.Count < 1 || r.Count > MaxDrafts {
		return 0, fmt.Errorf("encode draft request: %d proposals, want 1 to %d", r.Count, MaxDrafts)
	}
	if len(slot) < draftRequestBytes {
		return 0, fmt.Errorf("encode draft request: %w", ErrTooLarge)
	}
	le.PutUint64(slot[draftSequence:], r.Sequence)
	le.PutUint32(slot[draftNext:], uint32(r.Next))
	le.PutUint32(slot[draftCount:], uint32(r.Count))
	return draftRequestBytes, nil
}

// ParseDraftRequest decodes a payload.
func ParseDraftRequest(payload []byte) (DraftRequest, error) {
	if len(payload) != draftRequestBytes {
		return DraftRequest{}, fmt.Errorf("decode draft request: %w", malformed("%d bytes, want %d", len(payload), draftRequestBytes))
	}
	count := le.Uint32(payload[draftCount:])
	if count < 1 || count > MaxDrafts {
		return DraftRequest{}, fmt.Errorf("decode draft request: %w", malformed("%d proposals, want 1 to %d", count, MaxDrafts))
	}
	return DraftRequest{
		Sequence: le.Uint64(payload[draftSequence:]),
		Next:     int32(le.Uint32(payload[draftNext:])),
		Count:    int(count),
	}, nil
}

// DraftResultBytes is the length of the encoding of n proposals.
func DraftResultBytes(n int) int { return draftResultHeaderBytes + 8*n }

// Put encodes r at the start of slot and returns the number of bytes.
func (r DraftResult) Put(slot []byte) (int, error) {
	n := len(r.Tokens)
	if n > MaxDrafts || len(r.LogProbs) != n {
		return 0, fmt.Errorf("encode draft result: %d tokens and %d log-probabilities", n, len(r.LogProbs))
	}
	total := DraftResultBytes(n)
	if total > len(slot) {
		return 0, fmt.Errorf("encode draft result: %w", ErrTooLarge)
	}
	clear(slot[:draftResultHeaderBytes])
	le.PutUint32(slot[draftResultCount:], uint32(n))
	rest := putInt32s(slot[draftResultHeaderBytes:], r.Tokens)
	for i, p := range r.LogProbs {
		le.PutUint32(rest[4*i:], math.Float32bits(p))
	}
	return total, nil
}

// ParseDraftResult decodes a payload with at most count proposals. Nothing of
// the result aliases the payload.
func ParseDraftResult(payload []byte, count int) (DraftResult, error) {
	if len(payload) < draftResultHeaderBytes {
		return DraftResult{}, fmt.Errorf("decode draft result: %w", malformed("%d bytes", len(payload)))
	}
	n := le.Uint32(payload[draftResultCount:])
	if n > MaxDrafts || int(n) > count || len(payload)-draftResultHeaderBytes != 8*int(n) {
		return DraftResult{}, fmt.Errorf("decode draft result: %w",
			malformed("%d bytes for %d proposals where %d were asked for", len(payload), n, count))
	}
	if err := reserved(payload[draftResultReserved:draftResultHeaderBytes]); err != nil {
		return DraftResult{}, fmt.Errorf("decode draft result: %w", err)
	}
	r := DraftResult{Tokens: make([]int32, n), LogProbs: make([]float32, n)}
	getInt32s(r.Tokens, payload[draftResultHeaderBytes:])
	for i := range r.LogProbs {
		r.LogProbs[i] = math.Float32frombits(le.Uint32(payload[draftResultHeaderBytes+4*int(n)+4*i:]))
	}
	return r, nil
}
