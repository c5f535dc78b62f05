// Package mapping maps the files of a model read-only into memory and hands out
// their tensors in place. Nothing is copied: the pages belong to the system's
// page cache, are shared by every process that maps the file, and outlive a
// crash.
package mapping

import (
	"errors"
	"fmt"
	"math"
	"os"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/quant"
)

// Files are the mapped shards of a model. Tensor may be called from several
// goroutines at once; Close ends the life of every tensor handed out.
type Files struct {
	shards  []shard
	tensors map[string]*pb.Tensor
}

type shard struct {
	path string
	data []byte
}

// Open maps every shard of spec. A file whose size or inode is not what the host
// saw when it read the model is refused: it was replaced, and the positions of
// the tensors say nothing about it.
func Open(spec *pb.ModelSpec) (*Files, error) {
	f := &Files{tensors: make(map[string]*pb.Tensor, len(spec.GetTensors()))}
	for _, s := range spec.GetShards() {
		data, err := open(s)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("map model: %w", err), f.Close())
		}
		f.shards = append(f.shards, shard{s.GetPath(), data})
	}
	for _, t := range spec.GetTensors() {
		if f.tensors[t.GetName()] != nil {
			return nil, errors.Join(fmt.Errorf("map model: tensor %q is listed twice", t.GetName()), f.Close())
		}
		f.tensors[t.GetName()] = t
	}
	return f, nil
}

func open(s *pb.Shard) ([]byte, error) {
	file, err := os.Open(s.GetPath())
	if err != nil {
		return nil, err
	}
	// A mapping outlives its descriptor.
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", s.GetPath())
	case info.Size() != s.GetSize():
		return nil, fmt.Errorf("%s has %d bytes and had %d when the model was opened: the file was changed; load the model again", s.GetPath(), info.Size(), s.GetSize())
	case s.GetInode() != 0 && inode(info) != 0 && inode(info) != s.GetInode():
		return nil, fmt.Errorf("%s was replaced by another file since the model was opened; load the model again", s.GetPath())
	case info.Size() == 0 || info.Size() > math.MaxInt:
		return nil, fmt.Errorf("%s has %d bytes and cannot be mapped", s.GetPath(), info.Size())
	}
	data, err := mapFile(file, int(info.Size()))
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", s.GetPath(), err)
	}
	return data, nil
}

// Tensor returns a tensor in place. Its type, extents and range are checked
// against each other and against the file.
func (f *Files) Tensor(name string) (ops.Tensor, error) {
	t := f.tensors[name]
	if t == nil {
		return ops.Tensor{}, fmt.Errorf("tensor %q is not in the model", name)
	}
	fail := func(format string, args ...any) (ops.Tensor, error) {
		return ops.Tensor{}, fmt.Errorf("tensor %q: "+format, append([]any{name}, args...)...)
	}
	if int(t.GetShard()) < 0 || int(t.GetShard()) >= len(f.shards) {
		return fail("shard %d of %d", t.GetShard(), len(f.shards))
	}
	s := &f.shards[t.GetShard()]
	size := int64(len(s.data))
	if t.GetOffset() < 0 || t.GetBytes() < 0 || t.GetOffset() > size || t.GetBytes() > size-t.GetOffset() {
		return fail("%d bytes at %d are not within the %d bytes of %s", t.GetBytes(), t.GetOffset(), size, s.path)
	}
	kind := quant.Type(t.GetType())
	want, err := tensorBytes(kind, t.GetDims())
	if err != nil {
		return fail("%w", err)
	}
	if want != t.GetBytes() {
		return fail("%v values of %s need %d bytes, the table says %d", t.GetDims(), kind, want, t.GetBytes())
	}
	end := t.GetOffset() + t.GetBytes()
	return ops.Tensor{
		Name: name,
		Type: kind,
		Dims: t.GetDims(),
		Data: s.data[t.GetOffset():end:end],
	}, nil
}

func tensorBytes(kind quant.Type, dims []int64) (int64, error) {
	if len(dims) == 0 {
		return 0, errors.New("no extents")
	}
	for _, d := range dims {
		if d <= 0 || d > math.MaxInt32*int64(1<<10) {
			return 0, fmt.Errorf("extents %v are out of range", dims)
		}
	}
	row, err := kind.RowBytes(int(dims[0]))
	if err != nil {
		return 0, err
	}
	bytes := int64(row)
	for _, d := range dims[1:] {
		if bytes > math.MaxInt64/d {
			return 0, fmt.Errorf("extents %v are out of range", dims)
		}
		bytes *= d
	}
	return bytes, nil
}

// Bytes is the length of all mapped files.
func (f *Files) Bytes() int64 {
	var n int64
	for i := range f.shards {
		n += int64(len(f.shards[i].data))
	}
	return n
}

// Close unmaps the files. Tensors handed out must not be used any more. It is
// idempotent.
func (f *Files) Close() error {
	var errs []error
	for _, s := range f.shards {
		if err := unmap(s.data); err != nil {
			errs = append(errs, fmt.Errorf("unmap %s: %w", s.path, err))
		}
	}
	f.shards = nil
	return errors.Join(errs...)
}
