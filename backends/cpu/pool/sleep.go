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
	// wake ends every wait on word; the caller has changed it before.
	wake(word *atomic.Uint32)
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

func (c *condition) wake(*atomic.Uint32) {
	// Taking the lock, so that no wait is between its look and its sleep.
	c.mu.Lock()
	c.cond.Broadcast()
	c.mu.Unlock()
}
