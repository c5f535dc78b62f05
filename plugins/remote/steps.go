package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

// lane carries encoded submissions to the backend and completions back. Methods
// other than next may be called concurrently.
type lane interface {
	// request is memory for a request of up to n bytes in a slot, or less where
	// the slot has less.
	request(slot uint32, n int) ([]byte, error)
	// post sends a submission whose payload lies in its slot. It does not block.
	post(sub wire.Submission) error
	// number is what stands for a slot in an entry.
	number(slot uint32) uint32
	// next waits for a completion and its payload, which stays valid while the
	// slot is held. It returns the context's error when that ends; any other
	// error means that the lane is of no more use.
	next(ctx context.Context) (wire.Completion, []byte, error)
	// close frees the lane. No slot is held, and next returns an error.
	close() error
}

// errGone: the backend is gone; why is added by the caller.
var errGone = errors.New("gone")

// steps keeps the submissions in flight: their slots, their numbers, and who
// waits for which.
//
// There is no goroutine that receives. Whoever waits and finds the lane free
// becomes the leader, takes the next completion and hands it to its owner. With
// one step at a time, the usual case, the answer so reaches its caller without a
// switch between goroutines, which would cost more than the ring.
type steps struct {
	lane       lane
	generation uint64
	// gone is closed when the backend is.
	gone <-chan struct{}
	// breach ends the backend because it broke the protocol.
	breach func(error) error
	// free are the slots that nobody uses.
	free chan *slot
	// leader has room for one: who is in it reads from the lane.
	leader chan struct{}
	late   atomic.Uint64

	mu sync.Mutex // protects the fields below; held for nanoseconds
	// last is the number of the last submission.
	last uint64
	// pending are the submissions without a completion, also those that were
	// given up: their slots belong to the backend until it answers.
	pending map[uint64]*slot
	// held counts the slots in callers' hands.
	held    int
	closing bool
}

// slot is the place of a submission and of its result, with memory that is used
// again and again.
type slot struct {
	index uint32
	// answered gets one element when the completion has come and somebody waits.
	answered chan struct{}
	// The answer; written before answered is.
	completion wire.Completion
	payload    []byte
	// submission is the number under which the slot is pending, and abandoned
	// says that nobody waits for it any more. Protected by steps.mu.
	submission uint64
	abandoned  bool

	segments []wire.Segment
	logits   []int32
	flags    []wire.RowFlags
	rows     []core.RowFlags
}

func newSteps(l lane, slots int, generation uint64, gone <-chan struct{}, breach func(error) error) *steps {
	s := &steps{
		lane:       l,
		generation: generation,
		gone:       gone,
		breach:     breach,
		free:       make(chan *slot, slots),
		leader:     make(chan struct{}, 1),
		pending:    make(map[uint64]*slot, slots),
	}
	for i := range slots {
		s.free <- &slot{index: uint32(i), answered: make(chan struct{}, 1)}
	}
	return s
}

// acquire waits for a slot. errGone, or the cause of the context's end.
func (s *steps) acquire(ctx context.Context) (*slot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for {
		select {
		case sl := <-s.free:
			return s.hold(sl)
		default:
		}
		select {
		case sl := <-s.free:
			return s.hold(sl)
		case s.leader <- struct{}{}:
			// A slot that was given up becomes free by its completion, for which
			// nobody may be waiting. Another may be released meanwhile, so this
			// leader looks up often.
			err := s.lead(ctx, 5*time.Millisecond)
			<-s.leader
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-s.gone:
			return nil, errGone
		}
	}
}

// hold marks a slot as being in a caller's hands.
func (s *steps) hold(sl *slot) (*slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || isClosed(s.gone) {
		s.free <- sl
		return nil, errGone
	}
	s.held++
	return sl, nil
}

