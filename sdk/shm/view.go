package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// littleEndian reports whether this machine stores the low byte first, as every
// layout of the protocol does.
var littleEndian = func() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}()

// word32 and word64 are the atomic words at a byte offset. The offsets are
// constants of the layout, aligned to the word.
func word32(mem []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off : off+4 : off+4][0]))
}

func word64(mem []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off : off+8 : off+8][0]))
}

// Float32s returns b as float32 values, without a copy. The bytes are little
// endian; b must start at a multiple of four bytes and have whole values.
func Float32s(b []byte) ([]float32, error) {
	if !littleEndian {
		return nil, fmt.Errorf("view floats: %w: the machine is big endian", ErrUnsupported)
	}
	if len(b)%4 != 0 {
		return nil, fmt.Errorf("view floats: %d bytes are not whole values", len(b))
	}
	if len(b) == 0 {
		return nil, nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%4 != 0 {
		return nil, fmt.Errorf("view floats: the bytes are not aligned")
	}
	return unsafe.Slice((*float32)(p), len(b)/4), nil
}

// AlignedBytes returns n zero bytes that start at a multiple of 64, for payloads
// outside shared memory.
func AlignedBytes(n int) []byte {
	b := make([]byte, n+63)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 63)
	return b[skip : skip+n : skip+n]
}
