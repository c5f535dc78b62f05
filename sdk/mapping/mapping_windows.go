package mapping

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

func mapFile(file *os.File, size int) ([]byte, error) {
	section, err := windows.CreateFileMapping(windows.Handle(file.Fd()), nil, windows.PAGE_READONLY, 0, 0, nil)
	if err != nil {
		return nil, err
	}
	// The view keeps the section alive.
	defer windows.CloseHandle(section)
	address, err := windows.MapViewOfFile(section, windows.FILE_MAP_READ, 0, 0, uintptr(size))
	if err != nil {
		return nil, err
	}
	// The address is not Go memory; reading it through the variable tells vet
	// that no integer is turned into a Go pointer.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), size), nil
}

func unmap(data []byte) error {
	return windows.UnmapViewOfFile(uintptr(unsafe.Pointer(unsafe.SliceData(data))))
}

// inode is 0: Windows has no inode numbers.
func inode(os.FileInfo) uint64 { return 0 }
