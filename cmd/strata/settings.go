package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/plugins"
)

// settings reads the configuration for a command: the file of --config or
// STRATA_CONFIG, the environment and the command's flags.
func (p *program) settings(flags *pflag.FlagSet) (*config.Config, hclog.Logger, error) {
	src, err := p.sources(flags)
	if err != nil {
		return nil, nil, err
	}
	src.Backends = backends
	loaded, err := config.Load(src)
	if err != nil {
		return nil, nil, with(exitUsage, err)
	}
	log := p.logger(&loaded.Config.Log)
	for _, w := range loaded.Warnings {
		log.Warn(w)
	}
	return &loaded.Config, log, nil
}

// sources are where a command's configuration comes from.
func (p *program) sources(flags *pflag.FlagSet) (config.Sources, error) {
	src := config.Sources{Defaults: config.Defaults(), File: p.variable("STRATA_CONFIG"), Environ: p.environ, Flags: flags}
	dirs, err := plugins.Directories("")
	if err != nil {
		return src, err
	}
	src.Defaults.Plugins.Dir = dirs[0]
	if f := flags.Lookup("config"); f != nil && f.Changed {
		src.File = f.Value.String()
	}
	return src, nil
}

// backends lists the backends whose programs are in a folder.
func backends(dir string) ([]string, error) {
	programs, err := plugins.List(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, program := range programs {
		names = append(names, program.Name)
	}
	return names, nil
}

func bindConfigFlag(flags *pflag.FlagSet) {
	flags.String("config", "", "YAML `FILE` with settings; also STRATA_CONFIG")
}

// logger writes to standard error.
func (p *program) logger(cfg *config.Log) hclog.Logger {
	options := &hclog.LoggerOptions{
		Name:       "strata",
		Level:      hclog.LevelFromString(cfg.Level),
		Output:     p.err,
		JSONFormat: cfg.Format == "json",
	}
	if terminal(p.err) && !options.JSONFormat && !p.plain() {
		options.Color = hclog.ForceColor
	}
	return hclog.New(options)
}

// defaultModel comes with Strata.
const defaultModel = "pebble-q4-mtp.gguf"

// findModel returns the model file to open: the configured one, or the one that
// comes with Strata, in models/ below the working directory or beside the
// folder of the program.
func findModel(configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	candidates := []string{filepath.Join("models", defaultModel)}
	if self, err := os.Executable(); err == nil {
		if self, err = filepath.EvalSymlinks(self); err == nil {
			candidates = append(candidates, filepath.Join(filepath.Dir(self), "..", "models", defaultModel))
		}
	}
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", with(exitModel, fmt.Errorf("no model is given and %s is not there\nTry: --model FILE", candidates[0]))
}