// release gives a slot back.
func (s *steps) release(sl *slot) {
	s.mu.Lock()
	s.held--
	last := s.closing && s.held == 0
	s.mu.Unlock()
	s.free <- sl
	if last {
		s.lane.close()
	}
}

// close frees the lane as soon as no slot is held: results in use stay valid.
func (s *steps) close() {
	s.mu.Lock()
	again := s.closing
	s.closing = true
	unused := s.held == 0
	s.mu.Unlock()
	if !again && unused {
		s.lane.close()
	}
}

// exchange posts the n bytes in the slot's request and waits for the answer. On
// error the slot is not the caller's any more.
func (s *steps) exchange(ctx context.Context, sl *slot, kind wire.Kind, n int, posted func()) (wire.Completion, []byte, error) {
	sub := wire.Submission{Generation: s.generation, Kind: kind, Slot: sl.index, Bytes: n}
	if deadline, ok := ctx.Deadline(); ok {
		// At least a nanosecond: zero means none.
		sub.Remaining = max(time.Until(deadline), 1)
	}
	s.mu.Lock()
	s.last++
	sub.Number = s.last
	sl.submission, sl.abandoned = sub.Number, false
	s.pending[sub.Number] = sl
	// Under the lock, so that submissions are in the order of their numbers.
	err := s.lane.post(sub)
	if err != nil {
		delete(s.pending, sub.Number)
	}
	s.mu.Unlock()
	if err != nil {
		s.release(sl)
		return wire.Completion{}, nil, s.broken(err)
	}
	if posted != nil {
		posted()
	}
	if err := s.await(ctx, sl); err != nil && s.abandon(sl) {
		return wire.Completion{}, nil, err
	}
	// Also where the answer came just now, after all.
	return sl.completion, sl.payload, nil
}

// await waits until the slot is answered, as the leader if there is no other.
func (s *steps) await(ctx context.Context, sl *slot) error {
	for {
		select {
		case <-sl.answered:
			return nil
		case s.leader <- struct{}{}:
			var err error
			if len(sl.answered) == 0 { // else a leader before this one got it
				err = s.lead(ctx, 0)
			}
			<-s.leader
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.gone:
			return errGone
		}
	}
}

// lead takes one completion from the lane and hands it to its owner. It waits as
// long as the context lives, or not longer than the limit where that is positive.
func (s *steps) lead(ctx context.Context, limit time.Duration) error {
	waiting := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	c, payload, err := s.lane.next(waiting)
	switch {
	case err == nil:
		return s.deliver(c, payload)
	case waiting.Err() == nil || !errors.Is(err, waiting.Err()):
		return s.broken(err)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return nil // the limit
}

// deliver hands a completion to its owner.
func (s *steps) deliver(c wire.Completion, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.pending[c.Number]
	if sl == nil || c.Generation != s.generation {
		s.late.Add(1)
		return nil
	}
	if want := s.lane.number(sl.index); c.Slot != want {
		return s.breach(fmt.Errorf("submission %d in slot %d was answered in slot %d", c.Number, want, c.Slot))
	}
	delete(s.pending, c.Number)
	if sl.abandoned {
		s.late.Add(1)
		s.free <- sl
		return nil
	}
	sl.completion, sl.payload = c, payload
	sl.answered <- struct{}{}
	return nil
}

// abandon gives up waiting for a slot's answer. The slot is the backend's until
// that comes. False if it has come already.
func (s *steps) abandon(sl *slot) bool {
	s.mu.Lock()
	if s.pending[sl.submission] != sl {
		s.mu.Unlock()
		<-sl.answered
		return false
	}
	sl.abandoned = true
	s.held--
	last := s.closing && s.held == 0
	s.mu.Unlock()
	if last {
		s.lane.close()
	}
	return true
}

// broken is what a lane's error means: the backend is gone, or has to go.
func (s *steps) broken(err error) error {
	if isClosed(s.gone) || errors.Is(err, shm.ErrClosed) {
		return errGone
	}
	return s.breach(err)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
