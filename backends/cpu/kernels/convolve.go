package kernels

// History is a run of consecutive rows with what came before them, for causal
// depthwise convolutions.
type History struct {
	// Past are earlier rows, oldest first; Rows the N new ones. All have Width
	// channels.
	Past, Rows []float32
	Width, N   int
}

// row returns row i from channel first on; negative rows lie in the past.
func (h *History) row(i, first int) []float32 {
	if i < 0 {
		return h.Past[len(h.Past)+i*h.Width+first:]
	}
	return h.Rows[i*h.Width+first:]
}

// Convolve writes Σ_k weight[c][k]·row(at-(taps-1-k)·step)[first+c] to out[c],
// with k ascending; weight has as many channels as out.
func (h *History) Convolve(out, weight []float32, at, step, first int) {
	taps := len(weight) / max(len(out), 1)
	for k := range taps {
		x := h.row(at-(taps-1-k)*step, first)[:len(out)]
		w := weight[k:]
		if k == 0 {
			for c, v := range x {
				out[c] = w[c*taps] * v
			}
			continue
		}
		for c, v := range x {
			out[c] += float32(w[c*taps] * v)
		}
	}
}

// Keep moves the last rows of the channels [first, last) to the past.
func (h *History) Keep(first, last int) {
	n := len(h.Past) / h.Width
	for i := range n {
		// Ascending, so that a past row is read before it is replaced.
		copy(h.Past[i*h.Width+first:i*h.Width+last], h.row(i-n+h.N, first))
	}
}
