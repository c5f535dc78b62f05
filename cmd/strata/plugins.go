package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/plugins"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/sdk/wire"
)

func (p *program) pluginsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugins",
		Short: "List or probe the backends",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.pluginsListCommand(), p.pluginsProbeCommand())
	return cmd
}

func (p *program) pluginsListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the backend programs",
		Long:  "List the backend programs, and say of each whether it can be used. None is started.",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := p.findPlugins(cmd.Flags(), "")
			if err != nil {
				return err
			}
			t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "backend\tprogram\tstate")
			for _, f := range found {
				state := "usable"
				if f.Err != nil {
					state = "not usable: " + oneLine(f.Err.Error())
				}
				fmt.Fprintf(t, "%s\t%s\t%s\n", f.Name, f.Path, state)
			}
			return t.Flush()
		},
	}
	bindPluginsFlags(cmd.Flags())
	return cmd
}

func (p *program) pluginsProbeCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "probe [NAME]",
		Short: "Start the backends and show what they can do and on which devices",
		Long: `Start the backends, or the named one, and show what they can do and on which
devices. No model is loaded. If one of them does not start or answer in time,
the exit code is 5.`,
		Example: "  strata plugins probe\n  strata plugins probe cpu",
		Args:    usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout <= 0 {
				return with(exitUsage, fmt.Errorf("--timeout: must be more than 0 (got %v)", timeout))
			}
			found, err := p.findPlugins(cmd.Flags(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer release()
			err = p.probeAll(ctx, found, timeout)
			if ctx.Err() != nil {
				return errInterrupted
			}
			return err
		},
	}
	bindPluginsFlags(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", remote.DefaultStartTimeout, "`TIME` that a backend may take to start, and again to answer")
	return cmd
}

func bindPluginsFlags(flags *pflag.FlagSet) {
	bindConfigFlag(flags)
	config.BindPluginsFlag(flags)
}

// findPlugins returns the backends of the configured folder, or the one of that
// name.
func (p *program) findPlugins(flags *pflag.FlagSet, name string) ([]plugins.Program, error) {
	src, err := p.sources(flags)
	if err != nil {
		return nil, err
	}
	loaded, err := config.Load(src)
	if err != nil {
		return nil, with(exitUsage, err)
	}
	p.warn(loaded)
	dir := loaded.Config.Plugins.Dir
	found, err := plugins.List(dir)
	if err != nil {
		return nil, with(exitBackend, err)
	}
	var names []string
	for _, f := range found {
		if f.Name == name {
			return []plugins.Program{f}, nil
		}
		names = append(names, f.Name)
	}
	switch {
	case len(found) == 0:
		return nil, with(exitBackend, fmt.Errorf("there are no backends in %s\nTry: make build, or name the folder with --plugins", dir))
	case name != "":
		return nil, with(exitBackend, fmt.Errorf("there is no backend %q in %s, only %s", name, dir, strings.Join(names, ", ")))
	}
	return found, nil
}

// probed is what a backend says of itself.
type probed struct {
	info      core.Info
	transport remote.Transport
	devices   []core.Device
	err       error
}

// probeAll probes the backends side by side and shows them in order.
func (p *program) probeAll(ctx context.Context, found []plugins.Program, timeout time.Duration) error {
	results := make([]probed, len(found))
	var probes sync.WaitGroup
	for i, f := range found {
		probes.Go(func() { results[i] = probe(ctx, f, timeout) })
	}
	probes.Wait()
	var failed []error
	for i, f := range found {
		if i > 0 {
			fmt.Fprintln(p.out)
		}
		if err := results[i].show(p.out, f); err != nil {
			return err
		}
		if err := results[i].err; err != nil {
			failed = append(failed, fmt.Errorf("backend %s: %s", f.Name, oneLine(err.Error())))
		}
	}
	return with(exitBackend, errors.Join(failed...))
}

// probe starts a backend, asks it and ends it, each within a bounded time.
func probe(ctx context.Context, program plugins.Program, timeout time.Duration) (out probed) {
	if program.Err != nil {
		return probed{err: program.Err}
	}
	// The least of bounds: with any, shared memory is tried too.
	bounds := wire.Bounds{MaxSequences: 1, MaxRows: 1, MaxLogitRows: 1, Width: 1, Vocab: 1, Embed: true, Head: true}
	b, err := remote.Start(ctx, remote.Config{Name: program.Name, Path: program.Path, Bounds: bounds, StartTimeout: timeout})
	if b != nil {
		defer func() { out.err = errors.Join(out.err, b.Close()) }()
	}
	if err != nil {
		return probed{err: err}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	out.transport = b.Transport()
	if out.info, out.err = b.Info(ctx); out.err == nil {
		out.devices, out.err = b.Probe(ctx)
	}
	if out.err != nil && ctx.Err() != nil {
		out.err = fmt.Errorf("%w: %w", context.Cause(ctx), out.err)
	}
	return out
}

func (r *probed) show(out io.Writer, program plugins.Program) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(t, "  %s\t%s\n", name, oneLine(value)) }
	fmt.Fprintln(t, program.Name)
	row("program", program.Path)
	if r.info.Name != "" {
		row("version", r.info.Version)
		row("protocol", r.info.Protocol)
		row("capabilities", strings.Join(r.info.Capabilities, ", "))
		row("transport", string(r.transport))
	}
	for _, d := range r.devices {
		text := d.Name
		if d.Threads > 0 {
			text += fmt.Sprintf(", %d threads", d.Threads)
		}
		if d.MemoryTotal > 0 {
			text += fmt.Sprintf(", %v of %v free", size(d.MemoryFree), size(d.MemoryTotal))
		}
		row("device "+d.ID, text)
	}
	if r.err != nil {
		row("not usable", r.err.Error())
	} else if len(r.devices) == 0 {
		row("devices", "none on this machine")
	}
	return t.Flush()
}

// oneLine makes text of others fit for a line on a terminal.
func oneLine(s string) string {
	return strings.Map(printable, strings.Join(strings.Fields(s), " "))
}
