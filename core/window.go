package core

import "time"

// SequenceID names a sequence within one host process. Ids are never reused, so
// a late answer for a closed sequence cannot be mistaken for another's.
type SequenceID uint64

// Segment is a run of consecutive tokens of one sequence within a Window: a
// prefill chunk, one decode token or the rows of a speculative verify.
type Segment struct {
	// Seq is the sequence the tokens belong to.
	Seq SequenceID
	// Pos is the position of Tokens[0]; it equals the number of tokens the
	// stage has executed for Seq so far.
	Pos int
	// Tokens are the token ids. They are sent to every stage, also to those
	// without the embedding: n-gram layers and MTP blocks need them.
	Tokens []int32
	// Logits are the indices into Tokens, ascending, whose logits row the
	// caller wants. Only the stage with the head answers them.
	Logits []int
	// Checkpoint asks every stage to keep a snapshot of the recurrent state
	// after the last token. The host sets it, so that all stages agree on the
	// position; a stage keeps the last two per sequence.
	Checkpoint bool
}

// Window is a list of segments executed together by one stage. Segments of
// several sequences mix freely; a sequence occurs at most once. What else is in
// a window never changes a sequence's results on an invariant backend.
type Window struct {
	// Segments in row order: row 0 is Segments[0].Tokens[0].
	Segments []Segment
}

// Rows is the number of tokens, and so of residual rows, in the window.
func (w *Window) Rows() int {
	n := 0
	for i := range w.Segments {
		n += len(w.Segments[i].Tokens)
	}
	return n
}

// LogitRows is the number of logits rows the window asks for.
func (w *Window) LogitRows() int {
	n := 0
	for i := range w.Segments {
		n += len(w.Segments[i].Logits)
	}
	return n
}

// Step is one Window posted to one stage.
type Step struct {
	// Window is what to execute.
	Window Window
	// Input is the residual that the previous stage produced: Window.Rows()
	// rows of Hyper.ResidualWidth() float32 values; nil for the stage that
	// holds the embedding. The callee reads it before Step returns and does not
	// keep it.
	Input []float32
	// Posted, where set, is called once the step is with the backend and before
	// Step waits for its outcome: what a caller does there costs the backend no
	// time. It must not block. It is not called where Step fails before that.
	Posted func()
	// Deadline is when the caller stops waiting; zero means the backend's own
	// default bound. Exceeding it yields ErrStepDeadline.
	Deadline time.Time
}

// Done is the outcome of a Step. Its slices belong to the caller until Release
// is called; on a shared-memory backend they alias the result slot, so a caller
// copies what outlives Release.
type Done struct {
	// Rows has one entry per row of the window.
	Rows []RowFlags
	// Output is the residual for the next stage: Window.Rows() rows of
	// Hyper.ResidualWidth() values. Nil for the stage that holds the head.
	Output []float32
	// Logits are the wanted logits rows, Hyper.Vocab values each, in row order.
	// Nil for a stage without the head.
	Logits []float32
	// Busy is the time the backend spent on the step, from taking it off its
	// queue to posting the answer.
	Busy time.Duration
	// Release returns the slot behind the slices. It must be called exactly
	// once; it is never nil.
	Release func()
}

// RowFlags says whether one row's numbers were finite (architecture decision
// 8). A row with any flag is never sampled and nothing of it is ever committed.
type RowFlags struct {
	// Residual, Logits and State are set where a NaN or an infinity was seen in
	// the row's residual stream, in its logits, or in anything it wrote to
	// persistent state (K, V, indexer keys, recurrent and convolution state).
	Residual, Logits, State bool
	// Layer is the first layer, counted from the model's layer 0, where a flag
	// was raised: Hyper.Layers for the final mixer, norm and head, -1 for the
	// embedding. Meaningful only where a flag is set.
	Layer int
}

// Finite reports whether no flag is set.
func (f RowFlags) Finite() bool { return !f.Residual && !f.Logits && !f.State }
