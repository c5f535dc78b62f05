package main

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// installed makes a folder with the CPU backend and three that do not work.
func installed(t *testing.T) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("NOT RUN: uses shell scripts and permissions")
	}
	built := filepath.Join(programs(t), "backends", "strata-backend-cpu")
	dir := t.TempDir()
	if err := os.Link(built, filepath.Join(dir, "strata-backend-cpu")); err != nil {
		data, err := os.ReadFile(built)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "strata-backend-cpu"), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range map[string]string{"foreign": "echo hello", "hangs": "exec sleep 100", "open": "exit"} {
		if err := os.WriteFile(filepath.Join(dir, "strata-backend-"+name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "strata-backend-open"), 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPlugins(t *testing.T) {
	dir := installed(t)
	code, stdout, stderr := command(t, nil, "", "plugins", "list", "--plugins", dir)
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
	for _, want := range []string{`(?m)^backend +program +state$`, `(?m)^cpu +/\S+/strata-backend-cpu +usable$`, `(?m)^open +/\S+ +not usable: every user may write to it: run chmod o-w on it$`} {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}

	code, stdout, stderr = command(t, nil, "", "plugins", "probe", "cpu", "--plugins", dir)
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
	for _, want := range []string{`(?m)^cpu$`, `(?m)^  version +\S`, `(?m)^  protocol +v1alpha1$`, `(?m)^  capabilities +draft, \S.*`, `(?m)^  transport +(shm|grpc)$`, `(?m)^  device cpu +\S.*, \d+ threads`} {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if runtime.GOOS == "linux" && !regexp.MustCompile(`threads, \S+ [KMGT]iB of \S+ [KMGT]iB free\n`).MatchString(stdout) {
		t.Errorf("no memory in\n%s", stdout)
	}

	// What does not work is shown beside what does, in bounded time.
	started := time.Now()
	code, stdout, stderr = command(t, nil, "", "plugins", "probe", "--timeout", "2s", "--plugins", dir)
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	if code != exitBackend || strings.Count(stderr, "\n") != 3 {
		t.Errorf("exit code %d, standard error %q", code, stderr)
	}
	for _, want := range []string{
		"strata: backend foreign: start backend foreign: the program ended before it was ready (exit status 0",
		"strata: backend hangs: start backend hangs: the program does not answer within 2s",
		"strata: backend open: every user may write to it",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is not in\n%s", want, stderr)
		}
	}
	if !strings.Contains(stdout, "  protocol ") || strings.Count(stdout, "  not usable") != 3 {
		t.Errorf("printed\n%s", stdout)
	}
}

func TestPluginsFailures(t *testing.T) {
	empty := t.TempDir()
	one := t.TempDir()
	for _, name := range []string{"strata-backend-cpu", "strata-backend-cpu.exe"} {
		if err := os.WriteFile(filepath.Join(one, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		args []string
		code int
		says string
	}{
		{[]string{"list", "--plugins", empty}, exitBackend, "there are no backends in " + empty},
		{[]string{"probe", "--plugins", empty}, exitBackend, "there are no backends in " + empty},
		{[]string{"probe", "cuda", "--plugins", one}, exitBackend, `there is no backend "cuda" in ` + one + ", only cpu"},
		{[]string{"probe", "--timeout", "0s", "--plugins", one}, exitUsage, "--timeout: must be more than 0"},
		{[]string{"probe", "a", "b"}, exitUsage, "accepts at most 1 arg(s)"},
	}
	for _, tt := range tests {
		code, stdout, stderr := command(t, nil, "", append([]string{"plugins"}, tt.args...)...)
		if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.says) {
			t.Errorf("%q: exit code %d, standard output %q, standard error %q", tt.args, code, stdout, stderr)
		}
	}
}
