package quant

import (
	"encoding/base64"
	"encoding/binary"
)

//go:generate go run gen_grids.go

// The grids of the IQ formats: a row holds the magnitudes (for IQ1 the signed
// values) of 8 or 4 elements, one a byte, first element lowest. They are
// arbitrary constants of the formats; grids_data.go has them packed.
var (
	gridIQ2_XXS = [256]uint64(unpackGrid(packedIQ2_XXS, 8, [8]byte{8, 25, 43}))
	gridIQ2_XS  = [512]uint64(unpackGrid(packedIQ2_XS, 8, [8]byte{8, 25, 43}))
	gridIQ2_S   = [1024]uint64(unpackGrid(packedIQ2_S, 8, [8]byte{8, 25, 43}))
	gridIQ1_S   = [2048]uint64(unpackGrid(packedIQ1_S, 8, [8]byte{0xff, 0, 1}))
	gridIQ3_XXS = [256]uint32(narrow(unpackGrid(packedIQ3_XXS, 4, [8]byte{4, 12, 20, 28, 36, 44, 52, 62})))
	gridIQ3_S   = [512]uint32(narrow(unpackGrid(packedIQ3_S, 4, [8]byte{1, 3, 5, 7, 9, 11, 13, 15})))
)

// unpackGrid decodes rows of width values from base64: two bytes a row, little
// endian, with 16/width bits for each value's index into levels.
func unpackGrid(packed string, width int, levels [8]byte) []uint64 {
	data, err := base64.StdEncoding.DecodeString(packed)
	if err != nil {
		panic("quant: grid data is not base64: " + err.Error())
	}
	bits := 16 / width
	rows := make([]uint64, len(data)/2)
	for r := range rows {
		code := binary.LittleEndian.Uint16(data[2*r:])
		for i := range width {
			rows[r] |= uint64(levels[code>>(bits*i)&7&(1<<bits-1)]) << (8 * i)
		}
	}
	return rows
}

// narrow drops the upper halves of rows of four bytes.
func narrow(rows []uint64) []uint32 {
	out := make([]uint32, len(rows))
	for i, r := range rows {
		out[i] = uint32(r)
	}
	return out
}
