package model

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// shardPattern matches the names of split files; numbers count from 1.
var shardPattern = regexp.MustCompile(`^(.+)-(\d{5})-of-(\d{5})\.gguf$`)

// shardSet is what the name of a split file says.
type shardSet struct {
	dir, prefix string
	no, count   int
}

// parseShardName returns nil for a name that is not a shard's.
func parseShardName(path string) *shardSet {
	m := shardPattern.FindStringSubmatch(filepath.Base(path))
	if m == nil {
		return nil
	}
	no, _ := strconv.Atoi(m[2]) // five digits
	count, _ := strconv.Atoi(m[3])
	return &shardSet{filepath.Dir(path), m[1], no, count}
}

// path is where shard no is expected.
func (s *shardSet) path(no int) string {
	return filepath.Join(s.dir, fmt.Sprintf("%s-%05d-of-%05d.gguf", s.prefix, no, s.count))
}

// findShards returns the paths of all files of the model to which path belongs,
// in order. The others are looked for beside path; where path is a symbolic
// link, then beside its target.
func findShards(path string) ([]string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	var sets []*shardSet
	if s := parseShardName(path); s != nil {
		sets = append(sets, s)
	}
	if target, err := filepath.EvalSymlinks(path); err == nil && target != path {
		if s := parseShardName(target); s != nil && (len(sets) == 0 || sets[0].count == s.count) {
			sets = append(sets, s)
		}
	}
	if len(sets) == 0 {
		return []string{path}, nil
	}
	first := sets[0]
	if first.no < 1 || first.no > first.count {
		return nil, invalid(path, "its name says shard %d of %d; restore the name it was downloaded with", first.no, first.count)
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, &fileError{path, "there is no such file; check the path", ErrNotFound}
	}
	var paths []string
	for no := 1; no <= first.count; no++ {
		found := ""
		for _, s := range sets {
			if _, err := os.Stat(s.path(no)); err == nil {
				found = s.path(no)
				break
			}
		}
		if found == "" {
			return nil, &fileError{path, fmt.Sprintf("shard %d of %d is missing: %s does not exist; download it and put it beside the others", no, first.count, first.path(no)), ErrNotFound}
		}
		paths = append(paths, found)
	}
	return paths, nil
}

// readShards reads all files of the model to which path belongs and checks that
// they belong together.
func readShards(path string) ([]*file, error) {
	paths, err := findShards(path)
	if err != nil {
		return nil, err
	}
	var files []*file
	for _, p := range paths {
		f, err := readFile(p)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	for i, f := range files {
		if err := f.checkSplit(i, len(files)); err != nil {
			return nil, err
		}
		if i > 0 {
			if err := f.checkBelongsTo(files[0]); err != nil {
				return nil, err
			}
		}
	}
	return files, checkTensors(files)
}

// checkSplit compares the split.* keys with the file's place among its shards.
func (g *file) checkSplit(index, count int) error {
	const keyNo, keyCount = "split.no", "split.count"
	m, path := g.metadata, g.shard.Path
	if !m.Has(keyCount) && count == 1 {
		return nil
	}
	if !m.Has(keyCount) {
		return invalid(path, "its name says shard %d of %d, but its metadata do not say that it is a shard; the files are mixed up, download them again", index+1, count)
	}
	total, err := m.Int(keyCount)
	if err != nil {
		return err
	}
	no := int64(0)
	if total > 1 || m.Has(keyNo) {
		if no, err = m.Int(keyNo); err != nil {
			return err
		}
	}
	switch {
	case count == 1 && total > 1:
		return invalid(path, "its metadata say that it is shard %d of %d, but its name does not end in -%05d-of-%05d.gguf; restore the names of all shards and give one of them", no+1, total, no+1, total)
	case total != int64(count):
		return invalid(path, "its metadata say that the model has %d shards, its name says %d; the files are mixed up, download them again", total, count)
	case no != int64(index):
		return invalid(path, "its metadata say that it is shard %d, its name says %d; the files are mixed up, download them again", no+1, index+1)
	}
	return nil
}

// checkBelongsTo compares metadata that the shard shares with the first one.
func (g *file) checkBelongsTo(first *file) error {
	for _, key := range g.metadata.keys {
		if key == "split.no" {
			continue
		}
		v, w := g.metadata.values[key], first.metadata.values[key]
		if w != nil && !v.equal(w) {
			return invalid(g.shard.Path, "key %q differs from %s; the shard belongs to another model, download the shards again", key, filepath.Base(first.shard.Path))
		}
	}
	return nil
}

// checkTensors checks the tensor tables of all files together.
func checkTensors(files []*file) error {
	owner := map[string]*file{}
	total := 0
	for _, f := range files {
		for _, t := range f.tensors {
			if other := owner[t.Name]; other != nil {
				return invalid(f.shard.Path, "tensor %q is also in %s; the shards belong to different models, download them again", t.Name, filepath.Base(other.shard.Path))
			}
			owner[t.Name] = f
		}
		total += len(f.tensors)
	}
	const key = "split.tensors.count"
	for _, f := range files {
		if !f.metadata.Has(key) {
			continue
		}
		want, err := f.metadata.Int(key)
		if err != nil {
			return err
		}
		if want != int64(total) {
			return invalid(f.shard.Path, "the shards have %d tensors together, but its metadata say %d; a shard belongs to another model, download them again", total, want)
		}
	}
	if total == 0 {
		return damaged(files[0].shard.Path, "it has no tensors")
	}
	return nil
}
