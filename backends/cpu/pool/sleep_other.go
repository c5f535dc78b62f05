//go:build !linux

package pool

import "runtime"

func newSleeper() sleeper { return newCondition() }

// yield lets another goroutine have this one's processor.
func yield() { runtime.Gosched() }
