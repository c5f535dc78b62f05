// Package remote makes a backend that runs in a process of its own appear as a
// core.Backend. Control calls are gRPC over go-plugin; steps travel through
// shared-memory rings where the system has them, else over a gRPC stream.
//
// Every wait ends when its context does, when the backend's process ends, or at
// the step's deadline.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/strata-engine/strata/core"
	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/plugins/runner"
	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

// Backend is one incarnation of a backend's process: it never restarts. Optional
// abilities are added by Able, once it is known what the loaded stage can do.
type Backend struct {
	cfg        Config
	log        hclog.Logger
	generation uint64
	process    *runner.Process
	client     *plugin.Client
	dir        *runner.SocketDir
	rpc        pb.BackendClient
	health     grpc_health_v1.HealthClient
	info       core.Info
	transport  Transport
	// vitals is nil where there is no shared memory, data also where none was
	// asked for.
	vitals *shm.VitalsReader
	data   *shm.Data
	steps  *steps
	// life ends when the process has ended or is being killed.
	life context.Context
	end  context.CancelFunc
	// stage are the bounds of the loaded stage; nil while none is loaded.
	stage atomic.Pointer[wire.Bounds]
	// background are go-plugin's calls that know no context.
	background sync.WaitGroup
	// connected is closed when go-plugin has connected to the process, or could
	// not for the reason connectErr.
	connected      chan struct{}
	connectErr     error
	disconnectOnce sync.Once
	closeOnce      sync.Once
	closeErr       error

	reasonMu sync.Mutex // protects reason
	// reason is why this host ended the process; empty if it did not.
	reason string
}

var _ core.Backend = (*Backend)(nil)

// Transport returns how steps travel: TransportShm or TransportGRPC.
func (b *Backend) Transport() Transport { return b.transport }

// PID is the id of the process.
func (b *Backend) PID() int { return b.process.PID() }

// Gone is closed when the process has ended or is being killed: from then on
// every call fails with ErrBackendGone.
func (b *Backend) Gone() <-chan struct{} { return b.life.Done() }

// Reaped is closed when the process has really ended.
func (b *Backend) Reaped() <-chan struct{} { return b.process.Done() }

// Err says why the backend is gone, as an ErrBackendGone; nil while it lives.
func (b *Backend) Err() error {
	if b.life.Err() == nil {
		return nil
	}
	return b.gone("backend " + b.cfg.Name)
}

// Vitals reads the process's vitals page. ErrUnsupported where there is none.
func (b *Backend) Vitals() (shm.Vitals, error) {
	if b.vitals == nil {
		return shm.Vitals{}, shm.ErrUnsupported
	}
	return b.vitals.Read()
}

// Late returns how many answers came after their step had been given up, and
// were dropped.
func (b *Backend) Late() uint64 { return b.steps.late.Load() }

// Ping asks the process for a sign of life and waits for it at most a second. It
// says that gRPC answers, not that the device works.
func (b *Backend) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	ctx, stop := b.join(ctx)
	defer stop()
	_, err := b.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: plugin.GRPCServiceName})
	if err != nil {
		return b.fail(ctx, "ping", err)
	}
	return nil
}

// Info implements core.Backend.
func (b *Backend) Info(ctx context.Context) (core.Info, error) {
	ctx, stop := b.join(ctx)
	defer stop()
	resp, err := b.rpc.Info(ctx, &pb.InfoRequest{})
	if err != nil {
		return core.Info{}, b.fail(ctx, "info", err)
	}
	return core.Info{
		Name:         resp.Name,
		Version:      resp.Version,
		Protocol:     resp.Protocol,
		Capabilities: resp.Capabilities,
		PID:          int(resp.Pid),
	}, nil
}

// Probe implements core.Backend.
func (b *Backend) Probe(ctx context.Context) ([]core.Device, error) {
	ctx, stop := b.join(ctx)
	defer stop()
	resp, err := b.rpc.Probe(ctx, &pb.ProbeRequest{})
	if err != nil {
		return nil, b.fail(ctx, "probe", err)
	}
	devices := make([]core.Device, 0, len(resp.Devices))
	for _, d := range resp.Devices {
		devices = append(devices, core.Device{
			ID:          d.GetId(),
			Name:        d.GetName(),
			MemoryTotal: d.GetMemoryTotal(),
			MemoryFree:  d.GetMemoryFree(),
			Threads:     int(d.GetThreads()),
		})
	}
	return devices, nil
}

