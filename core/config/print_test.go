package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const printed = `
model: {path: "a: b.gguf", name: "5"}
server: {max_body: 1536, keep_alive: 90s, allowed_hosts: ["yes", two]}
devices:
  - {backend: cpu, layers: 0-3, options: {threads: 2, note: "# no comment"}}
  - {backend: cpu, layers: "4"}
`

// What is printed is a file that says the same.
func TestYAMLRoundTrip(t *testing.T) {
	for name, file := range map[string]string{"defaults": "", "changed": printed} {
		for _, origin := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				want, _, err := load(t, file, nil)
				if err != nil {
					t.Fatal(err)
				}
				text, err := want.YAML(origin)
				if err != nil {
					t.Fatal(err)
				}
				again, _, err := load(t, string(text), nil)
				if err != nil {
					t.Fatalf("%v\n%s", err, text)
				}
				if d := cmp.Diff(want.Config, again.Config, cmpopts.EquateEmpty()); d != "" {
					t.Errorf("%s\n%s", d, text)
				}
			})
		}
	}
}

func TestYAMLOrigin(t *testing.T) {
	loaded, path, err := load(t, printed, []string{"STRATA_SERVER__IDLE_TIMEOUT=7s", "STRATA_THREADS=3"}, "--threads=4")
	if err != nil {
		t.Fatal(err)
	}
	text, err := loaded.YAML(true)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n  path: 'a: b.gguf' # file: " + path + "\n",
		"\n  name: \"5\" # file: " + path + "\n",
		"\n  max_body: 1536B # file: " + path + "\n",
		"\n  allowed_hosts: # file: " + path + "\n    - \"yes\"\n    - two\n",
		"\n  trusted_origins: [] # default\n",
		"\n  idle_timeout: 7s # environment: STRATA_SERVER__IDLE_TIMEOUT\n",
		"\nthreads: 4 # flag: --threads\n",
		"\ndevices: # file: " + path + "\n  - backend: cpu\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	for line := range strings.Lines(string(text)) {
		if s := strings.TrimSpace(line); !strings.HasPrefix(line, " ") && !strings.HasSuffix(s, ":") && !strings.Contains(s, " # ") {
			t.Errorf("no origin in %q", line)
		}
	}
}

// Secrets are shown neither in what is printed nor in messages.
func TestSecretsAreHidden(t *testing.T) {
	for name, want := range map[string]bool{
		"api_key": true, "keys": true, "hf-token": true, "PASSWORD": true, "client.secret": true,
		"": false, "threads": false, "tls_key_file": false, "keyboard": false, "max_tokens": false,
	} {
		if secret(name) != want {
			t.Errorf("secret(%q) = %v", name, !want)
		}
	}
	loaded, _, err := load(t, "devices: [{backend: cpu, options: {api_key: s3cr3t, threads: 1, token: ''}}]", nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := loaded.YAML(false)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(text); strings.Contains(s, "s3cr3t") || !strings.Contains(s, "api_key: (hidden)\n") || !strings.Contains(s, "token: \"\"\n") || !strings.Contains(s, "threads: \"1\"\n") {
		t.Errorf("printed\n%s", s)
	}
	path := filepath.Join(t.TempDir(), "strata.yaml")
	if err := os.WriteFile(path, []byte("devices: [{backend: cpu, options: {token: [s3cr3t]}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Sources{Defaults: Defaults(), File: path}); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("error %v", err)
	}
	for _, key := range []string{"server.api_keys[0]", "server.api_key"} {
		if s := got(key, "s3cr3t"); s != "(its value is hidden)" {
			t.Errorf("got(%q) = %q", key, s)
		}
	}
}
