// Package testdata finds the recorded reference outputs and the model files that
// tests run against.
//
// Small files are in the repository: fixtures/ here, the tiny sibling models here
// and the default model in models/. Larger ones are looked for where
// STRATA_TEST_MODELS points, then beside the repository; a test that does not
// find its file says NOT RUN and is skipped.
package testdata

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Root returns the absolute path of the repository.
func Root(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("find the repository: no caller information")
	}
	return filepath.Dir(filepath.Dir(file))
}

// Model returns the path of a model file by its base name, or skips the test
// with NOT RUN where the file is nowhere to be found.
func Model(t testing.TB, name string) string {
	t.Helper()
	root := Root(t)
	dirs := []string{filepath.Join(root, "models"), filepath.Join(root, "testdata")}
	if dir := os.Getenv("STRATA_TEST_MODELS"); dir != "" {
		dirs = append(dirs, dir)
	}
	dirs = append(dirs, filepath.Join(filepath.Dir(root), "shared", "models"))
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Skipf("NOT RUN: %s is not in %s", name, strings.Join(dirs, ", "))
	return ""
}

// Load decodes a JSON file of fixtures/ into v; names that end in .gz are
// decompressed.
func Load(t testing.TB, name string, v any) {
	t.Helper()
	f, err := os.Open(filepath.Join(Root(t), "testdata", "fixtures", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatalf("read %s: %v", name, err)
		}
		defer z.Close()
		r = z
	}
	if err := json.NewDecoder(r).Decode(v); err != nil {
		t.Fatalf("decode %s: %v", name, err)
	}
}
