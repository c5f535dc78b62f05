package model

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/sdk/quant"
)

// Limits of the GGUF specification.
const (
	maxKey      = 65535
	maxName     = 64
	maxDims     = 4
	minAlign    = 8
	maxAlign    = 1 << 20
	unspecified = 32 // alignment where general.alignment is absent
)

// file is one parsed GGUF file.
type file struct {
	shard    core.Shard
	metadata *Metadata
	// tensors in the order of their data; Shard is not set yet.
	tensors []core.Tensor
}

// readFile parses and checks the file at the absolute path.
func readFile(path string) (*file, error) {
	// Looked at before opening: opening a named pipe would wait for its writer.
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, &fileError{path, "there is no such file; check the path", ErrNotFound}
	} else if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	} else if !info.Mode().IsRegular() {
		return nil, invalid(path, "it is not a regular file; give the path of a .gguf file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	g := &file{shard: core.Shard{
		Path:    filepath.Clean(path),
		Size:    info.Size(),
		ModTime: info.ModTime().UnixNano(),
		Inode:   inode(info),
	}}
	if err := g.parse(f); err != nil {
		return nil, err
	}
	return g, nil
}

// parse reads the header from f and fills metadata and tensors.
func (g *file) parse(f io.ReaderAt) error {
	path, size := g.shard.Path, g.shard.Size
	if size == 0 {
		return damaged(path, "it is empty (0 bytes)")
	}
	r := newReader(io.NewSectionReader(f, 0, size), path, size)
	if err := r.magic(); err != nil {
		return err
	}
	tensorCount := r.uint64("the number of tensors")
	keyCount := r.uint64("the number of keys")
	// The shortest tensor row and the shortest key/value pair have this many
	// bytes: counts that cannot be true are refused before anything is read.
	const minTensor, minPair = 8 + 1 + 4 + 8 + 4 + 8, 8 + 1 + 4 + 1
	if r.err == nil && tensorCount > uint64(r.limit-r.pos)/minTensor {
		r.fail("%d tensors do not fit into a file of %d bytes", tensorCount, size)
	}
	if r.err == nil && keyCount > uint64(r.limit-r.pos)/minPair {
		r.fail("%d keys do not fit into a file of %d bytes", keyCount, size)
	}
	if r.err != nil {
		return r.err
	}
	g.metadata = r.metadata(keyCount)
	rows := r.tensorTable(tensorCount)
	if r.err != nil {
		return r.err
	}
	align, err := alignment(g.metadata)
	if err != nil {
		return err
	}
	end, err := g.layOut(rows, r.pos, align)
	if err != nil {
		return err
	}
	return g.checkTail(f, end, align)
}

// magic checks the first eight bytes.
func (r *reader) magic() error {
	magic := r.uint32("the magic number")
	version := r.uint32("the version")
	switch {
	case r.err != nil:
		return r.err
	case magic == 0x73726576: // "vers"
		return invalid(r.path, "it is a Git LFS pointer, not a model; fetch the model with git lfs pull or download it again")
	case magic != 0x46554747: // "GGUF"
		return invalid(r.path, "it is not a GGUF file (it starts with %08x); give the path of a .gguf file", bits.ReverseBytes32(magic))
	case version == 2, version == 3:
		return nil
	case version != 0 && bits.ReverseBytes32(version) <= 3:
		return invalid(r.path, "it is a big-endian GGUF file; only little-endian ones are supported, download that variant")
	}
	return invalid(r.path, "it has GGUF version %d; versions 2 and 3 are supported, convert it again with a current converter", version)
}

// metadata reads n key/value pairs.
func (r *reader) metadata(n uint64) *Metadata {
	m := &Metadata{path: r.path, values: map[string]*value{}}
	for i := range n {
		r.within = fmt.Sprintf("key %d of %d", i+1, n)
		key := r.string(maxKey, "a key")
		if key == "" {
			r.fail("the key is empty")
		}
		r.within = fmt.Sprintf("key %q", key)
		if m.Has(key) {
			r.fail("it occurs twice")
		}
		v := r.readValue()
		if r.err != nil {
			return m
		}
		m.keys = append(m.keys, key)
		m.values[key] = &v
	}
	return m
}

// row is one entry of a file's tensor table.
type row struct {
	name   string
	dims   []int64
	typ    quant.Type
	offset uint64
}

// tensorTable reads n entries and checks what does not need the whole table.
func (r *reader) tensorTable(n uint64) []row {
	var rows []row
	seen := map[string]bool{}
	for i := range n {
		r.within = fmt.Sprintf("tensor %d of %d", i+1, n)
		t := row{name: r.string(maxName, "a tensor's name")}
		if t.name == "" {
			r.fail("the name is empty")
		}
		r.within = fmt.Sprintf("tensor %q", t.name)
		if seen[t.name] {
			r.fail("it occurs twice")
		}
		seen[t.name] = true
		dims := r.uint32("the number of dimensions")
		if r.err == nil && (dims == 0 || dims > maxDims) {
			r.fail("it has %d dimensions, 1 to %d are possible", dims, maxDims)
		}
		for range dims {
			d := r.uint64("a dimension")
			if r.err == nil && (d == 0 || d > math.MaxInt) {
				r.fail("it has a dimension of %d", d)
			}
			if r.err != nil {
				return nil
			}
			t.dims = append(t.dims, int64(d))
		}
		id := r.uint32("the type")
		t.offset = r.uint64("the offset")
		if r.err != nil {
			return nil
		}
		// Q2_0_128 has no id in files; it is found by size.
		if t.typ = quant.Type(id); !t.typ.Known() || t.typ == quant.Q2_0_128 {
			r.err = invalid(r.path, "%s: tensor type %d is not supported; use a file with another quantisation", r.within, id)
			return nil
		}
		rows = append(rows, t)
	}
	return rows
}

