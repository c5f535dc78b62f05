package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strata-engine/strata/core/config"
)

// How many clients a server must bear, and what they may cost.
const (
	idleConnections = 1000
	liveStreams     = 64
	mostMemory      = 100 << 20
)

// TestServerProcess is the server of TestManyConnections: a process of its own, so
// that what it needs can be told from what its clients need. It prints its address
// and serves until its input ends.
func TestServerProcess(t *testing.T) {
	if os.Getenv("STRATA_TEST_SERVER_PROCESS") == "" {
		t.Skip("run by TestManyConnections")
	}
	mod, _ := testModel(t)
	mod.Engine = steadyEngine{50 * time.Millisecond}
	s := New(config.Defaults().Server, "test", nil)
	s.SetModel(mod)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	fmt.Println("listening", l.Addr())
	_ = s.Serve(ctx, ctx, l)
}

// process is what the system says of the server.
type process struct {
	pid int
	url string
}

func startProcess(t testing.TB) process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerProcess$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), "STRATA_TEST_SERVER_PROCESS=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(line, "listening ")
	if err != nil || !ok {
		t.Fatalf("the server says %q, %v", line, err)
	}
	return process{cmd.Process.Pid, "http://" + strings.TrimSpace(address)}
}

// memory is the resident memory that is the process's own, in bytes.
func (p process) memory(t testing.TB) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "RssAnon:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no resident memory")
	return 0
}

// busy is the processor time that the process used so far.
func (p process) busy(t testing.TB) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
}

// TestManyConnections holds connections that do nothing and streams that run, and
// measures what they cost the server.
func TestManyConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	p := startProcess(t)
	host := strings.TrimPrefix(p.url, "http://")
	before := p.memory(t)

	for i := range idleConnections {
		c, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("connection %d: %v", i, err)
		}
		resp.Body.Close()
	}
	idle := p.memory(t)

	var tokens atomic.Int64
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 0}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, liveStreams)
	defer func() {
		cancel()
		for range liveStreams {
			<-ended
		}
	}()
	for range liveStreams {
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/chat/completions", strings.NewReader(`{`+hello+`,"stream":true}`))
			if err != nil {
				ended <- err
				return
			}
			resp, err := client.Do(req)
			if err != nil {
				ended <- err
				return
			}
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "data: ") {
					tokens.Add(1)
				}
			}
			ended <- lines.Err()
		}()
	}
	for end := time.Now().Add(30 * time.Second); tokens.Load() < 10*liveStreams; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d events after 30 s", tokens.Load())
		}
	}
	first, used, start := tokens.Load(), p.busy(t), time.Now()
	time.Sleep(3 * time.Second)
	made, worked, took := tokens.Load()-first, p.busy(t)-used, time.Since(start)
	all := p.memory(t)
	t.Logf("%d idle connections: %.1f MB; and %d streams: %.1f MB", idleConnections, float64(idle-before)/1e6, liveStreams, float64(all-before)/1e6)
	t.Logf("%.0f events a second, %.0f us of processor time each, %.1f %% of a core", float64(made)/took.Seconds(), float64(worked.Microseconds())/float64(made), 100*float64(worked)/float64(took))
	if all-before > mostMemory {
		t.Errorf("the connections cost %d bytes, more than %d", all-before, mostMemory)
	}
}
