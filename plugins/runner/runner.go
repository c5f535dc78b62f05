// Package runner starts, watches and ends the process of a backend. It stands in
// for go-plugin's own runner, whose waits have no bound: a process that is
// stopped, stuck in a driver or whose pipes are held by a grandchild would block
// the host for as long as it likes.
//
// The process gets a lifeline (sdk.EnvLifeline): a pipe to which nothing is ever
// written and which reads end of file when the host is gone.
//
// What the package promises on Linux: the process and its group die with the host, also
// when the host is killed; Stop returns within a stated time whatever the
// process does; the process can write to its standard outputs as much as it
// likes without ever blocking on the host; and no descriptor, goroutine or file
// of a run outlives it. Elsewhere the same code runs with what the system has;
// see the process_*.go files.
package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	pluginrunner "github.com/hashicorp/go-plugin/runner"

	"github.com/strata-engine/strata/sdk"
)

// ErrNotReaped means that a process was sent SIGKILL and has not ended in time:
// it is stuck inside the kernel, usually in a device driver. Its memory and its
// device stay occupied until the driver lets go, so nothing else may be started
// on that device.
var ErrNotReaped = errors.New("process does not end after SIGKILL")

// DefaultReapTimeout bounds the wait for a killed process to be gone.
const DefaultReapTimeout = 5 * time.Second

// drainTimeout bounds the wait for the last output after a process has ended.
// Its own pipes are at their end by then; only a descendant that left the
// process group can still hold them.
const drainTimeout = 50 * time.Millisecond

// Config says what to start and how.
type Config struct {
	// Path is the program, absolute or relative to the working directory. It is
	// not looked up in PATH.
	Path string
	// Args are the arguments behind the program's name.
	Args []string
	// SHA256 is the hash the file must have; nil for any. It guards against a
	// mixed-up or damaged file, not against somebody who can replace the file
	// between the check and the start.
	SHA256 []byte
	// Env are further variables, "NAME=value". They win over those taken over
	// from the host.
	Env []string
	// Files are passed on to the process and stay the caller's: close them when
	// the process has ended. Not supported on Windows.
	Files []File
	// SocketDir is where the process makes its control socket. Empty leaves the
	// choice to go-plugin.
	SocketDir string
	// Poison is called once when the process has ended or is about to be killed,
	// whichever comes first, so that nobody goes on waiting for it. It must not
	// block. May be nil.
	Poison func()
	// ReapTimeout bounds the wait for a killed process to be gone;
	// DefaultReapTimeout if zero.
	ReapTimeout time.Duration
}

// File is an open file that the process receives.
type File struct {
	// Variable is the name of the environment variable that tells the process
	// the descriptor's number, e.g. sdk.EnvVitals.
	Variable string
	// File is what is passed.
	File *os.File
}

// Process is one run of a backend's program. It implements go-plugin's
// runner.Runner; pass RunnerFunc to plugin.ClientConfig. All methods are safe
// for concurrent use, and every one returns in bounded time.
type Process struct {
	cfg Config

	// env is set by RunnerFunc before Start.
	env []string

	output *output
	stdout *relay // the handshake line, for go-plugin
	stderr *relay // everything else, for the log

	// done is closed when the process has been reaped and its output read.
	done chan struct{}
	// abandoned is closed when Stop gave up waiting.
	abandoned   chan struct{}
	abandonOnce sync.Once
	poisonOnce  sync.Once

	mu sync.Mutex // protects the fields below; never held across a wait
	// proc is nil before the start and after a failed one.
	proc *os.Process
	// stopped is set by the first Stop; a start after it fails.
	stopped bool
	// killed is set when the process was sent SIGKILL.
	killed bool
	// reaped is set before the process id becomes free for reuse.
	reaped bool
	// pipes are our ends of the process's pipes.
	pipes []*os.File
	state *os.ProcessState
}

var _ pluginrunner.Runner = (*Process)(nil)

// New checks that cfg.Path can be started and prepares a Process. Nothing runs
// yet, and nothing needs to be undone if it never does.
func New(cfg Config) (*Process, error) {
	if cfg.ReapTimeout == 0 {
		cfg.ReapTimeout = DefaultReapTimeout
	}
	if len(cfg.Files) > 0 && !canPassFiles {
		return nil, fmt.Errorf("run %s: %s cannot pass open files to a process", cfg.Path, runtime.GOOS)
	}
	abs, err := filepath.Abs(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", cfg.Path, err)
	}
	cfg.Path = abs
	if err := checkProgram(cfg.Path, cfg.SHA256); err != nil {
		return nil, fmt.Errorf("run %s: %w", cfg.Path, err)
	}
	p := &Process{
		cfg:       cfg,
		stdout:    newRelay(),
		stderr:    newRelay(),
		done:      make(chan struct{}),
		abandoned: make(chan struct{}),
	}
	p.output = newOutput(p.stdout, p.stderr)
	return p, nil
}

