package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/model"
)

// Exit codes, as the help text lists them.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitModel       = 3
	exitListen      = 4
	exitBackend     = 5
	exitInterrupted = 130
)

const exitCodes = `Exit codes:
  0    success
  1    failure
  2    wrong usage or configuration
  3    the model file is missing, damaged or not supported
  4    the address cannot be listened on
  5    a backend does not start, load or answer
  130  interrupted; serve: twice, and running requests were cut off`

// program is the process's surroundings, so that tests can replace them.
type program struct {
	in       io.Reader
	out, err io.Writer
	environ  []string
}

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// with gives an error an exit code; nil stays nil.
func with(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code, err}
}

// run executes a command line and returns the exit code.
func (p *program) run(args []string) int {
	root := p.root()
	root.SetArgs(args)
	err := complete(root)
	if err == nil {
		err = root.Execute()
	}
	if err == nil {
		return 0
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(p.err, "strata:", strings.TrimSuffix(line, "\n"))
	}
	return exitCode(err)
}

func exitCode(err error) int {
	var coded *exitError
	var invalid *config.Error
	switch {
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &invalid):
		return exitUsage
	case errors.Is(err, model.ErrInvalid), errors.Is(err, model.ErrNotFound):
		return exitModel
	}
	return exitFailure
}

// root builds the tree of commands.
func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "strata",
		Short:         "Run large mixture-of-experts language models on one computer",
		Long:          "Strata runs large mixture-of-experts language models on one computer and serves\nthem through an OpenAI-compatible API.\n\n" + exitCodes,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return with(exitUsage, fmt.Errorf("%w\nTry: %s --help", err, cmd.CommandPath()))
	})
	root.AddCommand(p.serveCommand(), p.chatCommand(), p.runCommand(), p.inspectCommand(), p.pluginsCommand(), p.configCommand(), p.versionCommand())
	return root
}

// usage turns complaints about arguments into usage errors.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return with(exitUsage, fmt.Errorf("%w\nTry: %s --help", err, cmd.CommandPath()))
		}
		return nil
	}
}

// terminal reports whether a stream is a terminal.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// plain reports whether output must be without colours and other styles.
func (p *program) plain() bool { return p.variable("NO_COLOR") != "" || p.dumb() }

// dumb reports whether the terminal can only write lines.
func (p *program) dumb() bool { return p.variable("TERM") == "dumb" }

// variable returns the value of an environment variable, "" where it is not set.
func (p *program) variable(name string) string {
	for _, v := range p.environ {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}
