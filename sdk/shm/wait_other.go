//go:build !linux

package shm

import (
	"sync/atomic"
	"time"
)

// sleepOn polls: without shared memory a ring has both its ends in one process,
// in tests.
func sleepOn(word *atomic.Uint32, old uint32, d time.Duration) {
	for end := time.Now().Add(d); word.Load() == old && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
}

func wake(*atomic.Uint32) {}

var start = time.Now()

// Monotonic returns the nanoseconds since the process started.
func Monotonic() int64 { return int64(time.Since(start)) }
