package shm

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"time"
)

// Layout of the header of a data segment. The rings, the request slots and the
// result slots follow; see Geometry.
const (
	dataMagic = 0x3154414441525453 // "STRADAT1"

	dataMagicAt        = 0
	dataABIAt          = 8
	dataSlotsAt        = 12
	dataRequestBytesAt = 16
	dataResultBytesAt  = 24
	dataBytesAt        = 32
	dataGenerationAt   = 40
	dataPoisonAt       = 48
)

// MaxSlots bounds the number of slots of a segment.
const MaxSlots = 1024

// maxSlotBytes bounds one slot, so that sums of sizes cannot overflow.
const maxSlotBytes = 1 << 40

// Geometry is the shape of a data segment.
type Geometry struct {
	// Slots is the number of request slots, and of result slots: how many steps
	// can be in flight. Slot i of both belongs to the same step. 1 to MaxSlots.
	Slots int
	// RequestBytes and ResultBytes are the sizes of a slot. CreateData rounds
	// them up to a multiple of 4096.
	RequestBytes, ResultBytes int
}

// rounded returns the geometry with slots of whole pages, or an error for one
// that is out of range.
func (g Geometry) rounded() (Geometry, error) {
	if g.Slots < 1 || g.Slots > MaxSlots {
		return g, fmt.Errorf("%d slots, want 1 to %d", g.Slots, MaxSlots)
	}
	for _, n := range []*int{&g.RequestBytes, &g.ResultBytes} {
		if *n < 1 || int64(*n) > maxSlotBytes {
			return g, fmt.Errorf("a slot of %d bytes, want 1 to %d", *n, int64(maxSlotBytes))
		}
		*n = (*n-1)/pageBytes*pageBytes + pageBytes
		if *n < 0 {
			return g, fmt.Errorf("a slot too large for this machine")
		}
	}
	return g, nil
}

// capacity is the number of entries of each ring: the smallest power of two that
// holds every slot, so that a side that respects the slots never finds it full.
func (g Geometry) capacity() int { return 1 << bits.Len(uint(g.Slots-1)) }

func (g Geometry) ringBytes() int { return ringHeaderBytes + g.capacity()*EntryBytes }

// slotsAt is where the request slots start: on the page after the rings.
func (g Geometry) slotsAt() int64 {
	return (pageBytes + 2*int64(g.ringBytes()) + pageBytes - 1) / pageBytes * pageBytes
}

// bytes is the size of the whole segment.
func (g Geometry) bytes() int64 {
	return g.slotsAt() + int64(g.Slots)*(int64(g.RequestBytes)+int64(g.ResultBytes))
}

// Data is one side's mapping of a data segment: a submission ring (host to
// backend), a completion ring (backend to host), and the slots that hold their
// payloads. One segment serves one incarnation of a backend process and is
// attached once.
//
// Methods are safe for concurrent use. The slices of RequestSlot and ResultSlot
// must not be touched after Close.
type Data struct {
	file       *os.File
	mem        []byte
	geometry   Geometry
	generation uint64
	// generationWord and poison are shared.
	generationWord *atomic.Uint64
	poison         *atomic.Uint32
	submissions    *Ring
	completions    *Ring
	unmap          func([]byte) error
	// users counts the calls that touch mem; Close waits for them.
	users  atomic.Int64
	closed atomic.Bool
}

// CreateData makes a segment. The generation numbers the incarnation; it is not
// zero. The file's descriptor is closed on exec: pass it by
// exec.Cmd.ExtraFiles.
func CreateData(g Geometry, generation uint64) (*Data, error) {
	g, err := g.rounded()
	if err != nil {
		return nil, fmt.Errorf("create data segment: %w", err)
	}
	if generation == 0 {
		return nil, errors.New("create data segment: generation is zero")
	}
	if !littleEndian {
		return nil, fmt.Errorf("create data segment: %w: the machine is big endian", ErrUnsupported)
	}
	file, mem, err := createMemory("strata-data", g.bytes())
	if err != nil {
		return nil, fmt.Errorf("create data segment: %w", err)
	}
	formatData(mem, g, generation)
	d := newData(mem, g, generation)
	d.file, d.unmap = file, unmapMemory
	return d, nil
}

// formatData writes the header of a segment whose bytes are zero.
func formatData(mem []byte, g Geometry, generation uint64) {
	word32(mem, dataABIAt).Store(ABI)
	word32(mem, dataSlotsAt).Store(uint32(g.Slots))
	word64(mem, dataRequestBytesAt).Store(uint64(g.RequestBytes))
	word64(mem, dataResultBytesAt).Store(uint64(g.ResultBytes))
	word64(mem, dataBytesAt).Store(uint64(g.bytes()))
	word64(mem, dataGenerationAt).Store(generation)
	word64(mem, dataMagicAt).Store(dataMagic)
}

// AttachData maps a segment that the host made. It owns the file afterwards,
// also where it fails.
func AttachData(file *os.File) (*Data, error) {
	mem, err := attachMemory(file)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("attach data segment: %w", err)
	}
	d, err := openData(mem)
	if err != nil {
		unmapMemory(mem)
		file.Close()
		return nil, fmt.Errorf("attach data segment: %w", err)
	}
	d.file, d.unmap = file, unmapMemory
	return d, nil
}

