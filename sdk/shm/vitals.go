package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Layout of the vitals page.
const (
	vitalsMagic = 0x3154495641525453 // "STRAVIT1"

	vitalsMagicAt         = 0
	vitalsABIAt           = 8
	vitalsGenerationAt    = 16
	vitalsPIDAt           = 24
	vitalsStateAt         = 32
	vitalsBeatAt          = 64
	vitalsBeatTimeAt      = 72
	vitalsSubmittedAt     = 80
	vitalsCompletedAt     = 88
	vitalsPhaseAt         = 96
	vitalsLayerAt         = 100
	vitalsPhaseSinceAt    = 104
	vitalsPrefillTokensAt = 112
	vitalsDecodeTokensAt  = 120
	vitalsLoadBytesAt     = 128
	vitalsLoadTotalAt     = 136
	vitalsErrorSeqAt      = 192
	vitalsErrorBytesAt    = 196
	vitalsErrorAt         = 256

	vitalsErrorMax = 256
)

// BeatInterval is how often a backend process beats.
const BeatInterval = 50 * time.Millisecond

// ProcessState is where a backend process is in its life.
type ProcessState uint32

// The states.
const (
	// StateStarting: the process has not attached the page, or not finished its
	// start.
	StateStarting ProcessState = iota
	// StateIdle: it serves, without a stage.
	StateIdle
	// StateLoading: a load is running.
	StateLoading
	// StateReady: a stage is loaded.
	StateReady
	// StateDraining: steps are refused.
	StateDraining
	// StateStopping: the process is about to end by itself.
	StateStopping
)

var stateNames = [...]string{"starting", "idle", "loading", "ready", "draining", "stopping"}

// String returns the state's name as used in logs.
func (s ProcessState) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state-%d", uint32(s))
}

// Phase is what a backend process is doing. How long it may take differs by
// phase, and so does what counts as progress.
type Phase uint32

// The phases.
const (
	// PhaseIdle: waiting for work.
	PhaseIdle Phase = iota
	// PhaseOpen to PhaseWarm are the phases of a load: opening files, mapping,
	// reading or uploading weights, preparing them, and warming up.
	PhaseOpen
	PhaseMap
	PhaseRead
	PhasePrepare
	PhaseWarm
	// PhasePrefill: a step with a prompt chunk.
	PhasePrefill
	// PhaseDecode: a step with only decode tokens or short verify runs.
	PhaseDecode
	// PhaseDraft: the MTP block.
	PhaseDraft
	// PhaseCheckpoint and PhaseRestore: state leaves or enters.
	PhaseCheckpoint
	PhaseRestore
	// PhaseUnload: the stage is being freed.
	PhaseUnload
)

var phaseNames = [...]string{"idle", "open", "map", "read", "prepare", "warm", "prefill", "decode", "draft",
	"checkpoint", "restore", "unload"}

// String returns the phase's name as used in logs and by sdk.LoadRequest.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase-%d", uint32(p))
}

// LoadPhase returns the phase of a load that has the given name.
func LoadPhase(name string) (Phase, bool) {
	for p := PhaseOpen; p <= PhaseWarm; p++ {
		if phaseNames[p] == name {
			return p, true
		}
	}
	return PhaseIdle, false
}

// Vitals is one reading of a vitals page.
type Vitals struct {
	// Generation is the incarnation that the host made the page for.
	Generation uint64
	// PID is the process that attached the page; 0 before that.
	PID int
	// State and Phase say what the process is doing; unknown numbers of a newer
	// program are kept. PhaseSince is when the phase, or the step within it,
	// began; CLOCK_MONOTONIC nanoseconds.
	State      ProcessState
	Phase      Phase
	PhaseSince int64
	// Layer is the layer being executed, as far as the backend reports it.
	Layer int
	// Beat counts the beats of the process, BeatTime is when the last one was
	// (CLOCK_MONOTONIC nanoseconds).
	Beat     uint64
	BeatTime int64
	// Submitted and Completed count the steps and drafts begun and answered.
	Submitted, Completed uint64
	// PrefillTokens and DecodeTokens count executed tokens.
	PrefillTokens, DecodeTokens uint64
	// LoadBytes of LoadTotal bytes of weights are ready.
	LoadBytes, LoadTotal uint64
	// LastError is the start of the last error's text; empty where there was none
	// or it was being written.
	LastError string
}

// vitalsPage is a mapping of the page.
type vitalsPage struct {
	file  *os.File
	mem   []byte
	unmap func([]byte) error
	// mu protects mem against Close; readers and writers share it.
	mu     sync.RWMutex
	closed bool
}

