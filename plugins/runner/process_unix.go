//go:build unix && !linux

package runner

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// canPassFiles: descriptors beyond the standard three are inherited.
const canPassFiles = true

// processAttributes puts the process into a group of its own, so that it and its
// children can be killed together and do not get the terminal's signals. There
// is no parent-death signal here: the lifeline alone tells it that the host is
// gone.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// reap waits until the process has ended, reaps it and calls ended. To wait
// without reaping, as on Linux, is not possible on all of these systems.
func reap(p *os.Process, ended func()) *os.ProcessState {
	state, _ := p.Wait() // fails only for a process that is not ours
	ended()
	return state
}

// killGroup sends SIGKILL to every process of the group. There may be none.
func killGroup(pid int) { _ = unix.Kill(-pid, unix.SIGKILL) }
