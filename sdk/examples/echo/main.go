// Command echo is the smallest Strata backend: a whole "model" that answers
// every prompt with its last token, over and over. It shows what an author
// writes; everything else is the SDK's.
package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/strata-engine/strata/sdk"
)

func main() {
	sdk.Serve(func(log hclog.Logger) (sdk.Backend, error) {
		return &echo{log: log}, nil
	})
}

// echo holds, per open sequence, the number of tokens executed: a real backend
// would hold its KV cache.
type echo struct {
	log hclog.Logger

	// mu protects the rest: sequences are opened and closed while a step runs.
	mu        sync.Mutex
	stage     sdk.LoadRequest
	sequences map[uint64]int
}

// Info implements sdk.Backend.
func (e *echo) Info() sdk.Info { return sdk.Info{Name: "echo", Version: "1.0.0"} }

// Probe implements sdk.Backend.
func (e *echo) Probe(_ context.Context, _ sdk.ProbeRequest, resp *sdk.ProbeResponse) error {
	resp.Devices = []sdk.Device{{ID: "echo", Name: "Echo"}}
	return nil
}

// Load implements sdk.Backend. It reads no weights.
func (e *echo) Load(_ context.Context, req sdk.LoadRequest, resp *sdk.LoadResponse) error {
	if !req.Embed || !req.Head {
		return fmt.Errorf("%w: echo cannot share a model with other backends", sdk.ErrInvalid)
	}
	for name := range req.Options {
		return fmt.Errorf("%w: unknown option %q", sdk.ErrInvalid, name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stage, e.sequences = req, make(map[uint64]int)
	resp.LayoutID = "echo"
	e.log.Info("loaded", "model", req.Model.Name)
	return nil
}

// OpenSequence implements sdk.Backend.
func (e *echo) OpenSequence(_ context.Context, req sdk.OpenSequenceRequest, _ *sdk.OpenSequenceResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.sequences) >= e.stage.MaxSequences {
		return fmt.Errorf("%w: %d sequences are open", sdk.ErrOutOfState, len(e.sequences))
	}
	e.sequences[req.Sequence] = 0
	return nil
}

// CloseSequence implements sdk.Backend.
func (e *echo) CloseSequence(_ context.Context, req sdk.CloseSequenceRequest, _ *sdk.CloseSequenceResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sequences, req.Sequence)
	return nil
}

// Step implements sdk.Backend: it fills one logits row for every wanted token.
func (e *echo) Step(_ context.Context, req *sdk.StepRequest, resp *sdk.StepResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range req.Segments {
		if have, ok := e.sequences[s.Sequence]; !ok {
			return fmt.Errorf("%w: %d", sdk.ErrUnknownSequence, s.Sequence)
		} else if have != s.Pos {
			return fmt.Errorf("%w: sequence %d is at position %d, not %d", sdk.ErrInvalid, s.Sequence, have, s.Pos)
		}
	}
	clear(resp.Logits)
	rest, vocab := resp.Logits, int(e.stage.Model.Hyper.Vocab)
	for _, s := range req.Segments {
		e.sequences[s.Sequence] += len(s.Tokens)
		for _, i := range s.Logits {
			rest[s.Tokens[i]] = 20
			rest = rest[vocab:]
		}
	}
	return nil
}

// Unload implements sdk.Backend.
func (e *echo) Unload(context.Context, sdk.UnloadRequest, *sdk.UnloadResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stage, e.sequences = sdk.LoadRequest{}, nil
	return nil
}
