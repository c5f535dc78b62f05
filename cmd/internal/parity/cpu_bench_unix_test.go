//go:build unix

package parity

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"testing"

	"github.com/strata-engine/strata/backends/cpu/engine"
	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/stage"
	"github.com/strata-engine/strata/testdata"
)

// processorTime is the processor time of this process in seconds. Rates by it
// are what a machine of its own would give; other processes change them less
// than they change wall-clock time.
func processorTime(b *testing.B) float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// loadPebble loads the default model on a number of threads.
func loadPebble(b *testing.B, threads int) *stage.Backend {
	b.Helper()
	file, err := model.Open(testdata.Model(b, "pebble-q4-mtp.gguf"))
	if err != nil {
		b.Fatal(err)
	}
	backend := stage.New(engine.Program("test"))
	err = backend.Load(b.Context(), sdk.LoadRequest{
		Model: remote.ModelSpec(file.Spec),
		Last:  file.Spec.Hyper.Layers, Embed: true, Head: true,
		Context: 4096, MaxSequences: 1, MaxRows: 512, MaxLogitRows: 1,
		Options:  map[string]string{"threads": strconv.Itoa(threads)},
		Progress: func(string, int64, int64) {},
	}, &sdk.LoadResponse{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := backend.Unload(context.Background(), sdk.UnloadRequest{}, &sdk.UnloadResponse{}); err != nil {
			b.Error(err)
		}
	})
	return backend
}

// benchmarkSteps executes windows of the given size in sequences of the given
// length.
func benchmarkSteps(b *testing.B, rows, length int) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			backend := loadPebble(b, threads)
			ctx, sequence, pos := b.Context(), uint64(0), length
			req := &sdk.StepRequest{Segments: make([]sdk.Segment, 1)}
			resp := &sdk.StepResponse{Rows: make([]sdk.RowFlags, rows), Logits: make([]float32, 4128)}
			tokens := make([]int32, rows)
			start := processorTime(b)
			b.ReportAllocs()
			for b.Loop() {
				if pos+rows > length {
					_ = backend.CloseSequence(ctx, sdk.CloseSequenceRequest{Sequence: sequence}, &sdk.CloseSequenceResponse{})
					sequence++
					pos = 0
					if err := backend.OpenSequence(ctx, sdk.OpenSequenceRequest{Sequence: sequence}, &sdk.OpenSequenceResponse{}); err != nil {
						b.Fatal(err)
					}
				}
				for i := range tokens {
					tokens[i] = int32((pos+i)*2654435761>>7) & 4095
				}
				req.Segments[0] = sdk.Segment{Sequence: sequence, Pos: pos, Tokens: tokens, Logits: []int32{int32(rows - 1)}}
				if err := backend.Step(ctx, req, resp); err != nil {
					b.Fatal(err)
				}
				pos += rows
			}
			n := float64(b.N * rows)
			b.ReportMetric(n/b.Elapsed().Seconds(), "tok/s")
			b.ReportMetric(n/(processorTime(b)-start), "tok/cpu-s")
		})
	}
}

func BenchmarkPebbleDecode(b *testing.B)  { benchmarkSteps(b, 1, 400) }
func BenchmarkPebblePrefill(b *testing.B) { benchmarkSteps(b, 512, 1024) }
