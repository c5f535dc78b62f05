package main

import (
	"math/bits"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/strata-engine/strata/core"
)

// touched returns how many bytes of weights the computation of one token reads:
// every tensor of the trunk, but of the routed experts only those in use, and of
// the tables of embeddings only the rows of the token. An MTP block is left out:
// it is read besides, to guess tokens.
func touched(spec *core.ModelSpec) int64 {
	h := &spec.Hyper
	var sum int64
	for i := range spec.Tensors {
		t := &spec.Tensors[i]
		rest, inBlock := strings.CutPrefix(t.Name, "blk.")
		number, _, _ := strings.Cut(rest, ".")
		block, err := strconv.Atoi(number)
		switch {
		case inBlock && err == nil && block >= h.Layers:
		case t.Name == "token_embd.weight":
			sum += share(t.Bytes, 1, int64(h.Vocab))
		case t.Name == "per_layer_token_embd.weight" && h.PLE != nil:
			// Every hash head of every such layer reads a row.
			sum += share(t.Bytes, int64(len(h.PLE.Layers)*len(h.PLE.Sizes)), rowsOf(t))
		case strings.Contains(t.Name, "_exps."):
			sum += share(t.Bytes, int64(h.ExpertsUsed), int64(h.Experts))
		default:
			sum += t.Bytes
		}
	}
	return sum
}

// rowsOf is the number of rows of a table.
func rowsOf(t *core.Tensor) int64 {
	if len(t.Dims) < 2 {
		return 1
	}
	return t.Dims[1]
}

// share returns part/whole of n, rounded up, and never more than n.
func share(n, part, whole int64) int64 {
	if part >= whole || n <= 0 {
		return n
	}
	if part <= 0 {
		return 0
	}
	high, low := bits.Mul64(uint64(n), uint64(part))
	quotient, remainder := bits.Div64(high, low, uint64(whole)) // part < whole, so that it is less than n
	if remainder > 0 {
		quotient++
	}
	return int64(quotient)
}

// need is the memory that a model takes: its weights, and the state of sequences
// that are each as long as the context.
func need(weights, perToken, perSequence int64, context, sequences int) int64 {
	return weights + int64(sequences)*(perSequence+perToken*int64(context))
}

// measureTime is about how long measureBandwidth reads.
const measureTime = 300 * time.Millisecond

// measureBandwidth returns how many bytes per second all processors together
// read from memory now: the best of several passes over memory that is larger
// than caches usually are. available bounds that memory; 0 is unknown.
func measureBandwidth(available int64) float64 {
	const most, least = 512 << 20, 1 << 20
	n := int64(most)
	if available > 0 {
		n = max(least, min(most, available/4))
	}
	workers := runtime.GOMAXPROCS(0)
	parts := make([][]uint64, workers)
	each := func(work func(worker int)) {
		var group sync.WaitGroup
		for i := range workers {
			group.Go(func() { work(i) })
		}
		group.Wait()
	}
	each(func(i int) {
		parts[i] = make([]uint64, int(n)/8/workers&^7)
		for j := range parts[i] {
			parts[i][j] = 1 // memory that nobody wrote to is not there yet
		}
	})
	sums := make([]uint64, workers)
	best := 0.0
	for end := time.Now().Add(measureTime); best == 0 || time.Now().Before(end); {
		started := time.Now()
		each(func(i int) { sums[i] = sum(parts[i]) })
		if s := time.Since(started).Seconds(); s > 0 {
			best = max(best, float64(len(parts[0])*8*workers)/s)
		}
	}
	for i, s := range sums {
		if s != uint64(len(parts[i])) {
			panic("inspect: memory does not hold what was written to it")
		}
	}
	return best
}

// sum reads whole groups of eight.
func sum(values []uint64) uint64 {
	var a, b, c, d uint64
	for ; len(values) >= 8; values = values[8:] {
		v := (*[8]uint64)(values)
		a += v[0] + v[4]
		b += v[1] + v[5]
		c += v[2] + v[6]
		d += v[3] + v[7]
	}
	return a + b + c + d
}
