package pool

import (
	"sync"
	"sync/atomic"
)

// A sleeper lets threads wait for a word to change.
type sleeper interface {
	// wait returns when word was woken, or at once where it is not old. It may
	// return early.
	wait(word *atomic.Uint32, old uint32)
	// wake ends up to n waits on word; the caller has changed it before.
	wake(word *atomic.Uint32, n int)
}

// condition is the portable sleeper.
type condition struct {
	mu   sync.Mutex
	cond sync.Cond
}

func newCondition() *condition {
	c := &condition{}
	c.cond.L = &c.mu
	return c
}

func (c *condition) wait(word *atomic.Uint32, old uint32) {
	c.mu.Lock()
	for word.Load() == old {
		c.cond.Wait()
	}
	c.mu.Unlock()
}

func (c *condition) wake(_ *atomic.Uint32, n int) {
	// Taking the lock, so that no wait is between its look and its sleep.
	c.mu.Lock()
	for range n {
		c.cond.Signal()
	}
	c.mu.Unlock()
}
