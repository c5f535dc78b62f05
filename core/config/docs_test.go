package config

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/strata-engine/strata/testdata"
)

// documented is a row of the document's tables, without its meaning.
type documented struct{ fallback, variable, flag string }

// allKeys lists the keys of a struct, those in the items of lists too.
func allKeys(typ reflect.Type, path string) []string {
	var out []string
	for _, f := range fieldsOf(typ) {
		key := strings.TrimPrefix(path+"."+f.name, ".")
		switch {
		case f.typ.Kind() == reflect.Struct:
			out = append(out, allKeys(f.typ, key)...)
		case f.typ.Kind() == reflect.Slice && f.typ.Elem().Kind() == reflect.Struct:
			out = append(append(out, key), allKeys(f.typ.Elem(), key+"[]")...)
		default:
			out = append(out, key)
		}
	}
	return out
}

// TestDocument: docs/configuration.md has a row for every setting and for nothing
// else, with its default, its variable and its flag.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testdata.Root(t), "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]documented{}
	code := func(cell string) string { return strings.Trim(strings.TrimSpace(cell), "`") }
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 7 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			continue
		}
		key := code(cells[1])
		if _, twice := got[key]; twice {
			t.Errorf("%s has two rows", key)
		}
		if len(strings.TrimSpace(cells[5])) < 10 {
			t.Errorf("%s means %q", key, cells[5])
		}
		got[key] = documented{code(cells[2]), code(cells[3]), code(cells[4])}
	}

	fs := pflag.NewFlagSet("strata", pflag.ContinueOnError)
	BindModelFlags(fs)
	BindServerFlags(fs)
	loaded, err := Load(Sources{Defaults: Defaults()})
	if err != nil {
		t.Fatal(err)
	}
	printed, err := loaded.YAML(false)
	if err != nil {
		t.Fatal(err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(printed, &root); err != nil {
		t.Fatal(err)
	}
	fallbacks := map[string]string{}
	printedValues(&root, "", fallbacks)
	want := map[string]documented{}
	for _, key := range allKeys(reflect.TypeFor[Config](), "") {
		d := documented{fallback: fallbacks[key]}
		if !strings.Contains(key, "[]") {
			d.variable = variable(key)
		}
		if name := strings.TrimPrefix(flagName(key), "--"); fs.Lookup(name) != nil {
			d.flag = "--" + name
		}
		switch key { // what a table cannot hold
		case "devices":
			d.fallback = "one `cpu"
		case "plugins.dir":
			d.fallback = "backends` beside the program"
		}
		want[key] = d
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(documented{})); d != "" {
		t.Errorf("settings (-) and docs/configuration.md (+):\n%s", d)
	}

	for name, keys := range flagKeys {
		if fs.Lookup(name) == nil {
			t.Errorf("there is no flag --%s for %s", name, keys)
		}
	}
	for _, name := range otherVariables {
		if !strings.Contains(string(text), "| `"+name+"` |") {
			t.Errorf("%s is not described", name)
		}
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(examples) < 7 {
		t.Errorf("only %d examples", len(examples))
	}
	for _, example := range examples {
		if _, _, err := load(t, example[1], nil); err != nil {
			t.Errorf("%v in\n%s", err, example[1])
		}
	}
}

// printedValues collects the values of printed settings by key, as they stand
// there. In items of lists only empty values are defaults.
func printedValues(node *yaml.Node, key string, out map[string]string) {
	switch {
	case node.Kind == yaml.DocumentNode:
		printedValues(node.Content[0], key, out)
	case node.Kind == yaml.MappingNode && len(node.Content) > 0:
		for i := 0; i < len(node.Content); i += 2 {
			printedValues(node.Content[i+1], strings.TrimPrefix(key+"."+node.Content[i].Value, "."), out)
		}
	case node.Kind == yaml.MappingNode:
		out[key] = "{}"
	case node.Kind == yaml.SequenceNode && len(node.Content) == 0:
		out[key] = "[]"
	case node.Kind == yaml.SequenceNode:
		for _, item := range node.Content {
			printedValues(item, key+"[]", out)
		}
	case node.Value == "":
		out[key] = `""`
	case !strings.Contains(key, "[]"):
		out[key] = node.Value
	}
}

func TestShort(t *testing.T) {
	for text, want := range map[string]string{"10s": "10s", "60s": "1m", "2h": "2h", "90m": "1h30m", "10m": "10m", "20h0m5s": "20h0m5s", "500ms": "500ms", "0s": "0s", "70s": "1m10s"} {
		c := checker{where: plain}
		v, ok := c.value(durationType, "key", text).(interface{ String() string })
		if !ok {
			t.Fatalf("%v", c.problems)
		}
		loaded := &Loaded{}
		if got := loaded.node(reflect.ValueOf(v), "key", false).Value; got != want {
			t.Errorf("%s is written %s, want %s", text, got, want)
		}
	}
}
