package telemetry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/strata-engine/strata/core"
)

// snapshotTimeout bounds how long a look at the metrics waits for the parts: a
// stalled backend must not hide that it is stalled.
const snapshotTimeout = 500 * time.Millisecond

// snapshots collects what is asked for when somebody looks.
type snapshots struct{ *Metrics }

// figure is a number of a snapshot.
type figure struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *Snapshot) float64
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var figures = []figure{
	{describe("strata_requests_running", "Answers being computed now."), prometheus.GaugeValue, func(s *Snapshot) float64 { return float64(s.Engine.Running) }},
	{describe("strata_requests_queued", "Answers waiting for their turn."), prometheus.GaugeValue, func(s *Snapshot) float64 { return float64(s.Engine.Queued) }},
	{describe("strata_prompt_tokens_total", "Prompt tokens executed."), prometheus.CounterValue, func(s *Snapshot) float64 { return float64(s.Engine.PromptTokens) }},
	{describe("strata_generated_tokens_total", "Tokens generated."), prometheus.CounterValue, func(s *Snapshot) float64 { return float64(s.Engine.GeneratedTokens) }},
	{describe("strata_non_finite_answers_total", "Answers ended because a row was not finite."), prometheus.CounterValue, func(s *Snapshot) float64 { return float64(s.Engine.NonFinite) }},
	{describe("strata_host_overhead_seconds", "Median time per token of a single sequence in which no device worked."), prometheus.GaugeValue, func(s *Snapshot) float64 { return s.Engine.Overhead.Seconds() }},
	{describe("strata_kv_sequences", "Open sequences."), prometheus.GaugeValue, func(s *Snapshot) float64 { return float64(s.KV.Sequences) }},
	{describe("strata_kv_tokens", "Tokens of the open sequences."), prometheus.GaugeValue, func(s *Snapshot) float64 { return float64(s.KV.Tokens) }},
	{describe("strata_kv_reserved_tokens", "Tokens that the open sequences may grow to."), prometheus.GaugeValue, func(s *Snapshot) float64 { return float64(s.KV.Reserved) }},
	{describe("strata_kv_budget_tokens", "Tokens that can be reserved at most."), prometheus.GaugeValue, func(s *Snapshot) float64 { return float64(s.KV.Budget) }},
	{describe("strata_expert_uses_total", "How often experts were chosen, summed over all experts."), prometheus.CounterValue, func(s *Snapshot) float64 { return float64(s.Experts.Uses) }},
}

var (
	expertsDesc = describe("strata_experts", "Experts (one for each layer and index) by where their weights lie.", "tier")
	stateDesc   = describe("strata_device_state", "1 for the state that a device is in, 0 for the others.", "device", "state")
	startsDesc  = describe("strata_device_starts_total", "Backend processes started for a device.", "device")
	weightsDesc = describe("strata_device_weight_bytes", "Bytes of weights that a device holds.", "device")
	mappedDesc  = describe("strata_device_mapped_bytes", "The part of the weights that is used in place from the model file.", "device")
)

// Describe implements prometheus.Collector.
func (c snapshots) Describe(out chan<- *prometheus.Desc) {
	for _, f := range figures {
		out <- f.desc
	}
	for _, d := range []*prometheus.Desc{expertsDesc, stateDesc, startsDesc, weightsDesc, mappedDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector. Before there is anything to ask, there
// is nothing to tell.
func (c snapshots) Collect(out chan<- prometheus.Metric) {
	source := c.source.Load()
	if source == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), snapshotTimeout)
	defer cancel()
	s := (*source)(ctx)
	for _, f := range figures {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(&s))
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, tier := range []core.ExpertTier{core.TierDevice, core.TierPinned, core.TierPageCache, core.TierDisk} {
		gauge(expertsDesc, float64(s.Experts.ByTier[tier]), tier.String())
	}
	for _, d := range s.Devices {
		for _, state := range DeviceStates {
			value := 0.0
			if state == d.State {
				value = 1
			}
			gauge(stateDesc, value, d.Name, state)
		}
		out <- prometheus.MustNewConstMetric(startsDesc, prometheus.CounterValue, float64(d.Starts), d.Name)
		gauge(weightsDesc, float64(d.WeightBytes), d.Name)
		gauge(mappedDesc, float64(d.MappedBytes), d.Name)
	}
}
