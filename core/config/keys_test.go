package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKeys(t *testing.T) {
	tests := []struct {
		name, file string
		want       []string
		wrong      string
	}{
		{"keys", "# team a\nabc\n\n  def  \r\n", []string{"first", "abc", "def"}, ""},
		{"no line end", "abc", []string{"first", "abc"}, ""},
		{"empty", "", nil, "there is no key in"},
		{"comments", "# nothing\n", nil, "there is no key in"},
		{"two words", "abc\nd ef\n", nil, "line 2 of"},
		{"control character", "a\x01b\n", nil, "line 1 of"},
		{"not ASCII", "schlüssel\n", nil, "line 1 of"},
		{"endless line", strings.Repeat("x", 100_000), nil, "too long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := Server{APIKeys: []string{"first"}, APIKeysFile: filepath.Join(t.TempDir(), "keys")}
			if err := os.WriteFile(s.APIKeysFile, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := s.Keys()
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) || strings.Contains(err.Error(), "ef") {
					t.Errorf("keys %q, error %v, want one that says %q and not the key", got, err, tt.wrong)
				}
				return
			}
			if d := cmp.Diff(tt.want, got); d != "" || err != nil {
				t.Errorf("%s, error %v", d, err)
			}
		})
	}
}
