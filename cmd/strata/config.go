package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/strata-engine/strata/core/config"
)

func (p *program) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print or check the configuration",
		Args:  usage(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.configPrintCommand(), p.configCheckCommand())
	return cmd
}

func (p *program) configPrintCommand() *cobra.Command {
	var origin bool
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the settings that hold, as a configuration file",
		Long: `Print the settings that hold, as a configuration file: the defaults, then the
file of --config or STRATA_CONFIG, the environment and the flags, each
overriding the one before. Secrets are not shown.`,
		Example: "  strata config print --origin\n  strata config print --listen :9000 > strata.yaml",
		Args:    usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			src, err := p.sources(cmd.Flags())
			if err != nil {
				return err
			}
			loaded, err := config.Load(src)
			if err != nil {
				return with(exitUsage, err)
			}
			p.warn(loaded)
			text, err := loaded.YAML(origin)
			if err != nil {
				return err
			}
			_, err = p.out.Write(text)
			return err
		},
	}
	cmd.Flags().BoolVar(&origin, "origin", false, "say behind every setting where it comes from")
	bindConfigFlag(cmd.Flags())
	config.BindModelFlags(cmd.Flags())
	config.BindServerFlags(cmd.Flags())
	return cmd
}

func (p *program) configCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Say what is wrong with a configuration file",
		Long: `Say what is wrong with a configuration file, all of it at once. The environment
and the model are left out of it. A file with mistakes ends with exit code 2.`,
		Example: "  strata config check strata.yaml",
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			src, err := p.sources(cmd.Flags())
			if err != nil {
				return err
			}
			src.File, src.Environ, src.Flags, src.Backends = args[0], nil, nil, backends
			loaded, err := config.Load(src)
			if err != nil {
				return with(exitUsage, err)
			}
			p.warn(loaded)
			_, err = fmt.Fprintf(p.out, "%s is valid\n", args[0])
			return err
		},
	}
}

func (p *program) warn(loaded *config.Loaded) {
	for _, w := range loaded.Warnings {
		fmt.Fprintln(p.err, "strata: warning:", w)
	}
}
