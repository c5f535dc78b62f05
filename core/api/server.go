package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/engine"
	"github.com/strata-engine/strata/core/telemetry"
	"github.com/strata-engine/strata/core/template"
	"github.com/strata-engine/strata/core/tokenizer"
)

// Engine runs requests. EngineOf makes one of the real engine.
type Engine interface {
	// Start queues a request. See engine.Engine.Start.
	Start(ctx context.Context, req engine.Request) (Generation, error)
	// Down returns why nothing can run any more, or nil.
	Down() error
	// Stats returns counters.
	Stats() engine.Totals
}

// Generation is a running request. See engine.Generation.
type Generation interface {
	// Next waits for the next token; io.EOF after the last.
	Next(ctx context.Context) (engine.Token, error)
	// Finish says why the answer ended.
	Finish() string
	// Progress says how far it has come.
	Progress() engine.Progress
	// Stats returns measurements.
	Stats() engine.Stats
	// Close ends the generation. It is idempotent and does not wait.
	Close()
}

// EngineOf adapts the engine.
func EngineOf(e *engine.Engine) Engine { return runner{e} }

type runner struct{ *engine.Engine }

// Start queues a request.
func (r runner) Start(ctx context.Context, req engine.Request) (Generation, error) {
	g, err := r.Engine.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	return g, nil
}

// Model is a loaded model, ready to answer.
type Model struct {
	// ID is the name in /v1/models and in answers.
	ID string
	// Spec describes the model.
	Spec *core.ModelSpec
	// Context is the most tokens of a prompt and its answer.
	Context int
	// Sequences is how many are computed at once.
	Sequences int
	// Loaded is when it was loaded.
	Loaded time.Time
	// Tokenizer and Template turn a conversation into tokens.
	Tokenizer *tokenizer.Tokenizer
	Template  *template.Template
	// Engine executes.
	Engine Engine
	// Parts are what Engine executes on; nil where nothing is known of it.
	Parts Parts
}

// Parts tell what the devices and stores of a model are doing.
type Parts interface {
	// Devices returns the state of every device. It does not wait.
	Devices() []telemetry.Device
	// Snapshot also asks the devices for their counters, until ctx ends.
	Snapshot(ctx context.Context) telemetry.Snapshot
}

// snapshot is what the metrics show of a model.
func (m *Model) snapshot(ctx context.Context) telemetry.Snapshot {
	var s telemetry.Snapshot
	if m.Parts != nil {
		s = m.Parts.Snapshot(ctx)
	}
	s.Engine = m.Engine.Stats()
	return s
}

// fingerprint names what answers are made with: equal fingerprints and seeds
// give equal answers.
func (m *Model) fingerprint() string { return "fp_" + m.Spec.Hash[:min(12, len(m.Spec.Hash))] }

// Server answers HTTP requests. It can serve before a model is there: health
// tells how far loading has come, and requests wait a little or are told to come
// back. Safe for concurrent use.
type Server struct {
	cfg     config.Server
	version string
	log     hclog.Logger
	handler http.Handler
	metrics *telemetry.Metrics
	keys    keys
	ready   chan struct{} // closed when there is a model

	mu       sync.Mutex // protects the fields below
	model    *Model
	loading  string  // what loading does now
	progress float64 // from 0 to 1
	stopping bool
}

// New makes a server. Of cfg.APIKeys a request must carry one, where there are
// any; cfg.APIKeysFile is the caller's to read (config.Server.Keys). log may be
// nil.
func New(cfg config.Server, version string, log hclog.Logger) *Server {
	if log == nil {
		log = hclog.NewNullLogger()
	}
	s := &Server{cfg: cfg, version: version, log: log, metrics: telemetry.New(version), keys: newKeys(cfg.APIKeys), ready: make(chan struct{}), loading: "starting"}
	mux := http.NewServeMux()
	paths := map[string][]string{}
	for _, route := range s.routes() {
		mux.HandleFunc(route.method+" "+route.path, route.handle)
		paths[route.path] = append(paths[route.path], route.method)
	}
	for path, methods := range paths {
		if slices.Contains(methods, http.MethodGet) {
			methods = append(methods, http.MethodHead)
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			if r.Method == http.MethodOptions {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			invalidRequest(http.StatusMethodNotAllowed, "method_not_allowed", "Method %s is not allowed for %s; use %s.", r.Method, r.URL.Path, strings.Join(methods, " or ")).write(w)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		invalidRequest(http.StatusNotFound, "unknown_url", "Unknown URL (%s %s).", r.Method, r.URL.Path).write(w)
	})
	// From the inside out. Answers of every kind have the headers that let a
	// page read them.
	handler := s.protect(mux)
	if len(s.keys) == 0 {
		handler = newGuard(&s.cfg, handler)
	}
	s.handler = s.bounded(newCORS(s.cfg.CORSOrigins, handler), mux)
	return s
}

// route is a method and a path, as http.ServeMux has it, that the server answers.
type route struct {
	method, path string
	handle       http.HandlerFunc
}

// routes are all that openapi.json describes.
func (s *Server) routes() []route {
	return []route{
		{http.MethodPost, "/v1/chat/completions", s.chat},
		{http.MethodPost, "/v1/completions", s.complete},
		{http.MethodGet, "/v1/models", s.listModels},
		{http.MethodGet, "/v1/models/{id...}", s.showModel},
		{http.MethodPost, "/tokenize", s.tokenize},
		{http.MethodPost, "/detokenize", s.detokenize},
		{http.MethodGet, "/props", s.props},
		{http.MethodGet, "/metrics", s.metrics.Handler().ServeHTTP},
		{http.MethodGet, "/openapi.json", s.openapi},
		{http.MethodGet, "/health", s.health},
		{http.MethodGet, "/health/ready", s.health},
		{http.MethodGet, "/health/live", s.live},
	}
}

// Handler returns the server's handler, for a server of one's own or for tests.
func (s *Server) Handler() http.Handler { return s.handler }

// SetProgress tells health how far loading has come: fraction from 0 to 1.
func (s *Server) SetProgress(phase string, fraction float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loading, s.progress = phase, fraction
}

// SetModel makes the server answer with a model. It is called once.
func (s *Server) SetModel(m *Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.model = m
	s.metrics.Watch(m.snapshot)
	close(s.ready)
}

// current returns the model, or nil as long as there is none.
func (s *Server) current() *Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.model
}

