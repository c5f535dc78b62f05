package runner

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/strata-engine/strata/sdk"
)

// roleVariable makes the test binary play a child process instead of running
// the tests.
const roleVariable = "STRATA_TEST_ROLE"

var handshake = plugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "STRATA_TEST", MagicCookieValue: "runner"}

// emptyPlugin is a gRPC plugin without a service: go-plugin's own are enough.
type emptyPlugin struct{ plugin.NetRPCUnsupportedPlugin }

func (emptyPlugin) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error { return nil }
func (emptyPlugin) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

var plugins = plugin.PluginSet{"backend": emptyPlugin{}}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		child(role)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child plays a process.
func child(role string) {
	quiet := hclog.NewNullLogger()
	serve := func() {
		plugin.Serve(&plugin.ServeConfig{HandshakeConfig: handshake, Plugins: plugins,
			GRPCServer: plugin.DefaultGRPCServer, Logger: quiet})
	}
	switch role {
	case "plugin":
		serve()
	case "crash":
		panic("the roof is on fire")
	case "exit":
		fmt.Fprintln(os.Stderr, `{"@level":"error","@message":"open device","error":"no such device"}`)
		os.Exit(3)
	case "chatty":
		fmt.Println("usage: chatty")
		os.Exit(2)
	case "silent", "deaf":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		time.Sleep(time.Hour)
	case "flood":
		line := strings.Repeat("x", 99) + "\n"
		for range 100_000 {
			io.WriteString(os.Stderr, line)
		}
		fmt.Fprintln(os.Stderr, "flood over")
		os.WriteFile(os.Getenv("STRATA_TEST_MARK"), nil, 0o600)
		time.Sleep(time.Hour)
	case "grandparent", "fugitive":
		// A grandchild that holds standard error and outlives its parent.
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), roleVariable+"=silent")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if role == "fugitive" {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		}
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		fmt.Fprintln(os.Stderr, "grandchild", cmd.Process.Pid)
		os.WriteFile(os.Getenv("STRATA_TEST_MARK"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
		serve()
	case "files":
		// Report what the descriptors deliver.
		for _, name := range []string{"STRATA_FD_A", "STRATA_FD_B"} {
			fd, err := strconv.Atoi(os.Getenv(name))
			if err != nil {
				panic(err)
			}
			b, err := io.ReadAll(os.NewFile(uintptr(fd), name))
			fmt.Fprintf(os.Stderr, "%s %s %v\n", name, b, err)
		}
		fmt.Fprintf(os.Stderr, "secret %q choice %q\n", os.Getenv("STRATA_TEST_SECRET"), os.Getenv("CUDA_VISIBLE_DEVICES"))
		os.Exit(7)
	case "lifeline":
		fd, err := strconv.Atoi(os.Getenv(sdk.EnvLifeline))
		if err != nil {
			panic(err)
		}
		n, err := os.NewFile(uintptr(fd), "lifeline").Read(make([]byte, 1))
		os.WriteFile(os.Getenv("STRATA_TEST_MARK"), fmt.Appendf(nil, "%d %v", n, err), 0o600)
	case "tracer":
		pid, err := strconv.Atoi(os.Getenv("STRATA_TEST_PID"))
		if err != nil {
			panic(err)
		}
		runtime.LockOSThread() // a tracer is a thread
		if err := unix.PtraceSeize(pid); err != nil {
			return
		}
		fmt.Println("traced")
		io.Copy(io.Discard, os.Stdin)
	case "host":
		// A host that starts a backend, says its id, and waits to be killed.
		p, err := New(Config{Path: "/proc/self/exe", Env: []string{roleVariable + "=silent"}})
		if err != nil {
			panic(err)
		}
		if _, err := p.RunnerFunc(quiet, exec.Command(""), ""); err != nil {
			panic(err)
		}
		if err := p.Start(context.Background()); err != nil {
			panic(err)
		}
		fmt.Println(p.PID())
		time.Sleep(time.Hour)
	}
}

// newChild prepares a child in the role.
func newChild(t *testing.T, role string, change func(*Config)) *Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Path: self, Env: []string{roleVariable + "=" + role}}
	if change != nil {
		change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// start starts a child without go-plugin.
func start(t *testing.T, p *Process) {
	t.Helper()
	if _, err := p.RunnerFunc(hclog.NewNullLogger(), exec.Command(""), ""); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// client makes a go-plugin client for a child.
func client(p *Process, log hclog.Logger, dir string) *plugin.Client {
	return plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  handshake,
		Plugins:          plugins,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     5 * time.Second,
		Logger:           log,
		RunnerFunc:       p.RunnerFunc,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: dir},
	})
}

