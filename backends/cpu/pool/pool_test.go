package pool

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter counts how often each chunk ran.
type counter struct {
	hits    []atomic.Int32
	threads int
	bad     atomic.Bool
}

func (c *counter) Do(chunk, worker int) {
	if worker < 0 || worker >= c.threads {
		c.bad.Store(true)
	}
	c.hits[chunk].Add(1)
}

// sleepers are both ways to sleep; the portable one runs everywhere.
var sleepers = map[string]func() sleeper{
	"system":    newSleeper,
	"condition": func() sleeper { return newCondition() },
}

func TestEveryChunkOnce(t *testing.T) {
	for name, s := range sleepers {
		for _, threads := range []int{0, 1, 2, 3, 5, 4 * runtime.NumCPU()} {
			t.Run(fmt.Sprintf("%s/%d", name, threads), func(t *testing.T) {
				p := start(threads, s())
				defer p.Close()
				for region := range 300 {
					chunks := region % 70
					c := &counter{hits: make([]atomic.Int32, chunks), threads: p.Threads()}
					p.Run(chunks, c)
					for i := range c.hits {
						if n := c.hits[i].Load(); n != 1 {
							t.Fatalf("region %d: chunk %d of %d ran %d times", region, i, chunks, n)
						}
					}
					if c.bad.Load() {
						t.Fatal("a worker's number is out of range")
					}
					if region%50 == 0 {
						time.Sleep(200 * time.Microsecond) // let the threads fall asleep
					}
				}
			})
		}
	}
}

// slow keeps its thread busy for a while.
type slow struct{ sum [64]int64 }

func (s *slow) Do(chunk, _ int) {
	for i := range int64(2000) {
		s.sum[chunk] += i * i
	}
}

// Garbage collection stops the world again and again while regions run. A spin
// without a safepoint would stall for seconds.
func TestGarbageCollectionBesideRegions(t *testing.T) {
	p := New(2 * runtime.NumCPU())
	defer p.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	var worst time.Duration
	for begin := time.Now(); time.Since(begin) < 500*time.Millisecond; {
		t0 := time.Now()
		p.Run(64, new(slow))
		worst = max(worst, time.Since(t0))
	}
	close(stop)
	<-stopped
	if worst > 1500*time.Millisecond {
		t.Errorf("the slowest region took %v", worst)
	}
	t.Logf("slowest region %v", worst)
}

type failing struct{ at int }

var errBroken = errors.New("broken")

func (f failing) Do(chunk, _ int) {
	if chunk == f.at {
		panic(errBroken)
	}
}

func TestPanicReachesTheCaller(t *testing.T) {
	p := New(3)
	defer p.Close()
	for at := range 8 {
		func() {
			defer func() {
				f, ok := recover().(*Fault)
				if !ok || f.Value != errBroken {
					t.Fatalf("Run panicked with %v, want the chunk's error in a *Fault", f)
				}
				if !strings.Contains(f.Error(), "failing.Do") {
					t.Errorf("the stack does not name the task:\n%s", f.Stack)
				}
			}()
			p.Run(8, failing{at})
		}()
		c := &counter{hits: make([]atomic.Int32, 8), threads: 3}
		p.Run(8, c) // the pool still works
		for i := range c.hits {
			if c.hits[i].Load() != 1 {
				t.Fatalf("after a panic chunk %d ran %d times", i, c.hits[i].Load())
			}
		}
	}
}

func TestCloseTwiceAndAsleep(t *testing.T) {
	for name, s := range sleepers {
		t.Run(name, func(t *testing.T) {
			p := start(4, s())
			time.Sleep(2 * time.Millisecond) // all asleep
			p.Close()
			p.Close()
		})
	}
}

// counting is a sleeper that adds up how many were to be woken.
type counting struct {
	sleeper
	woken atomic.Int32
}

func (c *counting) wake(word *atomic.Uint32, n int) {
	c.woken.Add(int32(n))
	c.sleeper.wake(word, n)
}

func TestWakesNoMoreThanThereIsWorkFor(t *testing.T) {
	s := &counting{sleeper: newSleeper()}
	p := start(8, s)
	defer p.Close()
	for p.sleepers.Load() < 7 {
		time.Sleep(time.Millisecond)
	}
	p.Run(3, &counter{hits: make([]atomic.Int32, 3), threads: 8})
	if n := s.woken.Load(); n != 2 {
		t.Errorf("3 chunks woke %d threads", n)
	}
}

func TestRunAllocatesNothing(t *testing.T) {
	p := New(2)
	defer p.Close()
	c := &counter{hits: make([]atomic.Int32, 16), threads: 2}
	if n := testing.AllocsPerRun(100, func() { p.Run(16, c) }); n != 0 {
		t.Errorf("a region allocates %v times", n)
	}
}

func TestAvailable(t *testing.T) {
	if n := Available(); n < 1 || n > runtime.NumCPU() {
		t.Errorf("Available() = %d of %d", n, runtime.NumCPU())
	}
}

type empty struct{}

func (empty) Do(int, int) {}

func BenchmarkEmptyRegion(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprint(threads), func(b *testing.B) {
			p := New(threads)
			defer p.Close()
			for b.Loop() {
				p.Run(8, empty{})
			}
		})
	}
}
