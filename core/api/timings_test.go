package api

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTimings(t *testing.T) {
	mod, eng := testModel(t, script{text: "</think>Yes and no."})
	_, url := serve(t, mod, nil)
	raw := func(body string) (out []m) {
		resp := post(t, url, body)
		if resp.Header.Get("Content-Type") == "application/json" {
			return []m{decode(t, resp.Body)}
		}
		return rawEvents(t, resp.Body)
	}
	whole := raw(`{` + hello + `}`)[0]["timings"]
	read, made := float64(len(eng.requests[0].Prompt)-2), float64(len(eng.running[0].tokens))
	want := m{
		"cache_n": 2.0, "prompt_n": read, "prompt_ms": 50.0, "prompt_per_token_ms": 50 / read, "prompt_per_second": read / 0.05,
		"predicted_n": made, "predicted_ms": 2000.0, "predicted_per_token_ms": 2000 / made, "predicted_per_second": made / 2,
	}
	if d := cmp.Diff(want, whole); d != "" {
		t.Error(d)
	}
	for _, options := range []string{``, `,"stream_options":{"include_usage":true}`} {
		chunks := raw(`{` + hello + `,"stream":true` + options + `}`)
		for i, c := range chunks {
			timings, ok := c["timings"]
			if last := i == len(chunks)-1; ok != last || last && !cmp.Equal(want, timings) {
				t.Errorf("%s: timings %v in chunk %d of %d", options, timings, i+1, len(chunks))
			}
		}
	}
	// Counts of several choices add up, times do not; one prompt is read once for
	// all that a client is told.
	several := raw(`{` + hello + `,"n":3}`)[0]["timings"].(m)
	if several["predicted_n"] != 3*made || several["predicted_ms"] != 2000.0 || several["prompt_n"] != read {
		t.Errorf("timings of three choices: %v", several)
	}
}

// rawEvents reads a stream's data as it is, without the end marker.
func rawEvents(t testing.TB, r io.Reader) (out []m) {
	t.Helper()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var v m
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

// JSON has no infinity.
func TestTimingsOfNothing(t *testing.T) {
	b, err := json.Marshal(newTimings(5, 0, 0, 0, time.Second))
	want := `{"cache_n":5,"prompt_n":0,"prompt_ms":0,"prompt_per_token_ms":0,"prompt_per_second":0,"predicted_n":0,"predicted_ms":1000,"predicted_per_token_ms":0,"predicted_per_second":0}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}

func TestPromptProgress(t *testing.T) {
	reading, pause := new(atomic.Int64), make(chan struct{})
	mod, eng := testModel(t, script{text: "</think>Yes.", reading: reading, pause: pause})
	_, url := serve(t, mod, nil)
	resp := post(t, url, `{`+hello+`,"stream":true,"return_progress":true}`)
	total := float64(len(eng.requests[0].Prompt))
	time.AfterFunc(150*time.Millisecond, func() { reading.Store(5) })
	time.AfterFunc(400*time.Millisecond, func() { reading.Store(int64(total)); close(pause) })
	var got []any
	content := false
	for _, e := range rawEvents(t, resp.Body) {
		c := e["choices"].([]any)[0].(m)
		if delta := c["delta"].(m); delta["content"] == "Yes." || delta["content"] == "Yes" {
			content = true
		}
		p, ok := e["prompt_progress"].(m)
		if !ok {
			continue
		}
		if content || c["finish_reason"] != nil || len(c["delta"].(m)) != 0 {
			t.Errorf("progress after content, or with it: %v", e)
		}
		got = append(got, p)
	}
	report := func(read, ms float64) m { return m{"total": total, "cache": 2.0, "processed": read, "time_ms": ms} }
	if d := cmp.Diff([]any{report(0, 7), report(5, 7), report(total, 50)}, got); d != "" {
		t.Error(d)
	}
	// Who does not ask gets none.
	for _, e := range rawEvents(t, post(t, url, `{`+hello+`,"stream":true}`).Body) {
		if e["prompt_progress"] != nil {
			t.Errorf("progress that nobody asked for: %v", e)
		}
	}
}
