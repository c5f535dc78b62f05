package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRun(t *testing.T) {
	s := start(t, nil)
	tests := []struct {
		name, stdin    string
		args           []string
		stdout, stderr string
	}{
		{"argument", "", []string{whoAreYou}, iAmPebble + "\n", ""},
		{"standard input", whoAreYou + "\n", nil, iAmPebble + "\n", ""},
		{"both", "are you?\n", []string{"Who"}, "", ""},
		{"server", "", []string{"--url", s.url + "/", whoAreYou}, iAmPebble + "\n", ""},
		{"thinking", "", []string{"--show-thinking", "--url", s.url, whoAreYou}, iAmPebble + "\n", "A simple question, I can answer directly.\n"},
		{"no thinking", "", []string{"--show-thinking", "--think", "off", "--url", s.url, whoAreYou}, iAmPebble + "\n", ""},
		{"limit", "", []string{"--max-tokens", "14", "--url", s.url, whoAreYou}, "I am Pebble\n", "strata: the answer was cut off at the limit of tokens\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := strata(t, nil, append([]string{"run", "--temperature", "0"}, tt.args...)...)
			cmd.Stdin = strings.NewReader(tt.stdin)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, stderr.String())
			}
			if tt.stdout == "" {
				tt.stdout = string(out) // some answer
			}
			if d := cmp.Diff([]string{tt.stdout, tt.stderr}, []string{string(out), stderr.String()}); d != "" || len(out) == 0 {
				t.Error(d)
			}
		})
	}
	t.Run("seed", func(t *testing.T) {
		sample := func(seed string) string {
			out, err := strata(t, nil, "run", "--url", s.url, "--temperature", "1.5", "--seed", seed, "--think", "off", "--max-tokens", "40", "Tell me a story.").Output()
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
		if a, b, c := sample("0"), sample("0"), sample("1"); a != b || a == c {
			t.Errorf("seed 0: %q and %q, seed 1: %q", a, b, c)
		}
	})
}

// What the flags say reaches the server, and nothing else.
func TestRequest(t *testing.T) {
	var request []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, `{"data": [{"id": "m"}, {"id": "n"}]}`)
			return
		}
		request, _ = io.ReadAll(r.Body)
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"yes\"}}]}\n\ndata: [DONE]\n\n")
	}))
	defer server.Close()
	const always = `"model":"m","messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true},`
	for args, want := range map[string]string{
		"":                     `{` + always + `"temperature":0.7}`,
		"--temperature 0":      `{` + always + `"temperature":0}`,
		"--seed 0":             `{` + always + `"temperature":0.7,"seed":0}`,
		"--max-tokens 5":       `{` + always + `"temperature":0.7,"max_tokens":5}`,
		"--think on":           `{` + always + `"temperature":0.7,"enable_thinking":true}`,
		"--think off":          `{` + always + `"temperature":0.7,"enable_thinking":false}`,
		"--think high":         `{` + always + `"temperature":0.7,"reasoning_effort":"high"}`,
		"--system Be --seed 3": `{` + strings.Replace(always, "[{", `[{"role":"system","content":"Be"},{`, 1) + `"temperature":0.7,"seed":3}`,
	} {
		code, stdout, stderr := command(t, nil, "", append([]string{"run", "--url", server.URL, "a"}, strings.Fields(args)...)...)
		if code != 0 || stdout != "yes\n" || stderr != "" {
			t.Errorf("%s: exit code %d, standard output %q, standard error %q", args, code, stdout, stderr)
		}
		if d := cmp.Diff(want, string(request)); d != "" {
			t.Errorf("%s: %s", args, d)
		}
	}
}