func await(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, limit)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func awaitDone(t *testing.T, p *Process, limit time.Duration) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(limit):
		t.Fatalf("the process has not ended within %s", limit)
	}
}

// alive says whether the process exists and is not a zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(b, []byte(") "))
	return len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}

func TestExit(t *testing.T) {
	for _, c := range []struct{ role, want string }{
		{"exit", "exit status 3; its last words: open device: no such device"},
		{"crash", "exit status 2; its last words: panic: the roof is on fire"},
		{"chatty", "exit status 2; its last words: usage: chatty"},
	} {
		t.Run(c.role, func(t *testing.T) {
			poisoned := make(chan struct{})
			p := newChild(t, c.role, func(cfg *Config) { cfg.Poison = func() { close(poisoned) } })
			start(t, p)
			awaitDone(t, p, 10*time.Second)
			if got := p.Exit(); !strings.HasPrefix(got, c.want) {
				t.Errorf("exit: %q, want prefix %q", got, c.want)
			}
			select {
			case <-poisoned:
			default:
				t.Error("not poisoned")
			}
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStop(t *testing.T) {
	for _, c := range []struct {
		name, role string
		before     func(t *testing.T, p *Process)
	}{
		{name: "deaf", role: "deaf"},
		{name: "stopped", role: "silent", before: func(t *testing.T, p *Process) {
			if err := unix.Kill(p.PID(), unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newChild(t, c.role, nil)
			start(t, p)
			if c.before != nil {
				c.before(t, p)
			}
			begin := time.Now()
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(begin); d > time.Second {
				t.Errorf("stop took %s", d)
			}
			if alive(p.PID()) {
				t.Error("the process is still there")
			}
			if got := p.Exit(); !strings.HasPrefix(got, "signal: killed") {
				t.Errorf("exit: %q", got)
			}
		})
	}
}

// TestNotReaped holds the process's end back, as a driver would: by a tracer,
// which has to look at its tracee's end before the parent may.
func TestNotReaped(t *testing.T) {
	poisons := 0
	p := newChild(t, "silent", func(cfg *Config) {
		cfg.ReapTimeout = 200 * time.Millisecond
		cfg.Poison = func() { poisons++ }
	})
	if _, err := p.RunnerFunc(hclog.NewNullLogger(), exec.Command(""), ""); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	tracer := exec.Command("/proc/self/exe")
	tracer.Env = append(os.Environ(), roleVariable+"=tracer", "STRATA_TEST_PID="+p.ID())
	letGo, err := tracer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := tracer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tracer.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(said).ReadString('\n'); line != "traced\n" {
		p.Stop()
		tracer.Wait()
		t.Skip("NOT RUN: this system does not let a process trace another")
	}
	for range 2 { // the second answers at once
		begin := time.Now()
		err := p.Stop()
		if !errors.Is(err, ErrNotReaped) {
			t.Errorf("stop: %v", err)
		}
		if d := time.Since(begin); d > time.Second {
			t.Errorf("stop took %s", d)
		}
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	for _, r := range []io.Reader{p.Stdout(), p.Stderr()} {
		if _, err := io.ReadAll(r); err != nil {
			t.Error(err)
		}
	}
	if poisons != 1 {
		t.Errorf("poisoned %d times", poisons)
	}
	select {
	case <-p.Done():
		t.Error("done, but the process is still there")
	default:
	}
	// The driver lets go.
	letGo.Close()
	if err := tracer.Wait(); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, p, 5*time.Second)
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

func TestFlood(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	p := newChild(t, "flood", func(cfg *Config) { cfg.Env = append(cfg.Env, "STRATA_TEST_MARK="+mark) })
	start(t, p)
	// Nobody reads the log meanwhile.
	await(t, "10 MB to standard error", 20*time.Second, func() bool { _, err := os.Stat(mark); return err == nil })
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	log, err := io.ReadAll(p.Stderr())
	if err != nil {
		t.Fatal(err)
	}
	if len(log) > relayBytes+200 {
		t.Errorf("%d bytes were held", len(log))
	}
	if !bytes.Contains(log, []byte("lines of output left out")) {
		t.Error("nothing says that lines were left out")
	}
	if got := p.Exit(); !strings.HasSuffix(got, "flood over") {
		t.Errorf("the last line is lost: %q", got)
	}
}

func TestGrandchild(t *testing.T) {
	for _, role := range []string{"grandparent", "fugitive"} {
		t.Run(role, func(t *testing.T) {
			mark := filepath.Join(t.TempDir(), "mark")
			p := newChild(t, role, func(cfg *Config) { cfg.Env = append(cfg.Env, "STRATA_TEST_MARK="+mark) })
			c := client(p, hclog.NewNullLogger(), t.TempDir())
			if _, err := c.Client(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(mark)
			if err != nil {
				t.Fatal(err)
			}
			grandchild, err := strconv.Atoi(string(b))
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Kill(grandchild, unix.SIGKILL)
			begin := time.Now()
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			c.Kill() // would wait for the grandchild with go-plugin's own runner
			if d := time.Since(begin); d > time.Second {
				t.Errorf("stop took %s", d)
			}
			if role == "grandparent" {
				await(t, "end of the grandchild", time.Second, func() bool { return !alive(grandchild) })
			}
		})
	}
}

func TestHostKilled(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=host")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if !alive(pid) {
		t.Fatal("the backend does not run")
	}
	// Let the host's scheduler have its way with threads for a moment.
	time.Sleep(200 * time.Millisecond)
	if !alive(pid) {
		t.Fatal("the backend ended although its host lives")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, "end of the backend after its host's", time.Second, func() bool { return !alive(pid) })
	cmd.Wait()
}

func TestFilesAndEnvironment(t *testing.T) {
	t.Setenv("STRATA_TEST_SECRET", "api key")
	t.Setenv("CUDA_VISIBLE_DEVICES", "1")
	dir := t.TempDir()
	var files []File
	for _, name := range []string{"A", "B"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("content of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, File{Variable: "STRATA_FD_" + name, File: f})
	}
	p := newChild(t, "files", func(cfg *Config) {
		cfg.Files = files
		cfg.Env = append(cfg.Env, "CUDA_VISIBLE_DEVICES=0")
	})
	start(t, p)
	awaitDone(t, p, 10*time.Second)
	want := `exit status 7; its last words: STRATA_FD_A content of A <nil>; STRATA_FD_B content of B <nil>; secret "" choice "0"`
	if got := p.Exit(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestLifeline(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	p := newChild(t, "lifeline", func(cfg *Config) { cfg.Env = append(cfg.Env, "STRATA_TEST_MARK="+mark) })
	start(t, p)
	time.Sleep(100 * time.Millisecond)
	if _, err := os.Stat(mark); err == nil {
		t.Fatal("the lifeline ended although the host lives")
	}
	p.closePipes() // what the end of the host does
	awaitDone(t, p, 5*time.Second)
	if b, _ := os.ReadFile(mark); string(b) != "0 EOF" {
		t.Errorf("the lifeline read %q", b)
	}
}

func TestBadPrograms(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode fs.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	other := "\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xf3\x00\x01\x00\x00\x00" + strings.Repeat("\x00", 40) // riscv64
	for _, c := range []struct {
		name, path string
		sum        []byte
		want       []string
		is         error
	}{
		{name: "missing", path: filepath.Join(dir, "nothing"), want: []string{"there is no such file"}, is: fs.ErrNotExist},
		{name: "directory", path: dir, want: []string{"not a regular file"}},
		{name: "not executable", path: write("plain", "#!/bin/sh\n", 0o600), want: []string{"chmod +x"}, is: fs.ErrPermission},
		{name: "foreign", path: write("foreign", other, 0o700), want: []string{"not a program for " + runtime.GOOS + "/" + runtime.GOARCH}, is: syscall.ENOEXEC},
		{name: "hash", path: write("hashed", "#!/bin/sh\n", 0o700), sum: make([]byte, sha256.Size), want: []string{"SHA-256", "was expected"}},
		{name: "not a plugin", path: write("chatty", "#!/bin/sh\necho hello\necho 'no device' >&2\nexit 1\n", 0o700),
			want: []string{"not a Strata backend", "hello", "no device"}},
		{name: "silent end", path: write("silent", "#!/bin/sh\nexit 1\n", 0o700), want: []string{"not a Strata backend", "exit status 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Now()
			p, err := New(Config{Path: c.path, SHA256: c.sum})
			if err == nil {
				cl := client(p, hclog.NewNullLogger(), t.TempDir())
				_, err = cl.Start()
				p.Stop()
				cl.Kill()
			}
			if err == nil {
				t.Fatal("no error")
			}
			if d := time.Since(begin); d > 3*time.Second {
				t.Errorf("took %s", d)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %v is not %v", err, c.is)
			}
			if p != nil && p.PID() != 0 && alive(p.PID()) {
				t.Error("a process is left")
			}
		})
	}
}

func TestRightHash(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(self)
	p := newChild(t, "exit", func(cfg *Config) { cfg.SHA256 = sum[:] })
	start(t, p)
	awaitDone(t, p, 10*time.Second)
}

// TestSilentProgram: a program that runs but never says the handshake is given
// up after the start timeout, and ended.
func TestSilentProgram(t *testing.T) {
	p := newChild(t, "deaf", nil)
	c := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: handshake, Plugins: plugins,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		SkipHostEnv:      true, StartTimeout: 300 * time.Millisecond,
		Logger: hclog.NewNullLogger(), RunnerFunc: p.RunnerFunc,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: t.TempDir()},
	})
	if _, err := c.Start(); err == nil {
		t.Fatal("no error")
	}
	awaitDone(t, p, time.Second)
	if alive(p.PID()) {
		t.Error("the process is left")
	}
	c.Kill()
}

func TestStoppedBeforeStart(t *testing.T) {
	p := newChild(t, "deaf", nil)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err == nil {
		t.Error("started")
	}
	awaitDone(t, p, time.Second)
}

// TestNoLeak starts and stops backends and compares what the host holds.
func TestNoLeak(t *testing.T) {
	base := t.TempDir()
	round := func(i int) {
		dir, err := NewSocketDir(base)
		if err != nil {
			t.Fatal(err)
		}
		p := newChild(t, "plugin", func(cfg *Config) { cfg.SocketDir = dir.Path() })
		c := client(p, hclog.NewNullLogger(), dir.Path())
		proto, err := c.Client()
		if err != nil {
			t.Fatal(err)
		}
		if err := proto.Ping(); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if err := p.Stop(); err != nil { // hard
				t.Fatal(err)
			}
		}
		c.Kill() // graceful where it still runs
		awaitDone(t, p, 5*time.Second)
		if err := dir.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	held := func() (fds, goroutines, threads int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries), runtime.NumGoroutine(), len(tasks)
	}
	round(0)
	round(1)
	fds, goroutines, threads := held()
	for i := range 30 {
		round(i)
	}
	await(t, "what 30 rounds held is let go", 5*time.Second, func() bool {
		f, g, th := held()
		return f <= fds && g <= goroutines && th <= threads+8
	})
	left, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("%d directories left, the first is %s", len(left), left[0].Name())
	}
}

func TestSocketDir(t *testing.T) {
	base := t.TempDir()
	live, err := NewSocketDir(base)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(live.Path())
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", info.Mode().Perm())
	}
	stale := filepath.Join(base, socketDirPrefix+"stale")
	foreign := filepath.Join(base, "someone-else")
	for _, d := range []string{stale, foreign} {
		if err := os.MkdirAll(filepath.Join(d, "deeper"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	hourAgo := time.Now().Add(-time.Hour)
	for _, d := range []string{stale, foreign, live.Path()} {
		if err := os.Chtimes(d, hourAgo, hourAgo); err != nil {
			t.Fatal(err)
		}
	}
	second, err := NewSocketDir(base)
	if err != nil {
		t.Fatal(err)
	}
	for d, want := range map[string]bool{stale: false, foreign: true, live.Path(): true, second.Path(): true} {
		if _, err := os.Stat(d); (err == nil) != want {
			t.Errorf("%s exists: %v, want %v", filepath.Base(d), err == nil, want)
		}
	}
	for _, d := range []*SocketDir{live, second} {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(d.Path()); err == nil {
			t.Error("not removed")
		}
	}
	long := filepath.Join(base, strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := NewSocketDir(long); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("a path that is too long: %v", err)
	}
	if left, _ := os.ReadDir(long); len(left) > 0 {
		t.Error("a directory is left after the error")
	}
}
