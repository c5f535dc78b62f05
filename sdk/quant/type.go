// Package quant knows the tensor types of model files: their names, their block
// sizes, and the exact float32 value of every quantised element.
//
// The formats are those of ggml, the tensor library that defined them; all are
// little endian. A block is the smallest unit of a type: BlockValues
// consecutive elements of a row share scales and are stored in BlockBytes
// bytes. Rows are whole numbers of blocks.
//
// Everything here is portable Go without state; all functions are safe for
// concurrent use.
package quant

import (
	"fmt"
	"math"
	"strings"
)

// Type is a tensor type id as stored in model files.
type Type uint32

// The tensor types, with ggml's ids. Q8_K occurs in memory only: it is the
// activation format that ggml multiplies with 256-element types.
const (
	F32     Type = 0
	F16     Type = 1
	Q4_0    Type = 2
	Q4_1    Type = 3
	Q5_0    Type = 6
	Q5_1    Type = 7
	Q8_0    Type = 8
	Q2_K    Type = 10
	Q3_K    Type = 11
	Q4_K    Type = 12
	Q5_K    Type = 13
	Q6_K    Type = 14
	Q8_K    Type = 15
	IQ2_XXS Type = 16
	IQ2_XS  Type = 17
	IQ3_XXS Type = 18
	IQ1_S   Type = 19
	IQ4_NL  Type = 20
	IQ3_S   Type = 21
	IQ2_S   Type = 22
	IQ4_XS  Type = 23
	IQ1_M   Type = 29
	BF16    Type = 30
	TQ1_0   Type = 34
	TQ2_0   Type = 35
	MXFP4   Type = 39
	NVFP4   Type = 40
	Q1_0    Type = 41
	Q2_0    Type = 42

	// Q2_0_128 is the variant of Q2_0 with one scale for 128 elements that some
	// files store under Q2_0's id. The id here is our own and never occurs in a
	// file: a reader chooses it where a tensor's size says so.
	Q2_0_128 Type = 1<<16 | 42
)

// format describes one type.
type format struct {
	id     Type
	name   string
	values int
	bytes  int
	// dequantize decodes whole blocks; the lengths of dst and src agree.
	dequantize func(dst []float32, src []byte)
}

var formats = []format{
	{F32, "F32", 1, 4, dequantizeF32},
	{F16, "F16", 1, 2, dequantizeF16},
	{BF16, "BF16", 1, 2, dequantizeBF16},
	{Q1_0, "Q1_0", 128, 18, dequantizeQ1_0},
	{Q2_0, "Q2_0", 64, 18, dequantizeQ2_0},
	{Q2_0_128, "Q2_0_128", 128, 34, dequantizeQ2_0_128},
	{Q4_0, "Q4_0", 32, 18, dequantizeQ4_0},
	{Q4_1, "Q4_1", 32, 20, dequantizeQ4_1},
	{Q5_0, "Q5_0", 32, 22, dequantizeQ5_0},
	{Q5_1, "Q5_1", 32, 24, dequantizeQ5_1},
	{Q8_0, "Q8_0", 32, 34, dequantizeQ8_0},
	{Q2_K, "Q2_K", 256, 84, dequantizeQ2_K},
	{Q3_K, "Q3_K", 256, 110, dequantizeQ3_K},
	{Q4_K, "Q4_K", 256, 144, dequantizeQ4_K},
	{Q5_K, "Q5_K", 256, 176, dequantizeQ5_K},
	{Q6_K, "Q6_K", 256, 210, dequantizeQ6_K},
	{Q8_K, "Q8_K", 256, 292, dequantizeQ8_K},
	{IQ1_S, "IQ1_S", 256, 50, dequantizeIQ1_S},
	{IQ1_M, "IQ1_M", 256, 56, dequantizeIQ1_M},
	{IQ2_XXS, "IQ2_XXS", 256, 66, dequantizeIQ2_XXS},
	{IQ2_XS, "IQ2_XS", 256, 74, dequantizeIQ2_XS},
	{IQ2_S, "IQ2_S", 256, 82, dequantizeIQ2_S},
	{IQ3_XXS, "IQ3_XXS", 256, 98, dequantizeIQ3_XXS},
	{IQ3_S, "IQ3_S", 256, 110, dequantizeIQ3_S},
	{IQ4_NL, "IQ4_NL", 32, 18, dequantizeIQ4_NL},
	{IQ4_XS, "IQ4_XS", 256, 136, dequantizeIQ4_XS},
	{TQ1_0, "TQ1_0", 256, 54, dequantizeTQ1_0},
	{TQ2_0, "TQ2_0", 256, 66, dequantizeTQ2_0},
	{MXFP4, "MXFP4", 32, 17, dequantizeMXFP4},
	{NVFP4, "NVFP4", 64, 36, dequantizeNVFP4},
}

