package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// openMemfds counts this process's descriptors of memory files.
func openMemfds(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", entry.Name()))
		if err == nil && strings.HasPrefix(target, "/memfd:strata") {
			n++
		}
	}
	return n
}

func mappedMemfds(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "/memfd:strata")
}

func reopen(t *testing.T, f *os.File) *os.File {
	t.Helper()
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestNoLeak makes and closes both sides many times: no descriptor and no
// mapping stays.
func TestNoLeak(t *testing.T) {
	fds, maps := openMemfds(t), mappedMemfds(t)
	for range 50 {
		host, err := CreateData(small, 1)
		if err != nil {
			t.Fatal(err)
		}
		backend, err := AttachData(reopen(t, host.File()))
		if err != nil {
			t.Fatal(err)
		}
		reader, err := CreateVitals(1)
		if err != nil {
			t.Fatal(err)
		}
		writer, err := AttachVitals(reopen(t, reader.File()))
		if err != nil {
			t.Fatal(err)
		}
		// A second attachment fails and must not leak either.
		if err := backend.Completions().Push(&Entry{}); err != nil {
			t.Fatal(err)
		}
		if _, err := AttachData(reopen(t, host.File())); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("second attachment: %v", err)
		}
		if _, err := AttachVitals(reopen(t, host.File())); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("a data segment as vitals page: %v", err)
		}
		if n := openMemfds(t) - fds; n != 4 {
			t.Fatalf("%d memory files are open, want 4", n)
		}
		for _, c := range []interface{ Close() error }{host, backend, reader, writer} {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := openMemfds(t); n != fds {
		t.Errorf("%d memory files are open, %d were before", n, fds)
	}
	if n := mappedMemfds(t); n != maps {
		t.Errorf("%d memory files are mapped, %d were before", n, maps)
	}
}

// TestSeals checks that nobody can resize a segment, and that a file which
// somebody could resize is refused.
func TestSeals(t *testing.T) {
	d, err := CreateData(small, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, size := range []int64{0, 1 << 20} {
		if err := d.File().Truncate(size); err == nil {
			t.Errorf("resizing to %d bytes succeeded", size)
		}
	}

	fd, err := unix.MemfdCreate("strata-unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	unsealed := os.NewFile(uintptr(fd), "unsealed")
	if err := unsealed.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	if _, err := AttachData(unsealed); !errors.Is(err, ErrCorrupt) {
		t.Errorf("an unsealed file: %v", err)
	}
	ordinary, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := AttachData(ordinary); !errors.Is(err, ErrCorrupt) {
		t.Errorf("an ordinary file: %v", err)
	}
	tiny, _, err := createMemory("strata-tiny", 100)
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("a tiny file: %v, %v", tiny, err)
	}
}
