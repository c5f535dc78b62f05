package wire

import "fmt"

// Bounds are the limits of one stage, from which slots are sized.
type Bounds struct {
	// MaxSequences, MaxRows and MaxLogitRows bound one window.
	MaxSequences, MaxRows, MaxLogitRows int
	// Width is the number of values per row of the residual, Vocab of a logits
	// row.
	Width, Vocab int
	// Embed and Head say whether the stage holds the embedding (so it takes no
	// input) and the output head (so it answers logits).
	Embed, Head bool
}

// SlotBytes returns the sizes of the request and result slots that hold every
// payload within the bounds.
func (b Bounds) SlotBytes() (request, result int, err error) {
	width := b.Width
	if b.Embed {
		width = 0
	}
	request, err = WindowBytes(min(b.MaxSequences, b.MaxRows), b.MaxRows, b.MaxLogitRows, width)
	if err != nil {
		return 0, 0, fmt.Errorf("size slots: %w", err)
	}
	result, err = b.Shape(b.MaxRows, b.MaxLogitRows).Bytes()
	if err != nil {
		return 0, 0, fmt.Errorf("size slots: %w", err)
	}
	return max(request, draftRequestBytes), max(result, MinResultBytes), nil
}

// Shape is the shape of the result of a window with the given counts.
func (b Bounds) Shape(rows, logitRows int) ResultShape {
	if b.Head {
		return ResultShape{Rows: rows, Kind: MatrixLogits, MatrixRows: logitRows, Width: b.Vocab}
	}
	return ResultShape{Rows: rows, Kind: MatrixOutput, MatrixRows: rows, Width: b.Width}
}
