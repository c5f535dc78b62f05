package telemetry

import (
	"context"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/engine"
)

// DeviceStates are the states that a device can be in, in the order of its life.
var DeviceStates = []string{"stopped", "starting", "loading", "ready", "draining", "failed"}

// Device is what is known of a device and its backend process at one moment.
type Device struct {
	// Name is the device's in the configuration and the log.
	Name string
	// State is one of DeviceStates, Since when it got there.
	State string
	Since time.Time
	// Error is why it failed last, also after it works again; nil if it never did.
	Error error
	// First and Last bound its layers, half open.
	First, Last int
	// PID is its process, 0 where there is none; Starts counts processes so far.
	PID, Starts int
	// Transport is how steps travel to it, once that is known.
	Transport string
	// WeightBytes are the weights it holds, MappedBytes those of them that lie in
	// the file's mapping.
	WeightBytes, MappedBytes int64
}

// Snapshot is what the parts below the HTTP server are doing at one moment.
type Snapshot struct {
	// Engine are the engine's counters.
	Engine engine.Totals
	// KV counts sequences and tokens.
	KV core.KVStats
	// Experts counts experts and how often they were used.
	Experts core.ExpertStats
	// Devices execute the model.
	Devices []Device
}

// Metrics are a server's metrics. Its methods are safe for concurrent use and do
// not wait.
type Metrics struct {
	registry   *prometheus.Registry
	requests   *prometheus.CounterVec
	firstToken prometheus.Histogram
	token      prometheus.Histogram
	source     atomic.Pointer[func(context.Context) Snapshot]
}

// New makes the metrics of a server of the given version.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "strata_http_requests_total", Help: "HTTP requests answered, by route and status code.",
		}, []string{"endpoint", "code"}),
		firstToken: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "strata_time_to_first_token_seconds", Help: "Time from a request's arrival at the engine to its first token, waiting included.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600},
		}),
		token: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "strata_time_per_token_seconds", Help: "Time from one token of an answer to the next.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "strata_build_info", Help: "Always 1; the label is the version.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.requests, m.firstToken, m.token, build, snapshots{m},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Request counts an answered request. endpoint is the route, not the path: there
// must be few of them.
func (m *Metrics) Request(endpoint string, code int) {
	m.requests.WithLabelValues(endpoint, strconv.Itoa(code)).Inc()
}

// FirstToken takes the time from a request to its first token.
func (m *Metrics) FirstToken(d time.Duration) { m.firstToken.Observe(d.Seconds()) }

// Token takes the time between two tokens of an answer.
func (m *Metrics) Token(d time.Duration) { m.token.Observe(d.Seconds()) }

// Watch names who is asked for a Snapshot. The function must return when its
// context ends, with what it knows by then; it is called from any goroutine.
func (m *Metrics) Watch(source func(context.Context) Snapshot) { m.source.Store(&source) }

// Handler answers requests for the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}
