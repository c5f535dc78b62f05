package model

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/sdk/quant"
)

// split divides smallest into shards as gguf-split does: all metadata in the
// first, only split.* keys in the others, one tensor each.
func split() []*ggufFile {
	whole := smallest()
	var shards []*ggufFile
	for i := range whole.tensors {
		g := &ggufFile{magic: "GGUF", version: 3, align: 32, tensors: slices.Clone(whole.tensors[i : i+1])}
		if i == 0 {
			g.pairs = whole.pairs
		}
		g.set(u16("split.no", uint16(i)))
		g.set(u16("split.count", uint16(len(whole.tensors))))
		g.set(pair{"split.tensors.count", le(uint32(typeInt32), int32(len(whole.tensors)))})
		g.place()
		shards = append(shards, g)
	}
	return shards
}

// writeShards writes the shards with their proper names and returns the paths.
func writeShards(t testing.TB, dir string, shards []*ggufFile) []string {
	t.Helper()
	var paths []string
	for i, g := range shards {
		paths = append(paths, g.write(t, dir, fmt.Sprintf("model-%05d-of-%05d.gguf", i+1, len(shards))))
	}
	return paths
}

// checkSplitModel checks that m is smallest in three shards.
func checkSplitModel(t *testing.T, m *File, paths []string) {
	t.Helper()
	checkRanges(t, m)
	var got []string
	for _, s := range m.Spec.Shards {
		got = append(got, s.Path)
	}
	if diff := cmp.Diff(paths, got); diff != "" {
		t.Errorf("shards (-want +got):\n%s", diff)
	}
	shardOf := map[string]int{}
	for _, tensor := range m.Spec.Tensors {
		shardOf[tensor.Name] = tensor.Shard
	}
	want := map[string]int{"token_embd.weight": 0, "output.weight": 1, "blk.0.ffn_gate_exps.weight": 2}
	if diff := cmp.Diff(want, shardOf); diff != "" {
		t.Errorf("tensors (-want +got):\n%s", diff)
	}
	if m.Spec.Name != "smallest" {
		t.Errorf("name %q", m.Spec.Name)
	}
}

func TestSplitFromAnyShard(t *testing.T) {
	paths := writeShards(t, t.TempDir(), split())
	var first *core.ModelSpec
	for _, path := range paths {
		m, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		checkSplitModel(t, m, paths)
		if first == nil {
			first = m.Spec
		} else if diff := cmp.Diff(first, m.Spec); diff != "" {
			t.Errorf("opened by %s (-by the first +by this):\n%s", path, diff)
		}
	}
}

// TestSplitWithoutTensorsInFirst: gguf-split can leave the first shard empty.
func TestSplitWithoutTensorsInFirst(t *testing.T) {
	shards := split()
	shards[1].tensors = append(shards[1].tensors, shards[0].tensors...)
	shards[1].place()
	shards[0].tensors = nil
	m, err := Open(writeShards(t, t.TempDir(), shards)[0])
	if err != nil {
		t.Fatal(err)
	}
	checkRanges(t, m)
	if len(m.Spec.Tensors) != 3 {
		t.Errorf("%d tensors", len(m.Spec.Tensors))
	}
}

func TestSingleShard(t *testing.T) {
	dir := t.TempDir()
	plain := smallest()
	if _, err := Open(plain.write(t, dir, "a-00001-of-00001.gguf")); err != nil {
		t.Errorf("without split keys: %v", err)
	}
	plain.set(u16("split.no", 0))
	plain.set(u16("split.count", 1))
	plain.set(u32("split.tensors.count", 3))
	for _, name := range []string{"b-00001-of-00001.gguf", "b.gguf"} {
		if _, err := Open(plain.write(t, dir, name)); err != nil {
			t.Errorf("with split keys: %v", err)
		}
	}
	// A count of 0 is what unsplit files have in some tools.
	plain.set(u16("split.count", 0))
	path := plain.write(t, dir, "c.gguf")
	_, err := Open(path)
	checkError(t, err, path)
}

func link(t *testing.T, target, path string) string {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Skipf("NOT RUN: no symbolic links here: %v", err)
	}
	return path
}

func TestSplitThroughLinks(t *testing.T) {
	t.Run("all shards linked to blobs", func(t *testing.T) {
		// As in a download cache: names are links, contents lie elsewhere.
		blobs, dir := t.TempDir(), t.TempDir()
		var paths []string
		for i, g := range split() {
			blob := g.write(t, blobs, fmt.Sprintf("%064x", i))
			paths = append(paths, link(t, blob, filepath.Join(dir, fmt.Sprintf("model-%05d-of-%05d.gguf", i+1, 3))))
		}
		for _, path := range paths {
			m, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			checkSplitModel(t, m, paths)
		}
	})
	t.Run("link with another name", func(t *testing.T) {
		paths := writeShards(t, t.TempDir(), split())
		m, err := Open(link(t, paths[1], filepath.Join(t.TempDir(), "current.gguf")))
		if err != nil {
			t.Fatal(err)
		}
		checkSplitModel(t, m, paths)
	})
	t.Run("one shard linked, siblings beside the target", func(t *testing.T) {
		paths := writeShards(t, t.TempDir(), split())
		linked := link(t, paths[0], filepath.Join(t.TempDir(), filepath.Base(paths[0])))
		m, err := Open(linked)
		if err != nil {
			t.Fatal(err)
		}
		checkSplitModel(t, m, append([]string{linked}, paths[1:]...))
	})
	t.Run("dangling link", func(t *testing.T) {
		path := link(t, filepath.Join(t.TempDir(), "gone"), filepath.Join(t.TempDir(), "model-00001-of-00003.gguf"))
		_, err := Open(path)
		checkError(t, err, path)
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("error %q is not ErrNotFound", err)
		}
	})
}

