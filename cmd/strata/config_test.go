package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// command runs a command line in this process.
func command(t *testing.T, environ []string, input string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, failure bytes.Buffer
	p := program{in: strings.NewReader(input), out: &out, err: &failure, environ: environ}
	code = p.run(args)
	return code, out.String(), failure.String()
}

func TestConfigPrint(t *testing.T) {
	code, first, stderr := command(t, []string{"STRATA_LOG__LEVEL=info", "STRATA_FOO=1"}, "", "config", "print", "--context", "77")
	if code != 0 || stderr != "strata: warning: STRATA_FOO is set but is not a setting of Strata; it is ignored\n" {
		t.Fatalf("exit code %d, standard error %q", code, stderr)
	}
	if !strings.Contains(first, "\ncontext: 77\n") || !strings.Contains(first, "\n  level: info\n") {
		t.Errorf("printed\n%s", first)
	}
	path := filepath.Join(t.TempDir(), "strata.yaml")
	if err := os.WriteFile(path, []byte(first), 0o600); err != nil {
		t.Fatal(err)
	}
	// It is a file that can be read again, and that is then where values come from.
	code, second, stderr := command(t, []string{"STRATA_CONFIG=" + path}, "", "config", "print", "--origin")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, standard error %q", code, stderr)
	}
	from := " # file: " + path
	if d := cmp.Diff(first, strings.ReplaceAll(second, from, "")); d != "" {
		t.Error(d)
	}
	if !strings.Contains(second, "\ncontext: 77"+from+"\n") {
		t.Errorf("printed\n%s", second)
	}

	code, stdout, stderr := command(t, []string{"STRATA_CONTEXT=x"}, "", "config", "print")
	if code != exitUsage || stdout != "" || stderr != "strata: STRATA_CONTEXT: must be a whole number (got \"x\")\n" {
		t.Errorf("exit code %d, standard output %q, standard error %q", code, stdout, stderr)
	}
}

func TestConfigCheck(t *testing.T) {
	dir := t.TempDir()
	backends := filepath.Join(dir, "backends")
	if err := os.Mkdir(backends, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(backends, "strata-backend-cpu"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(backends, "strata-backend-cpu.exe"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text+"\nplugins: {dir: "+backends+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good.yaml", "context: 4096")
	code, stdout, stderr := command(t, []string{"STRATA_CONTEXT=x"}, "", "config", "check", good) // the environment is another matter
	if code != 0 || stdout != good+" is valid\n" || stderr != "" {
		t.Errorf("exit code %d, standard output %q, standard error %q", code, stdout, stderr)
	}
	bad := file("bad.yaml", "contxt: 5\nthreads: many\nlog: {level: loud}\ndevices: [{backend: cpus}]")
	code, stdout, stderr = command(t, nil, "", "config", "check", bad)
	want := strings.ReplaceAll(`strata: FILE: contxt: is not a setting. Try: context
strata: FILE: threads: must be a whole number (got "many")
strata: FILE: log.level: must be one of trace, debug, info, warn, error, off (got "loud")
strata: FILE: devices[0].backend: must be one of cpu (got "cpus"). Try: cpu
`, "FILE", bad)
	if d := cmp.Diff(want, stderr); code != exitUsage || stdout != "" || d != "" {
		t.Errorf("exit code %d, standard output %q, standard error %s", code, stdout, d)
	}
	for _, broken := range []string{filepath.Join(dir, "none.yaml"), file("broken.yaml", "a: [")} {
		if code, _, stderr := command(t, nil, "", "config", "check", broken); code != exitUsage || !strings.Contains(stderr, broken) {
			t.Errorf("exit code %d, standard error %q", code, stderr)
		}
	}
	if code, _, _ := command(t, nil, "", "config", "check"); code != exitUsage {
		t.Errorf("exit code %d without a file", code)
	}
}
