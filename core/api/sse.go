package api

import (
	"net/http"
	"time"
)

// eventStream writes server-sent events as the OpenAI API frames them: one data
// line of JSON each, and [DONE] at the end. Every write has a deadline of its
// own, so that a client that does not read is given up. After an error the
// stream writes nothing more.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	started bool
	err     error
}

func newEventStream(w http.ResponseWriter, timeout time.Duration) *eventStream {
	return &eventStream{w: w, control: http.NewResponseController(w), timeout: timeout}
}

// start sends the headers; until then the response can still be something else.
func (s *eventStream) start() {
	if s.started {
		return
	}
	s.started = true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	// Reverse proxies such as nginx hold back what they are not told to pass on.
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
}

func (s *eventStream) data(v any) {
	s.write(append(append([]byte("data: "), encode(v)...), "\n\n"...))
}

// comment sends a line that clients ignore and proxies count as traffic.
func (s *eventStream) comment(text string) { s.write([]byte(": " + text + "\n\n")) }

func (s *eventStream) done() { s.write([]byte("data: [DONE]\n\n")) }

func (s *eventStream) write(text []byte) {
	if s.err != nil {
		return
	}
	if s.err = s.control.SetWriteDeadline(time.Now().Add(s.timeout)); s.err == nil {
		_, s.err = s.w.Write(text)
	}
}

// flush hands everything written to the network.
func (s *eventStream) flush() {
	if s.err != nil {
		return
	}
	if s.err = s.control.SetWriteDeadline(time.Now().Add(s.timeout)); s.err == nil {
		s.err = s.control.Flush()
	}
}
