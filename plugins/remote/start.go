package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/strata-engine/strata/core"
	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/plugins/runner"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

// Transport says how steps travel.
type Transport string

// The transports.
const (
	// TransportAuto: shared memory where the system and the backend can, else gRPC.
	TransportAuto Transport = "auto"
	// TransportShm: shared-memory rings, or an error.
	TransportShm Transport = "shm"
	// TransportGRPC: the Steps stream of the control plane.
	TransportGRPC Transport = "grpc"
)

// Defaults of Config.
const (
	DefaultStartTimeout = 10 * time.Second
	DefaultStepTimeout  = 5 * time.Minute
	DefaultSlots        = 4
)

// gracePeriod is how long Close lets a process end by itself. go-plugin's own
// grace, two seconds, fits into it.
const gracePeriod = 3 * time.Second

// Config says which program to start and for what.
type Config struct {
	// Name names the backend in messages and logs; the program's file name if
	// empty.
	Name string
	// Path is the program.
	Path string
	// SHA256 is the hash that the program must have; nil for any.
	SHA256 []byte
	// Env are further environment variables, "NAME=value".
	Env []string
	// Transport says how steps travel; TransportAuto if empty.
	Transport Transport
	// Bounds are the largest windows that will be executed; see BoundsOf. The
	// shared memory is made for them before the process starts, and a stage with
	// larger ones cannot be loaded over it. Zero for a backend that will only be
	// asked about itself.
	Bounds wire.Bounds
	// Slots is how many steps can be in flight or have unreleased results; at
	// least 2, DefaultSlots if zero. Memory is only used by slots in use.
	Slots int
	// StartTimeout bounds the time until the process answers; DefaultStartTimeout
	// if zero. Drivers and weights are not part of the start.
	StartTimeout time.Duration
	// StepTimeout bounds a step that has no deadline of its own;
	// DefaultStepTimeout if zero.
	StepTimeout time.Duration
	// ReapTimeout bounds the wait for a killed process to be gone;
	// runner.DefaultReapTimeout if zero.
	ReapTimeout time.Duration
	// Logger gets what the process writes; may be nil.
	Logger hclog.Logger
}

// BoundsOf returns the bounds of a load request for Config.
func BoundsOf(req *core.LoadRequest) wire.Bounds {
	return wire.Bounds{
		MaxSequences: req.MaxSequences,
		MaxRows:      req.MaxRows,
		MaxLogitRows: req.MaxLogitRows,
		Width:        req.Model.Hyper.ResidualWidth(),
		Vocab:        req.Model.Hyper.Vocab,
		Embed:        req.Stage.Embed,
		Head:         req.Stage.Head,
	}
}

// generations numbers the incarnations of backends of this host process.
var generations atomic.Uint64

// Start starts a backend's process and connects to it. Close ends it; the caller
// does that in every case, also when the process is gone. On error nothing of it
// is left and the Backend is nil, with one exception: where the error is
// runner.ErrNotReaped, the Backend is there for its Reaped channel.
func Start(ctx context.Context, cfg Config) (*Backend, error) {
	if cfg.Name == "" {
		cfg.Name = strings.TrimSuffix(filepath.Base(cfg.Path), ".exe")
	}
	b, err := prepare(cfg)
	if err != nil {
		return nil, fmt.Errorf("start backend %s: %w", cfg.Name, err)
	}
	if err := b.connect(ctx); err != nil {
		if stopErr := b.discard(); stopErr != nil {
			b.closeOnce.Do(func() { b.closeErr = stopErr })
			return b, fmt.Errorf("start backend %s: %w; %w", cfg.Name, err, stopErr)
		}
		return nil, fmt.Errorf("start backend %s: %w", cfg.Name, err)
	}
	b.log.Info("backend started", "pid", b.process.PID(), "version", b.info.Version, "transport", b.transport)
	return b, nil
}

