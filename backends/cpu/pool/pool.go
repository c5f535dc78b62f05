// Package pool runs the chunks of a parallel region on a fixed set of threads.
//
// A region of a decode step lasts microseconds, so entering and leaving one must
// cost less than that: the threads are started once, wait for the next region
// by spinning for a moment before they sleep, and claim chunks one by one from
// a counter. The caller takes chunks too and can finish a region alone, so a
// thread that the operating system has set aside delays nobody.
package pool

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// A Task is what a region does. Do is called once for every chunk, on several
// threads at a time; worker is the number of the thread, below Pool.Threads, for
// memory that each thread has of its own. A Task must not call Run on the same
// pool. It should take no more than some tens of microseconds a chunk where
// other work wants the processor in between.
type Task interface {
	Do(chunk, worker int)
}

// spinTime is how long a thread looks for the next region before it sleeps:
// longer than the serial work between two regions of a step, shorter than a
// scheduler's slice.
const spinTime = 60 * time.Microsecond

// idleRegions is after how many regions in a row without a chunk a thread goes
// to sleep without spinning. The operating system is then running something
// else in its place, which spinning would only slow down.
const idleRegions = 64

// closed is the claim counter between regions: no epoch has this value.
const closed = ^uint64(0)

// Pool is a set of threads. Run is called from one goroutine at a time.
type Pool struct {
	// claims is epoch<<32 | next chunk. Threads claim by compare and swap, so
	// that one which slept through a region's end cannot take a chunk of the
	// next region for one of its own.
	claims atomic.Uint64
	_      [56]byte // its own cache line, and so below
	// done counts finished chunks.
	done   atomic.Uint32
	_      [60]byte
	chunks atomic.Uint32
	// epoch is the number of the current region; threads sleep on it.
	epoch    atomic.Uint32
	sleepers atomic.Int32
	closing  atomic.Bool
	// task is written before claims opens a region and read after a claim
	// succeeded, which it can only do while the region is unfinished.
	task Task

	fault   atomic.Pointer[Fault]
	sleep   sleeper
	threads int
	group   sync.WaitGroup
}

// A Fault is what Run panics with where a chunk panicked: the first one's value
// and its stack.
type Fault struct {
	// Value is what the chunk panicked with.
	Value any
	// Stack is the stack of the thread that did.
	Stack []byte
}

// Error implements error.
func (f *Fault) Error() string {
	return fmt.Sprintf("panic in a parallel region: %v\n%s", f.Value, f.Stack)
}

// available is what the process may use, asked before anything changes
// GOMAXPROCS. The Go runtime derives it from the affinity mask and the CPU limit
// of the process's control groups.
var available = min(runtime.NumCPU(), runtime.GOMAXPROCS(0))

// Available is the number of hardware threads that this process may use: what
// the affinity mask, the control group's CPU limit and the environment variable
// GOMAXPROCS leave of the machine.
func Available() int { return available }

// New returns a pool of the given number of threads, at least 1; the caller of
// Run is one of them. Close it after use.
func New(threads int) *Pool { return start(threads, newSleeper()) }

func start(threads int, s sleeper) *Pool {
	p := &Pool{threads: max(threads, 1), sleep: s}
	p.claims.Store(closed)
	p.group.Add(p.threads - 1)
	for i := 1; i < p.threads; i++ {
		go p.thread(i)
	}
	return p
}

// Threads is the number of threads, the caller's included.
func (p *Pool) Threads() int { return p.threads }

