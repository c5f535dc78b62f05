package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
)

// load runs Load over a file's text, an environment and a command line.
func load(t *testing.T, file string, environ []string, args ...string) (*Loaded, string, error) {
	t.Helper()
	src := Sources{Defaults: Defaults(), Environ: environ}
	if file != "" {
		src.File = filepath.Join(t.TempDir(), "strata.yaml")
		if err := os.WriteFile(src.File, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fs := pflag.NewFlagSet("strata", pflag.ContinueOnError)
	BindModelFlags(fs)
	BindServerFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	src.Flags = fs
	src.Backends = func(string) ([]string, error) { return []string{"cpu", "cuda"}, nil }
	loaded, err := Load(src)
	return loaded, src.File, err
}

func TestDefaultsAreValid(t *testing.T) {
	got, _, err := load(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Defaults(), got.Config, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

func TestLayers(t *testing.T) {
	file := `
model: {path: a.gguf}
context: 100
max_sequences: 3
server:
  listen: 127.0.0.1:1
  keep_alive: 3s
  max_body: 1MiB
  allowed_hosts: [one, two]
devices:
  - {backend: cpu, layers: 0-3, options: {threads: 2, fast: true}}
  - {backend: cpu, layers: 4, transport: grpc}
`
	environ := []string{
		"STRATA_CONTEXT=200", "STRATA_SERVER__LISTEN=127.0.0.1:2", "STRATA_SERVER__MAX_HEADER=8192",
		"STRATA_MODEL__USE_DRAFT=false", `STRATA_SERVER__TRUSTED_ORIGINS=["https://a.example"]`,
		"STRATA_TEST_MODELS=/elsewhere", "PATH=/bin",
	}
	got, name, err := load(t, file, environ, "--listen", "127.0.0.1:3", "--threads=4")
	if err != nil {
		t.Fatal(err)
	}
	want := Defaults()
	want.Model = Model{Path: "a.gguf"}
	want.Context, want.MaxSequences, want.Threads = 200, 3, 4
	want.Server.Listen, want.Server.KeepAlive = "127.0.0.1:3", 3*time.Second
	want.Server.MaxBody, want.Server.MaxHeader = 1<<20, 8192
	want.Server.AllowedHosts, want.Server.TrustedOrigins = []string{"one", "two"}, []string{"https://a.example"}
	want.Devices = []Device{
		{Backend: "cpu", Layers: "0-3", Options: map[string]string{"threads": "2", "fast": "true"}},
		{Backend: "cpu", Layers: "4", Transport: "grpc"},
	}
	if d := cmp.Diff(want, got.Config, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	var layers []string
	for _, l := range got.Layers {
		if l.Values.Exists("server.listen") {
			layers = append(layers, l.Name+" "+l.Values.String("server.listen"))
		}
	}
	if d := cmp.Diff([]string{"default 127.0.0.1:8080", name + " 127.0.0.1:1", "environment 127.0.0.1:2", "flag 127.0.0.1:3"}, layers); d != "" {
		t.Error(d)
	}
	if len(got.Warnings) != 0 {
		t.Errorf("warnings %q, want none", got.Warnings)
	}
}

func TestListFromEnvironment(t *testing.T) {
	got, _, err := load(t, "devices: [{backend: cuda}]", []string{`STRATA_DEVICES=[{"backend":"cpu","layers":"0-3","options":{"threads":1}},{"backend":"cpu","layers":"4-7"}]`})
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{
		{Backend: "cpu", Layers: "0-3", Options: map[string]string{"threads": "1"}},
		{Backend: "cpu", Layers: "4-7"},
	}
	if d := cmp.Diff(want, got.Config.Devices, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
}

func TestStrayVariablesAreWarnedAbout(t *testing.T) {
	got, _, err := load(t, "", []string{"STRATA_SOMETHING_ELSE=1", "STRATA_CONFIG=x"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"STRATA_SOMETHING_ELSE is set but is not a setting of Strata; it is ignored"}, got.Warnings); d != "" {
		t.Error(d)
	}
}

func TestMessages(t *testing.T) {
	const devicesExample = `[{"backend": "cpu", "layers": "0-3"}, {"backend": "cpu", "layers": "4-7"}]`
	tests := []struct {
		name    string
		file    string
		environ []string
		args    []string
		want    []string // FILE stands for the file's path
	}{
		{"typing error", "contxt: 5", nil, nil, []string{"FILE: contxt: is not a setting. Try: context"}},
		{"typing error below", "server: {lisen: a}", nil, nil, []string{"FILE: server.lisen: is not a setting. Try: server.listen"}},
		{"unlike anything", "log: {zzzzzz: a}", nil, nil, []string{"FILE: log.zzzzzz: is not a setting. Try: the settings below log are level, format"}},
		{"key that is no text", "log: {1: a}", nil, nil, []string{"FILE: log.1: is not a setting. Try: the settings below log are level, format"}},
		{"several", "contxt: 5\nlog: {levle: info}", nil, nil, []string{"FILE: contxt: is not a setting. Try: context", "FILE: log.levle: is not a setting. Try: log.level"}},
		{"types and rules", "context: many\nprefill_chunk: 0\nlog: {levle: info, format: xml}", nil, nil, []string{
			`FILE: context: must be a whole number (got "many")`,
			"FILE: log.levle: is not a setting. Try: log.level",
			"FILE: prefill_chunk: must be at least 1 (got 0)",
			`FILE: log.format: must be one of text, json (got "xml")`,
		}},
		{"all about a device", "devices: [{backend: cud, layer: 3, layers: x}]", nil, nil, []string{
			"FILE: devices[0].layer: is not a setting. Try: devices[0].layers",
			`FILE: devices[0].layers: must be a first and a last layer, both included (got "x"). Try: 0-23`,
			`FILE: devices[0].backend: must be one of cpu, cuda (got "cud"). Try: cuda`,
		}},
		{"a rule beside a broken list", "devices: [null, {backend: cud}]", nil, nil, []string{"FILE: devices[0]: is empty. Try: " + devicesExample}},
		{"in a device", "devices: [{backend: cpu, layer: 0-3}]", nil, nil, []string{"FILE: devices[0].layer: is not a setting. Try: devices[0].layers"}},
		{"number", "context: many", nil, nil, []string{`FILE: context: must be a whole number (got "many")`}},
		{"number in quotes", `context: "5"`, nil, nil, []string{`FILE: context: must be a whole number (got "5")`}},
		{"fraction", "context: 1.5", nil, nil, []string{"FILE: context: must be a whole number (got 1.5)"}},
		{"list for a number", "context: [1]", nil, nil, []string{"FILE: context: must be a whole number (got a list)"}},
		{"truth", "model: {use_draft: maybe}", nil, nil, []string{`FILE: model.use_draft: must be true or false (got "maybe")`}},
		{"duration", "server: {keep_alive: 10}", nil, nil, []string{"FILE: server.keep_alive: must be a duration (got 10). Try: write a number with a unit: 500ms, 30s, 2m, 1h"}},
		{"bytes", "server: {max_body: 3 apples}", nil, nil, []string{`FILE: server.max_body: must be a number of bytes (got "3 apples"). Try: write it like 1048576, 512KiB or 32MiB`}},
		{"text", "model: {path: [a]}", nil, nil, []string{"FILE: model.path: must be text (got a list). Try: put it in quotes"}},
		{"section", "log: info", nil, nil, []string{`FILE: log: must be a section with keys (got "info"). Try: write the keys below it, indented: level, format`}},
		{"list", "devices: cpu", nil, nil, []string{`FILE: devices: must be a list (got "cpu"). Try: ` + devicesExample}},
		{"empty item", "devices: [null]", nil, nil, []string{"FILE: devices[0]: is empty. Try: " + devicesExample}},
		{"options", "devices: [{backend: cpu, options: 3}]", nil, nil, []string{"FILE: devices[0].options: must be a section with keys (got 3). Try: write NAME: VALUE lines below it, indented"}},
		{"option", "devices: [{backend: cpu, options: {a: [1]}}]", nil, nil, []string{"FILE: devices[0].options.a: must be a single value (got a list). Try: write a: VALUE"}},

		{"backend", "devices: [{backend: cpu}, {backend: cud}]", nil, nil, []string{`FILE: devices[1].backend: must be one of cpu, cuda (got "cud"). Try: cuda`}},
		{"no backend", "devices: [{layers: 0-3}]", nil, nil, []string{"FILE: devices[0].backend: must not be empty"}},
		{"no devices", "devices: []", nil, nil, []string{"FILE: devices: must have at least 1 entries (got 0). Try: " + devicesExample}},
		{"layers", "devices: [{backend: cpu, layers: 7-4}]", nil, nil, []string{`FILE: devices[0].layers: must be a first and a last layer, both included (got "7-4"). Try: 0-23`}},
		{"transport", "devices: [{backend: cpu, transport: shmm}]", nil, nil, []string{`FILE: devices[0].transport: must be one of auto, shm, grpc (got "shmm"). Try: shm`}},
		{"listen", "server: {listen: here}", nil, nil, []string{`FILE: server.listen: must be HOST:PORT (got "here"). Try: 127.0.0.1:8080`}},
		{"port", "server: {listen: '127.0.0.1:99999'}", nil, nil, []string{`FILE: server.listen: must be HOST:PORT (got "127.0.0.1:99999"). Try: 127.0.0.1:8080`}},
		{"origin", "server: {trusted_origins: [example.org]}", nil, nil, []string{`FILE: server.trusted_origins[0]: must be an origin, scheme and host without a path (got "example.org"). Try: https://chat.example.org`}},
		{"empty key", "server: {api_keys: [abc, '']}", nil, nil, []string{"FILE: server.api_keys[1]: must not be empty"}},
		{"missing key", "server: {api_keys: [null]}", nil, nil, []string{`FILE: server.api_keys[0]: is empty. Try: ["first", "second"]`}},
		{"key with a space", "server: {api_keys: [top secret]}", nil, nil, []string{"FILE: server.api_keys[0]: is no key: " + keyRule}},
		{"key without a list", "server: {api_keys: secret}", nil, nil, []string{`FILE: server.api_keys: must be a list (its value is hidden). Try: ["first", "second"]`}},
		{"key, variable", "", []string{"STRATA_SERVER__API_KEYS=secret"}, nil, []string{`STRATA_SERVER__API_KEYS: must be a JSON list (its value is hidden). Try: ["first", "second"]`}},
		{"key file", "server: {api_keys_file: /nowhere/keys}", nil, nil, []string{"FILE: server.api_keys_file: read keys: open /nowhere/keys: no such file or directory. Try: write one key a line into the file, or take the setting out"}},
		{"half of TLS", "server: {tls: {cert_file: a.pem}}", nil, nil, []string{"server.tls.key_file: is missing. Try: give the certificate and its private key, or neither"}},
		{"CORS", "server: {cors_origins: ['*']}", nil, nil, []string{`FILE: server.cors_origins[0]: must be an origin, scheme and host without a path (got "*"). Try: https://chat.example.org`}},
		{"too small", "prefill_chunk: 0", nil, nil, []string{"FILE: prefill_chunk: must be at least 1 (got 0)"}},
		{"too large", "max_sequences: 1000", nil, nil, []string{"FILE: max_sequences: must be at most 256 (got 1000)"}},
		{"too short", "server: {keep_alive: 1ms}", nil, nil, []string{"FILE: server.keep_alive: must be at least 1s (got 1ms)"}},
		{"too few bytes", "server: {max_body: 10}", nil, nil, []string{"FILE: server.max_body: must be at least 1KiB (got 10B)"}},
		{"name", "model: {name: '" + strings.Repeat("x", 300) + "'}", nil, nil, []string{`FILE: model.name: must have at most 256 characters (got "` + strings.Repeat("x", 60) + `...")`}},
		{"level", "log: {level: loud}", nil, nil, []string{`FILE: log.level: must be one of trace, debug, info, warn, error, off (got "loud")`}},

		{"variable", "", []string{"STRATA_SERVER__LISTN=1"}, nil, []string{"STRATA_SERVER__LISTN: is not a setting. Try: STRATA_SERVER__LISTEN"}},
		{"variable, one underscore", "", []string{"STRATA_SERVER_LISTEN=1"}, nil, []string{"STRATA_SERVER_LISTEN: is not a setting. Try: STRATA_SERVER__LISTEN"}},
		{"variable of nothing", "", []string{"STRATA_A__B=1"}, nil, []string{"STRATA_A__B: is not a setting. Try: strata config print lists the settings; unset it if it is not meant for Strata"}},
		{"variable into a list", "", []string{"STRATA_DEVICES__1__LAYERS=0-3"}, nil, []string{"STRATA_DEVICES__1__LAYERS: sets a part of a list. Try: give the whole list as JSON in STRATA_DEVICES"}},
		{"variable, number", "", []string{"STRATA_CONTEXT=x"}, nil, []string{`STRATA_CONTEXT: must be a whole number (got "x")`}},
		{"variable, truth", "", []string{"STRATA_MODEL__USE_DRAFT=x"}, nil, []string{`STRATA_MODEL__USE_DRAFT: must be true or false (got "x")`}},
		{"variable, list", "", []string{"STRATA_DEVICES=cpu"}, nil, []string{`STRATA_DEVICES: must be a JSON list (got "cpu"). Try: ` + devicesExample}},
		{"variable, two lists", "", []string{"STRATA_DEVICES=[][]"}, nil, []string{`STRATA_DEVICES: must be a JSON list (got "[][]"). Try: ` + devicesExample}},
		{"variable, in a list", "", []string{`STRATA_DEVICES=[{"backend":"cpu","layers":true}]`}, nil, []string{"STRATA_DEVICES[0].layers: must be text (got true). Try: put it in quotes"}},
		{"variable, rule", "", []string{"STRATA_LOG__LEVEL=wran"}, nil, []string{`STRATA_LOG__LEVEL: must be one of trace, debug, info, warn, error, off (got "wran"). Try: warn`}},

		{"flag, rule", "", nil, []string{"--listen=x"}, []string{`--listen: must be HOST:PORT (got "x"). Try: 127.0.0.1:8080`}},
		{"flag, bound", "", nil, []string{"--threads=-1"}, []string{"--threads: must be at least 0 (got -1)"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, path, err := load(t, tt.file, tt.environ, tt.args...)
			var invalid *Error
			if !errors.As(err, &invalid) {
				t.Fatalf("error %v, want *Error", err)
			}
			want := strings.Join(tt.want, "\n")
			if path != "" {
				want = strings.ReplaceAll(want, "FILE", path)
			}
			if d := cmp.Diff(want, invalid.Error()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestMissingBackends(t *testing.T) {
	_, err := Load(Sources{
		Defaults: Defaults(),
		Environ:  []string{"STRATA_PLUGINS__DIR=/nowhere"},
		Backends: func(string) ([]string, error) { return nil, nil },
	})
	if err == nil || err.Error() != "devices[0].backend: the program strata-backend-cpu is missing: there are no backends in /nowhere. Try: make build, or name the folder with plugins.dir" {
		t.Errorf("error %v", err)
	}
	_, err = Load(Sources{Defaults: Defaults(), Backends: func(string) ([]string, error) { return nil, errors.New("not readable") }})
	if err == nil || !strings.HasPrefix(err.Error(), "plugins.dir: not readable. Try: ") {
		t.Errorf("error %v", err)
	}
}

func TestBrokenFiles(t *testing.T) {
	tests := []struct{ name, file, want string }{
		{"syntax", "a: [", "line 1: did not find expected node content"},
		{"no section", "- a", "cannot unmarshal"},
		{"duplicate", "context: 1\ncontext: 2", "already defined at line 1"},
		{"large", "#" + strings.Repeat("x", maxFile), "the file is larger than 1MiB: it is not a configuration"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, path, err := load(t, tt.file, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want one with %q and %q", err, tt.want, path)
			}
			var invalid *Error
			if errors.As(err, &invalid) {
				t.Errorf("error %v is of type *Error", err)
			}
		})
	}
	if _, err := Load(Sources{Defaults: Defaults(), File: filepath.Join(t.TempDir(), "none.yaml")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v for a file that is not there", err)
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{"7": 7, "7B": 7, "1.5KiB": 1536, "2 MiB": 2 << 20, "1GiB": 1 << 30, "3kB": 3000, "3MB": 3000000, "1GB": 1000000000} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "1TiBB", "NaN", "inf", "1e300GiB", "MiB"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("ParseBytes(%q) = %d, want an error", text, got)
		}
	}
}

func FuzzFile(f *testing.F) {
	for _, s := range []string{"context: 5", "devices: [{backend: cpu, options: {threads: 4}}]", "server: {listen: ':8080', max_body: 1MiB}", "a: &a [*a]", "? {a: b} : c", "1: {2: 3}"} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, "fuzz.yaml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := Load(Sources{Defaults: Defaults(), File: path})
		if err != nil {
			return
		}
		// What was accepted satisfies every rule.
		if problems := validate(&loaded.Config, nil); len(problems) > 0 {
			t.Errorf("accepted with %v", problems)
		}
		// And it can be written down and read again.
		text, err := loaded.YAML(true)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), hidden) {
			return
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := Load(Sources{Defaults: Defaults(), File: path})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if d := cmp.Diff(loaded.Config, again.Config, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s\n%s", d, text)
		}
	})
}
