package sdk

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/shm"
)

// progressInterval is the least time between two progress messages.
const progressInterval = 100 * time.Millisecond

// progress is the latest report of a load.
type progress struct {
	// mu protects latest and fresh.
	mu     sync.Mutex
	latest *pb.LoadProgress
	// fresh: latest was not sent yet.
	fresh bool
}

func (p *progress) set(phase string, bytes, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest, p.fresh = &pb.LoadProgress{Phase: phase, Bytes: bytes, Total: total}, true
}

// take returns the latest report, or nil where it was taken before.
func (p *progress) take() *pb.LoadProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.fresh {
		return nil
	}
	p.fresh = false
	return p.latest
}

// LoadStage implements pb.BackendServer.
func (s *Server) LoadStage(req *pb.LoadStageRequest, stream grpc.ServerStreamingServer[pb.LoadStageResponse]) error {
	s.calls.Add(1)
	next, err := newStage(req)
	if err == nil && s.data != nil {
		err = next.fits(s.data.Geometry())
	}
	if err != nil {
		return rpcError("load stage", err)
	}
	ctx := stream.Context()
	var latest progress
	var resp LoadResponse
	loaded := make(chan error, 1)
	go func() {
		loaded <- s.executor.call(ctx, func() error { return s.executor.load(ctx, next, req, &latest, &resp) })
	}()
	send := func(p *pb.LoadProgress) {
		if p != nil {
			// Where the host is gone, ctx ends and so does the load.
			_ = stream.Send(&pb.LoadStageResponse{Kind: &pb.LoadStageResponse_Progress{Progress: p}})
		}
	}
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-tick.C:
			send(latest.take())
		case err = <-loaded:
			waiting = false
		}
	}
	if err != nil {
		return rpcError("load stage", err)
	}
	send(latest.take())
	capabilities := s.capabilities(append(resp.Capabilities, s.backend.Info().Capabilities...))
	if !next.draft {
		capabilities = slices.DeleteFunc(capabilities, func(c string) bool { return c == CapDraft })
	}
	return stream.Send(&pb.LoadStageResponse{Kind: &pb.LoadStageResponse_Result{Result: &pb.LoadResult{
		LayoutId:              resp.LayoutID,
		WeightBytes:           resp.WeightBytes,
		MappedBytes:           resp.MappedBytes,
		StateBytesPerToken:    resp.StateBytesPerToken,
		StateBytesPerSequence: resp.StateBytesPerSequence,
		Capabilities:          capabilities,
	}}})
}

// load runs on the executor's goroutine.
func (x *executor) load(ctx context.Context, next *stage, req *pb.LoadStageRequest, latest *progress, resp *LoadResponse) error {
	if x.stage != nil {
		return fmt.Errorf("%w: a stage is loaded already, unload it first", errPrecondition)
	}
	ctx, cancel := x.join(ctx)
	defer cancel()
	x.vitals.SetState(shm.StateLoading)
	x.vitals.SetLoad(0, 0)
	x.vitals.SetPhase(shm.PhaseOpen)
	err := x.guard("load stage", func() error {
		return x.backend.Load(ctx, LoadRequest{
			Model:        req.Model,
			First:        int(req.Stage.First),
			Last:         int(req.Stage.Last),
			Embed:        req.Stage.Embed,
			Head:         req.Stage.Head,
			Draft:        req.Stage.Draft,
			Device:       req.Device,
			Context:      int(req.Context),
			MaxSequences: int(req.MaxSequences),
			MaxRows:      int(req.MaxRows),
			MaxLogitRows: int(req.MaxLogitRows),
			Options:      maps.Clone(req.Options),
			Progress:     x.progress(latest),
		}, resp)
	})
	if err == nil && ctx.Err() != nil {
		// The host has given up and takes nothing to be loaded.
		err = ctx.Err()
		if freed := x.free(x.ctx); freed != nil {
			x.log.Error("unloading a cancelled load failed", "error", freed)
		}
	}
	x.vitals.SetPhase(shm.PhaseIdle)
	if err != nil {
		x.vitals.SetState(shm.StateIdle)
		x.vitals.SetError(err.Error())
		return err
	}
	x.stage, x.draining = next, false
	x.vitals.SetState(shm.StateReady)
	return nil
}

// progress returns LoadRequest.Progress.
func (x *executor) progress(latest *progress) func(phase string, bytes, total int64) {
	var mu sync.Mutex
	current := shm.PhaseOpen
	return func(phase string, bytes, total int64) {
		latest.set(phase, bytes, total)
		x.vitals.SetLoad(bytes, total)
		mu.Lock()
		defer mu.Unlock()
		if p, ok := shm.LoadPhase(phase); ok && p != current {
			current = p
			x.vitals.SetPhase(p)
		}
	}
}

// join returns ctx, ended also when the executor stops, and with what
// ReportLayer needs.
func (x *executor) join(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithValue(ctx, vitalsKey{}, x.vitals))
	stop := context.AfterFunc(x.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// unload frees the stage if there is one. It runs on the executor's goroutine.
func (x *executor) unload(ctx context.Context) error {
	x.draining = false
	if x.stage == nil {
		x.vitals.SetState(shm.StateIdle)
		return nil
	}
	// Whatever becomes of it, it cannot be stepped any more.
	x.stage = nil
	x.vitals.SetPhase(shm.PhaseUnload)
	err := x.free(ctx)
	x.vitals.SetPhase(shm.PhaseIdle)
	x.vitals.SetLoad(0, 0)
	x.vitals.SetState(shm.StateIdle)
	return err
}

// free calls the author's Unload.
func (x *executor) free(ctx context.Context) error {
	return x.guard("unload", func() error { return x.backend.Unload(ctx, UnloadRequest{}, &UnloadResponse{}) })
}
