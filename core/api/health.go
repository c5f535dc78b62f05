package api

import "net/http"

type healthReport struct {
	// Status is ok, loading, stopping or error.
	Status  string `json:"status"`
	Service string `json:"service"`
	Version string `json:"version"`
	Loaded  bool   `json:"loaded"`
	// Phase and Progress say how far loading has come.
	Phase    string   `json:"phase,omitempty"`
	Progress *float64 `json:"progress,omitempty"`
	Model    string   `json:"model,omitempty"`
	Context  int      `json:"context,omitempty"`
	Running  int      `json:"running"`
	Queued   int      `json:"queued"`
	Message  string   `json:"message,omitempty"`
	// Devices are what the model runs on.
	Devices []deviceReport `json:"devices,omitempty"`
}

type deviceReport struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Since is when it got into that state, as Unix time.
	Since int64 `json:"since"`
	// Layers are the first and the last layer, both included.
	Layers      [2]int `json:"layers"`
	PID         int    `json:"pid,omitempty"`
	Starts      int    `json:"starts"`
	Transport   string `json:"transport,omitempty"`
	WeightBytes int64  `json:"weight_bytes"`
	// Error is why it failed last, also after it works again.
	Error string `json:"error,omitempty"`
}

// health says whether requests are answered: 200 where they are, else 503.
// Where keys are asked for, who has none learns no more than that.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	m, stopping, phase, progress := s.model, s.stopping, s.loading, s.progress
	s.mu.Unlock()
	report := healthReport{Status: "ok", Service: "strata", Version: s.version, Loaded: m != nil}
	if m != nil {
		totals := m.Engine.Stats()
		report.Model, report.Context, report.Running, report.Queued = m.ID, m.Context, totals.Running, totals.Queued
		report.Devices = reportDevices(m.Parts)
	}
	switch {
	case stopping:
		report.Status = "stopping"
	case m == nil:
		report.Status, report.Phase, report.Progress = "loading", phase, &progress
	case m.Engine.Down() != nil:
		report.Status, report.Message = "error", m.Engine.Down().Error()
	}
	if !s.keys.allow(r) {
		report.Message, report.Devices = "", nil
	}
	status := http.StatusOK
	if report.Status != "ok" {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, report)
}

func reportDevices(parts Parts) []deviceReport {
	if parts == nil {
		return nil
	}
	var out []deviceReport
	for _, d := range parts.Devices() {
		r := deviceReport{
			Name: d.Name, State: d.State, Since: d.Since.Unix(), Layers: [2]int{d.First, d.Last - 1},
			PID: d.PID, Starts: d.Starts, Transport: d.Transport, WeightBytes: d.WeightBytes,
		}
		if d.Error != nil {
			r.Error = d.Error.Error()
		}
		out = append(out, r)
	}
	return out
}

// live says that the process answers, whatever else is wrong.
func (s *Server) live(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Status string `json:"status"`
	}{"ok"})
}
