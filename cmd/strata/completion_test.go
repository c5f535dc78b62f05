package main

import (
	"strings"
	"testing"
)

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, stderr := command(t, nil, "", "completion", shell); code != 0 || !strings.Contains(stdout, "strata") || stderr != "" {
			t.Errorf("%s: exit code %d, standard error %q", shell, code, stderr)
		}
	}
	for args, want := range map[string]string{
		"serve --log-level ":     "trace debug info warn error off :4",
		"run --think ":           "on off low medium high :4",
		"serve --model ":         "gguf :8",
		"config print --config ": "yaml yml :8",
		"plug":                   "plugins :4",
	} {
		code, stdout, _ := command(t, nil, "", append([]string{"__completeNoDesc"}, strings.Split(args, " ")...)...)
		if got := strings.Join(strings.Fields(stdout), " "); code != 0 || got != want {
			t.Errorf("%q: exit code %d, offers %q, want %q", args, code, got, want)
		}
	}
}