// byID finds a format by id, one table for ggml's small ids.
var byID = func() (table [64]*format) {
	for i := range formats {
		if f := &formats[i]; int(f.id) < len(table) {
			table[f.id] = f
		}
	}
	return table
}()

var formatQ2_0_128 = func() *format {
	for i := range formats {
		if formats[i].id == Q2_0_128 {
			return &formats[i]
		}
	}
	panic("quant: Q2_0_128 is not in the table of formats")
}()

// lookup returns the description of t, or nil where t is unknown.
func (t Type) lookup() *format {
	if int64(t) < int64(len(byID)) {
		return byID[t]
	}
	if t == Q2_0_128 {
		return formatQ2_0_128
	}
	return nil
}

// String returns the type's name, e.g. "Q4_K", or "type-N" for an unknown id.
func (t Type) String() string {
	if f := t.lookup(); f != nil {
		return f.name
	}
	return fmt.Sprintf("type-%d", uint32(t))
}

// Known reports whether the type can be dequantised.
func (t Type) Known() bool { return t.lookup() != nil }

// BlockValues is the number of elements in a block, 0 for an unknown type.
func (t Type) BlockValues() int {
	if f := t.lookup(); f != nil {
		return f.values
	}
	return 0
}

// BlockBytes is the number of bytes in a block, 0 for an unknown type.
func (t Type) BlockBytes() int {
	if f := t.lookup(); f != nil {
		return f.bytes
	}
	return 0
}

// RowBytes returns the bytes that n consecutive elements occupy. It fails where
// the type is unknown and where n is negative, no multiple of BlockValues, or
// so large that the result overflows an int.
func (t Type) RowBytes(n int) (int, error) {
	f := t.lookup()
	switch {
	case f == nil:
		return 0, fmt.Errorf("size of a row: unknown tensor type %d", uint32(t))
	case n < 0:
		return 0, fmt.Errorf("size of a row: negative length %d", n)
	case n%f.values != 0:
		return 0, fmt.Errorf("size of a row: %d values are no multiple of the %d in a block of %s", n, f.values, f.name)
	case n/f.values > math.MaxInt/f.bytes:
		return 0, fmt.Errorf("size of a row: %d values of %s are too many", n, f.name)
	}
	return n / f.values * f.bytes, nil
}

// ParseType finds a type by its name. Case does not matter.
func ParseType(name string) (Type, error) {
	for i := range formats {
		if strings.EqualFold(formats[i].name, name) {
			return formats[i].id, nil
		}
	}
	names := make([]string, len(formats))
	for i := range formats {
		names[i] = formats[i].name
	}
	return 0, fmt.Errorf("unknown tensor type %q; known are %s", name, strings.Join(names, ", "))
}

// Dequantize decodes blocks of type t from src into dst. Any number of blocks
// may be given: len(dst) must be a multiple of BlockValues and len(src) exactly
// the bytes of that many elements. dst and src must not overlap.
//
// The values are exact: every one is the float32 that the format's definition
// yields. NaN and infinite scales give NaN and infinite values. An NVFP4
// tensor's separate scale is not part of its blocks and not applied.
func Dequantize(t Type, dst []float32, src []byte) error {
	f := t.lookup()
	if f == nil {
		return fmt.Errorf("dequantize: unknown tensor type %d", uint32(t))
	}
	if len(dst)%f.values != 0 {
		return fmt.Errorf("dequantize %s: %d values are no multiple of the %d in a block", f.name, len(dst), f.values)
	}
	// Divided rather than multiplied, so that nothing overflows.
	if len(src)%f.bytes != 0 || len(src)/f.bytes != len(dst)/f.values {
		return fmt.Errorf("dequantize %s: %d bytes do not hold %d values (%d bytes for each %d)", f.name, len(src), len(dst), f.bytes, f.values)
	}
	f.dequantize(dst, src)
	return nil
}
