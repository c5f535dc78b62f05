package pool

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// futex is the sleeper of Linux: one system call to sleep, one to wake.
type futex struct{}

const (
	futexWait = 0 | 128 // FUTEX_WAIT | FUTEX_PRIVATE_FLAG
	futexWake = 1 | 128 // FUTEX_WAKE | FUTEX_PRIVATE_FLAG
)

func newSleeper() sleeper { return futex{} }

func (futex) wait(word *atomic.Uint32, old uint32) {
	// Errors mean that the word changed first or that a signal came: both are
	// early returns.
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(old), 0, 0, 0)
}

func (futex) wake(word *atomic.Uint32, n int) {
	// Raw: waking does not block, and the runtime's bookkeeping costs as much as
	// the call.
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, uintptr(n), 0, 0, 0)
}

// yield lets another thread have this one's processor.
func yield() {
	_, _, _ = syscall.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