// alignment returns general.alignment or its default.
func alignment(m *Metadata) (int64, error) {
	const key = "general.alignment"
	if !m.Has(key) {
		return unspecified, nil
	}
	a, err := m.Int(key)
	if err != nil {
		return 0, err
	}
	if a < minAlign || a > maxAlign || a&(a-1) != 0 {
		return 0, m.wrong(key, "is %d; it must be a power of two from %d to %d", a, minAlign, maxAlign)
	}
	return a, nil
}

// padding is the number of bytes from n to the next multiple of align.
func padding(n, align int64) int64 { return -n & (align - 1) }

// bytes returns the size of a tensor's data.
func (t *row) bytes(typ quant.Type) (int64, error) {
	n, err := typ.RowBytes(int(t.dims[0]))
	if err != nil {
		return 0, fmt.Errorf("rows of %d values: it is %s, whose rows are multiples of %d values", t.dims[0], typ, typ.BlockValues())
	}
	total := int64(n)
	for _, d := range t.dims[1:] {
		if total > math.MaxInt64/d {
			return 0, fmt.Errorf("dimensions %v: larger than any file", t.dims)
		}
		total *= d
	}
	return total, nil
}

// layOut checks where the data of every tensor lies and fills tensors. The
// header ends at headerEnd; the result is where the last tensor's data ends.
func (g *file) layOut(rows []row, headerEnd, align int64) (int64, error) {
	path, size := g.shard.Path, g.shard.Size
	if len(rows) == 0 {
		return headerEnd, nil
	}
	// Padding is less than maxAlign, so this cannot overflow.
	start := headerEnd + padding(headerEnd, align)
	if start > size {
		return 0, damaged(path, "the tensor data should start at %d, but the file ends at %d", start, size)
	}
	data := uint64(size - start)
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), strings.Compare(a.name, b.name))
	})
	for _, t := range rows {
		switch {
		case t.offset%uint64(align) != 0:
			return 0, damaged(path, "tensor %q: its offset %d is no multiple of the alignment %d", t.name, t.offset, align)
		case t.offset > data:
			return 0, damaged(path, "tensor %q: its offset %d lies beyond the %d bytes of tensor data in the file", t.name, t.offset, data)
		}
	}
	chooseQ2(rows, data, align)
	end := int64(0) // relative to start
	for i := range rows {
		t := &rows[i]
		n, err := t.bytes(t.typ)
		if err != nil {
			return 0, damaged(path, "tensor %q: %v", t.name, err)
		}
		offset := int64(t.offset)
		if n > int64(data)-offset {
			return 0, damaged(path, "tensor %q: its %d bytes at offset %d do not fit into the %d bytes of tensor data in the file", t.name, n, offset, data)
		}
		if offset < end {
			return 0, damaged(path, "tensors %q and %q overlap: the first ends at offset %d, the second starts at %d", rows[i-1].name, t.name, end, offset)
		}
		end = offset + n
		g.tensors = append(g.tensors, core.Tensor{Name: t.name, Type: uint32(t.typ), Dims: t.dims, Offset: start + offset, Bytes: n})
	}
	return start + end, nil
}

// chooseQ2 finds out which of the two formats stored under the id of Q2_0 the
// file uses and sets the rows' types accordingly. A file has one of them
// throughout; the space between a tensor and its successor tells which, except
// for tensors so small that padding hides the difference.
func chooseQ2(rows []row, data uint64, align int64) {
	votes := map[quant.Type]int{}
	var found []*row
	for i := range rows {
		t := &rows[i]
		if t.typ != quant.Q2_0 {
			continue
		}
		found = append(found, t)
		next := data
		if i+1 < len(rows) {
			next = rows[i+1].offset
		}
		space := int64(next - t.offset)
		fits := func(typ quant.Type) bool {
			n, err := t.bytes(typ)
			// Before a successor data is padded, at the end of a file it may be.
			return err == nil && n <= math.MaxInt64-align && (space == n || space == n+padding(n, align))
		}
		standard, variant := fits(quant.Q2_0), fits(quant.Q2_0_128)
		switch {
		case standard && !variant:
			votes[quant.Q2_0]++
		case variant && !standard:
			votes[quant.Q2_0_128]++
		}
	}
	if votes[quant.Q2_0_128] > votes[quant.Q2_0] {
		for _, t := range found {
			t.typ = quant.Q2_0_128
		}
	}
}

// checkTail refuses files that were joined by appending one to another: the
// tensors of the second would be ignored without a word.
func (g *file) checkTail(f io.ReaderAt, end, align int64) error {
	for _, at := range []int64{end, end + padding(end, align)} {
		var magic [4]byte
		if at > g.shard.Size-int64(len(magic)) {
			continue
		}
		if _, err := f.ReadAt(magic[:], at); err != nil {
			return fmt.Errorf("open model %s: read at %d: %w", g.shard.Path, at, err)
		}
		if string(magic[:]) == "GGUF" {
			return invalid(g.shard.Path, "a second GGUF file follows at byte %d; shards cannot be joined with cat: download them again and keep them as files of their own, with the names -0000N-of-0000M.gguf", at)
		}
	}
	return nil
}