// openData checks the header of mem, which has at least a page.
func openData(mem []byte) (*Data, error) {
	if magic := word64(mem, dataMagicAt).Load(); magic != dataMagic {
		return nil, corrupt("magic is %#x", magic)
	}
	if abi := word32(mem, dataABIAt).Load(); abi != ABI {
		return nil, corrupt("layout version is %d, this program knows %d", abi, ABI)
	}
	slots := word32(mem, dataSlotsAt).Load()
	request := word64(mem, dataRequestBytesAt).Load()
	result := word64(mem, dataResultBytesAt).Load()
	if slots > MaxSlots || request > maxSlotBytes || result > maxSlotBytes {
		return nil, corrupt("%d slots of %d and %d bytes", slots, request, result)
	}
	stored := Geometry{Slots: int(slots), RequestBytes: int(request), ResultBytes: int(result)}
	g, err := stored.rounded()
	if err != nil || g != stored {
		return nil, corrupt("%d slots of %d and %d bytes", slots, request, result)
	}
	if size := word64(mem, dataBytesAt).Load(); size != uint64(g.bytes()) || size != uint64(len(mem)) {
		return nil, corrupt("%d bytes where the header says %d and its slots need %d", len(mem), size, g.bytes())
	}
	generation := word64(mem, dataGenerationAt).Load()
	if generation == 0 {
		return nil, corrupt("generation is zero")
	}
	d := newData(mem, g, generation)
	if d.submissions.head.Load() != 0 || d.completions.tail.Load() != 0 {
		return nil, corrupt("the segment was attached before")
	}
	return d, nil
}

// newData wires the parts of a segment whose geometry is known to fit mem.
func newData(mem []byte, g Geometry, generation uint64) *Data {
	d := &Data{
		mem:            mem,
		geometry:       g,
		generation:     generation,
		generationWord: word64(mem, dataGenerationAt),
		poison:         word32(mem, dataPoisonAt),
		unmap:          func([]byte) error { return nil },
	}
	n := g.ringBytes()
	d.submissions = newRing(d, mem[pageBytes:pageBytes+n], g.capacity())
	d.completions = newRing(d, mem[pageBytes+n:pageBytes+2*n], g.capacity())
	return d
}

// File is the descriptor to pass to the backend process. It stays owned by d.
func (d *Data) File() *os.File { return d.file }

// Geometry returns the shape, with rounded slot sizes.
func (d *Data) Geometry() Geometry { return d.geometry }

// Generation returns the incarnation that the segment serves.
func (d *Data) Generation() uint64 { return d.generation }

// Submissions is the ring from host to backend.
func (d *Data) Submissions() *Ring { return d.submissions }

// Completions is the ring from backend to host.
func (d *Data) Completions() *Ring { return d.completions }

// RequestSlot is the memory of a request payload; it starts at a multiple of
// 4096. A slot number from the peer may be anything: out of range is ErrCorrupt.
func (d *Data) RequestSlot(slot uint32) ([]byte, error) {
	return d.slot(slot, d.geometry.slotsAt(), d.geometry.RequestBytes)
}

// ResultSlot is the memory of a result payload, like RequestSlot.
func (d *Data) ResultSlot(slot uint32) ([]byte, error) {
	at := d.geometry.slotsAt() + int64(d.geometry.Slots)*int64(d.geometry.RequestBytes)
	return d.slot(slot, at, d.geometry.ResultBytes)
}

func (d *Data) slot(slot uint32, base int64, size int) ([]byte, error) {
	if d.closed.Load() {
		return nil, ErrClosed
	}
	if slot >= uint32(d.geometry.Slots) {
		return nil, corrupt("slot %d of %d", slot, d.geometry.Slots)
	}
	at := int(base) + int(slot)*size
	return d.mem[at : at+size : at+size], nil
}

// Poison declares the segment dead: every waiter on either side, and every later
// call, returns ErrPoisoned. It cannot be undone.
func (d *Data) Poison() {
	if d.enter() != nil {
		return
	}
	defer d.leave()
	d.poison.Store(1)
	d.submissions.ring()
	d.completions.ring()
}

// check reports whether the segment is still good.
func (d *Data) check() error {
	if d.poison.Load() != 0 {
		return ErrPoisoned
	}
	if d.generationWord.Load() != d.generation {
		return ErrGeneration
	}
	return nil
}

// enter announces a call that touches the mapping.
func (d *Data) enter() error {
	d.users.Add(1)
	if d.closed.Load() {
		d.users.Add(-1)
		return ErrClosed
	}
	return nil
}

func (d *Data) leave() { d.users.Add(-1) }

// Close ends this side's calls with ErrClosed, then unmaps the segment and
// closes the file. The peer is not told; see Poison. It is idempotent.
func (d *Data) Close() error {
	if d.enter() != nil {
		return nil
	}
	first := d.closed.CompareAndSwap(false, true)
	if first {
		d.submissions.ring()
		d.completions.ring()
	}
	d.leave()
	if !first {
		return nil
	}
	// Waiters recheck at least every 10 ms.
	for d.users.Load() != 0 {
		time.Sleep(50 * time.Microsecond)
	}
	err := d.unmap(d.mem)
	if d.file != nil {
		err = errors.Join(err, d.file.Close())
	}
	if err != nil {
		return fmt.Errorf("close data segment: %w", err)
	}
	return nil
}