// checkProgram finds out before the start what would make it fail.
func checkProgram(path string, sum []byte) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no such file: check the path, or build the backend: %w", fs.ErrNotExist)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file")
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("the file is not executable: run chmod +x on it: %w", fs.ErrPermission)
	}
	if sum == nil {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the file to check its hash: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("read the file to check its hash: %w", err)
	}
	if got := h.Sum(nil); string(got) != string(sum) {
		return fmt.Errorf("the file's SHA-256 is %s, but %s was expected: it is another version or damaged",
			hex.EncodeToString(got), hex.EncodeToString(sum))
	}
	return nil
}

// RunnerFunc has the form of plugin.ClientConfig.RunnerFunc. It takes over the
// variables that go-plugin put into cmd and returns p.
func (p *Process) RunnerFunc(_ hclog.Logger, cmd *exec.Cmd, _ string) (pluginrunner.Runner, error) {
	p.env = append(hostEnv(os.Environ()), cmd.Env...)
	if p.cfg.SocketDir != "" {
		// Wins over go-plugin's directory below it: the path of a socket may
		// have 107 bytes, and few of them are left in a long TMPDIR.
		p.env = append(p.env, "PLUGIN_UNIX_SOCKET_DIR="+p.cfg.SocketDir)
	}
	p.env = append(p.env, p.cfg.Env...)
	return p, nil
}

// Start starts the process. It is called by go-plugin, once.
func (p *Process) Start(ctx context.Context) error {
	started := make(chan error, 1)
	go p.live(started)
	select {
	case err := <-started:
		return err
	case <-ctx.Done():
		// The system call hangs, for example because the program lies on a
		// network file system that is gone. live ends the process if there
		// ever is one.
		p.mu.Lock()
		p.stopped = true
		p.mu.Unlock()
		return fmt.Errorf("run %s: %w", p.cfg.Path, ctx.Err())
	}
}

// live is the process's goroutine: it starts the process, waits for its end and
// cleans up. It keeps its thread from start to end, because Linux sends the
// parent-death signal when the thread that started the process ends, not when
// the host does (golang.org/issue/27505).
func (p *Process) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	proc, pumps, err := p.start()
	started <- err
	if err != nil {
		p.end(nil)
		return
	}
	state := reap(proc, func() {
		// What is left of the group ends now. Stop leaves it alone from here
		// on, because its id may be reused once the process is reaped.
		p.mu.Lock()
		p.reaped = true
		killGroup(proc.Pid)
		p.mu.Unlock()
		p.poison()
	})

	deadline := time.Now().Add(drainTimeout)
	p.mu.Lock()
	for _, f := range p.pipes {
		f.SetReadDeadline(deadline) // fails only where a pipe is closed already
	}
	p.mu.Unlock()
	select {
	case <-pumps:
	case <-time.After(2 * drainTimeout): // systems whose pipes know no deadline
	}
	p.end(state)
}

// start makes the pipes and the process. The channel is closed when the readers
// of the pipes have ended.
func (p *Process) start() (*os.Process, <-chan struct{}, error) {
	fail := func(err error) (*os.Process, <-chan struct{}, error) {
		return nil, nil, fmt.Errorf("run %s: %w", p.cfg.Path, err)
	}
	p.mu.Lock()
	stopped := p.stopped
	p.mu.Unlock()
	if stopped {
		return fail(errors.New("it was stopped before it started"))
	}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err != nil {
			return nil, nil, fmt.Errorf("make a pipe: %w", err)
		}
		return r, w, nil
	}
	outR, outW, err := pipe()
	if err != nil {
		return fail(err)
	}
	theirs = append(theirs, outW)
	p.keep(outR)
	errR, errW, err := pipe()
	if err != nil {
		return fail(err)
	}
	theirs = append(theirs, errW)
	p.keep(errR)
	lifeR, lifeW, err := pipe()
	if err != nil {
		return fail(err)
	}
	theirs = append(theirs, lifeR)
	p.keep(lifeW)

	env := append([]string(nil), p.env...)
	files := []*os.File{lifeR, outW, errW}
	if canPassFiles {
		// Standard input is not the lifeline where there is another way: a
		// library that reads it would swallow the end of file.
		null, err := os.Open(os.DevNull)
		if err != nil {
			return fail(err)
		}
		theirs = append(theirs, null)
		files = []*os.File{null, outW, errW, lifeR}
		env = append(env, sdk.EnvLifeline+"=3")
	} else {
		env = append(env, sdk.EnvLifeline+"=0")
	}
	for _, f := range p.cfg.Files {
		env = append(env, f.Variable+"="+strconv.Itoa(len(files)))
		files = append(files, f.File)
	}

	proc, err := os.StartProcess(p.cfg.Path, append([]string{p.cfg.Path}, p.cfg.Args...), &os.ProcAttr{
		Env:   lastWins(env),
		Files: files,
		Sys:   processAttributes(),
	})
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return fail(fmt.Errorf("it is not a program for %s/%s: build or install the one for this machine: %w",
			runtime.GOOS, runtime.GOARCH, syscall.ENOEXEC))
	case err != nil:
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return fail(err)
	}

	pumps := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { p.output.pumpStdout(outR) })
	wg.Go(func() { p.output.pumpStderr(errR) })
	go func() { wg.Wait(); close(pumps) }()

	p.mu.Lock()
	p.proc = proc
	stopped = p.stopped
	p.mu.Unlock()
	if stopped {
		p.kill()
	}
	return proc, pumps, nil
}

