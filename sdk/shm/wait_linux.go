package shm

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2), without FUTEX_PRIVATE_FLAG: the waiter and the waker
// are different processes.
const (
	futexWait = 0
	futexWake = 1
)

// sleepOn sleeps while *word == old, at most for d. It may return early.
func sleepOn(word *atomic.Uint32, old uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	// Every outcome (woken, changed, timed out, signal) sends the caller back to
	// its checks, so the error carries no information.
	syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(old),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// wake ends every sleepOn of word.
func wake(word *atomic.Uint32) {
	// It does not block, so the scheduler need not know.
	syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<30, 0, 0, 0)
}

// Monotonic returns CLOCK_MONOTONIC in nanoseconds: the same clock in every
// process of the machine.
func Monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}
