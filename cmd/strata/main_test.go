package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/strata-engine/strata/testdata"
)

// The tests below build the programs and drive them as users do.

var build = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "strata-test"); err != nil {
		return "", err
	}
	for name, pkg := range map[string]string{"strata": "cmd/strata", "backends/strata-backend-cpu": "backends/cpu"} {
		if runtime.GOOS == "windows" {
			name += ".exe"
		}
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), "github.com/strata-engine/strata/"+pkg)
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("%w: %s", err, out)
		}
	}
	return dir, nil
})

// built says that build was called.
var built bool

func TestMain(m *testing.M) {
	code := m.Run()
	if built {
		dir, _ := build()
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// programs returns the folder of the built programs.
func programs(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	built = true
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// strata prepares a run in the repository's root, without settings of the
// surroundings.
func strata(t *testing.T, environ []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(programs(t), "strata"), args...)
	cmd.Dir = testdata.Root(t)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "STRATA_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, environ...)
	return cmd
}

// server is a running strata serve.
type server struct {
	cmd    *exec.Cmd
	url    string
	curl   string
	stderr *buffer
	done   chan struct{} // closed when it has ended
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func start(t *testing.T, environ []string, args ...string) *server {
	t.Helper()
	s := &server{cmd: strata(t, environ, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...), stderr: &buffer{}, done: make(chan struct{})}
	s.cmd.Stderr = s.stderr
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan bool, 1)
	go func() {
		defer close(s.done)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			line := strings.TrimSpace(lines.Text())
			if url := regexp.MustCompile(`http://\S+`).FindString(line); strings.HasPrefix(line, "Strata serves") {
				s.url = url
			}
			if strings.HasPrefix(line, "curl ") {
				s.curl = line
			}
			if strings.HasPrefix(line, "Ctrl-C") {
				ready <- true
			}
		}
		_ = s.cmd.Wait()
		close(ready)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case ok := <-ready:
		if !ok {
			t.Fatalf("strata serve ended early: %s", s.stderr)
		}
	case <-time.After(60 * time.Second):
		t.Fatalf("strata serve is not ready after 60 s: %s", s.stderr)
	}
	return s
}

// stop sends a signal and waits for the end.
func (s *server) stop(t *testing.T, signal os.Signal, limit time.Duration) int {
	t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.done:
	case <-time.After(limit):
		t.Fatalf("strata serve does not end within %v of %v: %s", limit, signal, s.stderr)
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *server) client() openai.Client {
	return openai.NewClient(option.WithBaseURL(s.url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

// ask is a question that the default model answers the same way always.
func ask(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "any", Temperature: openai.Float(0), MaxTokens: openai.Int(128),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
	}
}

func (s *server) health(t *testing.T) (int, map[string]any) {
	t.Helper()
	resp, err := http.Get(s.url + "/health")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, out
}

// children are the processes that the server started; Linux only.
func (s *server) children(t *testing.T) []string {
	t.Helper()
	var out []string
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err == nil {
			out = append(out, strings.Fields(string(b))...)
		}
	}
	return out
}

func eventually(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

const whoAreYou, iAmPebble = "Who are you?", "I am Pebble, a small language model."

func TestServe(t *testing.T) {
	s := start(t, nil, "--log-level", "trace")
	client := s.client()
	ctx := context.Background()

	t.Run("curl line", func(t *testing.T) {
		if _, err := exec.LookPath("curl"); err != nil || runtime.GOOS == "windows" {
			t.Skip("NOT RUN: curl and sh are needed")
		}
		out, err := exec.Command("sh", "-c", s.curl+" --silent --fail").Output()
		if err != nil || !strings.Contains(string(out), `"object":"chat.completion"`) {
			t.Errorf("%s answers %s, error %v", s.curl, out, err)
		}
	})
	t.Run("whole and stream", func(t *testing.T) {
		whole, err := client.Chat.Completions.New(ctx, ask(whoAreYou))
		if err != nil {
			t.Fatal(err)
		}
		if c := whole.Choices[0]; c.Message.Content != iAmPebble || c.FinishReason != "stop" {
			t.Errorf("choice %+v", c)
		}
		params := ask(whoAreYou)
		params.StreamOptions.IncludeUsage = openai.Bool(true)
		stream := client.Chat.Completions.NewStreaming(ctx, params)
		var all openai.ChatCompletionAccumulator
		for stream.Next() {
			all.AddChunk(stream.Current())
		}
		if stream.Err() != nil || all.Choices[0].Message.Content != iAmPebble || all.Usage.TotalTokens != whole.Usage.TotalTokens {
			t.Errorf("choice %+v, usage %+v, error %v", all.Choices[0], all.Usage, stream.Err())
		}
	})
	t.Run("stop string, log-probabilities, choices", func(t *testing.T) {
		params := ask(whoAreYou)
		params.Stop.OfStringArray = []string{"a small"}
		params.N = openai.Int(3)
		params.Logprobs, params.TopLogprobs = openai.Bool(true), openai.Int(2)
		got, err := client.Chat.Completions.New(ctx, params)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range got.Choices {
			if c.Message.Content != "I am Pebble, " || c.FinishReason != "stop" {
				t.Errorf("choice %+v", c)
			}
			text := ""
			for _, l := range c.Logprobs.Content {
				text += l.Token
				if len(l.TopLogprobs) != 2 || l.TopLogprobs[0].Token != l.Token || l.Logprob > 0 {
					t.Errorf("log-probabilities %+v", l)
				}
			}
			if text != "I am Pebble, a" { // half of the last token, " a", was sent
				t.Errorf("tokens %q", text)
			}
		}
	})
	t.Run("seeds", func(t *testing.T) {
		sample := func(seed int64) string {
			params := ask("Tell me a story.")
			params.Temperature, params.Seed, params.MaxTokens = openai.Float(1.5), openai.Int(seed), openai.Int(40)
			params.ReasoningEffort = "none"
			got, err := client.Chat.Completions.New(ctx, params)
			if err != nil {
				t.Fatal(err)
			}
			return got.Choices[0].Message.Content
		}
		if a, b, c := sample(1), sample(1), sample(2); a != b || a == c {
			t.Errorf("seed 1: %q and %q, seed 2: %q", a, b, c)
		}
	})
	t.Run("at the same time", func(t *testing.T) {
		var group sync.WaitGroup
		for range 12 {
			group.Go(func() {
				got, err := client.Chat.Completions.New(ctx, ask(whoAreYou))
				if err != nil || got.Choices[0].Message.Content != iAmPebble {
					t.Errorf("answer %+v, error %v", got, err)
				}
			})
		}
		group.Wait()
	})
	t.Run("over-long prompt", func(t *testing.T) {
		_, err := client.Chat.Completions.New(ctx, ask(strings.Repeat("many words ", 40000)))
		var failure *openai.Error
		if !errors.As(err, &failure) || failure.StatusCode != 400 || failure.Code != "context_length_exceeded" || !strings.Contains(failure.Message, "32768") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("client leaves", func(t *testing.T) {
		leaving, leave := context.WithCancel(ctx)
		defer leave()
		params := ask(whoAreYou)
		params.MaxTokens = openai.Int(30000)
		stream := client.Chat.Completions.NewStreaming(leaving, params, option.WithJSONSet("ignore_eos", true))
		for range 20 {
			stream.Next()
		}
		if _, h := s.health(t); h["running"] != 1.0 {
			t.Errorf("health %v while an answer is written, error %v", h, stream.Err())
		}
		leave()
		stream.Close()
		eventually(t, "the generation ends", 2*time.Second, func() bool {
			_, h := s.health(t)
			return h["running"] == 0.0 && h["queued"] == 0.0
		})
	})

	children := s.children(t)
	if code := s.stop(t, syscall.SIGTERM, 15*time.Second); code != 0 {
		t.Errorf("exit code %d after SIGTERM: %s", code, s.stderr)
	}
	if runtime.GOOS == "linux" && len(children) == 0 {
		t.Error("there was no backend process")
	}
	for _, pid := range children {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			t.Errorf("process %s is still there", pid)
		}
	}
	log := s.stderr.String()
	if !strings.Contains(log, "completion") {
		t.Error("the trace log has no line about completions")
	}
	for _, secret := range []string{whoAreYou, "Who are", "Pebble,", "small language", "many words"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log contains %q", secret)
		}
	}
}

// Where the layers lie and how steps travel changes no token.
func TestDevices(t *testing.T) {
	const story = "Tom has 15 marbles and buys 8 more. How many marbles does Tom have?"
	tests := []struct{ name, devices string }{
		{"one", `[{"backend":"cpu"}]`},
		{"two", `[{"backend":"cpu","layers":"0-3","options":{"threads":1}},{"backend":"cpu","layers":"4-7"}]`},
		{"three unnamed", `[{"backend":"cpu"},{"backend":"cpu"},{"backend":"cpu"}]`},
		{"stream of messages", `[{"backend":"cpu","transport":"grpc","layers":"0-4"},{"backend":"cpu","layers":"5-7"}]`},
	}
	var first string
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, []string{"STRATA_DEVICES=" + tt.devices})
			params := ask(story)
			params.Logprobs, params.TopLogprobs = openai.Bool(true), openai.Int(3)
			client := s.client()
			got, err := client.Chat.Completions.New(context.Background(), params)
			if err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprint(got.Choices[0].Message.RawJSON(), got.Choices[0].Logprobs.RawJSON())
			if i == 0 {
				first = text
			}
			if text != first {
				t.Errorf("the answer is %s, on one device %s", text, first)
			}
			if want := strings.Count(tt.devices, "backend"); runtime.GOOS == "linux" && len(s.children(t)) != want {
				t.Errorf("%d backend processes, want %d", len(s.children(t)), want)
			}
		})
	}
}

