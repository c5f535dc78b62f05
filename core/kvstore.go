package core

// KVStore owns the state of every sequence on the host: token ids, positions
// and the plan to rebuild what a backend has lost. It is bookkeeping: every
// operation is bounded, none blocks on a backend, and it is tested without one.
// Implementations are safe for concurrent use.
type KVStore interface {
	// Open starts a sequence for a prompt whose answer may grow to limit tokens
	// in all. ErrOutOfState where the budget or the number of sequences is
	// exhausted; nothing is reserved then.
	Open(prompt []int32, limit int) (SequenceID, error)
	// Append records tokens that were decided for seq (sampled, or more
	// prompt). They are authoritative: a backend is brought to them, never the
	// other way round. Growing beyond the limit given to Open is an error and
	// records nothing.
	Append(seq SequenceID, tokens ...int32) error
	// Commit records that every stage has executed seq up to pos tokens, all of
	// them finite. Commits never go back.
	Commit(seq SequenceID, pos int) error
	// Sequence returns a view of seq, or false where it is not open.
	Sequence(seq SequenceID) (SequenceView, bool)
	// Plan says how to bring seq back after its backends lost it: the position
	// from which tokens must be executed again.
	Plan(seq SequenceID) (RestorePlan, error)
	// Close forgets seq. It is idempotent.
	Close(seq SequenceID)
	// Stats counts what the store holds.
	Stats() KVStats
}

// SequenceView is a copy of a sequence's bookkeeping at one moment.
type SequenceView struct {
	// ID is the sequence.
	ID SequenceID
	// Tokens are all decided tokens, prompt first. The slice is shared and
	// append-only: callers never write to it.
	Tokens []int32
	// Prompt is how many of Tokens are the prompt.
	Prompt int
	// Committed is how many tokens every stage has executed.
	Committed int
	// Limit is the most tokens the sequence may have.
	Limit int
}

// RestorePlan says how to rebuild a sequence.
type RestorePlan struct {
	// From is the number of tokens covered by saved state; 0 without any.
	From int
	// Tokens are those to execute again, starting at position From.
	Tokens []int32
}

// KVStats are counters of a KVStore.
type KVStats struct {
	// Sequences counts open sequences, Tokens their decided tokens.
	Sequences int
	// Tokens counts decided tokens over all open sequences.
	Tokens int
	// Reserved is the sum of the limits of the open sequences, in tokens;
	// Budget the most it may be.
	Reserved, Budget int
}
