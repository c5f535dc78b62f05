package sampler

// skip returns how many leading logits are at most bar: a multiple of 16 that
// ends at the first group of 16 in which one is greater or is NaN. Whole rows
// are read with it, so it is what choosing from a large vocabulary costs. SSE
// only, which every amd64 processor has.
//
//go:noescape
func skip(logits []float32, bar float32) int
