package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// socketDirPrefix begins the name of every directory that NewSocketDir makes.
const socketDirPrefix = "strata-run-"

// maxSocketPath is the longest path of a unix socket that all systems take, in
// bytes (macOS: 104 with the terminating zero).
const maxSocketPath = 103

// SocketDir is a private directory for the control sockets of one run. A killed
// process leaves its socket behind, and a killed host the whole directory: the
// former is removed with the directory, the latter by the next host.
type SocketDir struct {
	path string
	lock *os.File
}

// NewSocketDir makes a directory with mode 0700 in base, or in the system's
// directory for temporary files if base is empty, after removing those that
// hosts which are gone have left there.
func NewSocketDir(base string) (*SocketDir, error) {
	if base == "" {
		base = os.TempDir()
	}
	removeStale(base)
	path, err := os.MkdirTemp(base, socketDirPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a directory for the backend's socket: %w", err)
	}
	d := &SocketDir{path: path}
	// go-plugin's socket is "plugin" and up to ten digits.
	if n := len(path) + len("/plugin4294967295"); n > maxSocketPath {
		d.Remove()
		return nil, fmt.Errorf("make a directory for the backend's socket: the path of a socket in %s would have %d bytes of at most %d: set TMPDIR to a shorter directory",
			base, n, maxSocketPath)
	}
	// The lock is what tells others that this host lives. It is not inherited.
	if d.lock, err = lockFile(filepath.Join(path, "lock")); err != nil {
		d.Remove()
		return nil, fmt.Errorf("make a directory for the backend's socket: %w", err)
	}
	return d, nil
}

// Path is the directory.
func (d *SocketDir) Path() string { return d.path }

// Remove deletes the directory and everything in it.
func (d *SocketDir) Remove() error {
	if d.lock != nil {
		d.lock.Close() // first: Windows does not delete an open file
	}
	return os.RemoveAll(d.path)
}

// removeStale deletes the directories of hosts that are gone. It is a courtesy:
// what it cannot delete stays.
func removeStale(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), socketDirPrefix) || !e.IsDir() {
			continue
		}
		path := filepath.Join(base, e.Name())
		info, err := os.Lstat(path)
		// A fresh one may not have its lock yet.
		if err != nil || !isOurs(info) || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		lock, err := lockFile(filepath.Join(path, "lock"))
		if err != nil {
			continue // its host lives
		}
		lock.Close()
		os.RemoveAll(path)
	}
}
