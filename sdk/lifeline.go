package sdk

import (
	"errors"
	"io"
	"os"
)

// watchLifeline kills this process when the host is gone. It does not return
// while the host lives. The kernel ends the process whatever its other threads
// are doing; nothing is cleaned up, which is the point: a thread that is stuck
// in a driver must not keep the process and its memory alive.
func watchLifeline(pipe *os.File) {
	buf := make([]byte, 16)
	for {
		_, err := pipe.Read(buf)
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			os.Stderr.WriteString("strata backend: lifeline to the host is unreadable, exiting: " + err.Error() + "\n")
		}
		killSelf()
		return
	}
}

// killSelf ends this process at once: SIGKILL where there are signals.
func killSelf() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		os.Exit(137)
	}
}
