package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/engine"
	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/core/sampler"
	"github.com/strata-engine/strata/core/tokenizer"
	"github.com/strata-engine/strata/testdata"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is what a fake generation does: it delivers the tokens of a text, and
// then ends or fails.
type script struct {
	text   string
	ids    []int32 // instead of text
	finish string
	err    error
	// pause, where set, must be received from before token number at, or the end.
	pause chan struct{}
	at    int
	top   []sampler.LogProb
	// reading, where set, is how much of the prompt was read.
	reading *atomic.Int64
}

// fakeEngine answers from scripts, one per request in order, the last one again
// and again.
type fakeEngine struct {
	tokenizer *tokenizer.Tokenizer
	start     error
	scripts   []script

	mu       sync.Mutex
	requests []engine.Request
	running  []*fakeGeneration
	down     error
}

func (e *fakeEngine) Start(ctx context.Context, req engine.Request) (Generation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.start != nil {
		return nil, e.start
	}
	s := e.scripts[min(len(e.requests), len(e.scripts)-1)]
	e.requests = append(e.requests, req)
	ids := s.ids
	if ids == nil {
		ids = e.tokenizer.Encode(tokenizer.Part{Text: s.text, Trusted: true})
	}
	g := &fakeGeneration{script: s, tokens: ids, prompt: len(req.Prompt), closed: make(chan struct{})}
	if s.finish == "" {
		g.finish = engine.FinishStop
	}
	context.AfterFunc(ctx, g.Close)
	e.running = append(e.running, g)
	return g, nil
}

func (e *fakeEngine) Down() error          { return e.down }
func (e *fakeEngine) Stats() engine.Totals { return engine.Totals{Running: 1, Queued: 2} }

type fakeGeneration struct {
	script
	tokens []int32
	prompt int
	next   atomic.Int64
	once   sync.Once
	closed chan struct{}
}

func (g *fakeGeneration) Next(ctx context.Context) (engine.Token, error) {
	next := int(g.next.Load())
	if g.pause != nil && next == g.at {
		select {
		case <-g.pause:
		case <-ctx.Done():
			return engine.Token{}, ctx.Err()
		}
	}
	if next < len(g.tokens) {
		g.next.Add(1)
		return engine.Token{ID: g.tokens[next], LogProb: -0.5, Top: g.top}, nil
	}
	if g.err != nil {
		return engine.Token{}, g.err
	}
	return engine.Token{}, io.EOF
}

func (g *fakeGeneration) Finish() string { return g.finish }
func (g *fakeGeneration) Close()         { g.once.Do(func() { close(g.closed) }) }
func (g *fakeGeneration) Stats() engine.Stats {
	return engine.Stats{Prompt: g.prompt, Cached: 2, Generated: len(g.tokens), Prefill: 50 * time.Millisecond, Decode: 2 * time.Second}
}

func (g *fakeGeneration) Progress() engine.Progress {
	p := engine.Progress{Phase: engine.PhaseDecode, Prompt: g.prompt, Cached: 2, Read: g.prompt, Prefill: 50 * time.Millisecond}
	if g.reading != nil {
		if read := int(g.reading.Load()); read < g.prompt {
			p.Phase, p.Read, p.Prefill = engine.PhasePrefill, read, 7*time.Millisecond
		}
	}
	return p
}

