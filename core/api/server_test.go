package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/engine"
)

// within fails the test where a channel is not ready in good time.
func within[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: nothing within 10 s", what)
	}
	return v
}

func TestHeadersAreHeldAndSilenceIsBroken(t *testing.T) {
	pause := make(chan struct{})
	mod, _ := testModel(t, script{text: "</think>Late", pause: pause, err: errors.New("odd")})
	_, url := serve(t, mod, func(c *config.Server) {
		c.HoldHeaders, c.KeepAlive = 50*time.Millisecond, 20*time.Millisecond
	})
	started := time.Now()
	resp := post(t, url, `{`+hello+`,"stream":true}`) // returns with the headers
	if held := time.Since(started); held < 50*time.Millisecond || resp.StatusCode != 200 {
		t.Errorf("headers after %v with status %d, want 200 after 50 ms", held, resp.StatusCode)
	}
	lines := bufio.NewReader(resp.Body)
	comments := 0
	for comments < 2 {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == ": keep-alive\n" {
			comments++
		}
	}
	close(pause)
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(rest), `"content":"L`) || !strings.HasSuffix(string(rest), "data: {\"error\":{\"message\":\"server error: odd\",\"type\":\"server_error\",\"param\":null,\"code\":\"internal_error\"}}\n\ndata: [DONE]\n\n") {
		t.Errorf("the stream ends with %s", rest)
	}
}

func TestFailureWhileHeadersAreHeldHasItsStatus(t *testing.T) {
	pause := make(chan struct{})
	mod, _ := testModel(t, script{ids: []int32{}, pause: pause, err: &engine.NonFiniteError{}})
	_, url := serve(t, mod, nil)
	time.AfterFunc(100*time.Millisecond, func() { close(pause) })
	if resp := post(t, url, `{`+hello+`,"stream":true}`); resp.StatusCode != 500 {
		t.Errorf("status %d, want 500", resp.StatusCode)
	}
}

func TestClientLeaves(t *testing.T) {
	for _, stream := range []string{"false", "true"} {
		t.Run(stream, func(t *testing.T) {
			mod, eng := testModel(t, script{text: "never", pause: make(chan struct{})})
			_, url := serve(t, mod, func(c *config.Server) { c.HoldHeaders = 0 })
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", strings.NewReader(`{`+hello+`,"stream":`+stream+`,"n":2}`))
			if err != nil {
				t.Fatal(err)
			}
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				if resp, err := http.DefaultClient.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				eng.mu.Lock()
				n := len(eng.running)
				eng.mu.Unlock()
				if n == 2 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the generations never started")
				}
			}
			leave()
			within(t, "first generation", eng.running[0].closed)
			within(t, "second generation", eng.running[1].closed)
			within(t, "client", answered)
		})
	}
}

