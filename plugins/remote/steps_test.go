package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/sdk/wire"
)

// scriptLane is a lane whose backend is the test.
type scriptLane struct {
	gone chan struct{}
	in   chan wire.Completion
	fail chan error

	mu     sync.Mutex // protects the fields below
	posted []wire.Submission
	closed int
}

func newScriptLane() *scriptLane {
	return &scriptLane{gone: make(chan struct{}), in: make(chan wire.Completion, 1000), fail: make(chan error, 1)}
}

func (l *scriptLane) request(_ uint32, n int) ([]byte, error) { return make([]byte, n), nil }
func (l *scriptLane) number(slot uint32) uint32               { return slot }

func (l *scriptLane) post(sub wire.Submission) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.posted = append(l.posted, sub)
	return nil
}

func (l *scriptLane) next(ctx context.Context) (wire.Completion, []byte, error) {
	select {
	case c := <-l.in:
		return c, fmt.Appendf(nil, "answer %d", c.Number), nil
	case err := <-l.fail:
		return wire.Completion{}, nil, err
	case <-ctx.Done():
		return wire.Completion{}, nil, ctx.Err()
	case <-l.gone:
		return wire.Completion{}, nil, errors.New("poisoned")
	}
}

func (l *scriptLane) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed++
	return nil
}

// take removes the oldest submission.
func (l *scriptLane) take() (wire.Submission, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.posted) == 0 {
		return wire.Submission{}, false
	}
	sub := l.posted[0]
	l.posted = l.posted[1:]
	return sub, true
}

func (l *scriptLane) closes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

func completionOf(sub wire.Submission) wire.Completion {
	return wire.Completion{Number: sub.Number, Generation: sub.Generation, Slot: sub.Slot, Status: wire.StatusOK}
}

// stepCall is a caller of exchange.
type stepCall struct {
	cancel    context.CancelFunc
	cancelled bool
	done      chan struct{}
	slot      *slot
	number    uint64
	payload   string
	err       error
}

func startCall(s *steps) *stepCall {
	ctx, cancel := context.WithCancel(context.Background())
	c := &stepCall{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		if c.slot, c.err = s.acquire(ctx); c.err != nil {
			return
		}
		var completion wire.Completion
		var payload []byte
		completion, payload, c.err = s.exchange(ctx, c.slot, wire.KindStep, 1, nil)
		c.number, c.payload = completion.Number, string(payload)
	}()
	return c
}

// TestStepsModel drives steps with callers that come, wait, give up and release
// in any order, and a backend that answers in order, sometimes also what nobody
// asked for. Every caller that waits gets its own answer, and no slot is lost.
func TestStepsModel(t *testing.T) {
	const slots, generation = 3, 5
	rapid.Check(t, func(t *rapid.T) {
		lane := newScriptLane()
		s := newSteps(lane, slots, generation, lane.gone, func(err error) error {
			t.Errorf("breach: %v", err)
			return err
		})
		var calls []*stepCall
		await := func(c *stepCall) {
			select {
			case <-c.done:
			case <-time.After(5 * time.Second):
				t.Fatal("a call does not return")
			}
		}
		// settle waits for the calls that have all they need.
		settle := func() {
			for _, c := range calls {
				if c.cancelled {
					await(c)
				}
			}
			time.Sleep(50 * time.Microsecond)
		}
		answer := func() bool {
			sub, ok := lane.take()
			if ok {
				lane.in <- completionOf(sub)
			}
			return ok
		}
		finished := func(c *stepCall) bool { return isClosed(c.done) }
		release := func(c *stepCall) {
			if c.err == nil {
				if want := fmt.Sprintf("answer %d", c.number); c.payload != want {
					t.Errorf("payload %q, want %q", c.payload, want)
				}
				s.release(c.slot)
			} else if !c.cancelled || !errors.Is(c.err, context.Canceled) {
				t.Errorf("call: %v", c.err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { settle() },
			"call": func(t *rapid.T) {
				if len(calls) == 6 {
					t.Skip()
				}
				calls = append(calls, startCall(s))
			},
			"answer": func(t *rapid.T) {
				if !answer() {
					t.Skip()
				}
			},
			"cancel": func(t *rapid.T) {
				if len(calls) == 0 {
					t.Skip()
				}
				c := calls[rapid.IntRange(0, len(calls)-1).Draw(t, "call")]
				c.cancel()
				c.cancelled = true
			},
			"release": func(t *rapid.T) {
				i := slices.IndexFunc(calls, finished)
				if i < 0 {
					t.Skip()
				}
				release(calls[i])
				calls = slices.Delete(calls, i, i+1)
			},
			"unasked": func(t *rapid.T) {
				lane.in <- wire.Completion{Number: 1 << 40, Generation: generation, Status: wire.StatusOK}
				s.mu.Lock()
				last := s.last
				s.mu.Unlock()
				lane.in <- wire.Completion{Number: last, Generation: generation - 1, Status: wire.StatusOK}
			},
		})
		// Everything is answered and released in the end.
		for len(calls) > 0 {
			answer()
			if i := slices.IndexFunc(calls, finished); i >= 0 {
				release(calls[i])
				calls = slices.Delete(calls, i, i+1)
			}
		}
		for answer() {
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var held []*slot
		for range slots {
			sl, err := s.acquire(ctx)
			if err != nil {
				t.Fatalf("a slot is lost: %v", err)
			}
			held = append(held, sl)
		}
		s.close()
		for i, sl := range held {
			if n := lane.closes(); n != 0 {
				t.Fatalf("the lane was closed while %d slots were held", slots-i)
			}
			s.release(sl)
		}
		if n := lane.closes(); n != 1 {
			t.Errorf("the lane was closed %d times", n)
		}
		if _, err := s.acquire(ctx); !errors.Is(err, errGone) {
			t.Errorf("acquire after close: %v", err)
		}
	})
}

// TestStepsBreach: what breaks the protocol ends the backend, and nobody waits.
func TestStepsBreach(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(*scriptLane, wire.Submission)
		want   string
	}{
		{"wrong slot", func(l *scriptLane, sub wire.Submission) { sub.Slot++; l.in <- completionOf(sub) }, "in slot"},
		{"lane", func(l *scriptLane, _ wire.Submission) { l.fail <- errors.New("malformed") }, "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lane := newScriptLane()
			var reason error
			s := newSteps(lane, 2, 1, lane.gone, func(err error) error {
				reason = err
				close(lane.gone)
				return fmt.Errorf("%w: %w", core.ErrBackendGone, err)
			})
			first, second := startCall(s), startCall(s)
			var sub wire.Submission
			for ok := false; !ok; sub, ok = lane.take() {
			}
			c.answer(lane, sub)
			for _, call := range []*stepCall{first, second} {
				<-call.done
				if !errors.Is(call.err, errGone) && !errors.Is(call.err, core.ErrBackendGone) {
					t.Errorf("call: %v", call.err)
				}
			}
			if reason == nil || !strings.Contains(reason.Error(), c.want) {
				t.Errorf("reason %v, want %q", reason, c.want)
			}
			s.close()
			if n := lane.closes(); n != 1 {
				t.Errorf("the lane was closed %d times", n)
			}
		})
	}
}
