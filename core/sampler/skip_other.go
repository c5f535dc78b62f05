//go:build !amd64

package sampler

// skip returns how many leading logits are at most bar: a multiple of 16 that
// ends at the first group of 16 in which one is greater or is NaN.
func skip(logits []float32, bar float32) int {
	n := 0
	for ; n+16 <= len(logits); n += 16 {
		for _, x := range logits[n : n+16] {
			if !(x <= bar) {
				return n
			}
		}
	}
	return n
}
