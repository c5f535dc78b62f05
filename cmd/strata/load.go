package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/api"
	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/engine"
	"github.com/strata-engine/strata/core/expert"
	"github.com/strata-engine/strata/core/kv"
	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/core/plan"
	"github.com/strata-engine/strata/core/template"
	"github.com/strata-engine/strata/core/tokenizer"
	"github.com/strata-engine/strata/plugins"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/plugins/supervisor"
	"github.com/strata-engine/strata/sdk/arch"
)

// stepTimeout bounds one step of one stage: far beyond any that works.
const stepTimeout = 2 * time.Minute

// stopTimeout bounds the end of the engine and of the devices.
const stopTimeout = 10 * time.Second

// loaded is a model with everything that executes it.
type loaded struct {
	model   *api.Model
	engine  *engine.Engine
	devices []*supervisor.Device
	// experts knows where the experts lie.
	experts *expert.Pool
}

// load opens the model file, starts the devices and has them load their stages.
// progress may be nil; it is called from one goroutine at a time. On error
// nothing is left running.
func load(ctx context.Context, cfg *config.Config, log hclog.Logger, progress func(core.LoadProgress)) (_ *loaded, err error) {
	path, err := findModel(cfg.Model.Path)
	if err != nil {
		return nil, err
	}
	file, err := model.Open(path, model.WithDraft(cfg.Model.Draft))
	if err != nil {
		return nil, err
	}
	wire := remote.ModelSpec(file.Spec)
	if err := arch.Check(wire); err != nil {
		return nil, with(exitModel, fmt.Errorf("open model %s: %w", path, err))
	}
	stages, err := planStages(cfg, file.Spec, cfg.Model.UseDraft && arch.CanDraft(wire))
	if err != nil {
		return nil, with(exitUsage, err)
	}
	l := &loaded{experts: expert.New(file.Spec.Hyper.Layers, file.Spec.Hyper.Experts)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	requests, err := l.prepare(cfg, file.Spec, stages, log)
	if err != nil {
		return nil, err
	}
	var tokens *tokenizer.Tokenizer
	var chat *template.Template
	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() (err error) {
		tokens, chat, err = api.ReadText(file)
		return err
	})
	for i, device := range l.devices {
		work.Go(func() error { return with(exitBackend, device.Start(workCtx, requests[i])) })
	}
	stopWatching := l.watch(progress)
	err = work.Wait()
	stopWatching()
	if err != nil {
		return nil, err
	}
	if err := l.start(cfg, file.Spec, stages, requests[0].Context, log); err != nil {
		return nil, err
	}
	l.model = &api.Model{
		ID:        modelID(cfg.Model.Name, path),
		Spec:      file.Spec,
		Context:   requests[0].Context,
		Loaded:    time.Now(),
		Tokenizer: tokens,
		Template:  chat,
		Engine:    watched{api.EngineOf(l.engine), l.devices},
	}
	return l, nil
}

// planStages assigns the layers to the configured devices.
func planStages(cfg *config.Config, spec *core.ModelSpec, draft bool) ([]core.Stage, error) {
	ranges := make([]*plan.Range, len(cfg.Devices))
	for i, d := range cfg.Devices {
		if d.Layers == "" {
			continue
		}
		r, err := plan.ParseRange(d.Layers)
		if err != nil {
			return nil, fmt.Errorf("devices[%d]: %w", i, err)
		}
		ranges[i] = &r
	}
	return plan.Stages(&spec.Hyper, ranges, draft)
}

