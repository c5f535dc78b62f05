// Package supervisor keeps one backend process per device: it starts it, loads
// the stage, says truthfully what state it is in, and ends it in bounded time.
//
//	Stopped -> Starting -> Loading -> Ready -> Draining -> Stopped
//	               |          |         |          |
//	               +----------+---------+----------+---> Failed
//
// From Stopped and from Failed a device can be started again, with a new process.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/plugins/runner"
)

// State is where a device is in its life.
type State int

// The states.
const (
	// StateStopped: there is no process, and none is wanted.
	StateStopped State = iota
	// StateStarting: the process is being started.
	StateStarting
	// StateLoading: the process lives and loads the stage.
	StateLoading
	// StateReady: steps are executed.
	StateReady
	// StateDraining: steps in flight are finished, no more are taken, and then
	// the process ends.
	StateDraining
	// StateFailed: the device was started and does not work; Status.Err says why.
	// There is no process, unless that is runner.ErrNotReaped.
	StateFailed
)

var stateNames = [...]string{"stopped", "starting", "loading", "ready", "draining", "failed"}

// String returns the state's name as used in logs and by /health.
func (s State) String() string {
	if s >= 0 && int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state-%d", int(s))
}

// ErrStopped: the device was stopped while it was starting.
var ErrStopped = errors.New("device was stopped")

// ErrRunning: the device has a process already.
var ErrRunning = errors.New("device is running")

// Config describes a device.
type Config struct {
	// Name names the device in logs, messages and metrics.
	Name string
	// Program is how its backend is started. Name, Bounds and Logger are set by
	// the device.
	Program remote.Config
	// DrainTimeout bounds the wait for steps in flight when the device is
	// stopped; DefaultDrainTimeout if zero.
	DrainTimeout time.Duration
	// Logger may be nil.
	Logger hclog.Logger
}

// DefaultDrainTimeout bounds the wait for steps in flight.
const DefaultDrainTimeout = 10 * time.Second

// Status is what is known about a device at one moment.
type Status struct {
	// Name is the device's.
	Name string
	// State is its state, Since when it got there.
	State State
	Since time.Time
	// Err is the last error, also after the device works again; nil if there was
	// none. ErrTime is when it happened.
	Err     error
	ErrTime time.Time
	// Starts counts the processes started so far.
	Starts int
	// PID is the process's id; 0 where there is none.
	PID int
	// Transport is how steps travel, once that is known.
	Transport remote.Transport
	// Progress is how far the load has come, in StateLoading and after it.
	Progress core.LoadProgress
	// Result describes the loaded stage in StateReady and StateDraining.
	Result core.LoadResult
}

// Device keeps the backend process of one device. Each process has one owner, a
// goroutine that starts it and does not end before the process has, or was given
// up as stuck in the kernel. Methods are safe for concurrent use.
type Device struct {
	cfg Config
	log hclog.Logger

	mu     sync.Mutex // protects the fields below; never held across a wait
	status Status
	// run is the current owner's, the last one's when that has ended; nil before
	// the first.
	run *run
	// able is the backend in StateReady and StateDraining.
	able core.Backend
	// stuck is a backend whose process was not reaped.
	stuck *remote.Backend
}

// run is what the owner of a process shares with Start and Stop.
type run struct {
	// loaded gets the outcome of the start, once.
	loaded chan error
	// abort ends a start that is under way.
	abort context.CancelCauseFunc
	// stop is closed when the device shall stop.
	stop     chan struct{}
	stopOnce sync.Once
	// ended is closed when the owner has ended; err is then the outcome of Stop.
	ended chan struct{}
	err   error
	// drain is the context of the first Stop, set before stop is closed.
	drain context.Context
}

// New returns a stopped device.
func New(cfg Config) *Device {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.DrainTimeout == 0 {
		cfg.DrainTimeout = DefaultDrainTimeout
	}
	return &Device{
		cfg:    cfg,
		log:    cfg.Logger.With("device", cfg.Name),
		status: Status{Name: cfg.Name, Since: time.Now()},
	}
}

// Start starts the device's process and loads the stage, and returns when the
// device is ready or has failed; then no process is left. ctx bounds the start
// alone. ErrRunning where the device has a process, ErrStopped where Stop came
// first, runner.ErrNotReaped where an earlier process still occupies the device.
func (d *Device) Start(ctx context.Context, req core.LoadRequest) error {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	r := &run{
		loaded: make(chan error, 1),
		abort:  abort,
		stop:   make(chan struct{}),
		ended:  make(chan struct{}),
	}
	if err := d.enter(r); err != nil {
		return fmt.Errorf("start device %s: %w", d.cfg.Name, err)
	}
	go d.own(ctx, r, req)
	if err := <-r.loaded; err != nil {
		<-r.ended // so that the device can be started again at once
		return fmt.Errorf("start device %s: %w", d.cfg.Name, err)
	}
	return nil
}