// testModel is the default model's tokenizer and template, and an engine that
// follows scripts.
func testModel(t testing.TB, scripts ...script) (*Model, *fakeEngine) {
	t.Helper()
	file, err := model.Open(testdata.Model(t, "pebble-q4-mtp.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	tok, chat, err := ReadText(file)
	if err != nil {
		t.Fatal(err)
	}
	e := &fakeEngine{tokenizer: tok, scripts: scripts}
	return &Model{ID: "pebble", Spec: file.Spec, Context: 2048, Loaded: time.Unix(1700000000, 0), Tokenizer: tok, Template: chat, Engine: e}, e
}

// serve starts a server for a model; nil serves one that is still loading.
func serve(t testing.TB, m *Model, change func(*config.Server)) (*Server, string) {
	t.Helper()
	cfg := config.Defaults().Server
	if change != nil {
		change(&cfg)
	}
	s := New(cfg, "test", nil)
	if m != nil {
		s.SetModel(m)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s, h.URL
}

func post(t testing.TB, url, body string) *http.Response {
	t.Helper()
	return postTo(t, url+"/v1/chat/completions", body)
}

func postTo(t testing.TB, url, body string) *http.Response {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// decode reads a JSON body.
func decode(t testing.TB, r io.Reader) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.NewDecoder(r).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// object reads a JSON body; what differs from run to run is replaced.
func object(t testing.TB, r io.Reader) map[string]any {
	t.Helper()
	return steady(t, decode(t, r))
}

func steady(t testing.TB, out map[string]any) map[string]any {
	t.Helper()
	if id, ok := out["id"].(string); ok {
		if !strings.HasPrefix(id, "chatcmpl-") && !strings.HasPrefix(id, "cmpl-") || len(id) < 20 {
			t.Errorf("id %q", id)
		}
		out["id"] = "ID"
	}
	if timings, ok := out["timings"]; ok {
		if n := len(timings.(map[string]any)); n != 9 {
			t.Errorf("%d timings: %v", n, timings)
		}
		delete(out, "timings")
	}
	if created, ok := out["created"].(float64); ok {
		if d := time.Since(time.Unix(int64(created), 0)); d < 0 || d > time.Minute {
			t.Errorf("created %v ago", d)
		}
		out["created"] = "NOW"
	}
	if fp, ok := out["system_fingerprint"].(string); ok {
		if !strings.HasPrefix(fp, "fp_") {
			t.Errorf("system_fingerprint %q", fp)
		}
		out["system_fingerprint"] = "FP"
	}
	return out
}

// sse reads a stream of events: data objects, comments as strings, "[DONE]".
func sse(t testing.TB, r io.Reader) []any {
	t.Helper()
	var out []any
	lines := bufio.NewScanner(r)
	blank := true
	for lines.Scan() {
		line := lines.Text()
		switch data, isData := strings.CutPrefix(line, "data: "); {
		case line == "":
			blank = true
			continue
		case !blank:
			t.Fatalf("line %q follows another without a blank line", line)
		case isData && data == "[DONE]":
			out = append(out, data)
		case isData:
			var v map[string]any
			if err := json.Unmarshal([]byte(data), &v); err != nil {
				t.Fatalf("%v in %q", err, data)
			}
			out = append(out, steady(t, v))
		case strings.HasPrefix(line, ":"):
			out = append(out, line)
		default:
			t.Fatalf("unexpected line %q", line)
		}
		blank = false
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if !blank {
		t.Error("the last event has no blank line behind it")
	}
	return out
}

type m = map[string]any

const hello = `"messages":[{"role":"user","content":"Hi"}]`

func TestWholeAnswer(t *testing.T) {
	mod, eng := testModel(t, script{text: "\nI think.\n</think>\n\nHello <world> & you."})
	_, url := serve(t, mod, nil)
	resp := post(t, url, `{"model":"anything",`+hello+`}`)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(body), "Hello <world> & you.") {
		t.Errorf("characters are escaped without need: %s", body)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("status %d, type %q", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	prompt, made := len(eng.requests[0].Prompt), len(eng.running[0].tokens)
	thought := 0
	for _, id := range eng.running[0].tokens {
		if thought++; mod.Tokenizer.Text(id) == "</think>" {
			break
		}
	}
	want := m{
		"id": "ID", "object": "chat.completion", "created": "NOW", "model": "pebble", "system_fingerprint": "FP",
		"choices": []any{m{
			"index": 0.0, "finish_reason": "stop", "logprobs": nil,
			"message": m{"role": "assistant", "content": "Hello <world> & you.", "reasoning_content": "I think.", "refusal": nil},
		}},
		"usage": m{
			"prompt_tokens": float64(prompt), "completion_tokens": float64(made), "total_tokens": float64(prompt + made),
			"prompt_tokens_details":     m{"cached_tokens": 2.0},
			"completion_tokens_details": m{"reasoning_tokens": float64(thought)},
		},
	}
	if d := cmp.Diff(want, object(t, strings.NewReader(string(body)))); d != "" {
		t.Error(d)
	}
}

// piecewise is a stream's chunk.
func piecewise(index int, delta m, finish any) m {
	return m{
		"id": "ID", "object": "chat.completion.chunk", "created": "NOW", "model": "pebble", "system_fingerprint": "FP",
		"choices": []any{m{"index": float64(index), "delta": delta, "logprobs": nil, "finish_reason": finish}},
	}
}

// joined joins neighbouring deltas of the same kind, whose number depends on the
// vocabulary, and drops empty ones but for the role's.
func joined(events []any) []any {
	var out []any
	textOf := func(e any) (choice m, kind string) {
		if c, ok := e.(m); ok && c["choices"] != nil && len(c["choices"].([]any)) == 1 {
			choice = c["choices"].([]any)[0].(m)
			delta := choice["delta"].(m)
			for _, k := range []string{"content", "reasoning_content"} {
				if _, ok := delta[k].(string); ok && len(delta) == 1 && choice["logprobs"] == nil {
					return choice, k
				}
			}
		}
		return nil, ""
	}
	for _, e := range events {
		if c, kind := textOf(e); kind != "" && len(out) > 0 {
			if last, k := textOf(out[len(out)-1]); k == kind && last["index"] == c["index"] {
				d := last["delta"].(m)
				d[kind] = d[kind].(string) + c["delta"].(m)[kind].(string)
				continue
			}
		}
		out = append(out, e)
	}
	return out
}

func TestStream(t *testing.T) {
	mod, _ := testModel(t, script{text: "Why.\n</think>\n\nBecause.", finish: engine.FinishLength})
	_, url := serve(t, mod, nil)
	resp := post(t, url, `{`+hello+`,"stream":true}`)
	for name, want := range map[string]string{"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	want := []any{
		piecewise(0, m{"role": "assistant", "content": ""}, nil),
		piecewise(0, m{"reasoning_content": "Why."}, nil),
		piecewise(0, m{"content": "Because."}, nil),
		piecewise(0, m{}, "length"),
		"[DONE]",
	}
	if d := cmp.Diff(want, joined(sse(t, resp.Body))); d != "" {
		t.Error(d)
	}
}

func TestStreamUsage(t *testing.T) {
	mod, eng := testModel(t, script{text: "</think>\n\nYes."})
	_, url := serve(t, mod, nil)
	events := sse(t, post(t, url, `{`+hello+`,"stream":true,"stream_options":{"include_usage":true}}`).Body)
	n := len(events)
	for _, e := range events[:n-2] {
		if usage, ok := e.(m)["usage"]; !ok || usage != nil {
			t.Errorf("usage %v (there: %v) in a chunk that is not the last, want null", usage, ok)
		}
	}
	prompt, made := float64(len(eng.requests[0].Prompt)), float64(len(eng.running[0].tokens))
	want := m{
		"id": "ID", "object": "chat.completion.chunk", "created": "NOW", "model": "pebble", "system_fingerprint": "FP",
		"choices": []any{},
		"usage": m{
			"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
			"prompt_tokens_details": m{"cached_tokens": 2.0}, "completion_tokens_details": m{"reasoning_tokens": 1.0},
		},
	}
	if d := cmp.Diff([]any{want, "[DONE]"}, events[n-2:]); d != "" {
		t.Error(d)
	}
}

func TestStreamSaysWhatTheWholeSays(t *testing.T) {
	for _, text := range []string{
		"</think>\n\nWrite 🐈‍⬛ 𝒳 한국어 again 🐈‍⬛", "thinking </thi not yet </think> done", "never closed  ", "", "</think>",
		"Hm.</think>A <think>tag</think> inside.",
	} {
		for _, stop := range []string{`[]`, `["done"]`, `["한국"," again"]`, `["zzz","A <"]`} {
			mod, _ := testModel(t, script{text: text})
			_, url := serve(t, mod, nil)
			whole := object(t, post(t, url, `{`+hello+`,"stop":`+stop+`}`).Body)["choices"].([]any)[0].(m)
			var content, reasoning, finish string
			for _, e := range sse(t, post(t, url, `{`+hello+`,"stream":true,"stop":`+stop+`}`).Body) {
				if e == "[DONE]" {
					continue
				}
				c := e.(m)["choices"].([]any)[0].(m)
				delta := c["delta"].(m)
				if s, ok := delta["content"].(string); ok {
					content += s
				}
				if s, ok := delta["reasoning_content"].(string); ok {
					reasoning += s
				}
				if s, ok := c["finish_reason"].(string); ok {
					finish += s
				}
			}
			message := whole["message"].(m)
			wholeReasoning, _ := message["reasoning_content"].(string)
			if content != message["content"] || reasoning != wholeReasoning || finish != whole["finish_reason"] {
				t.Errorf("text %q, stop %s: stream says %q %q %q, whole says %v", text, stop, reasoning, content, finish, whole)
			}
			if strings.Contains(content+reasoning, "\uFFFD") {
				t.Errorf("text %q: U+FFFD in %q %q", text, reasoning, content)
			}
		}
	}
}

func TestStopStringEndsTheGeneration(t *testing.T) {
	pause := make(chan struct{})
	mod, eng := testModel(t, script{text: "</think>The alphabet: ABCDEFGHIJ and more", finish: engine.FinishLength})
	n := len(mod.Tokenizer.Encode(tokenizer.Part{Text: "</think>The alphabet: ABCDEFGHIJ", Trusted: true}))
	eng.scripts[0].pause, eng.scripts[0].at = pause, n // nothing more is asked for
	_, url := serve(t, mod, nil)
	got := object(t, post(t, url, `{`+hello+`,"stop":["DEFGHIJ"]}`).Body)
	choice := got["choices"].([]any)[0].(m)
	if choice["message"].(m)["content"] != "The alphabet: ABC" || choice["finish_reason"] != "stop" {
		t.Errorf("choice %v", choice)
	}
	if used := got["usage"].(m)["completion_tokens"]; used != float64(n) {
		t.Errorf("%v completion tokens, want the %d that were read", used, n)
	}
	<-eng.running[0].closed
}

func TestChoices(t *testing.T) {
	mod, eng := testModel(t, script{text: "</think>one"}, script{text: "</think>two"}, script{text: "</think>three", finish: engine.FinishLength})
	_, url := serve(t, mod, nil)
	got := object(t, post(t, url, `{`+hello+`,"n":3,"seed":7}`).Body)
	var texts []any
	tokens := 0
	for i, c := range got["choices"].([]any) {
		choice := c.(m)
		texts = append(texts, choice["message"].(m)["content"], choice["finish_reason"])
		if choice["index"] != float64(i) || eng.requests[i].Choice != i || eng.requests[i].Follows != (i > 0) || eng.requests[i].Sampler.Seed != 7 {
			t.Errorf("choice %d has index %v, request %+v", i, choice["index"], eng.requests[i])
		}
		tokens += len(eng.running[i].tokens)
	}
	if d := cmp.Diff([]any{"one", "stop", "two", "stop", "three", "length"}, texts); d != "" {
		t.Error(d)
	}
	if used := got["usage"].(m)["completion_tokens"]; used != float64(tokens) {
		t.Errorf("%v completion tokens, want %d", used, tokens)
	}

	eng.requests = nil
	roles, ends := 0, map[any]int{}
	for i, e := range sse(t, post(t, url, `{`+hello+`,"n":3,"stream":true}`).Body) {
		if e == "[DONE]" {
			break
		}
		c := e.(m)["choices"].([]any)[0].(m)
		if c["delta"].(m)["role"] != nil {
			if roles++; i > 2 {
				t.Errorf("role in chunk %d", i)
			}
		}
		if c["finish_reason"] != nil {
			ends[c["index"]]++
		}
	}
	if d := cmp.Diff(map[any]int{0.0: 1, 1.0: 1, 2.0: 1}, ends); d != "" || roles != 3 {
		t.Errorf("%d roles, ends %s", roles, d)
	}
	seeds := map[uint64]bool{}
	for _, r := range eng.requests {
		seeds[r.Sampler.Seed] = true
	}
	if len(seeds) != 1 || seeds[7] {
		t.Errorf("seeds %v: want one random seed for all choices", seeds)
	}
}

func TestLogProbs(t *testing.T) {
	mod, eng := testModel(t)
	id := func(text string) int32 {
		ids := mod.Tokenizer.Encode(tokenizer.Part{Text: text, Trusted: true})
		if len(ids) != 1 {
			t.Fatalf("%q is %d tokens", text, len(ids))
		}
		return ids[0]
	}
	// é comes as two tokens of one byte each.
	high, ok1 := mod.Tokenizer.ID("Ã")
	low, ok2 := mod.Tokenizer.ID("©")
	if !ok1 || !ok2 {
		t.Fatal("the vocabulary has no tokens for single bytes")
	}
	eng.scripts = []script{{
		ids: []int32{id("a"), id("</think>"), id("\n"), high, low, id("b"), id("c"), id("d")},
		top: []sampler.LogProb{{ID: id("x"), LogProb: -1.5}},
	}}
	_, url := serve(t, mod, nil)
	entry := func(token string, b ...any) m {
		return m{"token": token, "logprob": -0.5, "bytes": b, "top_logprobs": []any{m{"token": "x", "logprob": -1.5, "bytes": []any{120.0}}}}
	}
	want := []any{entry(`bytes:\xc3`, 195.0), entry(`bytes:\xa9`, 169.0), entry("b", 98.0)}
	request := `{` + hello + `,"logprobs":true,"top_logprobs":1,"stop":["cd"]`
	choice := object(t, post(t, url, request+`}`).Body)["choices"].([]any)[0].(m)
	if d := cmp.Diff(m{"content": want, "refusal": nil}, choice["logprobs"]); d != "" {
		t.Error(d)
	}
	if choice["message"].(m)["content"] != "éb" {
		t.Errorf("message %v", choice["message"])
	}
	var streamed []any
	for _, e := range sse(t, post(t, url, request+`,"stream":true}`).Body) {
		if e == "[DONE]" {
			break
		}
		if lp, ok := e.(m)["choices"].([]any)[0].(m)["logprobs"].(m); ok {
			streamed = append(streamed, lp["content"].([]any)...)
		}
	}
	if d := cmp.Diff(want, streamed); d != "" {
		t.Error(d)
	}
	// Without alternatives the list of them is empty, not absent.
	eng.scripts[0].top = nil
	choice = object(t, post(t, url, `{`+hello+`,"logprobs":true,"stop":"b"}`).Body)["choices"].([]any)[0].(m)
	first := choice["logprobs"].(m)["content"].([]any)[0].(m)
	if d := cmp.Diff([]any{}, first["top_logprobs"]); d != "" {
		t.Error(d)
	}
}