func (p *vitalsPage) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var err error
	if p.unmap != nil {
		err = p.unmap(p.mem)
	}
	if p.file != nil {
		err = errors.Join(err, p.file.Close())
	}
	if err != nil {
		return fmt.Errorf("close vitals page: %w", err)
	}
	return nil
}

func formatVitals(mem []byte, generation uint64) {
	word32(mem, vitalsABIAt).Store(ABI)
	word64(mem, vitalsGenerationAt).Store(generation)
	word64(mem, vitalsMagicAt).Store(vitalsMagic)
}

func checkVitals(mem []byte) error {
	if magic := word64(mem, vitalsMagicAt).Load(); magic != vitalsMagic {
		return corrupt("magic is %#x", magic)
	}
	if abi := word32(mem, vitalsABIAt).Load(); abi != ABI {
		return corrupt("layout version is %d, this program knows %d", abi, ABI)
	}
	return nil
}

// VitalsReader is the host's side of a vitals page. Safe for concurrent use.
type VitalsReader struct{ page vitalsPage }

// CreateVitals makes a page for a backend process of the given incarnation,
// which is not zero.
func CreateVitals(generation uint64) (*VitalsReader, error) {
	if generation == 0 {
		return nil, errors.New("create vitals page: generation is zero")
	}
	if !littleEndian {
		return nil, fmt.Errorf("create vitals page: %w: the machine is big endian", ErrUnsupported)
	}
	file, mem, err := createMemory("strata-vitals", pageBytes)
	if err != nil {
		return nil, fmt.Errorf("create vitals page: %w", err)
	}
	formatVitals(mem, generation)
	return &VitalsReader{page: vitalsPage{file: file, mem: mem, unmap: unmapMemory}}, nil
}

// File is the descriptor to pass to the backend process. It stays owned by r.
func (r *VitalsReader) File() *os.File { return r.page.file }

// Read takes a reading. ErrCorrupt where the process has overwritten the page's
// header, ErrClosed after Close.
func (r *VitalsReader) Read() (Vitals, error) {
	r.page.mu.RLock()
	defer r.page.mu.RUnlock()
	if r.page.closed {
		return Vitals{}, fmt.Errorf("read vitals: %w", ErrClosed)
	}
	mem := r.page.mem
	if err := checkVitals(mem); err != nil {
		return Vitals{}, fmt.Errorf("read vitals: %w", err)
	}
	return Vitals{
		Generation:    word64(mem, vitalsGenerationAt).Load(),
		PID:           int(word32(mem, vitalsPIDAt).Load()),
		State:         ProcessState(word32(mem, vitalsStateAt).Load()),
		Phase:         Phase(word32(mem, vitalsPhaseAt).Load()),
		PhaseSince:    int64(word64(mem, vitalsPhaseSinceAt).Load()),
		Layer:         int(int32(word32(mem, vitalsLayerAt).Load())),
		Beat:          word64(mem, vitalsBeatAt).Load(),
		BeatTime:      int64(word64(mem, vitalsBeatTimeAt).Load()),
		Submitted:     word64(mem, vitalsSubmittedAt).Load(),
		Completed:     word64(mem, vitalsCompletedAt).Load(),
		PrefillTokens: word64(mem, vitalsPrefillTokensAt).Load(),
		DecodeTokens:  word64(mem, vitalsDecodeTokensAt).Load(),
		LoadBytes:     word64(mem, vitalsLoadBytesAt).Load(),
		LoadTotal:     word64(mem, vitalsLoadTotalAt).Load(),
		LastError:     readError(mem),
	}, nil
}

// readError copies the text unless the writer was at it, which an odd or changed
// counter shows.
func readError(mem []byte) string {
	seq := word32(mem, vitalsErrorSeqAt)
	before := seq.Load()
	n := word32(mem, vitalsErrorBytesAt).Load()
	if before%2 != 0 || n > vitalsErrorMax {
		return ""
	}
	text := make([]byte, vitalsErrorMax)
	for i := 0; i < vitalsErrorMax; i += 8 {
		binary.LittleEndian.PutUint64(text[i:], word64(mem, vitalsErrorAt+i).Load())
	}
	if seq.Load() != before {
		return ""
	}
	// A text cut in the middle of a character, or a broken peer.
	return strings.ToValidUTF8(string(text[:n]), "")
}

// Close unmaps the page and closes the file.
func (r *VitalsReader) Close() error { return r.page.close() }

// VitalsWriter is the backend's side of a vitals page. Safe for concurrent use;
// after Close its methods do nothing.
type VitalsWriter struct {
	page vitalsPage
	// errorMu protects the error text against a second writer.
	errorMu sync.Mutex
}

