package main

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/strata-engine/strata/cmd/internal/host"
	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/api"
	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/template"
	"github.com/strata-engine/strata/core/tokenizer"
)

// stopTimeout bounds the end of the engine and of the devices.
const stopTimeout = 10 * time.Second

// forcedTimeout is what is left of it after a second signal.
const forcedTimeout = 500 * time.Millisecond

// loaded is a model with everything that executes it.
type loaded struct {
	model *api.Model
	host  *host.Host
}

// load opens the model file, starts the devices and has them load their stages.
// progress may be nil; it is called from one goroutine at a time. On error
// nothing is left running.
func load(ctx context.Context, cfg *config.Config, log hclog.Logger, progress func(core.LoadProgress)) (*loaded, error) {
	path, err := findModel(cfg.Model.Path)
	if err != nil {
		return nil, err
	}
	file, err := host.OpenModel(path, cfg.Model.Draft)
	if err != nil {
		return nil, err
	}
	var (
		tokens *tokenizer.Tokenizer
		chat   *template.Template
		l      loaded
	)
	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() (err error) {
		tokens, chat, err = api.ReadText(file)
		return err
	})
	work.Go(func() (err error) {
		l.host, err = host.Start(workCtx, cfg, file, progress, log)
		return coded(err)
	})
	if err := work.Wait(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	l.model = &api.Model{
		ID:        modelID(cfg.Model.Name, path),
		Spec:      file.Spec,
		Context:   l.host.Context,
		Sequences: cfg.MaxSequences,
		Loaded:    time.Now(),
		Tokenizer: tokens,
		Template:  chat,
		Engine:    watched{api.EngineOf(l.host.Engine), l.host},
		Parts:     l.host,
	}
	return &l, nil
}

// coded gives an error of the host the exit code of its kind.
func coded(err error) error {
	var setting *host.SettingError
	var backend *host.BackendError
	switch {
	case errors.As(err, &setting):
		return with(exitUsage, err)
	case errors.As(err, &backend):
		return with(exitBackend, err)
	}
	return err
}

// close ends the engine and the devices, within a bounded time.
func (l *loaded) close() error { return l.stop(context.Background()) }

// stop is close for which nothing in flight is waited for any more, but for a
// moment, once force has ended.
func (l *loaded) stop(force context.Context) error {
	if l.host == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	detach := context.AfterFunc(force, func() {
		select {
		case <-time.After(forcedTimeout):
			cancel()
		case <-ctx.Done():
		}
	})
	defer detach()
	return l.host.Stop(ctx)
}

// watched is the engine, which is also down where one of its devices is.
type watched struct {
	api.Engine
	host *host.Host
}

// Down returns why nothing can run any more, or nil.
func (w watched) Down() error { return w.host.Down() }

var shardName = regexp.MustCompile(`-\d{5}-of-\d{5}$`)

// modelID is the configured name, or the file's without extension and number.
func modelID(configured, path string) string {
	if configured != "" {
		return configured
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	return shardName.ReplaceAllString(name, "")
}
