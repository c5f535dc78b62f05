package engine

import (
	"slices"
	"sync"
	"time"
)

// Totals are an engine's counters.
type Totals struct {
	// Queued and Running count requests now.
	Queued, Running int
	// PromptTokens and GeneratedTokens count tokens since the start.
	PromptTokens, GeneratedTokens uint64
	// NonFinite counts requests that ended because a row was not finite.
	NonFinite uint64
	// Overhead is the median, over the latest steps of a single row, of the
	// loop's time that the backends did not work: scheduling, hand-over,
	// sampling, delivery. Zero before the first.
	Overhead time.Duration
}

// statistics are updated by the loop and read by anyone.
type statistics struct {
	mu      sync.Mutex // protects the fields below
	totals  Totals
	samples []time.Duration // the latest, a ring of overheadSamples
	at      int
}

// overheadSamples is how many steps the median of the overhead looks back.
const overheadSamples = 1024

// Stats returns the counters.
func (e *Engine) Stats() Totals {
	e.mu.Lock()
	queued := e.queued
	e.mu.Unlock()
	s := &e.stats
	s.mu.Lock()
	totals, samples := s.totals, slices.Clone(s.samples)
	s.mu.Unlock()
	totals.Queued = max(queued-totals.Running, 0)
	if len(samples) > 0 {
		slices.Sort(samples)
		totals.Overhead = samples[len(samples)/2]
	}
	return totals
}

func (s *statistics) set(queued, running int) {
	s.mu.Lock()
	s.totals.Queued, s.totals.Running = queued, running
	s.mu.Unlock()
}

func (s *statistics) tokens(prompt, generated int) {
	s.mu.Lock()
	s.totals.PromptTokens += uint64(prompt)
	s.totals.GeneratedTokens += uint64(generated)
	s.mu.Unlock()
}

func (s *statistics) nonFinite() {
	s.mu.Lock()
	s.totals.NonFinite++
	s.mu.Unlock()
}

func (s *statistics) overhead(d time.Duration) {
	s.mu.Lock()
	if len(s.samples) < overheadSamples {
		s.samples = append(s.samples, d)
	} else {
		s.samples[s.at] = d
		s.at = (s.at + 1) % overheadSamples
	}
	s.mu.Unlock()
}
