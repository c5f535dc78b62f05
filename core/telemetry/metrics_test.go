package telemetry

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/engine"
)

func TestMetrics(t *testing.T) {
	m := New("v1")
	// Before there is a model there are no figures of one.
	if n, err := testutil.GatherAndCount(m.registry, "strata_requests_running", "strata_device_state"); n != 0 || err != nil {
		t.Errorf("%d figures before there is anything to watch, error %v", n, err)
	}
	m.Request("/v1/models", 200)
	m.Request("/v1/models", 200)
	m.Request("/v1/chat/completions", 503)
	m.FirstToken(30 * time.Millisecond)
	m.Token(2 * time.Millisecond)
	m.Watch(func(ctx context.Context) Snapshot {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("no bound on the time of a snapshot")
		}
		return Snapshot{
			Engine:  engine.Totals{Queued: 3, Running: 2, PromptTokens: 100, GeneratedTokens: 50, NonFinite: 1, Overhead: 250 * time.Microsecond},
			KV:      core.KVStats{Sequences: 2, Tokens: 40, Reserved: 80, Budget: 1000},
			Experts: core.ExpertStats{ByTier: map[core.ExpertTier]int{core.TierPageCache: 24}, Uses: 77},
			Devices: []Device{{Name: "cpu0", State: "ready", Starts: 1, WeightBytes: 10, MappedBytes: 4}, {Name: "cpu1", State: "failed", Starts: 2}},
		}
	})
	const want = `
# HELP strata_device_starts_total Backend processes started for a device.
# TYPE strata_device_starts_total counter
strata_device_starts_total{device="cpu0"} 1
strata_device_starts_total{device="cpu1"} 2
# HELP strata_device_state 1 for the state that a device is in, 0 for the others.
# TYPE strata_device_state gauge
strata_device_state{device="cpu0",state="draining"} 0
strata_device_state{device="cpu0",state="failed"} 0
strata_device_state{device="cpu0",state="loading"} 0
strata_device_state{device="cpu0",state="ready"} 1
strata_device_state{device="cpu0",state="starting"} 0
strata_device_state{device="cpu0",state="stopped"} 0
strata_device_state{device="cpu1",state="draining"} 0
strata_device_state{device="cpu1",state="failed"} 1
strata_device_state{device="cpu1",state="loading"} 0
strata_device_state{device="cpu1",state="ready"} 0
strata_device_state{device="cpu1",state="starting"} 0
strata_device_state{device="cpu1",state="stopped"} 0
# HELP strata_experts Experts (one for each layer and index) by where their weights lie.
# TYPE strata_experts gauge
strata_experts{tier="device"} 0
strata_experts{tier="disk"} 0
strata_experts{tier="page-cache"} 24
strata_experts{tier="pinned"} 0
# HELP strata_expert_uses_total How often experts were chosen, summed over all experts.
# TYPE strata_expert_uses_total counter
strata_expert_uses_total 77
# HELP strata_generated_tokens_total Tokens generated.
# TYPE strata_generated_tokens_total counter
strata_generated_tokens_total 50
# HELP strata_host_overhead_seconds Median time per token of a single sequence in which no device worked.
# TYPE strata_host_overhead_seconds gauge
strata_host_overhead_seconds 0.00025
# HELP strata_http_requests_total HTTP requests answered, by route and status code.
# TYPE strata_http_requests_total counter
strata_http_requests_total{code="200",endpoint="/v1/models"} 2
strata_http_requests_total{code="503",endpoint="/v1/chat/completions"} 1
# HELP strata_kv_budget_tokens Tokens that can be reserved at most.
# TYPE strata_kv_budget_tokens gauge
strata_kv_budget_tokens 1000
# HELP strata_kv_reserved_tokens Tokens that the open sequences may grow to.
# TYPE strata_kv_reserved_tokens gauge
strata_kv_reserved_tokens 80
# HELP strata_kv_sequences Open sequences.
# TYPE strata_kv_sequences gauge
strata_kv_sequences 2
# HELP strata_kv_tokens Tokens of the open sequences.
# TYPE strata_kv_tokens gauge
strata_kv_tokens 40
# HELP strata_non_finite_answers_total Answers ended because a row was not finite.
# TYPE strata_non_finite_answers_total counter
strata_non_finite_answers_total 1
# HELP strata_prompt_tokens_total Prompt tokens executed.
# TYPE strata_prompt_tokens_total counter
strata_prompt_tokens_total 100
# HELP strata_requests_queued Answers waiting for their turn.
# TYPE strata_requests_queued gauge
strata_requests_queued 3
# HELP strata_requests_running Answers being computed now.
# TYPE strata_requests_running gauge
strata_requests_running 2
`
	var names []string
	for _, line := range strings.Split(want, "\n") {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "TYPE" {
			names = append(names, f[2])
		}
	}
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	// The page is what Prometheus reads, and its own linter has nothing to say.
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		`strata_build_info{version="v1"} 1`,
		`strata_time_to_first_token_seconds_bucket{le="0.025"} 0`, `strata_time_to_first_token_seconds_bucket{le="0.05"} 1`,
		`strata_time_per_token_seconds_bucket{le="0.0025"} 1`, `strata_time_per_token_seconds_count 1`, "go_goroutines ",
	} {
		if !strings.Contains(w.Body.String(), line) {
			t.Errorf("no line %q", line)
		}
	}
	problems, err := testutil.GatherAndLint(m.registry)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	if err != nil || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		t.Errorf("type %q, error %v", w.Header().Get("Content-Type"), err)
	}
}
