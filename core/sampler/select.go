package sampler

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

var (
	// ErrNotANumber: a logit was NaN or plus infinity. Nothing was chosen.
	ErrNotANumber = errors.New("a logit is not a number")

	errNothing = errors.New("every token is banned or has a logit of minus infinity")
)

var minusInf = float32(math.Inf(-1))

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

// largest puts the k largest logits above minus infinity, k at least 1, into dst,
// in order. It reads the row once: dst is a heap with the weakest candidate at its
// root, and once it is full almost every logit fails one comparison with that. A
// later equal logit never displaces an earlier one.
func largest(dst []candidate, logits []float32, k int) ([]candidate, error) {
	dst = dst[:0]
	floor := minusInf
	for i := 0; i < len(logits); i++ {
		if i += skip(logits[i:], floor); i == len(logits) {
			break
		}
		for end := min(i+16, len(logits)); ; i++ {
			if x := logits[i]; !(x <= floor) {
				if x != x {
					return dst, fmt.Errorf("token %d: %w", i, ErrNotANumber)
				}
				if len(dst) == k {
					dst[0] = candidate{id: int32(i), logit: x}
					sink(dst, 0)
				} else if dst = append(dst, candidate{id: int32(i), logit: x}); len(dst) == k {
					for j := k/2 - 1; j >= 0; j-- {
						sink(dst, j)
					}
				}
				if len(dst) == k {
					floor = dst[0].logit
				}
			}
			if i+1 == end {
				break
			}
		}
	}
	if len(dst) == 0 {
		return dst, errNothing
	}
	slices.SortFunc(dst, compare)
	if math.IsInf(float64(dst[0].logit), 1) {
		return dst, fmt.Errorf("token %d: %w", dst[0].id, ErrNotANumber)
	}
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

// mass is the sum of e^((x-top)*scale) over a row whose largest logit is top.
func mass(logits []float32, top float32, scale float64) float64 {
	sum := 0.0
	for _, x := range logits {
		sum += exp((float64(x) - float64(top)) * scale)
	}
	return sum
}
