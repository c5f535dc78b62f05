package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(p.out, "strata %s %s/%s %s\n", version, runtime.GOOS, runtime.GOARCH, runtime.Version())
			return err
		},
	}
}
