package model

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// maxHeader bounds metadata and tensor table together, and so the memory that a
// corrupt file can make us use. Large vocabularies need some 20 MB.
const maxHeader = 256 << 20

// reader reads the header of a file. The first failure sticks in err; after it,
// every read returns zero values.
type reader struct {
	buf  *bufio.Reader
	path string
	// pos is the position of the next byte; limit the end of what may be read.
	pos, limit, size int64
	// within says what is being read, for error messages.
	within string
	err    error
}

func newReader(r io.Reader, path string, size int64) *reader {
	const buffer = 64 << 10
	return &reader{
		buf:    bufio.NewReaderSize(r, int(min(size, buffer))),
		path:   path,
		limit:  min(size, maxHeader),
		size:   size,
		within: "the header",
	}
}

// fail records a damaged file.
func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = damaged(r.path, "%s: %s", r.within, fmt.Sprintf(format, args...))
	}
}

// need reports whether n more bytes may be read, and fails otherwise.
func (r *reader) need(n uint64, what string) bool {
	if r.err != nil {
		return false
	}
	if n <= uint64(r.limit-r.pos) {
		return true
	}
	if r.limit < r.size {
		r.fail("%s needs %d bytes at %d, but metadata and tensor table end before %d in any real model", what, n, r.pos, int64(maxHeader))
	} else {
		r.fail("%s needs %d bytes at %d, but the file ends at %d", what, n, r.pos, r.size)
	}
	return false
}

// fill reads len(b) bytes that need has granted.
func (r *reader) fill(b []byte) {
	n, err := io.ReadFull(r.buf, b)
	r.pos += int64(n)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		r.fail("the file became shorter than %d bytes while it was read", r.size)
	default:
		r.err = fmt.Errorf("open model %s: read at %d: %w", r.path, r.pos, err)
	}
}

func (r *reader) uint(bytes int, what string) uint64 {
	if !r.need(uint64(bytes), what) {
		return 0
	}
	var b [8]byte
	r.fill(b[:bytes])
	return binary.LittleEndian.Uint64(b[:])
}

func (r *reader) uint32(what string) uint32 { return uint32(r.uint(4, what)) }
func (r *reader) uint64(what string) uint64 { return r.uint(8, what) }

// string reads a length and that many bytes, at most limit.
func (r *reader) string(limit uint64, what string) string {
	n := r.uint64(what)
	if n > limit {
		r.fail("%s is %d bytes long, at most %d are possible", what, n, limit)
	}
	if !r.need(n, what) {
		return ""
	}
	b := make([]byte, n)
	r.fill(b)
	return string(b)
}

// strings reads n strings. They share one allocation.
func (r *reader) strings(n uint64) []string {
	const lengthBytes = 8
	if r.err == nil && n > uint64(r.limit-r.pos)/lengthBytes {
		r.fail("an array of %d strings does not fit into the remaining %d bytes", n, r.limit-r.pos)
	}
	if r.err != nil {
		return nil
	}
	var text []byte
	ends := make([]int, n)
	for i := range ends {
		length := r.uint64("an array's string")
		if !r.need(length, "an array's string") {
			return nil
		}
		start := len(text)
		text = slices.Grow(text, int(length))[:start+int(length)]
		r.fill(text[start:])
		ends[i] = len(text)
	}
	all := string(text)
	out := make([]string, n)
	start := 0
	for i, end := range ends {
		out[i] = all[start:end]
		start = end
	}
	return out
}