// keep records our end of a pipe.
func (p *Process) keep(f *os.File) {
	p.mu.Lock()
	p.pipes = append(p.pipes, f)
	p.mu.Unlock()
}

// end marks the process as gone and lets go of everything.
func (p *Process) end(state *os.ProcessState) {
	p.mu.Lock()
	p.state = state
	p.reaped = true
	p.mu.Unlock()
	p.poison()
	p.closePipes()
	close(p.done)
}

// closePipes closes our ends, which also ends the readers, ours and go-plugin's.
func (p *Process) closePipes() {
	p.mu.Lock()
	pipes := p.pipes
	p.pipes = nil
	p.mu.Unlock()
	for _, f := range pipes {
		f.Close()
	}
	p.stdout.Close()
	p.stderr.Close()
}

func (p *Process) poison() {
	p.poisonOnce.Do(func() {
		if p.cfg.Poison != nil {
			p.cfg.Poison()
		}
	})
}

// kill sends SIGKILL to the process and to its group.
func (p *Process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if p.proc == nil || p.reaped {
		return
	}
	// os.Process signals through a pidfd where the kernel has them, so that no
	// other process can be hit. An error means that it has ended.
	p.killed = p.proc.Kill() == nil || p.killed
	killGroup(p.proc.Pid)
}

// Stop ends the process the hard way and waits until it is gone, at most the
// reap timeout. ErrNotReaped if it is not; then everything of ours is let go
// nevertheless, and Done is closed if the process ever ends. A process that
// never started or has ended is no error.
func (p *Process) Stop() error {
	p.poison()
	p.kill()
	p.mu.Lock()
	proc := p.proc
	p.mu.Unlock()
	if proc == nil {
		return nil
	}
	select {
	case <-p.done:
		return nil // also where an earlier Stop has given up
	default:
	}
	timer := time.NewTimer(p.cfg.ReapTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-p.abandoned:
	case <-timer.C:
		p.abandonOnce.Do(func() { close(p.abandoned) })
		p.closePipes()
	}
	return fmt.Errorf("stop %s (process %d): %w within %s", p.cfg.Path, proc.Pid, ErrNotReaped, p.cfg.ReapTimeout)
}

// Done is closed when the process has been reaped and its last output read, and
// when it could not be started.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how the process ended and what it said last, for an error message;
// the empty string while it runs.
func (p *Process) Exit() string {
	select {
	case <-p.done:
	default:
		return ""
	}
	p.mu.Lock()
	state := p.state
	p.mu.Unlock()
	how := "it could not be started"
	if state != nil {
		how = state.String()
	}
	if words := p.Words(); words != "" {
		return how + "; its last words: " + words
	}
	return how
}

// Words is what the process said last, or how it crashed; the empty string where
// it said nothing.
func (p *Process) Words() string { return p.output.lastWords() }

// Killed reports whether the process has ended because Stop or Kill ended it,
// and not by itself.
func (p *Process) Killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed && p.state != nil && !p.state.Exited()
}

// PID is the process's id, 0 before the start.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		return 0
	}
	return p.proc.Pid
}

// Wait returns when the process has ended, or when Stop has given up on it. How
// it ended is not reported here but by Exit: go-plugin would log every hard stop
// as an error. It is part of runner.Runner.
func (p *Process) Wait(context.Context) error {
	select {
	case <-p.done:
	case <-p.abandoned:
	}
	return nil
}

// Kill is Stop, as go-plugin calls it when a start fails.
func (p *Process) Kill(context.Context) error { return p.Stop() }

// Stdout delivers the first line of standard output, the handshake. What comes
// behind it goes where standard error goes.
func (p *Process) Stdout() io.ReadCloser { return p.stdout }

// Stderr delivers the process's output for the log. Lines are left out, and a
// line says how many, where the reader does not keep up.
func (p *Process) Stderr() io.ReadCloser { return p.stderr }

// Output returns a writer for what the process prints by another way than its
// standard outputs; it is treated like standard error. A writer is used by one
// goroutine at a time.
func (p *Process) Output() io.Writer { return &lineWriter{output: p.output} }

// Name is the program's path.
func (p *Process) Name() string { return p.cfg.Path }

// ID is the process's id, empty before the start.
func (p *Process) ID() string {
	if pid := p.PID(); pid != 0 {
		return strconv.Itoa(pid)
	}
	return ""
}

// Diagnose explains a failed handshake. A program that is no backend has often
// just said why and ended: it gets a moment for that.
func (p *Process) Diagnose(context.Context) string {
	text := "it is not a Strata backend, or it is one for another version of Strata"
	select {
	case <-p.done:
		return text + ": " + p.Exit()
	case <-time.After(200 * time.Millisecond):
		return text
	}
}

// PluginToHost and HostToPlugin return the address unchanged: both processes
// share the file system.
func (p *Process) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

// HostToPlugin: see PluginToHost.
func (p *Process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}
