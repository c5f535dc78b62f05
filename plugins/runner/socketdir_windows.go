package runner

import (
	"io/fs"
	"os"
)

// lockFile makes the file and fails if there is one: an open file cannot be
// deleted on Windows, so that the directory of a living host stays. Sockets are
// not used there; the directory is only go-plugin's scratch space.
func lockFile(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
}

// isOurs: directories for temporary files are per user on Windows.
func isOurs(fs.FileInfo) bool { return true }
