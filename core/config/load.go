package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/providers/structs"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// Sources are where a configuration comes from.
type Sources struct {
	// Defaults hold where nothing else is said: Defaults(), with what only the
	// running program knows, such as where its backends are.
	Defaults Config
	// File is a YAML file; empty for none.
	File string
	// Environ are the environment variables, as os.Environ returns them.
	Environ []string
	// Flags are parsed flags; those of BindFlags that were set override
	// everything else. Nil for none.
	Flags *pflag.FlagSet
	// Backends lists the backends there are in a folder of plugins (Plugins.Dir).
	// Where it is set, every device must name one of them.
	Backends func(dir string) ([]string, error)
}

// Layer is what one source says.
type Layer struct {
	// Name says which source it is: default, environment, flag, or the path of
	// the file.
	Name string
	// Values are the source's own values, checked and typed.
	Values *koanf.Koanf
}

// Loaded is a configuration with where it came from.
type Loaded struct {
	// Config is the merged and validated configuration.
	Config Config
	// Layers are the sources, weakest first.
	Layers []Layer
	// Warnings are things that are probably mistakes but harm nothing, such as an
	// environment variable that looks like a setting and is none.
	Warnings []string
}

// Load reads, merges and validates the sources. What is wrong with the values is
// returned as *Error, all of it at once.
func Load(src Sources) (*Loaded, error) {
	out := &Loaded{}
	var problems []Problem
	var wrong []string // the keys of problems

	add := func(name string, raw map[string]any, c checker) error {
		k := koanf.New(".")
		values := c.section(reflect.TypeFor[Config](), "", raw)
		problems, wrong = append(problems, c.problems...), append(wrong, c.keys...)
		if err := k.Load(confmap.Provider(values, ""), nil); err != nil {
			return fmt.Errorf("load configuration from %s: %w", name, err)
		}
		out.Layers = append(out.Layers, Layer{Name: name, Values: k})
		return nil
	}

	raw, err := defaultValues(src.Defaults)
	if err != nil {
		return nil, err
	}
	if err := add("default", raw, checker{where: plain}); err != nil {
		return nil, err
	}
	if src.File != "" {
		raw, err := fileValues(src.File)
		if err != nil {
			return nil, err
		}
		in := func(key string) string { return src.File + ": " + key }
		if err := add(src.File, raw, checker{where: in}); err != nil {
			return nil, err
		}
	}
	raw, stray, err := environValues(src.Environ)
	if err != nil {
		return nil, err
	}
	problems = append(problems, stray.problems...)
	out.Warnings = stray.warnings
	if err := add("environment", raw, checker{where: variable, text: true}); err != nil {
		return nil, err
	}
	if src.Flags != nil {
		raw, err := posflag.ProviderWithFlag(src.Flags, ".", nil, flagValue(src.Flags)).Read()
		if err != nil {
			return nil, fmt.Errorf("read flags: %w", err)
		}
		if err := add("flag", raw, checker{where: flagName, text: true}); err != nil {
			return nil, err
		}
	}

	merged := koanf.New(".")
	for _, l := range out.Layers {
		if err := merged.Merge(l.Values); err != nil {
			return nil, fmt.Errorf("merge configuration of %s: %w", l.Name, err)
		}
	}
	err = merged.UnmarshalWithConf("", &out.Config, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		TagName:     "koanf",
		ErrorUnused: true,
	}})
	if err != nil {
		return nil, fmt.Errorf("decode configuration: %w", err)
	}
	// Rules are checked also where there are problems already, so that all come
	// out at once; but not those of what was left out because of its type.
	rules := slices.DeleteFunc(validate(&out.Config, src.Backends), func(p Problem) bool {
		return slices.ContainsFunc(wrong, func(key string) bool { return related(key, p.Key) })
	})
	if problems = append(problems, out.locate(rules)...); len(problems) > 0 {
		return nil, &Error{Problems: problems}
	}
	return out, nil
}

// related reports whether a rule's key is in what was left out because of the
// key wrong, or holds it. Where an item of a list is left out, the indices of the
// others mean nothing any more.
func related(wrong, key string) bool {
	if strings.HasSuffix(wrong, "]") {
		wrong = wrong[:strings.LastIndexByte(wrong, '[')]
	}
	within := func(a, b string) bool {
		rest, ok := strings.CutPrefix(a, b)
		return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	return within(key, wrong) || within(wrong, key)
}

// locate writes the keys of problems the way the layer writes them that set the
// value.
func (l *Loaded) locate(problems []Problem) []Problem {
	for i, p := range problems {
		path, _, _ := strings.Cut(p.Key, "[")
		for _, layer := range slices.Backward(l.Layers) {
			if !layer.Values.Exists(path) {
				continue
			}
			switch layer.Name {
			case "default":
			case "environment":
				problems[i].Key = variable(p.Key)
			case "flag":
				problems[i].Key = flagName(p.Key)
			default:
				problems[i].Key = layer.Name + ": " + p.Key
			}
			break
		}
	}
	return problems
}

func plain(key string) string { return key }

// defaultValues are the defaults as a tree of plain values.
func defaultValues(d Config) (map[string]any, error) {
	raw, err := structs.Provider(d, "koanf").Read()
	if err != nil {
		return nil, fmt.Errorf("read default configuration: %w", err)
	}
	return plainLists(raw).(map[string]any), nil
}

// plainLists turns the typed lists of the structs provider into lists of values,
// the form that the other layers have.
func plainLists(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			v[name] = plainLists(e)
		}
	case map[string]string:
		out := make(map[string]any, len(v))
		for name, e := range v {
			out[name] = e
		}
		return out
	default:
		if r := reflect.ValueOf(v); r.Kind() == reflect.Slice {
			out := make([]any, r.Len())
			for i := range out {
				out[i] = plainLists(r.Index(i).Interface())
			}
			return out
		}
	}
	return v
}