func TestSlowClientIsCut(t *testing.T) {
	mod, eng := testModel(t, script{text: strings.Repeat("</think>many words to fill every buffer ", 200000)})
	_, url := serve(t, mod, func(c *config.Server) { c.WriteTimeout = 100 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{` + hello + `,"stream":true}`
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	// And never read.
	deadline := time.Now().Add(10 * time.Second)
	for {
		eng.mu.Lock()
		n := len(eng.running)
		eng.mu.Unlock()
		if n == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the generation never started")
		}
		time.Sleep(time.Millisecond)
	}
	within(t, "generation", eng.running[0].closed)
	if int(eng.running[0].next.Load()) == len(eng.running[0].tokens) {
		t.Skip("the system's buffers took the whole answer")
	}
}

func TestSlowBodyIsRefused(t *testing.T) {
	mod, _ := testModel(t, script{text: "ok"})
	_, url := serve(t, mod, func(c *config.Server) { c.BodyTimeout = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	want := m{"error": m{"message": "The body of your request did not arrive whole within 50ms.", "type": typeInvalid, "param": nil, "code": "request_incomplete"}}
	if d := cmp.Diff(want, object(t, resp.Body)); d != "" || resp.StatusCode != 408 {
		t.Errorf("status %d; %s", resp.StatusCode, d)
	}
}

// A body deadline of one request must not cut a later, longer one on the same
// connection.
func TestDeadlinesDoNotOutliveTheirRequest(t *testing.T) {
	pause := make(chan struct{})
	mod, _ := testModel(t, script{text: "ok"}, script{text: "ok", pause: pause})
	_, url := serve(t, mod, func(c *config.Server) { c.BodyTimeout, c.WriteTimeout = 100*time.Millisecond, 100*time.Millisecond })
	post(t, url, `{`+hello+`}`)
	time.AfterFunc(500*time.Millisecond, func() { close(pause) })
	resp := post(t, url, `{`+hello+`}`)
	if got := object(t, resp.Body); resp.StatusCode != 200 || got["object"] != "chat.completion" {
		t.Errorf("status %d, %v", resp.StatusCode, got)
	}
}

func get(t *testing.T, url string) (int, map[string]any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out map[string]any
	if out = object(t, resp.Body); resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("content type %q", resp.Header.Get("Content-Type"))
	}
	return resp.StatusCode, out
}

func TestLoading(t *testing.T) {
	s, url := serve(t, nil, func(c *config.Server) { c.HoldHeaders = 50 * time.Millisecond })
	s.SetProgress("map", 0.25)
	status, got := get(t, url+"/health")
	want := m{"status": "loading", "service": "strata", "version": "test", "loaded": false, "phase": "map", "progress": 0.25, "running": 0.0, "queued": 0.0}
	if d := cmp.Diff(want, got); d != "" || status != 503 {
		t.Errorf("status %d; %s", status, d)
	}
	if status, _ := get(t, url+"/health/ready"); status != 503 {
		t.Errorf("ready: status %d", status)
	}
	if status, got := get(t, url+"/health/live"); status != 200 || got["status"] != "ok" {
		t.Errorf("live: status %d, %v", status, got)
	}
	if status, got := get(t, url+"/v1/models"); status != 200 || len(got["data"].([]any)) != 0 {
		t.Errorf("models: status %d, %v", status, got)
	}
	resp := post(t, url, `{`+hello+`}`)
	if got := object(t, resp.Body)["error"].(m); resp.StatusCode != 503 || got["code"] != "model_loading" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, %v", resp.StatusCode, got)
	}
	// A request that comes shortly before the model is there waits for it.
	s.cfg.HoldHeaders = 10 * time.Second
	mod, _ := testModel(t, script{text: "</think>ok"})
	time.AfterFunc(50*time.Millisecond, func() { s.SetModel(mod) })
	if resp := post(t, url, `{`+hello+`}`); resp.StatusCode != 200 {
		t.Errorf("status %d, want 200", resp.StatusCode)
	}
	status, got = get(t, url+"/health")
	want = m{"status": "ok", "service": "strata", "version": "test", "loaded": true, "model": "pebble", "context": 2048.0, "running": 1.0, "queued": 2.0}
	if d := cmp.Diff(want, got); d != "" || status != 200 {
		t.Errorf("status %d; %s", status, d)
	}
}

// A stream waits for the model as long as its client does.
func TestStreamWaitsForTheModel(t *testing.T) {
	s, url := serve(t, nil, func(c *config.Server) { c.HoldHeaders, c.KeepAlive = 10*time.Millisecond, 20*time.Millisecond })
	mod, _ := testModel(t, script{text: "</think>ok"})
	resp := post(t, url, `{`+hello+`,"stream":true}`)
	late := post(t, url, `{`+hello+`,"logit_bias":{"999999":1},"stream":true}`)
	time.AfterFunc(100*time.Millisecond, func() { s.SetModel(mod) })
	events := sse(t, resp.Body)
	if events[0] != ": loading the model" {
		t.Errorf("first event %v", events[0])
	}
	events = slices.DeleteFunc(events, func(e any) bool { return e == ": loading the model" || e == ": keep-alive" })
	want := []any{piecewise(0, m{"role": "assistant", "content": ""}, nil), piecewise(0, m{"content": "ok"}, nil), piecewise(0, m{}, "stop"), "[DONE]"}
	if d := cmp.Diff(want, joined(events)); d != "" {
		t.Error(d)
	}
	// What is wrong with a request shows only then, as an event.
	events = sse(t, late.Body)
	failure, ok := events[len(events)-2].(m)["error"].(m)
	if !ok || failure["param"] != "logit_bias" || events[len(events)-1] != "[DONE]" {
		t.Errorf("events %v", events)
	}
}

func TestDownEngineIsNotHealthy(t *testing.T) {
	mod, eng := testModel(t)
	eng.down = errors.New("the cpu backend is gone")
	_, url := serve(t, mod, nil)
	if status, got := get(t, url+"/health"); status != 503 || got["status"] != "error" || got["message"] != "the cpu backend is gone" {
		t.Errorf("status %d, %v", status, got)
	}
}

func TestModels(t *testing.T) {
	mod, _ := testModel(t)
	_, url := serve(t, mod, nil)
	one := m{
		"id": "pebble", "object": "model", "created": 1700000000.0, "owned_by": "strata",
		"meta": m{"n_ctx": 2048.0, "n_ctx_train": float64(mod.Spec.Hyper.Context), "n_vocab": 4128.0, "n_embd": 256.0, "architecture": "qwen4exp"},
	}
	read := func(path string) (int, m) {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode, decode(t, resp.Body)
	}
	if status, got := read("/v1/models"); status != 200 || !cmp.Equal(m{"object": "list", "data": []any{one}}, got) {
		t.Errorf("status %d, %v", status, got)
	}
	if status, got := read("/v1/models/pebble"); status != 200 || !cmp.Equal(one, got) {
		t.Errorf("status %d, %v", status, got)
	}
	want := m{"error": m{"message": "The model 'org/other' does not exist.", "type": typeInvalid, "param": "model", "code": "model_not_found"}}
	if status, got := read("/v1/models/org/other"); status != 404 || !cmp.Equal(want, got) {
		t.Errorf("status %d, %v", status, got)
	}
}

func TestUnknownRoutes(t *testing.T) {
	mod, _ := testModel(t)
	_, url := serve(t, mod, nil)
	if status, got := get(t, url+"/v2/x"); status != 404 || got["error"].(m)["message"] != "Unknown URL (GET /v2/x)." {
		t.Errorf("status %d, %v", status, got)
	}
	status, got := get(t, url+"/v1/chat/completions")
	if status != 405 || got["error"].(m)["message"] != "Method GET is not allowed for /v1/chat/completions; use POST." {
		t.Errorf("status %d, %v", status, got)
	}
	resp, err := http.Post(url+"/health", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 405 || resp.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("status %d, Allow %q", resp.StatusCode, resp.Header.Get("Allow"))
	}
}

func TestGuard(t *testing.T) {
	mod, _ := testModel(t, script{text: "ok"})
	_, url := serve(t, mod, func(c *config.Server) {
		c.AllowedHosts, c.TrustedOrigins = []string{"strata.example"}, []string{"https://chat.example"}
	})
	tests := []struct {
		host, origin string
		code         any
	}{
		{"", "", nil},
		{"localhost:8080", "", nil},
		{"LOCALHOST.", "", nil},
		{"app.localhost", "", nil},
		{"127.0.0.1:1", "", nil},
		{"192.168.1.5", "", nil},
		{"[::1]:8080", "", nil},
		{"strata.example:80", "", nil},
		{"evil.example", "", "host_not_allowed"},
		{"localhost.evil.example", "", "host_not_allowed"},
		{"127.0.0.1.evil.example", "", "host_not_allowed"},
		{"strata.example.evil", "", "host_not_allowed"},
		{"localhost", "http://localhost:3000", nil},
		{"localhost", "http://127.0.0.1", nil},
		{"localhost", "https://chat.example", nil},
		{"strata.example", "http://strata.example", nil},
		{"localhost", "https://evil.example", "origin_not_allowed"},
		{"localhost", "http://chat.example", "origin_not_allowed"},
		{"localhost", "https://localhost.evil.example", "origin_not_allowed"},
		{"localhost", "http://192.168.1.7", "origin_not_allowed"},
		{"localhost", "null", "origin_not_allowed"},
	}
	for _, tt := range tests {
		for _, path := range []string{"/v1/chat/completions", "/health"} {
			method := map[bool]string{true: "GET", false: "POST"}[path == "/health"]
			req, err := http.NewRequest(method, url+path, strings.NewReader(`{`+hello+`}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Host = tt.host
			if tt.origin != "" {
				req.Header.Set("Origin", tt.origin)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			got := object(t, resp.Body)
			resp.Body.Close()
			var code any
			if e, ok := got["error"].(m); ok {
				code = e["code"]
			}
			want := map[bool]int{true: 200, false: 403}[tt.code == nil]
			if code != tt.code || resp.StatusCode != want {
				t.Errorf("%s with Host %q, Origin %q: status %d, code %v, want %d, %v", path, tt.host, tt.origin, resp.StatusCode, code, want, tt.code)
			}
		}
	}
}

// TestPanics: a bug in a handler is an error of one request.
func TestPanics(t *testing.T) {
	mod, eng := testModel(t, script{text: "ok"})
	_, url := serve(t, mod, nil)
	mod.Engine = panicking{eng}
	resp := post(t, url, `{`+hello+`}`)
	if got := object(t, resp.Body)["error"].(m); resp.StatusCode != 500 || got["code"] != "internal_error" {
		t.Errorf("status %d, %v", resp.StatusCode, got)
	}
}

type panicking struct{ *fakeEngine }

func (panicking) Start(context.Context, engine.Request) (Generation, error) { panic("a bug") }

// listen runs Serve and returns where, how to end it softly and at once, and its
// result.
func listen(t *testing.T, s *Server) (url string, stop, force func(), done <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	forced, force := context.WithCancel(context.Background())
	result := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		result <- s.Serve(ctx, forced, l)
	}()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		force()
		within(t, "end of the server", ended)
	})
	return "http://" + l.Addr().String(), stop, force, result
}

