package kernels

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/strata-engine/strata/sdk/quant"
)

// kernels multiply rows of an integer format. single may be nil.
type kernels struct {
	// mul multiplies an unpacked row, single one as it lies in the file with one
	// activation row.
	mul    func(dst []float32, stride int, w []weights, in *Rows, index []int32)
	single func(row []byte, a []Block) float32
}

// format says how rows of a type are multiplied. An integer format has unpack;
// the others are decoded to float32.
type format struct {
	unpack           func(w []weights, row []byte)
	portable, vector kernels
}

// minimum multiplies any format with a scale, and perhaps a minimum, for each 32
// values.
var minimum = kernels{mulMinimumVector, nil}

var integerFormats = map[quant.Type]format{
	quant.Q8_0:   {unpackQ8_0, kernels{mulMinimum, singleQ8_0}, kernels{mulMinimumVector, singleQ8_0Vector}},
	quant.Q4_0:   {unpackQ4_0, kernels{mulMinimum, singleQ4_0}, minimum},
	quant.Q4_1:   {unpackQ4_1, kernels{mulMinimum, nil}, minimum},
	quant.Q5_0:   {unpackQ5_0, kernels{mulMinimum, nil}, minimum},
	quant.Q5_1:   {unpackQ5_1, kernels{mulMinimum, nil}, minimum},
	quant.Q2_0:   {unpackQ2_0, kernels{mulMinimum, nil}, minimum},
	quant.IQ4_NL: {unpackIQ4_NL, kernels{mulMinimum, singleIQ4_NL}, minimum},
	quant.IQ4_XS: {unpackIQ4_XS, kernels{mulMinimum, nil}, minimum},
	quant.Q4_K:   {unpackQ4_K, kernels{mulMinimum, singleQ4_K}, minimum},
	quant.Q5_K:   {unpackQ5_K, kernels{mulMinimum, nil}, minimum},
	quant.Q6_K:   {unpackQ6_K, kernels{mulHalves, nil}, kernels{mulHalvesVector, nil}},
}

// Matrix is a weight in the model file's own format, used where it lies.
type Matrix struct {
	// Type, Rows and Cols describe the data; several matrices one after the other
	// are one with more rows.
	Type       quant.Type
	Rows, Cols int

	data     []byte
	rowBytes int
	format   format
	// plain are the data of an F32 matrix that is aligned for float32.
	plain []float32
}

// NewMatrix checks a matrix. data is used in place and must stay as it is.
func NewMatrix(t quant.Type, rows, cols int, data []byte) (*Matrix, error) {
	if rows <= 0 || cols <= 0 {
		return nil, fmt.Errorf("use matrix: extents %d x %d are not positive", rows, cols)
	}
	rowBytes, err := t.RowBytes(cols)
	if err != nil {
		return nil, fmt.Errorf("use matrix: %w", err)
	}
	// By division, so that nothing overflows.
	if len(data)%rowBytes != 0 || len(data)/rowBytes != rows {
		return nil, fmt.Errorf("use matrix: %d bytes do not hold %d rows of %d values of %s (%d bytes each)", len(data), rows, cols, t, rowBytes)
	}
	m := &Matrix{Type: t, Rows: rows, Cols: cols, data: data, rowBytes: rowBytes, format: integerFormats[t]}
	if t == quant.F32 && littleEndian && uintptr(unsafe.Pointer(&data[0]))%4 == 0 {
		m.plain = unsafe.Slice((*float32)(unsafe.Pointer(&data[0])), rows*cols)
	}
	return m, nil
}

// littleEndian: files are, and nearly every machine is.
var littleEndian = func() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}()

// Quantized reports whether the matrix multiplies Rows.Blocks, not Rows.Floats.
func (m *Matrix) Quantized() bool { return m.format.unpack != nil }

// Row decodes a row to float32.
func (m *Matrix) Row(dst []float32, row int) {
	switch {
	case m.plain != nil:
		copy(dst, m.plain[row*m.Cols:(row+1)*m.Cols])
		return
	case m.Type == quant.BF16:
		decodeBF16(dst[:m.Cols], m.row(row))
		return
	}
	if err := quant.Dequantize(m.Type, dst[:m.Cols], m.row(row)); err != nil {
		panic(err) // type and lengths were checked by NewMatrix
	}
}

// Plain returns the matrix's values where they lie as float32, else nil.
func (m *Matrix) Plain() []float32 { return m.plain }

func (m *Matrix) row(i int) []byte { return m.data[i*m.rowBytes : (i+1)*m.rowBytes] }

// Rows are activations in both forms. A matrix reads one of them; only that one
// need be valid.
type Rows struct {
	// Width is the length of a row.
	Width int
	// Floats are [row][Width].
	Floats []float32
	// Blocks are [row][Width/32].
	Blocks []Block
}

func (r *Rows) floats(i int32) []float32 {
	return r.Floats[int(i)*r.Width:][:r.Width]
}

func (r *Rows) blocks(i int32) []Block {
	n := r.Width / BlockValues
	return r.Blocks[int(i)*n:][:n]
}

// Scratch is the memory that Mul needs; one for each thread. The zero value is
// ready.
type Scratch struct {
	weights []weights
	row     []float32
}

// Mul multiplies the rows [from, to) of m with the activation rows that index
// names: the product of row from+j and activation index[i] goes to
// dst[i·stride + j]. The width of in is m.Cols. A result does not depend on which
// others are computed with it.
func (m *Matrix) Mul(dst []float32, stride, from, to int, in *Rows, index []int32, s *Scratch) {
	if len(index) == 0 || from >= to {
		return
	}
	if !m.Quantized() {
		m.mulFloat(dst, stride, from, to, in, index, s)
		return
	}
	k := &m.format.portable
	if vector {
		k = &m.format.vector
	}
	if len(index) == 1 && k.single != nil {
		a := in.blocks(index[0])
		for r := from; r < to; r++ {
			dst[r-from] = k.single(m.row(r), a)
		}
		return
	}
	n := m.Cols / BlockValues
	if cap(s.weights) < n {
		s.weights = make([]weights, n)
	}
	w := s.weights[:n]
	for r := from; r < to; r++ {
		m.format.unpack(w, m.row(r))
		k.mul(dst[r-from:], stride, w, in, index)
	}
}

func (m *Matrix) mulFloat(dst []float32, stride, from, to int, in *Rows, index []int32, s *Scratch) {
	if cap(s.row) < m.Cols {
		s.row = make([]float32, m.Cols)
	}
	for r := from; r < to; r++ {
		w := s.row[:m.Cols]
		if m.plain != nil {
			w = m.plain[r*m.Cols:][:m.Cols]
		} else {
			m.Row(w, r)
		}
		for i, a := range index {
			dst[i*stride+r-from] = Dot(w, in.floats(a))
		}
	}
}

// Finite reports whether all values are finite.
func Finite(x []float32) bool {
	for _, v := range x {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return false
		}
	}
	return true
}
