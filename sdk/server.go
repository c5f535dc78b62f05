package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

// ServerOptions say what a Server serves.
type ServerOptions struct {
	// Backend is the author's.
	Backend Backend
	// Logger may be nil: nothing is logged.
	Logger hclog.Logger
	// Data is the segment that the host passed; nil: steps come over the stream.
	// The server owns it.
	Data *shm.Data
	// Vitals is the page that the host passed; may be nil. The server owns it.
	Vitals *shm.VitalsWriter
}

// Server is the gRPC service of a backend process. Serve makes one; tests make
// their own, to serve a backend within their process.
type Server struct {
	pb.UnimplementedBackendServer
	backend  Backend
	log      hclog.Logger
	data     *shm.Data
	vitals   *shm.VitalsWriter
	events   events
	executor *executor
	calls    atomic.Uint64
	// stopped ends the background work and the streams.
	stopped   chan struct{}
	closeOnce sync.Once
	beats     sync.WaitGroup
}

var _ pb.BackendServer = (*Server)(nil)

// NewServer starts a server: its executor and its heart beat. End it with Close.
func NewServer(opts ServerOptions) *Server {
	s := &Server{
		backend: opts.Backend,
		log:     opts.Logger,
		data:    opts.Data,
		vitals:  opts.Vitals,
		stopped: make(chan struct{}),
	}
	if s.log == nil {
		s.log = hclog.NewNullLogger()
	}
	if s.vitals == nil {
		_, s.vitals = shm.LocalVitals()
	}
	s.executor = newExecutor(s.backend, s.data, s.vitals, s.log, &s.events)
	s.vitals.SetState(shm.StateIdle)
	s.beats.Go(s.beat)
	return s
}

// beat shows the host that this process is scheduled.
func (s *Server) beat() {
	tick := time.NewTicker(shm.BeatInterval)
	defer tick.Stop()
	for {
		s.vitals.Beat()
		select {
		case <-tick.C:
		case <-s.stopped:
			return
		}
	}
}

// closePatience bounds Close. The host kills a process that does not end within
// two seconds.
const closePatience = 1500 * time.Millisecond

// Close stops the executor and frees the stage. A step in flight is cancelled;
// where it does not end in time, Close leaves everything to the end of the
// process and says so. It is idempotent.
func (s *Server) Close() error {
	var err error
	s.closeOnce.Do(func() { err = s.close() })
	return err
}

func (s *Server) close() error {
	close(s.stopped)
	s.beats.Wait()
	s.vitals.SetState(shm.StateStopping)
	s.executor.stop()
	if s.data != nil {
		s.data.Submissions().Interrupt()
	}
	deadline := time.NewTimer(closePatience)
	defer deadline.Stop()
	select {
	case <-s.executor.done:
	case <-deadline.C:
		return errors.New("close backend: a call into the backend did not end in time")
	}
	var errs []error
	if s.executor.stage != nil {
		// The executor's goroutine has ended, so this one may take its place.
		ctx, cancel := context.WithTimeout(context.Background(), closePatience)
		defer cancel()
		s.vitals.SetPhase(shm.PhaseUnload)
		errs = append(errs, s.executor.free(ctx))
	}
	if s.data != nil {
		errs = append(errs, s.data.Close())
	}
	errs = append(errs, s.vitals.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close backend: %w", err)
	}
	return nil
}

// Info implements pb.BackendServer.
func (s *Server) Info(context.Context, *pb.InfoRequest) (*pb.InfoResponse, error) {
	calls := s.calls.Add(1)
	var info Info
	if err := s.executor.guard("info", func() error { info = s.backend.Info(); return nil }); err != nil {
		return nil, rpcError("info", err)
	}
	return &pb.InfoResponse{
		Name:         info.Name,
		Version:      info.Version,
		Protocol:     Protocol,
		Capabilities: s.capabilities(info.Capabilities),
		Pid:          int64(os.Getpid()),
		Calls:        calls,
	}, nil
}

