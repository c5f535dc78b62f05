package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/telemetry"
)

// fakeParts are two devices, of which one has failed.
type fakeParts struct{}

func (fakeParts) Devices() []telemetry.Device {
	return []telemetry.Device{
		{Name: "cpu0", State: "ready", Since: time.Unix(1700000000, 0), First: 0, Last: 3, PID: 77, Starts: 1, Transport: "shm", WeightBytes: 1000, MappedBytes: 900},
		{Name: "cpu1", State: "failed", Since: time.Unix(1700000009, 0), First: 3, Last: 4, Starts: 2, Error: errors.New("killed")},
	}
}

func (f fakeParts) Snapshot(context.Context) telemetry.Snapshot {
	return telemetry.Snapshot{
		KV:      core.KVStats{Sequences: 1, Tokens: 5, Reserved: 9, Budget: 100},
		Experts: core.ExpertStats{ByTier: map[core.ExpertTier]int{core.TierPageCache: 16}, Uses: 12},
		Devices: f.Devices(),
	}
}

func TestHealthOfDevices(t *testing.T) {
	mod, _ := testModel(t)
	mod.Parts = fakeParts{}
	_, url := serve(t, mod, nil)
	_, got := get(t, url+"/health")
	want := []any{
		m{"name": "cpu0", "state": "ready", "since": 1700000000.0, "layers": []any{0.0, 2.0}, "pid": 77.0, "starts": 1.0, "transport": "shm", "weight_bytes": 1000.0},
		m{"name": "cpu1", "state": "failed", "since": 1700000009.0, "layers": []any{3.0, 3.0}, "starts": 2.0, "weight_bytes": 0.0, "error": "killed"},
	}
	if d := cmp.Diff(want, got["devices"]); d != "" {
		t.Error(d)
	}
}

func TestMetricsOfRequests(t *testing.T) {
	mod, eng := testModel(t, script{text: "</think>one two three"})
	mod.Parts = fakeParts{}
	_, url := serve(t, mod, nil)
	post(t, url, `{`+hello+`,"n":2}`)
	sse(t, post(t, url, `{`+hello+`,"stream":true}`).Body)
	post(t, url, `{`)
	post(t, url+"/nowhere", `{}`) // "/nowhere/v1/chat/completions"
	for _, path := range []string{"/v1/models/pebble", "/v1/models"} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	tokens := len(eng.running[0].tokens) - 1
	page := func() string {
		resp, err := http.Get(url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
			t.Fatalf("status %d, type %q, error %v", resp.StatusCode, resp.Header.Get("Content-Type"), err)
		}
		return string(b)
	}
	want := []string{
		`strata_http_requests_total{code="200",endpoint="/v1/chat/completions"} 2`,
		`strata_http_requests_total{code="400",endpoint="/v1/chat/completions"} 1`,
		`strata_http_requests_total{code="404",endpoint="other"} 1`,
		`strata_http_requests_total{code="200",endpoint="/v1/models/{id...}"} 1`,
		`strata_http_requests_total{code="200",endpoint="/v1/models"} 1`,
		`strata_time_to_first_token_seconds_count 3`,
		"strata_time_per_token_seconds_count " + string(encode(3*tokens)),
		"strata_requests_running 1", "strata_requests_queued 2",
		"strata_kv_reserved_tokens 9", "strata_expert_uses_total 12", `strata_experts{tier="page-cache"} 16`,
		`strata_device_state{device="cpu1",state="failed"} 1`,
	}
	// A request is counted when its handler has ended, which its client need not
	// notice.
	var missing string
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		missing = ""
		got := page()
		for _, line := range want {
			if !strings.Contains(got, line+"\n") {
				missing = line
			}
		}
		if missing == "" {
			return
		}
	}
	t.Errorf("no line %q in %s", missing, page())
}
