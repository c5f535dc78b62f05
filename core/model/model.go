// Package model reads model files: GGUF versions 2 and 3, in one file or split
// into shards, with the hyper-parameters of the supported architectures.
//
// The format is that of the GGUF specification (docs/gguf.md of the ggml
// project): a header with counts, key/value metadata, a table of tensors whose
// offsets are relative to the data section, padding to general.alignment, and
// the data. Split files follow llama.cpp's gguf-split: names end in
// -0000N-of-0000M.gguf, split.no counts from 0, split.tensors.count is the sum
// over all shards, and the first shard has the metadata.
//
// Files are untrusted. Every count, length, dimension, type and offset is
// checked against the file before it is used, so a truncated or corrupt file is
// refused here with one line and cannot fault later. Headers are read through a
// buffer; tensor data is never mapped or read by this package. Which tensors an
// architecture needs, and in which shapes, is not checked here but where the
// graphs are (sdk/arch).
package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/strata-engine/strata/core"
)

// Sentinels that tell the two reasons for which a model cannot be opened.
var (
	// ErrNotFound: the file, or a shard that belongs to it, does not exist.
	ErrNotFound = errors.New("model file not found")
	// ErrInvalid: the file is damaged, inconsistent or of a kind that is not
	// supported. Opening it again will not help.
	ErrInvalid = errors.New("invalid model file")
)

// File is an opened model. It holds no open file descriptor and is immutable;
// it may be shared between goroutines.
type File struct {
	// Spec is what backends need: hyper-parameters, tensor table and shards.
	Spec *core.ModelSpec
	// Metadata are all key/value pairs of the (first) file: tokenizer, chat
	// template and descriptions.
	Metadata *Metadata
}

// Option changes how Open reads a model.
type Option func(*options)

type options struct {
	draft string
}

// WithDraft adds the MTP block of a sidecar file to the model. An empty path
// adds none.
func WithDraft(path string) Option {
	return func(o *options) { o.draft = path }
}

// Open reads and checks the model at path: a single file or any shard of a split
// one, or a symbolic link to either. Errors are one line that names the file,
// what is wrong with it and what to do; they wrap ErrNotFound or ErrInvalid, or
// the operating system's error where reading failed.
func Open(path string, opts ...Option) (*File, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	spec, metadata, err := openTrunk(path)
	if err != nil {
		return nil, err
	}
	if o.draft != "" {
		if err := addDraft(spec, metadata, o.draft); err != nil {
			return nil, err
		}
	}
	spec.Hash = hash(spec)
	return &File{Spec: spec, Metadata: metadata}, nil
}

func openTrunk(path string) (*core.ModelSpec, *Metadata, error) {
	files, err := readShards(path)
	if err != nil {
		return nil, nil, err
	}
	metadata := files[0].metadata
	architecture, err := metadata.String("general.architecture")
	if err != nil {
		return nil, nil, err
	}
	spec := &core.ModelSpec{Architecture: architecture}
	if metadata.Has("general.name") {
		if spec.Name, err = metadata.String("general.name"); err != nil {
			return nil, nil, err
		}
	}
	spec.Shards, spec.Tensors = join(files, 0)
	if spec.Hyper, err = readHyper(architecture, metadata, spec.Tensors); err != nil {
		return nil, nil, err
	}
	return spec, metadata, nil
}

// join makes one tensor table, sorted by name, of files whose first becomes
// shard number first.
func join(files []*file, first int) ([]core.Shard, []core.Tensor) {
	var shards []core.Shard
	var tensors []core.Tensor
	for i, f := range files {
		shards = append(shards, f.shard)
		for _, t := range f.tensors {
			t.Shard = first + i
			tensors = append(tensors, t)
		}
	}
	sortTensors(tensors)
	return shards, tensors
}

func sortTensors(tensors []core.Tensor) {
	slices.SortFunc(tensors, func(a, b core.Tensor) int { return strings.Compare(a.Name, b.Name) })
}

// find returns the tensor called name of a sorted table, or nil.
func find(tensors []core.Tensor, name string) *core.Tensor {
	i, ok := slices.BinarySearchFunc(tensors, name, func(t core.Tensor, name string) int {
		return strings.Compare(t.Name, name)
	})
	if !ok {
		return nil
	}
	return &tensors[i]
}

// fileError is an error about a file, in one line; kind is ErrNotFound or
// ErrInvalid.
type fileError struct {
	path, message string
	kind          error
}

func (e *fileError) Error() string {
	return fmt.Sprintf("open model %s: %s", e.path, e.message)
}

func (e *fileError) Unwrap() error { return e.kind }

// invalid makes an ErrInvalid about the file at path.
func invalid(path, format string, args ...any) error {
	return &fileError{path, fmt.Sprintf(format, args...), ErrInvalid}
}

// damaged makes an ErrInvalid for content that no correct program writes.
func damaged(path, format string, args ...any) error {
	return invalid(path, "%s; the file is damaged or incomplete, download it again", fmt.Sprintf(format, args...))
}