// enter makes r the current run if the device may start.
func (d *Device) enter(r *run) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run != nil {
		select {
		case <-d.run.ended:
		default:
			return ErrRunning
		}
	}
	if d.stuck != nil {
		select {
		case <-d.stuck.Reaped():
			d.stuck = nil
		default:
			return fmt.Errorf("process %d still occupies it: %w", d.status.PID, runner.ErrNotReaped)
		}
	}
	d.run = r
	d.status.Starts++
	d.status.PID, d.status.Transport = 0, ""
	d.status.Progress, d.status.Result = core.LoadProgress{}, core.LoadResult{}
	d.enterState(StateStarting)
	return nil
}

// own is the owner's goroutine.
func (d *Device) own(ctx context.Context, r *run, req core.LoadRequest) {
	defer close(r.ended)
	b, err := d.start(ctx, req)
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, ErrStopped) {
			err = cause
		}
		r.loaded <- err
		return
	}
	r.loaded <- nil
	select {
	case <-b.Gone():
		err := b.Err()
		d.log.Error("backend ended unexpectedly", "error", err)
		d.fail(err)
		d.end(b, StateFailed)
	case <-r.stop:
		d.setState(StateDraining)
		d.drain(r.drain, b)
		r.err = d.end(b, StateStopped)
	}
}

// start brings the device to StateReady, or back to having no process.
func (d *Device) start(ctx context.Context, req core.LoadRequest) (*remote.Backend, error) {
	program := d.cfg.Program
	program.Name, program.Logger = d.cfg.Name, d.log
	program.Bounds = remote.BoundsOf(&req)
	b, err := remote.Start(ctx, program)
	if err != nil {
		state := d.failStart(ctx, err)
		if b != nil {
			d.end(b, state) // repeats that the process does not end
		}
		return nil, err
	}
	d.mu.Lock()
	d.status.PID, d.status.Transport = b.PID(), b.Transport()
	d.enterState(StateLoading)
	d.mu.Unlock()
	result, err := b.LoadStage(ctx, req, func(p core.LoadProgress) {
		d.mu.Lock()
		d.status.Progress = p
		d.mu.Unlock()
	})
	if err != nil {
		state := d.failStart(ctx, err)
		if endErr := d.end(b, state); endErr != nil {
			err = fmt.Errorf("%w; %w", err, endErr)
		}
		return nil, err
	}
	d.mu.Lock()
	d.status.Result = result
	d.able = b.Able(result.Capabilities)
	d.enterState(StateReady)
	d.mu.Unlock()
	d.log.Info("device is ready", "layout", result.LayoutID, "weight_bytes", result.WeightBytes)
	return b, nil
}

// failStart records why a start came to nothing and returns the state that the
// device is in without its process.
func (d *Device) failStart(ctx context.Context, err error) State {
	if errors.Is(context.Cause(ctx), ErrStopped) {
		d.setState(StateStopped)
		return StateStopped
	}
	d.fail(err)
	return StateFailed
}

// drain waits for the steps in flight. Where it does not succeed they are lost
// with the process.
func (d *Device) drain(ctx context.Context, b *remote.Backend) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.DrainTimeout)
	defer cancel()
	if err := b.Drain(ctx); err != nil {
		d.log.Warn("device is stopped without having drained", "error", err)
	}
}

// end ends the process and records the state without it, or that the process
// does not end.
func (d *Device) end(b *remote.Backend, state State) error {
	err := b.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.able = nil
	d.status.Result = core.LoadResult{}
	if err != nil {
		d.stuck = b
		d.status.Err, d.status.ErrTime = err, time.Now()
		state = StateFailed
		d.log.Error("backend does not end, its device is not usable", "error", err)
	} else {
		d.status.PID = 0
	}
	if d.status.State != state {
		d.enterState(state)
	}
	return err
}

// fail records an error and the state that it leads to.
func (d *Device) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.Err, d.status.ErrTime = err, time.Now()
	d.able = nil
	d.enterState(StateFailed)
}

func (d *Device) setState(s State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.enterState(s)
}

// enterState is setState with mu held.
func (d *Device) enterState(s State) {
	d.log.Debug("device changes state", "from", d.status.State.String(), "to", s.String())
	d.status.State, d.status.Since = s, time.Now()
}

// Backend returns the backend with the abilities of its stage, or nil where the
// device is neither ready nor draining. When its process ends, what it is asked
// fails with core.ErrBackendGone; the next Start makes another one.
func (d *Device) Backend() core.Backend {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.able
}

// Status returns the device's status.
func (d *Device) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

// Stop drains the device and ends its process; a start under way is given up.
// ctx and the drain timeout bound the draining, after which the process is ended
// in any case, within seconds. runner.ErrNotReaped if the process is stuck
// inside the kernel. Stopping a device without a process is no error.
func (d *Device) Stop(ctx context.Context) error {
	d.mu.Lock()
	r := d.run
	d.mu.Unlock()
	if r == nil {
		return nil
	}
	r.stopOnce.Do(func() {
		r.drain = ctx
		close(r.stop)
		r.abort(ErrStopped)
	})
	<-r.ended
	if r.err != nil {
		return fmt.Errorf("stop device %s: %w", d.cfg.Name, r.err)
	}
	return nil
}