// AttachVitals maps a page that the host made and records this process in it. It
// owns the file afterwards, also where it fails.
func AttachVitals(file *os.File) (*VitalsWriter, error) {
	mem, err := attachMemory(file)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("attach vitals page: %w", err)
	}
	err = checkVitals(mem)
	if err == nil && len(mem) != pageBytes {
		err = corrupt("%d bytes, want %d", len(mem), pageBytes)
	}
	if err != nil {
		unmapMemory(mem)
		file.Close()
		return nil, fmt.Errorf("attach vitals page: %w", err)
	}
	w := &VitalsWriter{page: vitalsPage{file: file, mem: mem, unmap: unmapMemory}}
	word32(mem, vitalsPIDAt).Store(uint32(os.Getpid()))
	return w, nil
}

// LocalVitals returns the two sides of a page in this process's own memory, for
// a backend that was given none.
func LocalVitals() (*VitalsReader, *VitalsWriter) {
	mem := AlignedBytes(pageBytes)
	formatVitals(mem, 1)
	word32(mem, vitalsPIDAt).Store(uint32(os.Getpid()))
	return &VitalsReader{page: vitalsPage{mem: mem}}, &VitalsWriter{page: vitalsPage{mem: mem}}
}

// write runs f on the page unless it is closed.
func (w *VitalsWriter) write(f func(mem []byte)) {
	w.page.mu.RLock()
	defer w.page.mu.RUnlock()
	if !w.page.closed {
		f(w.page.mem)
	}
}

// SetState publishes the process's state.
func (w *VitalsWriter) SetState(s ProcessState) {
	w.write(func(mem []byte) { word32(mem, vitalsStateAt).Store(uint32(s)) })
}

// SetPhase publishes what the process does from now on.
func (w *VitalsWriter) SetPhase(p Phase) {
	w.write(func(mem []byte) {
		// The time first: a reader in between sees the old phase as younger than it
		// is, which is harmless; the other order could make a new phase look late.
		word64(mem, vitalsPhaseSinceAt).Store(uint64(Monotonic()))
		word32(mem, vitalsPhaseAt).Store(uint32(p))
	})
}

// SetLayer publishes progress within a step.
func (w *VitalsWriter) SetLayer(layer int) {
	w.write(func(mem []byte) { word32(mem, vitalsLayerAt).Store(uint32(int32(layer))) })
}

// Beat records that the process lives. It is called every BeatInterval.
func (w *VitalsWriter) Beat() {
	w.write(func(mem []byte) {
		word64(mem, vitalsBeatTimeAt).Store(uint64(Monotonic()))
		word64(mem, vitalsBeatAt).Add(1)
	})
}

// Begin counts a step or draft that was taken off the queue, and publishes its
// phase.
func (w *VitalsWriter) Begin(p Phase) {
	w.SetPhase(p)
	w.write(func(mem []byte) { word64(mem, vitalsSubmittedAt).Add(1) })
}

// End counts a step or draft that was answered, with the tokens it executed.
func (w *VitalsWriter) End(prefillTokens, decodeTokens int) {
	w.write(func(mem []byte) {
		word64(mem, vitalsPrefillTokensAt).Add(uint64(prefillTokens))
		word64(mem, vitalsDecodeTokensAt).Add(uint64(decodeTokens))
		word64(mem, vitalsCompletedAt).Add(1)
	})
	w.SetPhase(PhaseIdle)
}

// SetLoad publishes that bytes of total bytes of weights are ready.
func (w *VitalsWriter) SetLoad(bytes, total int64) {
	w.write(func(mem []byte) {
		word64(mem, vitalsLoadTotalAt).Store(uint64(max(total, 0)))
		word64(mem, vitalsLoadBytesAt).Store(uint64(max(bytes, 0)))
	})
}

// SetError publishes the start of an error's text.
func (w *VitalsWriter) SetError(text string) {
	w.errorMu.Lock()
	defer w.errorMu.Unlock()
	w.write(func(mem []byte) {
		buf := make([]byte, vitalsErrorMax)
		n := copy(buf, text)
		seq := word32(mem, vitalsErrorSeqAt)
		seq.Add(1)
		for i := 0; i < vitalsErrorMax; i += 8 {
			word64(mem, vitalsErrorAt+i).Store(binary.LittleEndian.Uint64(buf[i:]))
		}
		word32(mem, vitalsErrorBytesAt).Store(uint32(n))
		seq.Add(1)
	})
}

// Close unmaps the page and closes the file.
func (w *VitalsWriter) Close() error { return w.page.close() }
