// Package host assembles the parts of the host process: it reads the model file,
// plans its stages, starts a backend process per device, and puts the engine on
// top. The commands that execute a model share it.
package host

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"

	"golang.org/x/sync/errgroup"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/engine"
	"github.com/strata-engine/strata/core/expert"
	"github.com/strata-engine/strata/core/kv"
	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/core/plan"
	"github.com/strata-engine/strata/plugins"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/plugins/supervisor"
	"github.com/strata-engine/strata/sdk/arch"
)

// stepTimeout bounds one step of one stage; far above what a window costs on any
// device, it only keeps a lost step from being waited for without end.
const stepTimeout = 2 * time.Minute

// logitRows is how many logits rows a window may ask for besides one for every
// sequence.
const logitRows = 16

// OpenModel reads and checks a model file, including whether it has the tensors
// that its architecture needs. Errors wrap model.ErrNotFound or
// model.ErrInvalid.
func OpenModel(path, draft string) (*model.File, error) {
	file, err := model.Open(path, model.WithDraft(draft))
	if err != nil {
		return nil, err
	}
	if err := arch.Check(remote.ModelSpec(file.Spec)); err != nil {
		return nil, fmt.Errorf("open %s: %w: %w", path, model.ErrInvalid, err)
	}
	return file, nil
}

// Host is a model in execution. Stop ends it.
type Host struct {
	// Engine runs requests.
	Engine *engine.Engine
	// KV owns the sequences, Experts knows where experts live.
	KV      *kv.Store
	Experts *expert.Pool
	// Context is the most tokens of a prompt and its answer.
	Context int

	devices []*supervisor.Device
	stages  []core.Stage
	log     hclog.Logger
}

// Progress reports how far loading has come: bytes of weights made ready over
// all devices.
type Progress func(core.LoadProgress)

// SettingError says that the configuration does not go with the model.
type SettingError struct{ err error }

func (e *SettingError) Error() string { return e.err.Error() }
func (e *SettingError) Unwrap() error { return e.err }

// BackendError says that a backend is missing or does not work.
type BackendError struct{ err error }

func (e *BackendError) Error() string { return e.err.Error() }
func (e *BackendError) Unwrap() error { return e.err }

// Start starts a backend process per configured device, loads the stages side
// by side, and starts the engine. On error, *SettingError, *BackendError or of the
// context, no process is left. progress may be nil; it is not called concurrently.
func Start(ctx context.Context, cfg *config.Config, file *model.File, progress Progress, log hclog.Logger) (*Host, error) {
	hyper := &file.Spec.Hyper
	ranges := make([]*plan.Range, len(cfg.Devices))
	for i, d := range cfg.Devices {
		if d.Layers == "" {
			continue
		}
		r, err := plan.ParseRange(d.Layers)
		if err != nil {
			return nil, &SettingError{fmt.Errorf("devices[%d]: %w", i, err)}
		}
		ranges[i] = &r
	}
	stages, err := plan.Stages(hyper, ranges, cfg.Model.UseDraft && arch.CanDraft(remote.ModelSpec(file.Spec)))
	if err != nil {
		return nil, &SettingError{err}
	}
	h := &Host{Context: cfg.Context, stages: stages, log: log, Experts: expert.New(hyper.Layers, hyper.Experts)}
	if h.Context == 0 {
		h.Context = min(hyper.Context, config.DefaultContext)
	}
	if h.Context < 2 {
		return nil, &SettingError{fmt.Errorf("context is %d, but a prompt and its answer have at least 2 tokens: set a larger context, or use a model that was trained for one", h.Context)}
	}
	if h.Context > hyper.Context {
		return nil, &SettingError{fmt.Errorf("context is %d, but the model was trained for at most %d tokens: set a smaller context", h.Context, hyper.Context)}
	}
	rows := cfg.PrefillChunk + cfg.MaxSequences
	dirs, err := plugins.Directories(cfg.Plugins.Dir)
	if err != nil {
		return nil, &BackendError{err}
	}
	requests := make([]core.LoadRequest, len(stages))
	for i, d := range cfg.Devices {
		program, err := plugins.Find(d.Backend, dirs...)
		if err != nil {
			return nil, &BackendError{fmt.Errorf("devices[%d]: %w", i, err)}
		}
		requests[i] = core.LoadRequest{
			Model: file.Spec, Stage: stages[i], Device: d.Device,
			Context: h.Context, MaxSequences: cfg.MaxSequences, MaxRows: rows, MaxLogitRows: cfg.MaxSequences + logitRows,
			Options: options(cfg, d),
		}
		name := d.Backend
		if len(cfg.Devices) > 1 {
			name = fmt.Sprintf("%s-%d", d.Backend, i)
		}
		h.devices = append(h.devices, supervisor.New(supervisor.Config{
			Name:    name,
			Program: remote.Config{Path: program.Path, Transport: remote.Transport(d.Transport), StepTimeout: stepTimeout},
			Logger:  log.Named(name),
		}))
	}
	if err := h.load(ctx, requests, progress); err != nil {
		return nil, errors.Join(err, h.stopDevices(context.WithoutCancel(ctx)))
	}
	h.KV = kv.New(cfg.MaxSequences*h.Context, cfg.MaxSequences)
	backends := make([]engine.Stage, len(h.devices))
	for i, d := range h.devices {
		status, backend := d.Status(), d.Backend()
		if backend == nil {
			err := &BackendError{fmt.Errorf("start engine: device %s is gone again: %w", status.Name, status.Err)}
			return nil, errors.Join(err, h.stopDevices(context.WithoutCancel(ctx)))
		}
		backends[i] = engine.Stage{Device: status.Name, Backend: backend}
		tier := core.TierDevice
		if status.Result.MappedBytes > 0 {
			tier = core.TierPageCache
		}
		if err := h.Experts.Place(status.Name, stages[i].First, stages[i].Last, tier); err != nil {
			return nil, errors.Join(err, h.stopDevices(context.WithoutCancel(ctx)))
		}
	}
	h.Engine, err = engine.New(engine.Config{
		Stages: backends, Model: file.Spec, KV: h.KV, Context: h.Context,
		Queue: cfg.QueueLimit, Sequences: cfg.MaxSequences, Rows: rows, Chunk: cfg.PrefillChunk,
		StepTimeout: stepTimeout, Logger: log.Named("engine"),
	})
	if err != nil {
		return nil, errors.Join(err, h.stopDevices(context.WithoutCancel(ctx)))
	}
	return h, nil
}

