package api

import (
	"net/http"
	"time"
)

// liveStream is an event stream whose headers are held back until there is
// something to say, so that a failure before that has a status of its own, but
// not longer than the configured time; after them, silence is broken by comments.
// Who waits for something to say watches hold and silence. Nil where a request
// does not stream.
type liveStream struct {
	eventStream
	hold      *time.Timer
	silence   *time.Ticker
	keepAlive time.Duration
}

func (s *Server) newLiveStream(w http.ResponseWriter) *liveStream {
	return &liveStream{
		eventStream: *newEventStream(w, s.cfg.WriteTimeout),
		hold:        time.NewTimer(s.cfg.HoldHeaders),
		silence:     time.NewTicker(s.cfg.KeepAlive),
		keepAlive:   s.cfg.KeepAlive,
	}
}

func (l *liveStream) stop() {
	l.hold.Stop()
	l.silence.Stop()
}

// settle hands on what was written and begins to count the silence anew.
func (l *liveStream) settle() {
	l.flush()
	l.silence.Reset(l.keepAlive)
}

// fail ends the response with an error: as a response of its own where nothing
// was sent yet, and else as the stream's last event.
func (l *liveStream) fail(w http.ResponseWriter, e *apiError) {
	if l == nil || !l.started {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(errorTimeout))
		e.write(w)
		return
	}
	l.data(errorObject{e.body})
	l.done()
	l.flush()
}

// errorTimeout bounds the write of an error; it fits into the network's buffers.
const errorTimeout = 10 * time.Second
