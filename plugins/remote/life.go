package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/strata-engine/strata/core"
)

// join returns ctx, ended also when the backend is gone: a process that is stuck
// in the kernel keeps its sockets open. stop must be called.
func (b *Backend) join(ctx context.Context) (joined context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	detach := context.AfterFunc(b.life, cancel)
	return ctx, func() {
		detach()
		cancel()
	}
}

// poison ends every wait for this backend. It is called when the process has
// ended or is about to be killed, and may be called again.
func (b *Backend) poison() {
	// In this order: who finds the segment poisoned and life not ended knows that
	// the backend did it.
	b.end()
	if b.data != nil {
		b.data.Poison()
	}
}

// note records why this host ends the process; the first reason counts, and only
// while the process runs.
func (b *Backend) note(reason string) {
	b.reasonMu.Lock()
	defer b.reasonMu.Unlock()
	if b.reason == "" && b.life.Err() == nil {
		b.reason = reason
	}
}

// breach ends a backend that broke the protocol: nothing it says can be relied
// on. It returns at once.
func (b *Backend) breach(err error) error {
	reason := fmt.Sprintf("it broke the protocol: %v", err)
	b.log.Error("backend broke the protocol, ending it", "error", err)
	b.note(reason)
	b.poison()
	// Close waits for the end and reports a process that does not end.
	go b.process.Stop()
	return fmt.Errorf("%w: %s", core.ErrBackendGone, reason)
}

// gone returns ErrBackendGone with what is known about the end of the process.
func (b *Backend) gone(what string) error {
	b.reasonMu.Lock()
	reason := b.reason
	b.reasonMu.Unlock()
	if reason != "" {
		return fmt.Errorf("%s: %w: %s", what, core.ErrBackendGone, reason)
	}
	// The last words arrive with the end of the process, within milliseconds.
	select {
	case <-b.process.Done():
		return fmt.Errorf("%s: %w: the process ended: %s", what, core.ErrBackendGone, b.process.Exit())
	case <-time.After(100 * time.Millisecond):
		return fmt.Errorf("%s: %w", what, core.ErrBackendGone)
	}
}

// fail gives the error of a control call the form that core.Backend promises.
// ctx is the call's, as joined.
func (b *Backend) fail(ctx context.Context, what string, err error) error {
	s, isStatus := status.FromError(err)
	if !isStatus {
		return fmt.Errorf("%s: %w", what, err)
	}
	switch s.Code() {
	case codes.Unavailable:
		// The connection broke: the process is ending. Its end is noticed within
		// milliseconds; a living one that cannot be reached is of no use either.
		select {
		case <-b.life.Done():
		case <-time.After(time.Second):
			return b.breach(fmt.Errorf("%s: %s", what, s.Message()))
		case <-ctx.Done():
		}
	case codes.Canceled, codes.DeadlineExceeded:
		// The backend keeps the deadline too, and may be a moment earlier.
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	case codes.NotFound:
		return &reported{s.Message(), core.ErrUnknownSequence}
	case codes.ResourceExhausted:
		return &reported{s.Message(), core.ErrOutOfState}
	case codes.Unimplemented:
		return &reported{s.Message(), errors.ErrUnsupported}
	}
	if b.life.Err() != nil {
		return b.gone(what)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	// The backend's message begins with the operation.
	return errors.New(s.Message())
}

// reported is an error in the backend's own words, which begin with the
// operation, with the sentinel that stands for it on this side.
type reported struct {
	text     string
	sentinel error
}

func (e *reported) Error() string { return e.text }
func (e *reported) Unwrap() error { return e.sentinel }