// maxFile bounds a configuration file; a longer one is not a configuration.
const maxFile = 1 << 20

func fileValues(path string) (map[string]any, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read configuration %s: the file is larger than %v: it is not a configuration", path, Bytes(maxFile))
	}
	raw, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return raw, nil
}

// parse reads a YAML document whose top level is a section. Keys that are not
// text (numbers, true) are refused with the rest of the unknown keys.
func parse(data []byte) (map[string]any, error) {
	raw, err := yaml.Parser().Unmarshal(data)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n ", ""), "yaml: "))
	}
	return textKeys(raw).(map[string]any), nil
}

// textKeys gives every map text keys: YAML allows others.
func textKeys(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			v[name] = textKeys(e)
		}
		return v
	case map[any]any:
		out := make(map[string]any, len(v))
		for name, e := range v {
			out[fmt.Sprint(name)] = textKeys(e)
		}
		return out
	case []any:
		for i, e := range v {
			v[i] = textKeys(e)
		}
	}
	return v
}

const prefix = "STRATA_"

// variable names a key as an environment variable.
func variable(key string) string {
	path, rest, list := strings.Cut(key, "[")
	name := prefix + strings.ToUpper(strings.ReplaceAll(path, ".", "__"))
	if list {
		name += "[" + rest
	}
	return name
}

type strayVariables struct {
	problems []Problem
	warnings []string
}

// environValues picks the settings out of the environment. A variable is a
// setting where its name is that of one. Others with the prefix are errors where
// they can only be meant as a setting: two underscores, or nearly the name of
// one. The rest belongs to somebody else (tests, backends) and is warned about.
func environValues(environ []string) (map[string]any, strayVariables, error) {
	known := leaves(reflect.TypeFor[Config](), "")
	names := make([]string, len(known))
	for i, key := range known {
		names[i] = strings.TrimPrefix(variable(key), prefix)
	}
	var stray strayVariables
	raw, err := env.Provider(".", env.Opt{
		Prefix:      prefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, value string) (string, any) {
			short := strings.TrimPrefix(name, prefix)
			if i := slices.Index(names, short); i >= 0 {
				return known[i], value
			}
			near := nearest(strings.ToLower(short), lower(names))
			if near != "" {
				near = prefix + strings.ToUpper(near)
			}
			section, _, nested := strings.Cut(short, "__")
			switch {
			case nested && slices.Contains(names, section):
				stray.problems = append(stray.problems, Problem{Key: name, Message: "sets a part of a list", Try: "give the whole list as JSON in " + prefix + section})
			case near != "":
				stray.problems = append(stray.problems, Problem{Key: name, Message: "is not a setting", Try: near})
			case nested:
				stray.problems = append(stray.problems, Problem{Key: name, Message: "is not a setting", Try: "strata config print lists the settings; unset it if it is not meant for Strata"})
			case !slices.Contains(otherVariables, name):
				stray.warnings = append(stray.warnings, name+" is set but is not a setting of Strata; it is ignored")
			}
			return "", nil
		},
	}).Read()
	if err != nil {
		return nil, stray, fmt.Errorf("read environment: %w", err)
	}
	slices.SortFunc(stray.problems, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) })
	slices.Sort(stray.warnings)
	return raw, stray, nil
}

// otherVariables have the prefix and a meaning, but are no settings: the file to
// read, the key with which chat and run speak to a server, and where tests look
// for models.
var otherVariables = []string{"STRATA_API_KEY", "STRATA_CONFIG", "STRATA_TEST_MODELS"}

func lower(s []string) []string {
	out := make([]string, len(s))
	for i := range s {
		out[i] = strings.ToLower(s[i])
	}
	return out
}

// leaves lists the keys that hold a value: scalars and whole lists.
func leaves(t reflect.Type, path string) []string {
	var out []string
	for _, f := range fieldsOf(t) {
		key := f.name
		if path != "" {
			key = path + "." + f.name
		}
		if f.typ.Kind() == reflect.Struct {
			out = append(out, leaves(f.typ, key)...)
		} else {
			out = append(out, key)
		}
	}
	return out
}
