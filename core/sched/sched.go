// Package sched decides what goes into the next window. It is pure: no
// goroutines, no clocks, no backend.
package sched

import "github.com/strata-engine/strata/core"

// Sequence is what the scheduler knows of a running sequence.
type Sequence struct {
	// ID is the sequence.
	ID core.SequenceID
	// Pending counts its decided tokens that are not executed yet. A sequence
	// that decodes has one; more are a prompt still being read.
	Pending int
}

// Pick is a sequence's share of a window: its next Rows pending tokens.
type Pick struct {
	// Index is the sequence's place in the list given to Next.
	Index int
	// Rows is the number of tokens to execute, at least 1.
	Rows int
}

// Limits bound a window.
type Limits struct {
	// Rows is the most rows of a window.
	Rows int
	// Chunk is the most rows of prompts in a window, so that sequences that
	// decode wait for no more than one chunk between two tokens.
	Chunk int
}

// Next chooses the next window. Sequences are in order of arrival. Every
// sequence that decodes gets its row, as far as rows go; what is left is given
// to prompts in order of arrival. picks is reused for the result.
func Next(sequences []Sequence, limits Limits, picks []Pick) []Pick {
	picks = picks[:0]
	rows, chunk := limits.Rows, limits.Chunk
	for i, s := range sequences {
		if s.Pending == 1 && rows > 0 {
			picks = append(picks, Pick{Index: i, Rows: 1})
			rows--
		}
	}
	for i, s := range sequences {
		if n := min(s.Pending, rows, chunk); s.Pending > 1 && n > 0 {
			picks = append(picks, Pick{Index: i, Rows: n})
			rows -= n
			chunk -= n
		}
	}
	return picks
}