// options are a device's settings. CPU devices that name no threads get the configured
// number, if there is one.
func options(cfg *config.Config, d config.Device) map[string]string {
	options := make(map[string]string, len(d.Options)+1)
	for k, v := range d.Options {
		options[k] = v
	}
	if _, named := options["threads"]; !named && d.Backend == "cpu" && cfg.Threads > 0 {
		options["threads"] = strconv.Itoa(cfg.Threads)
	}
	return options
}

// load starts all devices side by side.
func (h *Host) load(ctx context.Context, requests []core.LoadRequest, progress Progress) error {
	loads, loading := errgroup.WithContext(ctx)
	for i, d := range h.devices {
		loads.Go(func() error {
			if err := d.Start(loading, requests[i]); err != nil {
				return &BackendError{err}
			}
			return nil
		})
	}
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for progress != nil {
			progress(h.progress())
			select {
			case <-tick.C:
			case <-done:
				progress(h.progress())
				return
			}
		}
	}()
	err := loads.Wait()
	close(done)
	<-watched
	return err
}

// progress sums what the devices report; the phase is that of a device that is
// not ready.
func (h *Host) progress() core.LoadProgress {
	var sum core.LoadProgress
	for _, d := range h.devices {
		p := d.Status().Progress
		sum.Bytes, sum.Total = sum.Bytes+p.Bytes, sum.Total+p.Total
		if sum.Phase == "" || p.Phase != "" && p.Bytes < p.Total {
			sum.Phase = p.Phase
		}
	}
	return sum
}

// Backend returns the backend of the i-th device, or nil where it has none now.
func (h *Host) Backend(i int) core.Backend { return h.devices[i].Backend() }

// CountExperts takes the backends' routing counters into the expert pool. A
// backend that does not answer does not keep the others from being counted.
func (h *Host) CountExperts(ctx context.Context) error {
	var failed error
	for i := range h.devices {
		b, ok := h.Backend(i).(core.BackendWithExperts)
		if !ok {
			continue
		}
		uses, err := b.ExpertUses(ctx)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("count expert uses on device %d: %w", i, err))
			continue
		}
		for j, layer := range uses {
			failed = errors.Join(failed, h.Experts.Record(h.stages[i].First+j, layer))
		}
	}
	return failed
}

// Stop ends the engine and the backend processes, at the latest a few seconds
// after ctx has ended.
func (h *Host) Stop(ctx context.Context) error {
	return errors.Join(h.Engine.Close(ctx), h.stopDevices(ctx))
}

func (h *Host) stopDevices(ctx context.Context) error {
	var stops errgroup.Group
	for _, d := range h.devices {
		stops.Go(func() error { return d.Stop(ctx) })
	}
	return stops.Wait()
}