func TestSecondSignalForces(t *testing.T) {
	s := start(t, nil)
	params := ask(whoAreYou)
	params.MaxTokens = openai.Int(30000)
	client := s.client()
	stream := client.Chat.Completions.NewStreaming(context.Background(), params, option.WithJSONSet("ignore_eos", true))
	defer stream.Close()
	if !stream.Next() {
		t.Fatal(stream.Err())
	}
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.done:
		t.Fatal("the first signal did not wait for the running request")
	case <-time.After(200 * time.Millisecond):
	}
	if code := s.stop(t, os.Interrupt, 10*time.Second); code != exitInterrupted {
		t.Errorf("exit code %d, want %d: %s", code, exitInterrupted, s.stderr)
	}
	for stream.Next() {
	}
	if stream.Err() == nil || !strings.Contains(stream.Err().Error(), "shutting down") {
		t.Errorf("the stream ends with %v", stream.Err())
	}
}

func TestBackendDies(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("NOT RUN: finds the backend through /proc")
	}
	s := start(t, nil)
	pid, err := strconv.Atoi(s.children(t)[0])
	if err != nil {
		t.Fatal(err)
	}
	backend, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "health tells", 5*time.Second, func() bool {
		code, h := s.health(t)
		return code == 503 && h["status"] == "error"
	})
	client := s.client()
	_, err = client.Chat.Completions.New(context.Background(), ask(whoAreYou))
	var failure *openai.Error
	if !errors.As(err, &failure) || failure.StatusCode != 503 || failure.Type != "server_error" {
		t.Errorf("error %v", err)
	}
	if code := s.stop(t, syscall.SIGTERM, 15*time.Second); code != 0 {
		t.Errorf("exit code %d: %s", code, s.stderr)
	}
}

