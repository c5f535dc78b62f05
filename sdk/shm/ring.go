package shm

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"time"
)

// Layout of a ring: the producer's cursor, the consumer's cursor and the words
// for sleeping, each pair of cache lines apart because adjacent lines are
// fetched together; then the entries.
const (
	// EntryBytes is the size of an entry. Bytes 8 to 15 of every entry are the
	// generation, little endian; the rest is sdk/wire's.
	EntryBytes = 64

	ringTail        = 0
	ringHead        = 128
	ringBell        = 256
	ringWaiting     = 260
	ringHeaderBytes = 384

	entryGeneration = 8
)

// recheck bounds a sleep, so that a waiter sees its context, and a peer that
// lost the wake-up costs a pause and not a hang.
const recheck = 10 * time.Millisecond

// DefaultSpin is how long a consumer polls before it sleeps: longer than the
// wake-up that it saves, short beside a step.
const DefaultSpin = 150 * time.Microsecond

// Entry is one element of a ring.
type Entry [EntryBytes]byte

// Ring is one direction of a Data segment: a queue with a single producer and a
// single consumer, in different processes. Push may be called by one goroutine
// at a time, and so may Pop; Interrupt by any.
//
// Cursors count entries modulo 2^32. Each side keeps its own cursor privately
// and only publishes it, so the peer can at worst lie about its own.
type Ring struct {
	data                      *Data
	tail, head, bell, waiting *atomic.Uint32
	entries                   []byte
	capacity                  uint32
	pushed, popped            uint32
	interrupted               atomic.Bool
	// spin is how long Pop polls before it sleeps, missed how many Pops in a row
	// did so in vain.
	spin   time.Duration
	missed uint32
}

func newRing(d *Data, mem []byte, capacity int) *Ring {
	r := &Ring{
		data:     d,
		tail:     word32(mem, ringTail),
		head:     word32(mem, ringHead),
		bell:     word32(mem, ringBell),
		waiting:  word32(mem, ringWaiting),
		entries:  mem[ringHeaderBytes:],
		capacity: uint32(capacity),
		spin:     DefaultSpin,
	}
	if runtime.GOMAXPROCS(0) == 1 || runtime.NumCPU() == 1 {
		// The peer cannot run while this side polls.
		r.spin = 0
	}
	return r
}

// SetSpin changes how long Pop polls before it sleeps; 0 sleeps at once. It is
// called before the first Pop.
func (r *Ring) SetSpin(d time.Duration) { r.spin = d }

// worthSpinning is false after a few Pops that polled in vain, but for every
// sixteenth: what comes is then too far apart, or the peer needs this very
// processor.
func (r *Ring) worthSpinning() bool {
	return r.spin > 0 && (r.missed < 4 || r.missed%16 == 0)
}

// Push appends an entry and wakes the consumer if it sleeps. It does not block:
// ErrFull where there is no room.
func (r *Ring) Push(e *Entry) error {
	if err := r.data.enter(); err != nil {
		return err
	}
	defer r.data.leave()
	if err := r.data.check(); err != nil {
		return err
	}
	switch used := r.pushed - r.head.Load(); {
	case used > r.capacity:
		return corrupt("the consumer's cursor is ahead of the producer's or too far behind")
	case used == r.capacity:
		return ErrFull
	}
	copy(r.slot(r.pushed), e[:])
	r.pushed++
	r.tail.Store(r.pushed)
	// The consumer sets waiting and then looks at tail; here the other way round.
	// Atomics are sequentially consistent, so one of the two sees the other.
	if r.waiting.Load() != 0 {
		r.ring()
	}
	return nil
}

// Pop waits for the next entry and copies it to e. It returns the context's
// error within 10 ms after the context ended; ErrPoisoned, ErrInterrupted and
// ErrClosed at once.
func (r *Ring) Pop(ctx context.Context, e *Entry) error {
	if err := r.data.enter(); err != nil {
		return err
	}
	defer r.data.leave()
	if ok, err := r.poll(ctx, e); ok || err != nil {
		return err
	}
	if r.worthSpinning() {
		if ok, err := r.spinFor(ctx, e); ok || err != nil {
			r.missed = 0
			return err
		}
	}
	r.missed++
	for {
		bell := r.bell.Load()
		r.waiting.Store(1)
		ok, err := r.poll(ctx, e)
		if !ok && err == nil {
			sleepOn(r.bell, bell, recheck)
		}
		r.waiting.Store(0)
		if ok || err != nil {
			return err
		}
	}
}

// spinFor polls for r.spin. Between polls it looks at the clock, and now and
// then lets other goroutines run.
func (r *Ring) spinFor(ctx context.Context, e *Entry) (bool, error) {
	begin := time.Now()
	for yield := 4 * time.Microsecond; ; {
		for range 64 {
			if r.tail.Load() != r.popped {
				return r.poll(ctx, e)
			}
		}
		ok, err := r.poll(ctx, e)
		spent := time.Since(begin)
		if ok || err != nil || spent > r.spin {
			return ok, err
		}
		if spent > yield {
			runtime.Gosched()
			yield = spent + 4*time.Microsecond
		}
	}
}

// poll takes an entry if there is one, and reports why to stop waiting.
func (r *Ring) poll(ctx context.Context, e *Entry) (bool, error) {
	if err := r.data.check(); err != nil {
		return false, err
	}
	if r.data.closed.Load() {
		return false, ErrClosed
	}
	if r.interrupted.Load() && r.interrupted.Swap(false) {
		return false, ErrInterrupted
	}
	used := r.tail.Load() - r.popped
	if used > r.capacity {
		return false, corrupt("the producer's cursor is behind the consumer's or too far ahead")
	}
	if used == 0 {
		return false, ctx.Err()
	}
	copy(e[:], r.slot(r.popped))
	if got := binary.LittleEndian.Uint64(e[entryGeneration:]); got != r.data.generation {
		return false, ErrGeneration
	}
	r.popped++
	r.head.Store(r.popped)
	return true, nil
}

// Interrupt makes the current or the next Pop return ErrInterrupted.
func (r *Ring) Interrupt() {
	r.interrupted.Store(true)
	if r.data.enter() != nil {
		return
	}
	defer r.data.leave()
	r.ring()
}

// ring wakes the consumer. The bell changes first, so that a consumer that is
// about to sleep does not.
func (r *Ring) ring() {
	r.bell.Add(1)
	wake(r.bell)
}

// slot is the memory of the entry that a cursor counts.
func (r *Ring) slot(cursor uint32) []byte {
	at := int(cursor&(r.capacity-1)) * EntryBytes
	return r.entries[at : at+EntryBytes]
}