// prepare makes the devices and what each of them is to load.
func (l *loaded) prepare(cfg *config.Config, spec *core.ModelSpec, stages []core.Stage, log hclog.Logger) ([]core.LoadRequest, error) {
	length := cfg.Context
	if length == 0 {
		length = min(spec.Hyper.Context, config.DefaultContext)
	}
	var requests []core.LoadRequest
	for i, d := range cfg.Devices {
		program, err := plugins.Find(d.Backend, cfg.Plugins.Dir)
		if err != nil {
			return nil, with(exitBackend, err)
		}
		name := d.Backend
		if len(cfg.Devices) > 1 {
			name += "-" + strconv.Itoa(i)
		}
		l.devices = append(l.devices, supervisor.New(supervisor.Config{
			Name:    name,
			Program: remote.Config{Path: program.Path, Transport: remote.Transport(d.Transport), StepTimeout: stepTimeout},
			Logger:  log.Named("device"),
		}))
		options := maps.Clone(d.Options)
		if _, set := options["threads"]; !set && cfg.Threads > 0 && d.Backend == "cpu" {
			if options == nil {
				options = map[string]string{}
			}
			options["threads"] = strconv.Itoa(cfg.Threads)
		}
		requests = append(requests, core.LoadRequest{
			Model:        spec,
			Stage:        stages[i],
			Device:       d.Device,
			Context:      length,
			MaxSequences: cfg.MaxSequences,
			MaxRows:      cfg.PrefillChunk + cfg.MaxSequences,
			MaxLogitRows: cfg.MaxSequences,
			Options:      options,
		})
	}
	return requests, nil
}

// watch reports how far the devices have loaded, added up, until the returned
// function is called.
func (l *loaded) watch(progress func(core.LoadProgress)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	report := func() {
		var sum core.LoadProgress
		for _, d := range l.devices {
			p := d.Status().Progress
			sum.Bytes, sum.Total = sum.Bytes+p.Bytes, sum.Total+p.Total
			if sum.Phase == "" || p.Phase != "" && p.Bytes < p.Total {
				sum.Phase = p.Phase
			}
		}
		progress(sum)
	}
	go func() {
		defer close(ended)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				report()
			case <-end:
				report()
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// start makes the engine from devices that are ready.
func (l *loaded) start(cfg *config.Config, spec *core.ModelSpec, stages []core.Stage, length int, log hclog.Logger) error {
	var parts []engine.Stage
	for i, d := range l.devices {
		backend := d.Backend()
		if backend == nil {
			return with(exitBackend, fmt.Errorf("start engine: device %s is gone again: %w", d.Status().Name, d.Status().Err))
		}
		parts = append(parts, engine.Stage{Device: d.Status().Name, Backend: backend})
		tier := core.TierDevice
		if d.Status().Result.MappedBytes > 0 {
			tier = core.TierPageCache
		}
		if err := l.experts.Place(d.Status().Name, stages[i].First, stages[i].Last, tier); err != nil {
			return fmt.Errorf("start engine: %w", err)
		}
	}
	var err error
	l.engine, err = engine.New(engine.Config{
		Stages:      parts,
		Model:       spec,
		KV:          kv.New(length*cfg.MaxSequences, cfg.MaxSequences),
		Context:     length,
		Queue:       cfg.QueueLimit,
		Sequences:   cfg.MaxSequences,
		Rows:        cfg.PrefillChunk + cfg.MaxSequences,
		Chunk:       cfg.PrefillChunk,
		StepTimeout: stepTimeout,
		Logger:      log.Named("engine"),
	})
	return err
}

// close ends the engine and the devices, within a bounded time.
func (l *loaded) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var err error
	if l.engine != nil {
		err = l.engine.Close(ctx)
	}
	var stopping errgroup.Group
	for _, d := range l.devices {
		stopping.Go(func() error { return d.Stop(ctx) })
	}
	return errors.Join(err, stopping.Wait())
}

// watched is the engine, which is also down where one of its devices is.
type watched struct {
	api.Engine
	devices []*supervisor.Device
}

// Down returns why nothing can run any more, or nil.
func (w watched) Down() error {
	for _, d := range w.devices {
		if s := d.Status(); s.State == supervisor.StateFailed {
			return fmt.Errorf("device %s has failed: %w", s.Name, s.Err)
		}
	}
	return w.Engine.Down()
}

var shardName = regexp.MustCompile(`-\d{5}-of-\d{5}$`)

// modelID is the configured name, or the file's without extension and number.
func modelID(configured, path string) string {
	if configured != "" {
		return configured
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	return shardName.ReplaceAllString(name, "")
}