func TestGracefulShutdown(t *testing.T) {
	pause := make(chan struct{})
	mod, eng := testModel(t, script{text: "</think>whole", pause: pause})
	s := New(config.Defaults().Server, "test", nil)
	s.SetModel(mod)
	url, stop, _, done := listen(t, s)
	answer := make(chan string, 1)
	go func() {
		resp, err := http.Post(url+"/v1/chat/completions", "", strings.NewReader(`{`+hello+`}`))
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		answer <- string(b)
	}()
	for {
		eng.mu.Lock()
		n := len(eng.running)
		eng.mu.Unlock()
		if n == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	select {
	case err := <-done:
		t.Fatalf("ended before its request: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(url, "http://")); err == nil {
		t.Error("new connections are still accepted")
	}
	close(pause)
	if got := within(t, "answer", answer); !strings.Contains(got, `"content":"whole"`) {
		t.Errorf("answer %s", got)
	}
	if err := within(t, "end", done); err != nil {
		t.Error(err)
	}
}

func TestForcedShutdown(t *testing.T) {
	for _, how := range []string{"time-out", "force"} {
		t.Run(how, func(t *testing.T) {
			mod, eng := testModel(t, script{text: "never", pause: make(chan struct{})})
			cfg := config.Defaults().Server
			cfg.HoldHeaders = 0
			if how == "time-out" {
				cfg.ShutdownTimeout = 50 * time.Millisecond
			}
			s := New(cfg, "test", nil)
			s.SetModel(mod)
			url, stop, force, done := listen(t, s)
			resp := post(t, url, `{`+hello+`,"stream":true}`)
			stop()
			if how == "force" {
				force()
			}
			b, err := io.ReadAll(resp.Body)
			if err != nil || !strings.Contains(string(b), `"code":"shutting_down"`) || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
				t.Errorf("stream %s, error %v", b, err)
			}
			if err := within(t, "end", done); err == nil || !strings.Contains(err.Error(), "requests were cut off") {
				t.Errorf("error %v", err)
			}
			<-eng.running[0].closed
		})
	}
}

func TestHeaderLimits(t *testing.T) {
	mod, _ := testModel(t)
	cfg := config.Defaults().Server
	cfg.HeaderTimeout, cfg.MaxHeader = 50*time.Millisecond, 8192
	s := New(cfg, "test", nil)
	s.SetModel(mod)
	url, _, _, _ := listen(t, s)
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /health HTTP/1.1\r\nHost: localhost\r\n") // and no more
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if b, err := io.ReadAll(conn); err != nil {
		t.Errorf("the connection stays open: %v, %q", err, b)
	}
	req, err := http.NewRequest("GET", url+"/health", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 32<<10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 431 {
		t.Errorf("status %d, want 431", resp.StatusCode)
	}
}
