package main

import (
	"github.com/spf13/cobra"
)

// flagValues are the values that shells offer for flags.
var flagValues = map[string][]string{
	"think":      thinkChoices,
	"log-level":  {"trace", "debug", "info", "warn", "error", "off"},
	"log-format": {"text", "json"},
}

// flagFiles are the extensions of the files that flags name.
var flagFiles = map[string][]string{
	"model":  {"gguf"},
	"draft":  {"gguf"},
	"config": {"yaml", "yml"},
}

// complete tells shells what can stand behind the flags of a command and of those
// below it.
func complete(cmd *cobra.Command) error {
	for name, values := range flagValues {
		if cmd.Flags().Lookup(name) == nil {
			continue
		}
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			return err
		}
	}
	for name, extensions := range flagFiles {
		if cmd.Flags().Lookup(name) == nil {
			continue
		}
		if err := cmd.MarkFlagFilename(name, extensions...); err != nil {
			return err
		}
	}
	for _, child := range cmd.Commands() {
		if err := complete(child); err != nil {
			return err
		}
	}
	return nil
}