// Run calls t.Do for every chunk in [0, chunks) and returns when all are done.
// Where a chunk panics the others may be left out, and Run panics with a *Fault
// after those that had begun.
func (p *Pool) Run(chunks int, t Task) {
	if chunks <= 1 || p.threads == 1 {
		for i := range chunks {
			t.Do(i, 0)
		}
		return
	}
	epoch := p.epoch.Load() + 1
	if epoch == uint32(closed>>32) {
		epoch = 0
	}
	p.task = t
	p.chunks.Store(uint32(chunks))
	p.done.Store(0)
	p.claims.Store(uint64(epoch) << 32)
	p.epoch.Store(epoch)
	// Only as many as there is work for; the others sleep on.
	awake := p.threads - 1 - int(p.sleepers.Load())
	if missing := min(chunks, p.threads) - 1 - awake; missing > 0 {
		p.sleep.wake(&p.epoch, missing)
	}
	p.work(epoch, 0)
	for spins := 0; p.done.Load() != uint32(chunks); spins++ {
		// The last chunks run elsewhere. If that takes longer than chunks do,
		// their thread may wait for this one's processor.
		if spins < 2000 {
			spinOnce()
		} else {
			yield()
		}
	}
	p.claims.Store(closed)
	p.task = nil
	if f := p.fault.Swap(nil); f != nil {
		panic(f)
	}
}

// Close ends the threads and waits until they are gone. No Run may be in
// progress or follow.
func (p *Pool) Close() {
	if p.closing.Swap(true) {
		return
	}
	p.epoch.Add(1)
	p.sleep.wake(&p.epoch, p.threads)
	p.group.Wait()
}

// thread is the life of one worker.
func (p *Pool) thread(worker int) {
	defer p.group.Done()
	// A thread of its own: moving the goroutine to another would cost more than
	// a region lasts. The thread ends with the goroutine, since it is not
	// unlocked.
	runtime.LockOSThread()
	idle := 0
	for last := uint32(0); ; {
		last = p.await(last, idle < idleRegions)
		if p.closing.Load() {
			return
		}
		if p.work(last, worker) {
			idle = 0
		} else if idle < idleRegions {
			idle++
		}
	}
}

// await returns the epoch once it is no longer last.
func (p *Pool) await(last uint32, spin bool) uint32 {
	if spin {
		for deadline := time.Now().Add(spinTime); ; {
			for range 32 {
				if epoch := p.epoch.Load(); epoch != last {
					return epoch
				}
				spinOnce()
			}
			if time.Now().After(deadline) {
				break
			}
		}
	}
	for {
		// Announced before the look at the epoch: Run sets the epoch before it
		// looks for sleepers, so one of both sees the other.
		p.sleepers.Add(1)
		epoch := p.epoch.Load()
		if epoch == last {
			p.sleep.wait(&p.epoch, last)
			epoch = p.epoch.Load()
		}
		p.sleepers.Add(-1)
		if epoch != last {
			return epoch
		}
	}
}

// work claims and does chunks of one region until none is left. It reports
// whether it got any.
func (p *Pool) work(epoch uint32, worker int) (any bool) {
	for {
		s := p.claims.Load()
		if uint32(s>>32) != epoch || uint32(s) >= p.chunks.Load() {
			return any
		}
		if p.claims.CompareAndSwap(s, s+1) {
			any = true
			p.chunk(int(uint32(s)), worker)
		}
	}
}

// chunk does one chunk. A panic on a worker's thread would end the process where
// nobody can turn it into an error, so it is carried to Run.
func (p *Pool) chunk(i, worker int) {
	defer p.finish()
	if p.fault.Load() == nil {
		p.task.Do(i, worker)
	}
}

func (p *Pool) finish() {
	if r := recover(); r != nil {
		p.fault.CompareAndSwap(nil, &Fault{Value: r, Stack: debug.Stack()})
	}
	p.done.Add(1)
}

// spinOnce is a moment's wait. It is neither inlined nor nosplit: its prologue is
// a safepoint, without which a loop around it would hold up a stop of the world.
//
//go:noinline
func spinOnce() {
	var frame [128]byte
	pause()
	touch(&frame)
}

// touch keeps spinOnce's frame, so that its prologue has something to check.
//
//go:noinline
func touch(b *[128]byte) { b[0] = 1 }
