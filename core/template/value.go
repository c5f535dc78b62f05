package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ardanlabs/jinja"
)

// maxDepth bounds the nesting of JSON from a request, which recursive macros
// follow.
const maxDepth = 100

// decodeJSON reads one JSON value, keeping the order of keys; every string and
// key goes through mark.
func decodeJSON(raw []byte, mark func(string) string) (jinja.Value, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := decodeNext(dec, mark, maxDepth)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return v, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return v, errors.New("more than one JSON value")
	}
	return v, nil
}

func decodeNext(dec *json.Decoder, mark func(string) string, depth int) (jinja.Value, error) {
	tok, err := dec.Token()
	if err != nil {
		return jinja.Undefined(), err
	}
	switch t := tok.(type) {
	case nil:
		return jinja.None(), nil
	case bool:
		return jinja.NewBool(t), nil
	case string:
		return jinja.NewString(mark(t)), nil
	case json.Number:
		if i, err := t.Int64(); err == nil {
			return jinja.NewInt(i), nil
		}
		f, err := t.Float64()
		if err != nil {
			return jinja.Undefined(), fmt.Errorf("number %s is too large", t)
		}
		return jinja.NewFloat(f), nil
	}
	if depth == 0 {
		return jinja.Undefined(), fmt.Errorf("JSON is nested deeper than %d levels", maxDepth)
	}
	if tok == json.Delim('[') {
		var items []jinja.Value
		for dec.More() {
			item, err := decodeNext(dec, mark, depth-1)
			if err != nil {
				return item, err
			}
			items = append(items, item)
		}
		_, err := dec.Token()
		return jinja.NewList(items), err
	}
	v := jinja.NewDict()
	d := v.AsDict()
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return v, err
		}
		item, err := decodeNext(dec, mark, depth-1)
		if err != nil {
			return item, err
		}
		d.Set(mark(key.(string)), item)
	}
	_, err = dec.Token()
	return v, err
}

// dict builds an ordered dictionary from keys and values in turn.
func dict(pairs ...any) jinja.Value {
	v := jinja.NewDict()
	for i := 0; i < len(pairs); i += 2 {
		v.AsDict().Set(pairs[i].(string), pairs[i+1].(jinja.Value))
	}
	return v
}

// jsonStyle are the options of Python's json.dumps that tojson passes on.
type jsonStyle struct {
	item, key string
	indent    int // -1: on one line
	sortKeys  bool
	ascii     bool
}

// tojson is Hugging Face's filter of that name: json.dumps with ensure_ascii
// off, the order of keys kept, and ", " and ": " between items.
func tojson(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Undefined(), errors.New("tojson: nothing to write")
	}
	s := jsonStyle{item: ", ", key: ": ", indent: -1}
	for name, v := range kwargs {
		switch name {
		case "indent":
			if v.IsInt() {
				s.indent = int(min(max(v.AsInt(), 0), 64))
				s.item = ","
			}
		case "sort_keys":
			s.sortKeys = v.IsTruthy()
		case "ensure_ascii":
			s.ascii = v.IsTruthy()
		}
	}
	if v, ok := kwargs["separators"]; ok && !v.IsNone() {
		if !v.IsList() || v.AsList().Len() != 2 || !v.AsList().Get(0).IsString() || !v.AsList().Get(1).IsString() {
			return jinja.Undefined(), errors.New("tojson: separators must be two strings")
		}
		s.item, s.key = v.AsList().Get(0).AsString(), v.AsList().Get(1).AsString()
	}
	var b strings.Builder
	if err := s.write(&b, args[0], 0); err != nil {
		return jinja.Undefined(), err
	}
	return jinja.NewString(b.String()), nil
}

func (s jsonStyle) write(b *strings.Builder, v jinja.Value, depth int) error {
	if depth > 4*maxDepth {
		return errors.New("tojson: value is nested too deeply")
	}
	switch {
	case v.IsBool():
		b.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		b.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		b.WriteString(pythonFloat(v.AsFloat(), "Infinity", "NaN"))
	case v.IsString():
		s.writeString(b, v.AsString())
	case v.IsList():
		b.WriteByte('[')
		for i, item := range v.AsList().Items {
			s.separate(b, i, depth+1)
			if err := s.write(b, item, depth+1); err != nil {
				return err
			}
		}
		s.close(b, v.AsList().Len(), depth, ']')
	case v.IsDict():
		d := v.AsDict()
		keys := d.Keys
		if s.sortKeys {
			keys = d.OrderedKeys()
			slices.Sort(keys)
		}
		b.WriteByte('{')
		for i, key := range keys {
			s.separate(b, i, depth+1)
			s.writeString(b, key)
			b.WriteString(s.key)
			if err := s.write(b, d.Data[key], depth+1); err != nil {
				return err
			}
		}
		s.close(b, len(keys), depth, '}')
	default:
		b.WriteString("null")
	}
	return nil
}

// separate writes what stands before item i of a list or dictionary.
func (s jsonStyle) separate(b *strings.Builder, i, depth int) {
	if i > 0 {
		b.WriteString(s.item)
	}
	s.newline(b, depth)
}

// close ends a list or dictionary of n items.
func (s jsonStyle) close(b *strings.Builder, n, depth int, c byte) {
	if n > 0 {
		s.newline(b, depth)
	}
	b.WriteByte(c)
}

func (s jsonStyle) newline(b *strings.Builder, depth int) {
	if s.indent >= 0 {
		b.WriteByte('\n')
		for range depth * s.indent {
			b.WriteByte(' ')
		}
	}
}

func (s jsonStyle) writeString(b *strings.Builder, text string) {
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < ' ' || s.ascii && r > '~' && r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		case s.ascii && r >= 0x10000:
			fmt.Fprintf(b, `\u%04x\u%04x`, 0xD800+(r-0x10000)>>10, 0xDC00+(r-0x10000)&0x3FF)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

// toString is the filter "string": Python's str.
func toString(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.NewString(""), nil
	}
	switch v := args[0]; {
	case v.IsString():
		return v, nil
	case v.IsUndefined():
		return jinja.NewString(""), nil
	case v.IsFloat():
		return jinja.NewString(pythonFloat(v.AsFloat(), "inf", "nan")), nil
	default:
		return jinja.NewString(v.String()), nil
	}
}

// pythonFloat writes a float as Python's repr does: the shortest digits that read
// back, with an exponent below 1e-4 and from 1e16 on.
func pythonFloat(f float64, inf, nan string) string {
	switch {
	case math.IsNaN(f):
		return nan
	case math.IsInf(f, 1):
		return inf
	case math.IsInf(f, -1):
		return "-" + inf
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