// errStopping is the cause with which requests end that outlast a shutdown.
var errStopping = unavailable(http.StatusServiceUnavailable, 5, "shutting_down", "server error: the server is shutting down")

// wait returns the model. Where it is still being loaded, a stream waits with its
// client, kept alive by comments, and other requests a little. out may be nil.
func (s *Server) wait(ctx context.Context, out *liveStream) (*Model, error) {
	var hold, silence <-chan time.Time
	if s.current() == nil {
		if out != nil {
			hold, silence = out.hold.C, out.silence.C
		} else {
			timer := time.NewTimer(s.cfg.HoldHeaders)
			defer timer.Stop()
			hold = timer.C
		}
	}
	for s.current() == nil {
		select {
		case <-s.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-hold:
			if out == nil {
				return nil, unavailable(http.StatusServiceUnavailable, 2, "model_loading", "server error: the model is still being loaded, try again later")
			}
			out.start()
			out.settle()
		case <-silence:
			if out.started {
				out.comment("loading the model")
				out.settle()
			}
		}
		if out != nil && out.err != nil {
			return nil, out.err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, errStopping
	}
	return s.model, nil
}

// Serve answers requests that arrive on the listener until ctx ends, and then
// lets those that run finish for at most the shutdown time-out. A canceled force
// context ends them at once. It closes the listener.
func (s *Server) Serve(ctx, force context.Context, listener net.Listener) error {
	requests, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: s.cfg.HeaderTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    int(s.cfg.MaxHeader),
		ErrorLog:          log.New(s.log.Named("http").StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}), "", 0),
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	bound, release := context.WithTimeout(force, s.cfg.ShutdownTimeout)
	defer release()
	err := server.Shutdown(bound)
	if err == nil {
		<-failed
		return nil
	}
	// Tell the requests that are left, give them a moment to say so to their
	// clients, and go.
	cancel(errStopping)
	grace, release := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer release()
	if server.Shutdown(grace) != nil {
		err = errors.Join(err, server.Close())
	}
	<-failed
	return fmt.Errorf("shut down: requests were cut off: %w", err)
}

// bounded gives every request limits of size and time, also where nobody reads
// its body, turns a panic into an error, and counts. Who waits longer for an answer
// moves the deadlines.
func (s *Server) bounded(next http.Handler, routes *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		rw := &recorder{ResponseWriter: w}
		// Not every writer has deadlines; those of a server do.
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(started.Add(s.cfg.BodyTimeout))
		_ = control.SetWriteDeadline(started.Add(s.cfg.BodyTimeout + s.cfg.WriteTimeout))
		r.Body = http.MaxBytesReader(w, r.Body, int64(s.cfg.MaxBody))
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "panic", p)
				if rw.status != 0 {
					panic(http.ErrAbortHandler) // cuts the connection: the client must not take half an answer for a whole one
				}
				unavailable(http.StatusInternalServerError, 0, "internal_error", "server error: the request could not be processed").write(rw)
			}
			s.metrics.Request(endpoint(r, routes), cmp.Or(rw.status, http.StatusOK))
			s.log.Debug("request", "method", r.Method, "path", r.URL.Path, "status", rw.status, "duration", time.Since(started))
		}()
		next.ServeHTTP(rw, r)
	})
}

// endpoint is the path of a request's route, "other" where there is none.
func endpoint(r *http.Request, routes *http.ServeMux) string {
	_, pattern := routes.Handler(r)
	path := pattern[strings.IndexByte(pattern, ' ')+1:] // without the method
	if path == "/" {
		return "other"
	}
	return path
}

// recorder remembers the status of a response.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the status.
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
