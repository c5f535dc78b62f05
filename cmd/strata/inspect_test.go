package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/testdata"
)

// TestInspectIncomplete: the description comes out whole, and one line says what
// is wrong, without the control characters that the file has in its names.
func TestInspectIncomplete(t *testing.T) {
	data, err := os.ReadFile(testdata.Model(t, "tiny-qwen3moe-q8_0.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"output_norm.weight": "output_norm\x1bweight", "Tiny random": "Tiny\x1brandom"} {
		data = bytes.Replace(data, []byte(from), []byte(to), 1)
	}
	path := filepath.Join(t.TempDir(), "incomplete.gguf")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	var out, stderr bytes.Buffer
	p := program{in: strings.NewReader(""), out: &out, err: &stderr}
	if code := p.run([]string{"inspect", path}); code != exitModel {
		t.Errorf("exit code %d", code)
	}
	want := "strata: inspect " + path + ": check model: not a complete qwen3moe model: missing tensors: output_norm.weight; tensors that do not belong to the architecture: \"output_norm\\x1bweight\"\n"
	if d := cmp.Diff(want, stderr.String()); d != "" {
		t.Error(d)
	}
	if text := out.String(); !strings.Contains(text, "Tinyrandom qwen3moe") || !strings.Contains(text, "complete     no\n") || strings.Contains(text, "\x1b") {
		t.Errorf("standard output: %q", text)
	}
}
