//go:build unix

package plugins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkExecutable says why a regular file must not be started.
func checkExecutable(info fs.FileInfo) error {
	if info.Mode().Perm()&0o111 == 0 {
		return errors.New("it is not executable: run chmod +x on it")
	}
	return checkSafe(info)
}

// checkSafe refuses what other users could replace: whatever they put there
// would run as this user. Groups are trusted: many systems give every user one.
func checkSafe(info fs.FileInfo) error {
	if info.Mode().Perm()&0o002 != 0 {
		return errors.New("every user may write to it: run chmod o-w on it")
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d, who is neither root nor the user that runs this program", st.Uid)
	}
	return nil
}
