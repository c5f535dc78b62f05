//go:build unix

package plugins

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}

func TestDiscovery(t *testing.T) {
	base := t.TempDir()
	first, second, open := filepath.Join(base, "first"), filepath.Join(base, "second"), filepath.Join(base, "open")
	write(t, filepath.Join(first, "strata-backend-cpu"), 0o755)
	write(t, filepath.Join(first, "strata-backend-hip"), 0o644)
	write(t, filepath.Join(first, "strata-backend-loose"), 0o777)
	write(t, filepath.Join(first, "strata-backend-cpu.sha256"), 0o755)
	write(t, filepath.Join(first, "strata-backend-"), 0o755)
	write(t, filepath.Join(first, "README.md"), 0o644)
	if err := os.Mkdir(filepath.Join(first, "strata-backend-dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(first, "strata-backend-cpu"), filepath.Join(first, "strata-backend-link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(first, "nowhere"), filepath.Join(first, "strata-backend-stale")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(second, "strata-backend-cpu"), 0o755)
	write(t, filepath.Join(second, "strata-backend-hip"), 0o755)
	write(t, filepath.Join(second, "strata-backend-cuda"), 0o755)
	write(t, filepath.Join(open, "strata-backend-open"), 0o755)
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	dirs := []string{first, filepath.Join(base, "missing"), second, open}

	programs, err := List(dirs...)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, p := range programs {
		text := "usable"
		if p.Err != nil {
			text = p.Err.Error()
		}
		rel, _ := filepath.Rel(base, p.Path)
		got[p.Name] = rel + ": " + strings.ReplaceAll(text, base+"/", "")
	}
	want := map[string]string{
		"cpu":   "first/strata-backend-cpu: usable",
		"dir":   "first/strata-backend-dir: it is not a regular file",
		"hip":   "first/strata-backend-hip: it is not executable: run chmod +x on it",
		"link":  "first/strata-backend-link: usable",
		"loose": "first/strata-backend-loose: every user may write to it: run chmod o-w on it",
		"stale": "first/strata-backend-stale: stat first/strata-backend-stale: no such file or directory",
		"cuda":  "second/strata-backend-cuda: usable",
		"open":  "open/strata-backend-open: its folder open: every user may write to it: run chmod o-w on it",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	for name, want := range map[string]string{
		"cpu":  "",
		"cuda": "",
		"hip":  "cannot be used: it is not executable", // although the second directory has one
		"rocm": "no strata-backend-rocm in",
	} {
		p, err := Find(name, dirs...)
		if want == "" {
			if err != nil || p.Name != name {
				t.Errorf("%s: %+v, %v", name, p, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	if _, err := Find("cpu", filepath.Join(base, "missing")); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("nothing installed: %v", err)
	}
}

func TestDirectories(t *testing.T) {
	dirs, err := Directories("")
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) != 1 || filepath.Base(dirs[0]) != "backends" || !filepath.IsAbs(dirs[0]) {
		t.Errorf("%q", dirs)
	}
	if dirs, err = Directories("/opt/backends"); err != nil || len(dirs) != 1 || dirs[0] != "/opt/backends" {
		t.Errorf("%q, %v", dirs, err)
	}
}
