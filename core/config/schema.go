package config

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bytes is a number of bytes, written as a number or with a unit: 512KiB, 32MiB,
// 1GiB, 500kB, 10MB, 2GB.
type Bytes int64

var byteUnits = []struct {
	suffix string
	factor float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1},
}

// ParseBytes reads a number of bytes as Bytes documents.
func ParseBytes(s string) (Bytes, error) {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err != nil || v < 0 || v*u.factor > 1<<62 || math.IsNaN(v) {
			break
		}
		return Bytes(v * u.factor), nil
	}
	return 0, fmt.Errorf("%q is not a number of bytes", s)
}

// String writes the number with the largest unit that keeps it whole.
func (b Bytes) String() string {
	for _, u := range []struct {
		suffix string
		factor Bytes
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if b != 0 && b%u.factor == 0 {
			return strconv.FormatInt(int64(b/u.factor), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

var (
	bytesType    = reflect.TypeFor[Bytes]()
	durationType = reflect.TypeFor[time.Duration]()
)

// field is one key of a struct.
type field struct {
	name string
	typ  reflect.Type
}

// fieldsOf lists the keys of a struct type, in the struct's order.
func fieldsOf(t reflect.Type) []field {
	out := make([]field, 0, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		out = append(out, field{f.Tag.Get("koanf"), f.Type})
	}
	return out
}

// checker brings one layer's values to the types of the configuration and
// collects what is wrong with them.
type checker struct {
	// text says that scalars and lists arrive as text (environment, flags).
	text bool
	// where names a key as this layer writes it.
	where    func(key string) string
	problems []Problem
	// keys are those of the problems, plain.
	keys []string
}

func (c *checker) wrong(key, message, try string) any {
	c.problems = append(c.problems, Problem{Key: c.where(key), Message: message, Try: try})
	c.keys = append(c.keys, key)
	return nil
}

// value checks v against type t and returns it in the form that the later layers
// merge: maps, lists and typed scalars. Nil means "not set".
func (c *checker) value(t reflect.Type, key string, v any) any {
	if v == nil {
		return nil
	}
	text, isText := v.(string)
	switch {
	case t == durationType:
		if isText {
			if d, err := time.ParseDuration(text); err == nil {
				return d
			}
		} else if d, ok := v.(time.Duration); ok {
			return d
		}
		return c.wrong(key, "must be a duration "+got(key, v), "write a number with a unit: 500ms, 30s, 2m, 1h")
	case t == bytesType:
		if n, ok := whole(v); ok && n >= 0 {
			return Bytes(n)
		}
		if isText {
			if b, err := ParseBytes(text); err == nil {
				return b
			}
		}
		return c.wrong(key, "must be a number of bytes "+got(key, v), "write it like 1048576, 512KiB or 32MiB")
	}
	switch t.Kind() {
	case reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			return c.wrong(key, "must be a section with keys "+got(key, v), "write the keys below it, indented: "+strings.Join(keysOf(t), ", "))
		}
		return c.section(t, key, m)
	case reflect.Slice:
		if c.text && isText {
			dec := json.NewDecoder(strings.NewReader(text))
			dec.UseNumber()
			var list []any
			if err := dec.Decode(&list); err != nil || dec.More() {
				return c.wrong(key, "must be a JSON list "+got(key, v), example(t))
			}
			v = list
		}
		list, ok := v.([]any)
		if !ok {
			if strs, isStrs := v.([]string); isStrs {
				for _, s := range strs {
					list = append(list, s)
				}
			} else {
				return c.wrong(key, "must be a list "+got(key, v), example(t))
			}
		}
		in := *c
		in.text = false
		in.problems, in.keys = nil, nil
		out := make([]any, 0, len(list))
		for i, e := range list {
			item := fmt.Sprintf("%s[%d]", key, i)
			if e == nil {
				in.wrong(item, "is empty", example(t))
				continue
			}
			if e := in.value(t.Elem(), item, e); e != nil {
				out = append(out, e)
			}
		}
		c.problems, c.keys = append(c.problems, in.problems...), append(c.keys, in.keys...)
		return out
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			return c.wrong(key, "must be a section with keys "+got(key, v), "write NAME: VALUE lines below it, indented")
		}
		out := make(map[string]any, len(m))
		for name, e := range m {
			switch e.(type) {
			case map[string]any, []any, nil:
				c.wrong(key+"."+name, "must be a single value "+got(key+"."+name, e), "write "+name+": VALUE")
			default:
				out[name] = fmt.Sprint(e)
			}
		}
		return out
	case reflect.Bool:
		if b, ok := v.(bool); ok {
			return b
		}
		if c.text && isText {
			if b, err := strconv.ParseBool(text); err == nil {
				return b
			}
		}
		return c.wrong(key, "must be true or false "+got(key, v), "")
	case reflect.Int:
		if n, ok := whole(v); ok {
			return int(n)
		}
		if c.text && isText {
			if n, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
				return n
			}
		}
		return c.wrong(key, "must be a whole number "+got(key, v), "")
	case reflect.String:
		switch s := v.(type) {
		case string:
			return s
		case int, int64, uint64, json.Number:
			// layers: 3 and device: 0 mean the text "3" and "0".
			return fmt.Sprint(s)
		}
		return c.wrong(key, "must be text "+got(key, v), "put it in quotes")
	}
	panic("config: no rule for a field of type " + t.String())
}

// section checks the keys of a struct.
func (c *checker) section(t reflect.Type, prefix string, m map[string]any) map[string]any {
	fields := fieldsOf(t)
	out := make(map[string]any, len(m))
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		key := name
		if prefix != "" {
			key = prefix + "." + name
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			c.wrong(key, "is not a setting", suggestKey(prefix, name, keysOf(t)))
			continue
		}
		if v := c.value(fields[i].typ, key, m[name]); v != nil {
			out[name] = v
		}
	}
	return out
}

func keysOf(t reflect.Type) []string {
	var out []string
	for _, f := range fieldsOf(t) {
		out = append(out, f.name)
	}
	return out
}

// whole returns v as a whole number where it is one.
func whole(v any) (int64, bool) {
	switch n := v.(type) {
	case int:
		return int64(n), true
	case int64:
		return n, true
	case uint64:
		return int64(n), n <= math.MaxInt64
	case Bytes:
		return int64(n), true
	case float64:
		return int64(n), n == math.Trunc(n) && math.Abs(n) < 1<<53
	case json.Number:
		i, err := n.Int64()
		return i, err == nil
	}
	return 0, false
}

// got writes the value of a setting as messages show it.
func got(key string, v any) string {
	path, _, _ := strings.Cut(key, "[")
	if secret(path[strings.LastIndexByte(path, '.')+1:]) {
		return "(its value is hidden)"
	}
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("(got %q)", shorten(v))
	case map[string]any:
		return "(got a section)"
	case []any, []string:
		return "(got a list)"
	case nil:
		return "(got nothing)"
	}
	return fmt.Sprintf("(got %s)", shorten(fmt.Sprint(v)))
}

func shorten(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "..."
	}
	return s
}

// example shows how a list of that type is written.
func example(t reflect.Type) string {
	if t.Elem().Kind() == reflect.Struct {
		return `[{"backend": "cpu", "layers": "0-3"}, {"backend": "cpu", "layers": "4-7"}]`
	}
	return `["first", "second"]`
}
