package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Value types of the GGUF specification.
const (
	typeUint8   = 0
	typeInt8    = 1
	typeUint16  = 2
	typeInt16   = 3
	typeUint32  = 4
	typeInt32   = 5
	typeFloat32 = 6
	typeBool    = 7
	typeString  = 8
	typeArray   = 9
	typeUint64  = 10
	typeInt64   = 11
	typeFloat64 = 12
)

var typeNames = [...]string{"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string",
	"array", "uint64", "int64", "float64"}

// typeSize has the bytes of a value of each fixed-size type.
var typeSize = [...]int{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

// value is one metadata value.
type value struct {
	// typ is the value's type, elem that of an array's elements.
	typ, elem uint32
	// data has the little-endian bytes of a scalar or of an array's elements.
	data []byte
	// text is a string's value, texts an array of strings.
	text  string
	texts []string
}

// describe names the value's type for error messages.
func (v *value) describe() string {
	if v.typ == typeArray {
		return "an array of " + typeNames[v.elem]
	}
	return "a " + typeNames[v.typ]
}

// equal reports whether two values are the same; the widths of integers do not
// matter.
func (v *value) equal(w *value) bool {
	if (v.typ == typeArray) == (w.typ == typeArray) {
		a, errA := v.ints()
		b, errB := w.ints()
		if errA == nil && errB == nil {
			return slices.Equal(a, b)
		}
	}
	return v.typ == w.typ && v.elem == w.elem && slices.Equal(v.data, w.data) &&
		v.text == w.text && slices.Equal(v.texts, w.texts)
}

// ints returns a scalar or the elements of an array of any integer type.
func (v *value) ints() ([]int64, error) {
	typ := v.typ
	if typ == typeArray {
		typ = v.elem
	}
	switch typ {
	case typeFloat32, typeFloat64, typeBool, typeString:
		return nil, fmt.Errorf("is %s; integers are needed", v.describe())
	}
	size := typeSize[typ]
	out := make([]int64, len(v.data)/size)
	for i := range out {
		b := v.data[i*size:]
		switch typ {
		case typeUint8:
			out[i] = int64(b[0])
		case typeInt8:
			out[i] = int64(int8(b[0]))
		case typeUint16:
			out[i] = int64(binary.LittleEndian.Uint16(b))
		case typeInt16:
			out[i] = int64(int16(binary.LittleEndian.Uint16(b)))
		case typeUint32:
			out[i] = int64(binary.LittleEndian.Uint32(b))
		case typeInt32:
			out[i] = int64(int32(binary.LittleEndian.Uint32(b)))
		case typeUint64, typeInt64:
			u := binary.LittleEndian.Uint64(b)
			if typ == typeUint64 && u > math.MaxInt64 {
				return nil, fmt.Errorf("has the value %d, which is larger than any count or id", u)
			}
			out[i] = int64(u)
		}
	}
	return out, nil
}

// readValue reads a value; types and lengths are checked.
func (r *reader) readValue() value {
	v := value{typ: r.uint32("a value's type")}
	count := uint64(1)
	elem := v.typ
	if v.typ == typeArray {
		v.elem = r.uint32("an array's element type")
		count = r.uint64("an array's length")
		if elem = v.elem; elem == typeArray {
			r.fail("it is an array of arrays, which is not supported")
		}
	}
	switch {
	case r.err != nil:
	case int64(elem) >= int64(len(typeNames)):
		r.fail("the value has the unknown type %d", elem)
	case elem == typeString && v.typ == typeArray:
		v.texts = r.strings(count)
	case elem == typeString:
		v.text = r.string(maxHeader, "a string")
	default:
		size := uint64(typeSize[elem])
		if count > uint64(r.limit-r.pos)/size {
			r.fail("%d values of %s do not fit into the remaining %d bytes", count, typeNames[elem], r.limit-r.pos)
			return v
		}
		v.data = make([]byte, count*size)
		r.fill(v.data)
		if elem == typeBool && slices.ContainsFunc(v.data, func(b byte) bool { return b > 1 }) {
			r.fail("a bool is neither 0 nor 1")
		}
	}
	return v
}

// Metadata are the key/value pairs of a model file. The typed getters fail where
// a key is missing or has another type; ask Has first where a key is optional.
// Metadata is immutable and safe for concurrent use; returned slices are shared
// where a getter says so.
type Metadata struct {
	path   string
	keys   []string
	values map[string]*value
}

// Keys returns all keys in the order of the file.
func (m *Metadata) Keys() []string { return slices.Clone(m.keys) }

// Has reports whether the key exists.
func (m *Metadata) Has(key string) bool { return m.values[key] != nil }

// get returns the value of key.
func (m *Metadata) get(key string) (*value, error) {
	if v := m.values[key]; v != nil {
		return v, nil
	}
	return nil, invalid(m.path, "key %q is missing from the metadata; the file was written by an incomplete converter, use another one", key)
}

// wrong is the error for a key whose value cannot be used.
func (m *Metadata) wrong(key, format string, args ...any) error {
	return invalid(m.path, "key %q %s; the file was written by a faulty converter, use another one", key, fmt.Sprintf(format, args...))
}

// String returns a string.
func (m *Metadata) String(key string) (string, error) {
	v, err := m.get(key)
	if err != nil {
		return "", err
	}
	if v.typ != typeString {
		return "", m.wrong(key, "is %s, not a string", v.describe())
	}
	return v.text, nil
}

// Int returns an integer of any width. Values above MaxInt64 are an error.
func (m *Metadata) Int(key string) (int64, error) {
	v, err := m.get(key)
	if err != nil {
		return 0, err
	}
	if v.typ == typeArray {
		return 0, m.wrong(key, "is %s, not an integer", v.describe())
	}
	ints, err := v.ints()
	if err != nil {
		return 0, m.wrong(key, "%v", err)
	}
	return ints[0], nil
}

// Float returns a number: a float of any width, or an integer.
func (m *Metadata) Float(key string) (float64, error) {
	v, err := m.get(key)
	if err != nil {
		return 0, err
	}
	switch v.typ {
	case typeFloat32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(v.data))), nil
	case typeFloat64:
		return math.Float64frombits(binary.LittleEndian.Uint64(v.data)), nil
	}
	i, err := m.Int(key)
	return float64(i), err
}

// Bool returns a bool.
func (m *Metadata) Bool(key string) (bool, error) {
	v, err := m.get(key)
	if err != nil {
		return false, err
	}
	if v.typ != typeBool {
		return false, m.wrong(key, "is %s, not a bool", v.describe())
	}
	return v.data[0] != 0, nil
}

// Strings returns an array of strings. The slice is shared: do not write to it.
func (m *Metadata) Strings(key string) ([]string, error) {
	v, err := m.get(key)
	if err != nil {
		return nil, err
	}
	if v.typ != typeArray || v.elem != typeString {
		return nil, m.wrong(key, "is %s, not an array of strings", v.describe())
	}
	return v.texts, nil
}

// Ints returns a new slice of the integers of an array of any integer type.
func (m *Metadata) Ints(key string) ([]int64, error) {
	v, err := m.get(key)
	if err != nil {
		return nil, err
	}
	if v.typ != typeArray {
		return nil, m.wrong(key, "is %s, not an array of integers", v.describe())
	}
	ints, err := v.ints()
	if err != nil {
		return nil, m.wrong(key, "%v", err)
	}
	return ints, nil
}
