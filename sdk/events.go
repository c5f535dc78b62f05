package sdk

import (
	"sync"
	"time"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
)

// events hands what the process reports to every Events stream. A stream that
// does not keep up loses events; publishing never blocks.
type events struct {
	// mu protects listeners.
	mu        sync.Mutex
	listeners map[chan *pb.Event]struct{}
}

// listen returns a channel of later events; the caller passes it to ignore.
func (e *events) listen() chan *pb.Event {
	c := make(chan *pb.Event, 64)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listeners == nil {
		e.listeners = make(map[chan *pb.Event]struct{})
	}
	e.listeners[c] = struct{}{}
	return c
}

func (e *events) ignore(c chan *pb.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.listeners, c)
}

func (e *events) publish(kind, message string) {
	event := &pb.Event{Time: time.Now().UnixNano(), Kind: kind, Message: message}
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.listeners {
		select {
		case c <- event:
		default:
		}
	}
}