func TestBrokenSplits(t *testing.T) {
	tests := []struct {
		name string
		// break changes the shards before they are written, or the files after.
		shards func([]*ggufFile) []*ggufFile
		files  func(t *testing.T, paths []string)
		open   int
		want   string
	}{
		{name: "second missing", files: func(t *testing.T, p []string) { remove(t, p[1]) }, want: "shard 2 of 3 is missing"},
		{name: "first missing", files: func(t *testing.T, p []string) { remove(t, p[0]) }, open: 2, want: "shard 1 of 3 is missing"},
		{name: "opened one missing", files: func(t *testing.T, p []string) { remove(t, p[2]) }, open: 2, want: "no such file"},
		{name: "empty", files: func(t *testing.T, p []string) { truncate(t, p[1], 0) }, want: "it is empty (0 bytes)"},
		{name: "truncated in the data", files: func(t *testing.T, p []string) { truncate(t, p[2], -1) }, want: "do not fit"},
		{name: "truncated in the header", files: func(t *testing.T, p []string) { truncate(t, p[2], 100) }, want: "but the file ends at 100"},
		{name: "copy of another shard", files: func(t *testing.T, p []string) { copyFile(t, p[1], p[2]) }, want: "its metadata say that it is shard 2, its name says 3"},
		{name: "copy of the first", files: func(t *testing.T, p []string) { copyFile(t, p[0], p[1]) }, want: "its metadata say that it is shard 1, its name says 2"},
		{name: "swapped", files: func(t *testing.T, p []string) {
			rename(t, p[1], p[1]+".x")
			rename(t, p[2], p[1])
			rename(t, p[1]+".x", p[2])
		}, want: "its metadata say that it is shard 3, its name says 2"},
		{name: "renamed to another count", files: func(t *testing.T, p []string) {
			for i := range 2 {
				rename(t, p[i], strings.Replace(p[i], "-of-00003", "-of-00002", 1))
			}
		}, open: -2, want: "3 shards, its name says 2"},
		{name: "renamed to no count", files: func(t *testing.T, p []string) {
			rename(t, p[0], filepath.Join(filepath.Dir(p[0]), "model.gguf"))
		}, open: -1, want: "its name does not end in -00001-of-00003.gguf"},
		{name: "whole model under a shard's name", shards: func(s []*ggufFile) []*ggufFile {
			s[1] = smallest()
			return s
		}, want: "its metadata do not say that it is a shard"},
		{name: "other architecture", shards: func(s []*ggufFile) []*ggufFile {
			s[2].set(str("general.architecture", "qwen35moe"))
			return s
		}, want: `key "general.architecture" differs from model-00001-of-00003.gguf; the shard belongs to another model`},
		{name: "other model", shards: func(s []*ggufFile) []*ggufFile {
			s[2].set(str("general.name", "another"))
			return s
		}, want: `key "general.name" differs`},
		{name: "split elsewhere", shards: func(s []*ggufFile) []*ggufFile {
			// A shard of another quantisation, whose borders lie elsewhere.
			s[2].tensors = append(s[2].tensors, dense("output.weight", quant.Q4_0, 64, 5))
			s[2].place()
			return s
		}, want: `tensor "output.weight" is also in model-00002-of-00003.gguf`},
		{name: "tensors missing", shards: func(s []*ggufFile) []*ggufFile {
			for _, g := range s {
				g.set(pair{"split.tensors.count", le(uint32(typeInt32), int32(4))})
			}
			return s
		}, want: "3 tensors together, but its metadata say 4"},
		{name: "joined with cat", files: func(t *testing.T, p []string) {
			var all []byte
			for _, path := range p {
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, b...)
			}
			if err := os.WriteFile(filepath.Join(filepath.Dir(p[0]), "model.gguf"), all, 0o600); err != nil {
				t.Fatal(err)
			}
		}, open: -1, want: "cannot be joined with cat"},
		{name: "number of a wrong type", shards: func(s []*ggufFile) []*ggufFile {
			s[1].set(str("split.no", "1"))
			return s
		}, want: `key "split.no" is a string`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			shards := split()
			if tt.shards != nil {
				shards = tt.shards(shards)
			}
			paths := writeShards(t, dir, shards)
			if tt.files != nil {
				tt.files(t, paths)
			}
			var path string
			switch tt.open {
			case -1:
				path = filepath.Join(dir, "model.gguf")
			case -2:
				path = filepath.Join(dir, "model-00001-of-00002.gguf")
			default:
				path = paths[tt.open]
			}
			_, err := Open(path)
			checkError(t, err, path)
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not contain %q", err, tt.want)
			}
		})
	}
}

func TestImpossibleShardNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-00000.gguf", "m-00000-of-00000.gguf"} {
		path := smallest().write(t, dir, name)
		_, err := Open(path)
		checkError(t, err, path)
		if !strings.Contains(err.Error(), "restore the name") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// truncate cuts the file to size bytes, or by -size bytes.
func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if size < 0 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
