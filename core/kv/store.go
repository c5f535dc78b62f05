// Package kv implements core.KVStore: which sequences exist, which tokens they
// consist of, and how far every stage has executed them.
package kv

import (
	"fmt"
	"sync"

	"github.com/strata-engine/strata/core"
)

// Store implements core.KVStore. A sequence reserves its limit when it is
// opened, so that a sequence that has started can always finish.
type Store struct {
	budget, max int

	mu        sync.Mutex // protects the fields below
	next      core.SequenceID
	reserved  int
	sequences map[core.SequenceID]*sequence
}

type sequence struct {
	tokens                   []int32
	prompt, committed, limit int
}

var _ core.KVStore = (*Store)(nil)

// New returns a store for at most max sequences that together reserve at most
// budget tokens.
func New(budget, max int) *Store {
	return &Store{budget: budget, max: max, sequences: map[core.SequenceID]*sequence{}}
}

// Open implements core.KVStore.
func (s *Store) Open(prompt []int32, limit int) (core.SequenceID, error) {
	if len(prompt) == 0 {
		return 0, fmt.Errorf("open sequence: the prompt is empty")
	}
	if limit < len(prompt) {
		return 0, fmt.Errorf("open sequence: limit %d is below the prompt's %d tokens", limit, len(prompt))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sequences) >= s.max {
		return 0, fmt.Errorf("open sequence: %d are open: %w", s.max, core.ErrOutOfState)
	}
	if limit > s.budget-s.reserved {
		return 0, fmt.Errorf("open sequence: %d tokens wanted, %d of %d free: %w", limit, s.budget-s.reserved, s.budget, core.ErrOutOfState)
	}
	s.next++
	s.reserved += limit
	tokens := make([]int32, len(prompt), min(limit, len(prompt)+256))
	copy(tokens, prompt)
	s.sequences[s.next] = &sequence{tokens: tokens, prompt: len(prompt), limit: limit}
	return s.next, nil
}

// Append implements core.KVStore.
func (s *Store) Append(id core.SequenceID, tokens ...int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.find("append tokens", id)
	if err != nil {
		return err
	}
	if len(tokens) > q.limit-len(q.tokens) {
		return fmt.Errorf("append tokens: sequence %d has %d of %d tokens, %d more do not fit", id, len(q.tokens), q.limit, len(tokens))
	}
	q.tokens = append(q.tokens, tokens...)
	return nil
}

// Commit implements core.KVStore.
func (s *Store) Commit(id core.SequenceID, pos int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.find("commit", id)
	if err != nil {
		return err
	}
	if pos < q.committed || pos > len(q.tokens) {
		return fmt.Errorf("commit: position %d of sequence %d is outside [%d,%d]", pos, id, q.committed, len(q.tokens))
	}
	q.committed = pos
	return nil
}

// Sequence implements core.KVStore.
func (s *Store) Sequence(id core.SequenceID) (core.SequenceView, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, ok := s.sequences[id]
	if !ok {
		return core.SequenceView{}, false
	}
	n := len(q.tokens)
	return core.SequenceView{ID: id, Tokens: q.tokens[:n:n], Prompt: q.prompt, Committed: q.committed, Limit: q.limit}, true
}

// Plan implements core.KVStore. The store keeps no copy of backend state, so
// everything that was committed has to be executed again.
func (s *Store) Plan(id core.SequenceID) (core.RestorePlan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.find("plan restore", id)
	if err != nil {
		return core.RestorePlan{}, err
	}
	n := len(q.tokens)
	return core.RestorePlan{From: 0, Tokens: q.tokens[:n:n]}, nil
}

// Close implements core.KVStore.
func (s *Store) Close(id core.SequenceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q, ok := s.sequences[id]; ok {
		s.reserved -= q.limit
		delete(s.sequences, id)
	}
}

// Stats implements core.KVStore.
func (s *Store) Stats() core.KVStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := core.KVStats{Sequences: len(s.sequences), Reserved: s.reserved, Budget: s.budget}
	for _, q := range s.sequences {
		st.Tokens += len(q.tokens)
	}
	return st
}

// find returns an open sequence; s.mu is held.
func (s *Store) find(doing string, id core.SequenceID) (*sequence, error) {
	q, ok := s.sequences[id]
	if !ok {
		return nil, fmt.Errorf("%s: sequence %d: %w", doing, id, core.ErrUnknownSequence)
	}
	return q, nil
}
