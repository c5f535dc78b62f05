package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// seals fix the size for ever, so that no peer can make this process fault by
// truncating the file.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// createMemory makes a sealed memory file of the given size and maps it. Its
// bytes are zero and take no memory until they are touched.
func createMemory(name string, size int64) (*os.File, []byte, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if errors.Is(err, unix.ENOSYS) {
		return nil, nil, fmt.Errorf("create shared memory: %w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("create shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	mem, err := sealAndMap(fd, size)
	if err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("create shared memory: %w", err)
	}
	return file, mem, nil
}

func sealAndMap(fd int, size int64) ([]byte, error) {
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, fmt.Errorf("set size to %d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return mapFile(fd, size)
}

// attachMemory maps a sealed memory file that another process made.
func attachMemory(file *os.File) ([]byte, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("attach shared memory: %w", err)
	}
	var mem []byte
	err2 := conn.Control(func(fd uintptr) { mem, err = checkAndMap(int(fd)) })
	if err = errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("attach shared memory: %w", err)
	}
	return mem, nil
}

func checkAndMap(fd int) ([]byte, error) {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, corrupt("descriptor %d is not a memory file that can be sealed: %v", fd, err)
	}
	if have&seals != seals {
		return nil, corrupt("descriptor %d is not sealed against resizing", fd)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("read size: %w", err)
	}
	// A backend's children must not inherit what the host passed to it.
	unix.CloseOnExec(fd)
	return mapFile(fd, st.Size)
}

func mapFile(fd int, size int64) ([]byte, error) {
	if size < pageBytes || int64(int(size)) != size {
		return nil, corrupt("a size of %d bytes is out of range", size)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return mem, nil
}

func unmapMemory(mem []byte) error { return unix.Munmap(mem) }