// prepare makes everything that the process needs but the process.
func prepare(cfg Config) (_ *Backend, err error) {
	if cfg.Transport == "" {
		cfg.Transport = TransportAuto
	}
	if cfg.Slots == 0 {
		cfg.Slots = DefaultSlots
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = DefaultStartTimeout
	}
	if cfg.StepTimeout == 0 {
		cfg.StepTimeout = DefaultStepTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Slots < 2 || cfg.Slots > shm.MaxSlots {
		return nil, fmt.Errorf("%d slots, want 2 to %d", cfg.Slots, shm.MaxSlots)
	}
	if !slices.Contains([]Transport{TransportAuto, TransportShm, TransportGRPC}, cfg.Transport) {
		return nil, fmt.Errorf("transport %q, want auto, shm or grpc", cfg.Transport)
	}
	b := &Backend{cfg: cfg, log: cfg.Logger, generation: generations.Add(1)}
	b.life, b.end = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			b.end()
			b.release()
		}
	}()

	var files []runner.File
	b.vitals, err = shm.CreateVitals(b.generation)
	switch {
	case err == nil:
		files = append(files, runner.File{Variable: sdk.EnvVitals, File: b.vitals.File()})
	case !errors.Is(err, shm.ErrUnsupported):
		return nil, err
	}
	if cfg.Transport == TransportShm || cfg.Transport == TransportAuto && cfg.Bounds != (wire.Bounds{}) {
		request, result, err := cfg.Bounds.SlotBytes()
		if err != nil {
			return nil, err
		}
		b.data, err = shm.CreateData(shm.Geometry{Slots: cfg.Slots, RequestBytes: request, ResultBytes: result}, b.generation)
		switch {
		case err == nil:
			files = append(files, runner.File{Variable: sdk.EnvData, File: b.data.File()})
		case !errors.Is(err, shm.ErrUnsupported):
			return nil, err
		case cfg.Transport == TransportShm:
			return nil, fmt.Errorf("transport shm: %w: set it to grpc or auto", err)
		}
	}
	if b.dir, err = runner.NewSocketDir(""); err != nil {
		return nil, err
	}
	b.process, err = runner.New(runner.Config{
		Path:        cfg.Path,
		SHA256:      cfg.SHA256,
		Env:         cfg.Env,
		Files:       files,
		SocketDir:   b.dir.Path(),
		Poison:      b.poison,
		ReapTimeout: cfg.ReapTimeout,
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// connect starts the process and speaks to it.
func (b *Backend) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.StartTimeout,
		fmt.Errorf("the program does not answer within %s", b.cfg.StartTimeout))
	defer cancel()
	b.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  sdk.Handshake,
		VersionedPlugins: sdk.Plugins(nil),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     b.cfg.StartTimeout,
		Logger:           b.log,
		RunnerFunc:       b.process.RunnerFunc,
		// What a Go backend prints once it serves comes over gRPC.
		SyncStdout:       b.process.Output(),
		SyncStderr:       b.process.Output(),
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: b.dir.Path()},
	})
	// go-plugin's calls know no context. What ends them is the end of the process,
	// which discard brings about.
	var protocol plugin.ClientProtocol
	b.connected = make(chan struct{})
	b.background.Go(func() {
		protocol, b.connectErr = b.client.Client()
		close(b.connected)
	})
	select {
	case <-b.connected:
		if b.connectErr != nil {
			return b.startError(b.connectErr)
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	grpcClient, ok := protocol.(*plugin.GRPCClient)
	if !ok {
		return fmt.Errorf("the program speaks %T instead of gRPC", protocol)
	}
	service, err := protocol.Dispense(sdk.PluginName)
	if err != nil {
		return err
	}
	b.rpc = service.(pb.BackendClient)
	b.health = grpc_health_v1.NewHealthClient(grpcClient.Conn)

	if b.info, err = b.Info(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return err
	}
	if b.info.Protocol != sdk.Protocol {
		return fmt.Errorf("the program speaks protocol %s, this host %s: use programs of the same version", b.info.Protocol, sdk.Protocol)
	}
	return b.chooseLane()
}

// chooseLane decides how steps travel, now that the backend has said what it
// can.
func (b *Backend) chooseLane() error {
	useShm := b.data != nil && slices.Contains(b.info.Capabilities, core.CapSharedMemory)
	if !useShm && b.cfg.Transport == TransportShm {
		return errors.New("transport shm: the backend cannot use shared memory: set it to grpc or auto")
	}
	var l lane
	if useShm {
		b.transport, l = TransportShm, &ringLane{data: b.data}
	} else {
		stream, err := newStreamLane(b.life, b.rpc, b.cfg.Slots)
		if err != nil {
			return b.fail(context.Background(), "open the stream for steps", err)
		}
		b.transport, l = TransportGRPC, stream
	}
	b.steps = newSteps(l, b.cfg.Slots, b.generation, b.life.Done(), b.breach)
	return nil
}

// startError explains why go-plugin could not start the process or speak to it.
func (b *Backend) startError(err error) error {
	// It has ended by itself, or go-plugin has just killed it.
	select {
	case <-b.process.Done():
	case <-time.After(time.Second):
	}
	if exit := b.process.Exit(); exit != "" && b.process.PID() != 0 {
		if b.process.Killed() && b.process.Words() == "" {
			// go-plugin has ended it, because it did not like the handshake.
			why, _, _ := strings.Cut(err.Error(), "\n")
			return fmt.Errorf("it is a backend for another version of Strata, or none: %s", why)
		}
		// What go-plugin says then is that it could not read or connect.
		return fmt.Errorf("the program ended before it was ready (%s): it is not a Strata backend, or it cannot run here", exit)
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return err
	}
	// One line of go-plugin's paragraphs.
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// discard ends what a failed start has left.
func (b *Backend) discard() error {
	b.note("its start failed")
	err := b.process.Stop()
	b.cleanUp()
	return err
}

// disconnect lets go-plugin ask the process to end, wait for that, and free what
// it has. It knows no bound, so it happens in the background; and it happens
// once and only where there was a connection, because go-plugin would take a
// process that has ended for one that does not obey.
func (b *Backend) disconnect() {
	b.disconnectOnce.Do(func() {
		b.background.Go(func() {
			if <-b.connected; b.connectErr == nil {
				b.client.Kill()
			}
		})
	})
}

// cleanUp lets go of everything once the process has ended or was given up.
func (b *Backend) cleanUp() {
	b.poison()
	b.disconnect() // at once, now that the process is gone
	done := make(chan struct{})
	go func() {
		b.background.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Second):
		// A process that was not reaped keeps its socket open. go-plugin's
		// goroutines end with it.
	}
	b.release()
}

// release closes files and memory.
func (b *Backend) release() {
	if b.steps != nil {
		b.steps.close() // and with it the segment, once no result is in use
	}
	if b.data != nil && b.transport != TransportShm {
		b.data.Close()
	}
	if b.vitals != nil {
		b.vitals.Close()
	}
	if b.dir != nil {
		if err := b.dir.Remove(); err != nil {
			b.log.Warn("cannot remove the socket's directory", "error", err)
		}
	}
}