func TestChat(t *testing.T) {
	want := iAmPebble + "\n" + iAmPebble + "\n"
	input := whoAreYou + "\n\n/clear\n" + whoAreYou + "\n/exit\nnever asked\n"
	s := start(t, nil)
	for name, args := range map[string][]string{"in this process": nil, "with a server": {"--url", s.url}} {
		t.Run(name, func(t *testing.T) {
			cmd := strata(t, nil, append([]string{"chat", "--temperature", "0"}, args...)...)
			cmd.Stdin = strings.NewReader(input)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if d := cmp.Diff(want, string(out)); d != "" || err != nil {
				t.Errorf("error %v: %s; %s", err, stderr.String(), d)
			}
		})
	}
}

// Failures are one clear line, an exit code, and come at once.
func TestFailures(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := testdata.Model(t, "pebble-q4-mtp.gguf")
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	truncated := write("truncated.gguf", data[:len(data)/2])
	foreign := write("foreign.gguf", []byte("#!/bin/sh\necho not a model\n"))
	typo := write("typo.yaml", []byte("server: {lisen: 127.0.0.1:1}\n"))
	empty := filepath.Join(dir, "backends")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()

	tests := []struct {
		name    string
		environ []string
		args    []string
		code    int
		lines   int
		says    string
	}{
		{"unknown command", nil, []string{"serv"}, exitUsage, 0, `unknown command "serv"`},
		{"unknown flag", nil, []string{"serve", "--lisen", "x"}, exitUsage, 2, "unknown flag: --lisen"},
		{"surplus argument", nil, []string{"serve", "model.gguf"}, exitUsage, 2, `unknown command "model.gguf"`},
		{"flag value", nil, []string{"serve", "--context", "many"}, exitUsage, 2, `invalid argument "many"`},
		{"configuration file", nil, []string{"serve", "--config", typo}, exitUsage, 1, "server.lisen: is not a setting. Try: server.listen"},
		{"configuration file by variable", []string{"STRATA_CONFIG=" + typo}, []string{"serve"}, exitUsage, 1, "server.lisen: is not a setting. Try: server.listen"},
		{"no configuration file", nil, []string{"serve", "--config", filepath.Join(dir, "none.yaml")}, exitUsage, 1, "no such file"},
		{"variable", []string{"STRATA_SERVER__LISTEN=here"}, []string{"serve"}, exitUsage, 1, `STRATA_SERVER__LISTEN: must be HOST:PORT (got "here")`},
		{"backend", []string{`STRATA_DEVICES=[{"backend":"cpus"}]`}, []string{"serve"}, exitUsage, 1, `STRATA_DEVICES[0].backend: must be one of cpu (got "cpus"). Try: cpu`},
		{"layers", []string{`STRATA_DEVICES=[{"backend":"cpu","layers":"0-3"}]`}, []string{"serve", "--listen", "127.0.0.1:0"}, exitUsage, 1, "layers 4-7 are placed on no device"},
		{"option", []string{`STRATA_DEVICES=[{"backend":"cpu","options":{"thread":1}}]`}, []string{"serve", "--listen", "127.0.0.1:0"}, exitBackend, 1, `unknown option "thread"`},
		{"context of nothing", nil, []string{"serve", "--listen", "127.0.0.1:0", "--context", "1"}, exitUsage, 1, "context is 1, but"},
		{"context beyond the model's", nil, []string{"serve", "--listen", "127.0.0.1:0", "--context", "300000"}, exitUsage, 1, "trained for at most 262144"},
		{"no backends", nil, []string{"serve", "--plugins", empty}, exitUsage, 1, "the program strata-backend-cpu is missing"},
		{"busy port", nil, []string{"serve", "--listen", busy.Addr().String()}, exitListen, 2, "another program listens there"},
		{"no model", nil, []string{"serve", "--listen", "127.0.0.1:0", "--model", filepath.Join(dir, "none.gguf")}, exitModel, 1, "none.gguf"},
		{"truncated model", nil, []string{"serve", "--listen", "127.0.0.1:0", "--model", truncated}, exitModel, 1, "truncated.gguf"},
		{"foreign model", nil, []string{"serve", "--listen", "127.0.0.1:0", "--model", foreign}, exitModel, 1, "foreign.gguf"},
		{"inspect truncated", nil, []string{"inspect", truncated}, exitModel, 1, "truncated.gguf"},
		{"inspect nothing", nil, []string{"inspect"}, exitUsage, 2, "accepts 1 arg(s)"},
		{"chat without a server", nil, []string{"chat", "--url", "http://" + "127.0.0.1:1"}, exitFailure, 1, "reach the server at http://127.0.0.1:1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := strata(t, tt.environ, tt.args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			started := time.Now()
			out, err := cmd.Output()
			took := time.Since(started)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != tt.code {
				t.Errorf("error %v, want exit code %d", err, tt.code)
			}
			if took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			text := stderr.String()
			if lines := strings.Count(text, "\n"); tt.lines > 0 && lines != tt.lines || !strings.Contains(text, tt.says) || len(out) > 0 {
				t.Errorf("standard error has %d lines, want %d with %q:\n%s\nstandard output:\n%s", lines, tt.lines, tt.says, text, out)
			}
		})
	}
}