// LoadStage implements core.Backend.
func (b *Backend) LoadStage(ctx context.Context, req core.LoadRequest, progress func(core.LoadProgress)) (core.LoadResult, error) {
	for _, n := range []int{req.Context, req.MaxSequences, req.MaxRows, req.MaxLogitRows, req.Stage.First, req.Stage.Last} {
		if n < 0 || n > math.MaxInt32 {
			return core.LoadResult{}, fmt.Errorf("load stage: a bound of %d is out of range", n)
		}
	}
	ctx, stop := b.join(ctx)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream also where this function does not read it to its end
	stream, err := b.rpc.LoadStage(ctx, &pb.LoadStageRequest{
		Model: ModelSpec(req.Model),
		Stage: &pb.Stage{
			First: int32(req.Stage.First),
			Last:  int32(req.Stage.Last),
			Embed: req.Stage.Embed,
			Head:  req.Stage.Head,
			Draft: req.Stage.Draft,
		},
		Device:       req.Device,
		Context:      int32(req.Context),
		MaxSequences: int32(req.MaxSequences),
		MaxRows:      int32(req.MaxRows),
		MaxLogitRows: int32(req.MaxLogitRows),
		Options:      req.Options,
	})
	if err != nil {
		return core.LoadResult{}, b.fail(ctx, "load stage", err)
	}
	var result *pb.LoadResult
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return core.LoadResult{}, b.fail(ctx, "load stage", err)
		}
		switch {
		case result != nil:
			return core.LoadResult{}, b.breach(errors.New("load stage: a message after the result"))
		case msg.GetResult() != nil:
			result = msg.GetResult()
		case msg.GetProgress() != nil && progress != nil:
			p := msg.GetProgress()
			progress(core.LoadProgress{Phase: p.Phase, Bytes: p.Bytes, Total: p.Total})
		}
	}
	if result == nil {
		return core.LoadResult{}, b.breach(errors.New("load stage: no result"))
	}
	bounds := BoundsOf(&req)
	b.stage.Store(&bounds)
	return core.LoadResult{
		LayoutID:              result.LayoutId,
		WeightBytes:           result.WeightBytes,
		MappedBytes:           result.MappedBytes,
		StateBytesPerToken:    result.StateBytesPerToken,
		StateBytesPerSequence: result.StateBytesPerSequence,
		Capabilities:          result.Capabilities,
	}, nil
}

// OpenSequence implements core.Backend.
func (b *Backend) OpenSequence(ctx context.Context, seq core.SequenceID) error {
	ctx, stop := b.join(ctx)
	defer stop()
	if _, err := b.rpc.OpenSequence(ctx, &pb.OpenSequenceRequest{Sequence: uint64(seq)}); err != nil {
		return b.fail(ctx, "open sequence", err)
	}
	return nil
}

// CloseSequence implements core.Backend.
func (b *Backend) CloseSequence(ctx context.Context, seq core.SequenceID) error {
	ctx, stop := b.join(ctx)
	defer stop()
	if _, err := b.rpc.CloseSequence(ctx, &pb.CloseSequenceRequest{Sequence: uint64(seq)}); err != nil {
		return b.fail(ctx, "close sequence", err)
	}
	return nil
}

// Drain implements core.Backend.
func (b *Backend) Drain(ctx context.Context) error {
	ctx, stop := b.join(ctx)
	defer stop()
	if _, err := b.rpc.Drain(ctx, &pb.DrainRequest{}); err != nil {
		return b.fail(ctx, "drain", err)
	}
	return nil
}

// Unload implements core.Backend.
func (b *Backend) Unload(ctx context.Context) error {
	ctx, stop := b.join(ctx)
	defer stop()
	b.stage.Store(nil) // whatever becomes of it
	if _, err := b.rpc.Unload(ctx, &pb.UnloadRequest{}); err != nil {
		return b.fail(ctx, "unload", err)
	}
	return nil
}

// Events implements core.Backend.
func (b *Backend) Events(ctx context.Context) (<-chan core.Event, error) {
	ctx, stop := b.join(ctx)
	stream, err := b.rpc.Events(ctx, &pb.EventsRequest{})
	if err != nil {
		err = b.fail(ctx, "events", err)
		stop()
		return nil, err
	}
	events := make(chan core.Event, 16)
	go func() {
		defer stop()
		defer close(events)
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case events <- core.Event{Time: time.Unix(0, e.Time), Kind: e.Kind, Message: e.Message}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events, nil
}

// Close implements core.Backend: it asks the process to end, and kills it where
// it does not. It takes at most the grace period and the reap timeout together.
// runner.ErrNotReaped if the process is stuck inside the kernel; then no other
// process may be started on its device.
func (b *Backend) Close() error {
	b.closeOnce.Do(func() {
		b.note("it was closed")
		if b.life.Err() == nil {
			b.disconnect()
			select {
			case <-b.process.Done():
			case <-time.After(gracePeriod):
				b.log.Warn("backend does not end when asked to, killing it", "pid", b.process.PID())
			}
		}
		b.closeErr = b.process.Stop()
		b.cleanUp()
	})
	return b.closeErr
}

// Kill ends the process at once, for the given reason, and waits for its end
// like Close. Everything in flight fails with ErrBackendGone and the reason.
func (b *Backend) Kill(reason string) error {
	b.note(reason)
	return b.process.Stop()
}
