package runner

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// canPassFiles: descriptors beyond the standard three are inherited.
const canPassFiles = true

// processAttributes puts the process into a group of its own, so that it and its
// children can be killed together and do not get the terminal's signals, and
// lets the kernel kill it when the host is gone.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// reap waits until the process has ended and reaps it. It calls ended between the
// two, when neither the process's id nor its group's can be reused yet.
func reap(p *os.Process, ended func()) *os.ProcessState {
	for errors.Is(unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	ended()
	state, _ := p.Wait() // fails only for a process that is not ours
	return state
}

// killGroup sends SIGKILL to every process of the group. There may be none.
func killGroup(pid int) { _ = unix.Kill(-pid, unix.SIGKILL) }
