package runner

import (
	"os"
	"syscall"
)

// canPassFiles: only the standard three can be inherited, so that the lifeline
// is standard input and steps travel over gRPC.
const canPassFiles = false

// processAttributes keeps Ctrl-C in the host's console away from the process:
// the host ends it.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// reap waits until the process has ended, releases it and calls ended. An open
// handle keeps the id from being reused until then.
func reap(p *os.Process, ended func()) *os.ProcessState {
	state, _ := p.Wait() // fails only for a process that is not ours
	ended()
	return state
}

// killGroup does nothing: a backend has no children that need it.
func killGroup(int) {}
