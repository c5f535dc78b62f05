package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/strata-engine/strata/core/config"
)

func FuzzParseText(f *testing.F) {
	for _, s := range []string{
		`{"prompt":"a"}`, `{"prompt":["a","b"],"n":2,"echo":true}`, `{"prompt":[1,2]}`, `{"prompt":[[1],[2]],"logprobs":5,"best_of":1}`,
		`{"prompt":[4127,1e3,-0]}`, `{"prompt":[[[]]]}`, `{"prompt":[{}],"suffix":""}`, `{"prompt":""}`,
	} {
		f.Add(s)
	}
	mod, eng := testModel(f, script{text: "ok"})
	s := New(config.Defaults().Server, "test", nil)
	f.Fuzz(func(t *testing.T, body string) {
		req, refused := parseText(body)
		if refused != nil {
			if refused.status != 400 || refused.body.Message == "" {
				t.Errorf("refused with %+v", refused)
			}
			return
		}
		if n := len(req.texts) + len(req.ids); n < 1 || n > maxChoices || len(req.texts) > 0 && len(req.ids) > 0 || req.sampling.Validate() != nil {
			t.Errorf("accepted %+v", req)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		run, err := s.begin(ctx, mod, req)
		if err != nil {
			if e := fromEngine(err); e.status != 400 {
				t.Errorf("%v", err)
			}
			return
		}
		for _, r := range eng.requests {
			for _, id := range r.Prompt {
				if id < 0 || int(id) >= mod.Tokenizer.Size() || len(req.texts) > 0 && mod.Tokenizer.IsControl(id) {
					t.Errorf("token %d from %q", id, body)
				}
			}
		}
		run.end(cancel)
		eng.requests, eng.running = nil, nil
	})
}

// FuzzTokens sends any body to the routes that answer at once.
func FuzzTokens(f *testing.F) {
	for _, s := range []string{`{"content":"a","with_pieces":true,"parse_special":true}`, `{"tokens":[1,2,4098]}`, `{"content":null}`, `{"tokens":[1e2,-1]}`, `[`} {
		f.Add(s)
	}
	mod, _ := testModel(f)
	s := New(config.Defaults().Server, "test", nil)
	s.SetModel(mod)
	f.Fuzz(func(t *testing.T, body string) {
		for _, path := range []string{"/tokenize", "/detokenize"} {
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(body)))
			var out map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != 200 && (w.Code != 400 || out["error"] == nil) {
				t.Errorf("%s %q: status %d, %s", path, body, w.Code, w.Body)
			}
		}
	})
}

// FuzzEventStream frames any texts as events: whatever they contain, each is one
// line of data that reads back as itself.
func FuzzEventStream(f *testing.F) {
	f.Add("a", "b")
	f.Add("line\nbreak\r\n", "data: [DONE]\n\n")
	f.Add(": comment", "\u2028\u2029\x00\x7f<>&")
	f.Add("🐈‍⬛", "\\\"")
	f.Fuzz(func(t *testing.T, first, second string) {
		first, second = strings.ToValidUTF8(first, "\uFFFD"), strings.ToValidUTF8(second, "\uFFFD")
		w := httptest.NewRecorder()
		out := newEventStream(w, 0)
		out.control = http.NewResponseController(deadlineless{w})
		out.start()
		for _, text := range []string{first, second} {
			out.data(delta{Content: &text})
			out.comment("keep-alive")
		}
		out.done()
		if out.err != nil {
			t.Fatal(out.err)
		}
		events := bytes.Split(w.Body.Bytes(), []byte("\n\n"))
		if len(events) != 6 || len(events[5]) != 0 || string(events[4]) != "data: [DONE]" || string(events[1]) != ": keep-alive" {
			t.Fatalf("events %q", events)
		}
		for i, want := range []string{first, second} {
			data, ok := bytes.CutPrefix(events[2*i], []byte("data: "))
			var got delta
			if !ok || bytes.ContainsAny(data, "\r\n") || json.Unmarshal(data, &got) != nil || got.Content == nil || *got.Content != want {
				t.Errorf("event %q of %q", events[2*i], want)
			}
		}
	})
}

// deadlineless is a writer without a network, whose deadlines mean nothing.
type deadlineless struct{ http.ResponseWriter }

func (deadlineless) SetWriteDeadline(time.Time) error { return nil }