func TestInspectAndVersion(t *testing.T) {
	var out, stderr bytes.Buffer
	p := program{in: strings.NewReader(""), out: &out, err: &stderr}
	if code := p.run([]string{"inspect", testdata.Model(t, "pebble-q4-mtp.gguf")}); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	for _, want := range []string{
		`architecture +qwen4exp\n`, `layers +8 \(6 deltanet, 2 sparse-attention\)\n`, `MTP blocks +1\n`, `experts +32 per layer, 4 used`,
		`all +246 +18\.4 MiB\n`, `Q4_K +18 +`, `complete +yes`, `state +\S+ \S+ per token and`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	out.Reset()
	version = "v1.2.3"
	if code := p.run([]string{"version"}); code != 0 || !strings.HasPrefix(out.String(), "strata v1.2.3 ") {
		t.Errorf("exit code %d, %q", code, out.String())
	}
}

// TestHelp: what the help says about exit codes and commands is there.
func TestHelp(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"help"}} {
		var out bytes.Buffer
		p := program{in: strings.NewReader(""), out: &out, err: io.Discard}
		if code := p.run(args); code != 0 {
			t.Errorf("%q: exit code %d", args, code)
		}
		for _, want := range []string{"serve", "chat", "run", "inspect", "plugins", "config", "version", "completion", exitCodes} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q: %q is not in\n%s", args, want, out.String())
			}
		}
	}
}

// TestExitCodesAreDescribed: the help and docs/operations.md name the same exit
// codes.
func TestExitCodesAreDescribed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testdata.Root(t), "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	codes := func(rows *regexp.Regexp, text string) (out []string) {
		for _, m := range rows.FindAllStringSubmatch(text, -1) {
			out = append(out, m[1])
		}
		return out
	}
	help := codes(regexp.MustCompile(`(?m)^  (\d+)  +\S`), exitCodes)
	var constants []string
	for _, c := range []int{0, exitFailure, exitUsage, exitModel, exitListen, exitBackend, exitInterrupted} {
		constants = append(constants, strconv.Itoa(c))
	}
	if d := cmp.Diff(constants, help); d != "" {
		t.Errorf("help: %s", d)
	}
	if d := cmp.Diff(constants, codes(regexp.MustCompile(`(?m)^\| (\d+) \| `), string(text))); d != "" {
		t.Errorf("docs/operations.md: %s", d)
	}
}