func TestRunFailures(t *testing.T) {
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cr3t" {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error": {"message": "the key is wrong"}}`)
			return
		}
		fmt.Fprint(w, `{"data": []}`)
	}))
	defer refusing.Close()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, `{"data": [{"id": "m"}]}`)
			return
		}
		fmt.Fprint(w, ": a comment\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"half\"}}]}\n\n")
	}))
	defer broken.Close()
	tests := []struct {
		name    string
		environ []string
		stdin   string
		args    []string
		code    int
		stdout  string
		says    string
	}{
		{"no prompt", nil, " \n", nil, exitUsage, "", "there is no prompt"},
		{"two prompts", nil, "", []string{"a", "b"}, exitUsage, "", "accepts at most 1 arg(s)"},
		{"thinking", nil, "", []string{"--think", "much", "a"}, exitUsage, "", `--think: thinking can be on, off, low, medium, high, not "much"`},
		{"address", nil, "", []string{"--url", "localhost:8080", "a"}, exitUsage, "", "is not an address such as"},
		{"nobody there", nil, "", []string{"--url", "http://127.0.0.1:1", "a"}, exitFailure, "", "reach the server at http://127.0.0.1:1"},
		{"no key", nil, "", []string{"--url", refusing.URL, "a"}, exitFailure, "", "401 Unauthorized: the key is wrong"},
		{"key", []string{"STRATA_API_KEY=s3cr3t"}, "", []string{"--url", refusing.URL, "a"}, exitFailure, "", "read answer: the stream ended early"},
		{"half an answer", nil, "", []string{"--url", broken.URL, "a"}, exitFailure, "half\n", "read answer: the stream ended early"},
		{"no model", nil, "", []string{"--model", filepath.Join(t.TempDir(), "none.gguf"), "--plugins", programs(t) + "/backends", "a"}, exitModel, "", "none.gguf"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := command(t, tt.environ, tt.stdin, append([]string{"run"}, tt.args...)...)
			if code != tt.code || stdout != tt.stdout || !strings.Contains(stderr, tt.says) {
				t.Errorf("exit code %d, want %d; standard output %q, standard error %q", code, tt.code, stdout, stderr)
			}
		})
	}
}

func TestRunIsInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("NOT RUN: processes cannot be sent signals here")
	}
	slow := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, `{"data": []}`)
			return
		}
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"half\"}}]}\n\n")
		_ = http.NewResponseController(w).Flush()
		close(slow)
		<-r.Context().Done()
	}))
	defer server.Close()
	cmd := strata(t, nil, "run", "--url", server.URL, "a")
	var stdout, stderr buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer ended.Stop()
	<-slow
	eventually(t, "text comes", 10*time.Second, func() bool { return stdout.String() == "half" })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted || stderr.String() != "strata: interrupted\n" {
		t.Errorf("error %v, standard error %q", err, stderr.String())
	}
}

// Commands and messages in a pipe; only answers and what was asked for come out.
func TestChatCommands(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "saved.json")
	input := "/stats\n/think off\n\"\"\"\n" + whoAreYou + "\n\"\"\"\n/system Be kind.\n/system\n/save " + saved + "\n/exit\nnever asked\n"
	cmd := strata(t, nil, "chat", "--temperature", "0")
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("There is no whole answer yet.\n"+iAmPebble+"\nBe kind.\n", string(out)); d != "" {
		t.Error(d)
	}
	want := `{
  "messages": [
    {
      "role": "system",
      "content": "Be kind."
    },
    {
      "role": "user",
      "content": "` + whoAreYou + `"
    },
    {
      "role": "assistant",
      "content": "` + iAmPebble + `"
    }
  ]
}
`
	text, err := os.ReadFile(saved)
	if d := cmp.Diff(want, string(text)); d != "" || err != nil {
		t.Errorf("error %v; %s", err, d)
	}
	for command, says := range map[string]string{"/save " + saved: "file exists", "/save": "needs the name of a file", "/think much": "thinking can be on"} {
		cmd := strata(t, nil, "chat")
		cmd.Stdin = strings.NewReader(command + "\n")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		var exit *exec.ExitError
		if out, err := cmd.Output(); !errors.As(err, &exit) || exit.ExitCode() != exitFailure || len(out) > 0 || !strings.Contains(stderr.String(), says) {
			t.Errorf("%s: error %v, standard output %q, standard error %q", command, err, out, stderr.String())
		}
	}
}