// capabilities adds to those that the author lists what the SDK knows itself.
func (s *Server) capabilities(listed []string) []string {
	all := slices.Clone(listed)
	if s.data != nil {
		all = append(all, CapSharedMemory)
	}
	if _, ok := s.backend.(BackendWithDraft); ok {
		all = append(all, CapDraft)
	}
	if _, ok := s.backend.(BackendWithState); ok {
		all = append(all, CapState)
	}
	if _, ok := s.backend.(BackendWithExperts); ok {
		all = append(all, CapExperts)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Probe implements pb.BackendServer.
func (s *Server) Probe(ctx context.Context, _ *pb.ProbeRequest) (*pb.ProbeResponse, error) {
	s.calls.Add(1)
	var resp ProbeResponse
	err := s.executor.guard("probe", func() error { return s.backend.Probe(ctx, ProbeRequest{}, &resp) })
	if err != nil {
		return nil, rpcError("probe", err)
	}
	out := &pb.ProbeResponse{}
	for _, d := range resp.Devices {
		out.Devices = append(out.Devices, &pb.Device{
			Id:          d.ID,
			Name:        d.Name,
			MemoryTotal: d.MemoryTotal,
			MemoryFree:  d.MemoryFree,
			Threads:     int32(d.Threads),
		})
	}
	return out, nil
}

// OpenSequence implements pb.BackendServer.
func (s *Server) OpenSequence(ctx context.Context, req *pb.OpenSequenceRequest) (*pb.OpenSequenceResponse, error) {
	s.calls.Add(1)
	err := s.executor.guard("open sequence", func() error {
		return s.backend.OpenSequence(ctx, OpenSequenceRequest{Sequence: req.Sequence}, &OpenSequenceResponse{})
	})
	if err != nil {
		return nil, rpcError("open sequence", err)
	}
	return &pb.OpenSequenceResponse{}, nil
}

// CloseSequence implements pb.BackendServer.
func (s *Server) CloseSequence(ctx context.Context, req *pb.CloseSequenceRequest) (*pb.CloseSequenceResponse, error) {
	s.calls.Add(1)
	err := s.executor.guard("close sequence", func() error {
		return s.backend.CloseSequence(ctx, CloseSequenceRequest{Sequence: req.Sequence}, &CloseSequenceResponse{})
	})
	if err != nil {
		return nil, rpcError("close sequence", err)
	}
	return &pb.CloseSequenceResponse{}, nil
}

// Steps implements pb.BackendServer.
func (s *Server) Steps(stream grpc.BidiStreamingServer[pb.StepMessage, pb.StepMessage]) error {
	var result bufferResult
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.calls.Add(1)
		if len(msg.Entry) != shm.EntryBytes {
			return status.Errorf(codes.InvalidArgument, "steps: an entry of %d bytes, want %d", len(msg.Entry), shm.EntryBytes)
		}
		entry := shm.Entry(msg.Entry)
		sub, err := wire.ParseSubmission(&entry)
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "steps: %v", err)
		}
		if sub.Bytes != len(msg.Payload) {
			return status.Errorf(codes.InvalidArgument, "steps: a payload of %d bytes, the entry says %d", len(msg.Payload), sub.Bytes)
		}
		var c wire.Completion
		err = s.executor.call(stream.Context(), func() error {
			c = s.executor.execute(sub, msg.Payload, &result)
			return nil
		})
		if err != nil {
			return rpcError("steps", err)
		}
		c.Put(&entry)
		if err := stream.Send(&pb.StepMessage{Entry: entry[:], Payload: result.take(c.Bytes)}); err != nil {
			return err
		}
	}
}

// ExpertUses implements pb.BackendServer.
func (s *Server) ExpertUses(ctx context.Context, _ *pb.ExpertUsesRequest) (*pb.ExpertUsesResponse, error) {
	s.calls.Add(1)
	backend, ok := s.backend.(BackendWithExperts)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "expert uses: the backend does not count them")
	}
	var resp ExpertUsesResponse
	err := s.executor.guard("expert uses", func() error {
		return backend.ExpertUses(ctx, ExpertUsesRequest{}, &resp)
	})
	if err != nil {
		return nil, rpcError("expert uses", err)
	}
	out := &pb.ExpertUsesResponse{}
	for _, uses := range resp.Uses {
		out.Layers = append(out.Layers, &pb.LayerExpertUses{Uses: uses})
	}
	return out, nil
}

// Drain implements pb.BackendServer.
func (s *Server) Drain(ctx context.Context, _ *pb.DrainRequest) (*pb.DrainResponse, error) {
	s.calls.Add(1)
	// The call's turn comes after the step in flight.
	err := s.executor.call(ctx, func() error {
		s.executor.draining = true
		s.vitals.SetState(shm.StateDraining)
		return nil
	})
	if err != nil {
		return nil, rpcError("drain", err)
	}
	return &pb.DrainResponse{}, nil
}

// Unload implements pb.BackendServer.
func (s *Server) Unload(ctx context.Context, _ *pb.UnloadRequest) (*pb.UnloadResponse, error) {
	s.calls.Add(1)
	err := s.executor.call(ctx, func() error { return s.executor.unload(ctx) })
	if err != nil {
		return nil, rpcError("unload", err)
	}
	return &pb.UnloadResponse{}, nil
}

// Events implements pb.BackendServer.
func (s *Server) Events(_ *pb.EventsRequest, stream grpc.ServerStreamingServer[pb.Event]) error {
	s.calls.Add(1)
	c := s.events.listen()
	defer s.events.ignore(c)
	for {
		select {
		case e := <-c:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.stopped:
			return nil
		}
	}
}

// rpcError gives an error of the author or the executor the status code that
// backend.proto promises.
func rpcError(what string, err error) error {
	code := codes.Internal
	switch statusOf(err) {
	case wire.StatusUnknownSequence:
		code = codes.NotFound
	case wire.StatusOutOfState:
		code = codes.ResourceExhausted
	case wire.StatusInvalid:
		code = codes.InvalidArgument
	case wire.StatusUnimplemented:
		code = codes.Unimplemented
	case wire.StatusDeadline:
		code = codes.DeadlineExceeded
	case wire.StatusUnavailable:
		code = codes.FailedPrecondition
	}
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, errStopping):
		code = codes.Unavailable
	}
	return status.Error(code, fmt.Sprintf("%s: %v", what, err))
}
