package sampler

import (
	"errors"
	"math"
	"slices"
)

var errNothing = errors.New("every token is banned or has a logit of minus infinity")

// argmax returns the lowest id of the largest logit.
func argmax(logits []float32) (int32, error) {
	best, id := float32(math.Inf(-1)), int32(-1)
	for i, x := range logits {
		if !(x <= best) { // larger, or NaN
			if x != x {
				return 0, ErrNotANumber
			}
			best, id = x, int32(i)
		}
	}
	if id < 0 {
		return 0, errNothing
	}
	return id, nil
}

// compare orders candidates from the largest logit down, equals by id.
func compare(a, b candidate) int {
	switch {
	case a.logit > b.logit:
		return -1
	case a.logit < b.logit:
		return 1
	}
	return int(a.id - b.id)
}

// largest appends the k largest logits above minus infinity to dst: sorted where
// k is below the number of logits, in order of id otherwise.
func largest(dst []candidate, logits []float32, k int) ([]candidate, error) {
	floor := float32(math.Inf(-1))
	if k >= len(logits) {
		for i, x := range logits {
			if !(x <= floor) {
				if x != x {
					return nil, ErrNotANumber
				}
				dst = append(dst, candidate{id: int32(i), logit: x})
			}
		}
		if len(dst) == 0 {
			return nil, errNothing
		}
		return dst, nil
	}
	// dst is a heap with the weakest candidate at its root, once it is full;
	// then almost every logit fails one comparison. A later equal logit never
	// displaces an earlier one.
	for i, x := range logits {
		if x <= floor {
			continue
		}
		if x != x {
			return nil, ErrNotANumber
		}
		if len(dst) < k {
			dst = append(dst, candidate{id: int32(i), logit: x})
			if len(dst) == k {
				for j := k/2 - 1; j >= 0; j-- {
					sink(dst, j)
				}
				floor = dst[0].logit
			}
			continue
		}
		dst[0] = candidate{id: int32(i), logit: x}
		sink(dst, 0)
		floor = dst[0].logit
	}
	if len(dst) == 0 {
		return nil, errNothing
	}
	slices.SortFunc(dst, compare)
	return dst, nil
}

// sink restores the heap below j.
func sink(heap []candidate, j int) {
	for {
		child := 2*j + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && compare(heap[child+1], heap[child]) > 0 {
			child++
		}
		if compare(heap[j], heap[child]) >= 0 {
			return
		}
		heap[j], heap[child] = heap[child], heap[j]
		j = child
	}
}
