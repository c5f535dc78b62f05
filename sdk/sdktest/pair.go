package sdktest

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

// Options say how a Pair is connected.
type Options struct {
	// Data is the shape of the data segment; with no slots, steps go over the
	// stream.
	Data shm.Geometry
	// Logger may be nil.
	Logger hclog.Logger
}

// Pair is a backend's server in the test's process, with the host's ends of
// everything that connects them.
type Pair struct {
	// Server is the backend's side.
	Server *sdk.Server
	// Client speaks to it over a real gRPC connection.
	Client pb.BackendClient
	// Data and Vitals are the host's mappings; nil without shared memory.
	Data   *shm.Data
	Vitals *shm.VitalsReader

	stream grpc.BidiStreamingClient[pb.StepMessage, pb.StepMessage]
	number uint64
}

// generation is that of every Pair.
const generation = 7

// Connect starts a server for the backend and connects to it. All of it ends
// with the test.
func Connect(t testing.TB, backend sdk.Backend, opts Options) *Pair {
	t.Helper()
	p := &Pair{}
	server := sdk.ServerOptions{Backend: backend, Logger: opts.Logger}
	if opts.Data.Slots > 0 {
		var err error
		if p.Data, err = shm.CreateData(opts.Data, generation); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { check(t, p.Data.Close()) })
		if server.Data, err = shm.AttachData(reopen(t, p.Data.File())); err != nil {
			t.Fatal(err)
		}
		if p.Vitals, err = shm.CreateVitals(generation); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { check(t, p.Vitals.Close()) })
		if server.Vitals, err = shm.AttachVitals(reopen(t, p.Vitals.File())); err != nil {
			t.Fatal(err)
		}
	}
	p.Server = sdk.NewServer(server)
	t.Cleanup(func() { check(t, p.Server.Close()) })

	dir, err := os.MkdirTemp("", "strata")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// Not t.TempDir: the path of a socket is limited to about a hundred bytes.
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	grpcServer := sdk.NewGRPCServer(nil)
	pb.RegisterBackendServer(grpcServer, p.Server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = grpcServer.Serve(listener)
	}()
	t.Cleanup(func() {
		grpcServer.Stop()
		<-served
	})
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, conn.Close()) })
	p.Client = pb.NewBackendClient(conn)
	return p
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// reopen gives the backend's side a descriptor of its own, as a new process
// would have.
func reopen(t testing.TB, file *os.File) *os.File {
	t.Helper()
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Load loads a stage and returns the messages it got before the result.
func (p *Pair) Load(ctx context.Context, req *pb.LoadStageRequest) (*pb.LoadResult, []*pb.LoadProgress, error) {
	stream, err := p.Client.LoadStage(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	var progress []*pb.LoadProgress
	for {
		msg, err := stream.Recv()
		if err != nil {
			return nil, progress, err
		}
		if result := msg.GetResult(); result != nil {
			return result, progress, nil
		}
		progress = append(progress, msg.GetProgress())
	}
}

// Do sends one submission over the pair's transport and waits for its
// completion; the payload is a copy.
func (p *Pair) Do(ctx context.Context, kind wire.Kind, payload []byte, remaining time.Duration) (wire.Completion, []byte, error) {
	p.number++
	var entry shm.Entry
	wire.Submission{
		Number:     p.number,
		Generation: generation,
		Kind:       kind,
		Bytes:      len(payload),
		Remaining:  remaining,
	}.Put(&entry)
	if p.Data == nil {
		return p.doStream(ctx, &entry, payload)
	}
	slot, err := p.Data.RequestSlot(0)
	if err != nil {
		return wire.Completion{}, nil, err
	}
	copy(slot, payload)
	if err := p.Data.Submissions().Push(&entry); err != nil {
		return wire.Completion{}, nil, err
	}
	if err := p.Data.Completions().Pop(ctx, &entry); err != nil {
		return wire.Completion{}, nil, err
	}
	c, err := wire.ParseCompletion(&entry)
	if err != nil {
		return wire.Completion{}, nil, err
	}
	if slot, err = p.Data.ResultSlot(c.Slot); err != nil {
		return wire.Completion{}, nil, err
	}
	out := shm.AlignedBytes(c.Bytes)
	copy(out, slot)
	return c, out, p.answers(c)
}

func (p *Pair) doStream(ctx context.Context, entry *shm.Entry, payload []byte) (wire.Completion, []byte, error) {
	if p.stream == nil {
		var err error
		if p.stream, err = p.Client.Steps(ctx); err != nil {
			return wire.Completion{}, nil, err
		}
	}
	if err := p.stream.Send(&pb.StepMessage{Entry: entry[:], Payload: payload}); err != nil {
		return wire.Completion{}, nil, err
	}
	msg, err := p.stream.Recv()
	if err != nil {
		p.stream = nil
		return wire.Completion{}, nil, err
	}
	if len(msg.Entry) != shm.EntryBytes {
		return wire.Completion{}, nil, fmt.Errorf("an entry of %d bytes", len(msg.Entry))
	}
	e := shm.Entry(msg.Entry)
	c, err := wire.ParseCompletion(&e)
	if err != nil {
		return wire.Completion{}, nil, err
	}
	if c.Bytes != len(msg.Payload) {
		return wire.Completion{}, nil, fmt.Errorf("a payload of %d bytes, the entry says %d", len(msg.Payload), c.Bytes)
	}
	return c, msg.Payload, p.answers(c)
}

func (p *Pair) answers(c wire.Completion) error {
	if c.Number != p.number || c.Generation != generation {
		return fmt.Errorf("completion %d of generation %d for submission %d", c.Number, c.Generation, p.number)
	}
	return nil
}

// Step executes a window on a stage with the given bounds. Where the backend
// refuses, the error has its status and text.
func (p *Pair) Step(ctx context.Context, w *wire.Window, b wire.Bounds) (wire.Result, error) {
	n, err := wire.WindowBytes(len(w.Segments), w.Rows(), w.LogitRows(), w.Width)
	if err != nil {
		return wire.Result{}, err
	}
	payload := shm.AlignedBytes(n)
	if _, err := w.Put(payload); err != nil {
		return wire.Result{}, err
	}
	c, out, err := p.Do(ctx, wire.KindStep, payload, 0)
	if err != nil {
		return wire.Result{}, err
	}
	if c.Status != wire.StatusOK {
		return wire.Result{}, &StatusError{Status: c.Status, Text: wire.ParseError(out)}
	}
	return wire.ParseResult(out, b.Shape(w.Rows(), w.LogitRows()), nil)
}

// StatusError is a refusal by the backend.
type StatusError struct {
	// Status is the reason's code, Text the backend's words.
	Status wire.Status
	Text   string
}

// Error implements error.
func (e *StatusError) Error() string { return e.Status.String() + ": " + e.Text }
