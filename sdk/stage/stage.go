// Package stage turns a device that implements the block operations of sdk/ops
// into a whole sdk.Backend: it maps the model, builds the graph of its
// architecture, keeps the sequences and executes windows.
package stage

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/arch"
	"github.com/strata-engine/strata/sdk/mapping"
	"github.com/strata-engine/strata/sdk/ops"
)

// Program is what one kind of device brings along.
type Program struct {
	// Info describes the program.
	Info sdk.Info
	// Probe lists the devices that could be used now, best first.
	Probe func(ctx context.Context) ([]sdk.Device, error)
	// Open makes a device for a stage. It is called first and checks req.Device
	// and req.Options; an unknown option is an error.
	Open func(ctx context.Context, req *sdk.LoadRequest) (ops.Device, error)
}

// Backend executes one stage on one device.
//
// Each method may be called as sdk.Backend says: Step, Draft, Checkpoint and
// Restore from one goroutine, the others at any time beside them.
type Backend struct {
	program Program

	// mu protects the fields below it and those of every sequence.
	mu sync.Mutex
	// loaded is nil without a stage.
	loaded    *loaded
	sequences map[uint64]*sequence
}

var (
	_ sdk.BackendWithDraft   = (*Backend)(nil)
	_ sdk.BackendWithState   = (*Backend)(nil)
	_ sdk.BackendWithExperts = (*Backend)(nil)
)

// New returns a backend without a stage.
func New(p Program) *Backend { return &Backend{program: p} }

// loaded is a stage.
type loaded struct {
	files *mapping.Files
	dev   *device
	graph *arch.Graph
	// context and maxSequences are the bounds given to Load.
	context, maxSequences int
	// rows are the rows of logits of the current window; reused.
	rows []int
	// segments are those of the current window; reused.
	segments []ops.Segment
}

// device serialises the calls that may come from several goroutines.
type device struct {
	ops.Device
	mu sync.Mutex
}

// NewState implements ops.Device.
func (d *device) NewState(l *ops.StateLayout) (ops.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Device.NewState(l)
}

// Reserve implements ops.Device.
func (d *device) Reserve(s ops.State, tokens int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Device.Reserve(s, tokens)
}

// Write implements ops.Device.
func (d *device) Write(dst ops.Buffer, at int, src []float32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Device.Write(dst, at, src)
}

// Read implements ops.Device.
func (d *device) Read(dst []float32, src ops.Buffer, at int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Device.Read(dst, src, at)
}

// Export implements ops.Device.
func (d *device) Export(s ops.State, tokens int) ([]ops.Section, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Device.Export(s, tokens)
}

// Import implements ops.Device.
func (d *device) Import(s ops.State, tokens int, sections []ops.Section) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Device.Import(s, tokens, sections)
}

// Release implements ops.Device.
func (d *device) Release(x any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Device.Release(x)
}

// Info implements sdk.Backend.
func (b *Backend) Info() sdk.Info { return b.program.Info }

// Probe implements sdk.Backend.
func (b *Backend) Probe(ctx context.Context, _ sdk.ProbeRequest, resp *sdk.ProbeResponse) error {
	devices, err := b.program.Probe(ctx)
	if err != nil {
		return fmt.Errorf("probe devices: %w", err)
	}
	resp.Devices = devices
	return nil
}

// Load implements sdk.Backend. It checks that the model is complete for its
// architecture before it makes anything of it.
func (b *Backend) Load(ctx context.Context, req sdk.LoadRequest, resp *sdk.LoadResponse) error {
	b.mu.Lock()
	busy := b.loaded != nil
	b.mu.Unlock()
	if busy {
		return fmt.Errorf("%w: a stage is loaded already; unload it first", sdk.ErrInvalid)
	}
	if req.Context < 1 || req.MaxSequences < 1 {
		return fmt.Errorf("%w: context %d and %d sequences must be positive", sdk.ErrInvalid, req.Context, req.MaxSequences)
	}
	if err := arch.Check(req.Model); err != nil {
		return fmt.Errorf("%w: %w", sdk.ErrInvalid, err)
	}
	l, err := load(ctx, b.program.Open, &req)
	if err != nil {
		return err
	}
	perToken, fixed := l.graph.Layout().Bytes()
	*resp = sdk.LoadResponse{
		LayoutID:              l.graph.Layout().ID,
		WeightBytes:           l.graph.WeightBytes(),
		MappedBytes:           l.graph.MappedBytes(),
		StateBytesPerToken:    perToken,
		StateBytesPerSequence: fixed,
		Capabilities:          []string{sdk.CapState, sdk.CapExperts},
	}
	if req.Draft {
		resp.Capabilities = append(resp.Capabilities, sdk.CapDraft)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.loaded, b.sequences = l, make(map[uint64]*sequence)
	return nil
}

func load(ctx context.Context, open func(context.Context, *sdk.LoadRequest) (ops.Device, error), req *sdk.LoadRequest) (l *loaded, err error) {
	l = &loaded{context: req.Context, maxSequences: req.MaxSequences}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	dev, err := open(ctx, req)
	if err != nil {
		return l, err
	}
	l.dev = &device{Device: dev}
	req.Progress("map", 0, 0)
	if l.files, err = mapping.Open(req.Model); err != nil {
		return l, err
	}
	l.graph, err = arch.Build(ctx, req.Model, l.files, l.dev, arch.StageConfig{
		First: req.First, Last: req.Last,
		Embed: req.Embed, Head: req.Head, Draft: req.Draft,
		MaxRows: req.MaxRows, MaxLogitRows: req.MaxLogitRows,
		Report: sdk.ReportLayer,
	}, func(bytes, total int64) { req.Progress("prepare", bytes, total) })
	return l, err
}

// close frees the device before the mapping that its weights may lie in.
func (l *loaded) close() error {
	var errs []error
	if l.dev != nil {
		errs = append(errs, l.dev.Close())
	}
	if l.files != nil {
		errs = append(errs, l.files.Close())
	}
	return errors.Join(errs...)
}

// Unload implements sdk.Backend. Without a stage it does nothing.
func (b *Backend) Unload(_ context.Context, _ sdk.UnloadRequest, _ *sdk.UnloadResponse) error {
	b.mu.Lock()
	l, sequences := b.loaded, b.sequences
	b.loaded, b.sequences = nil, nil
	b.mu.Unlock()
	if l == nil {
		return nil
	}
	for _, s := range sequences {
		l.dev.Release(s.state)
	}
	if err := l.close(); err != nil {
		return fmt.Errorf("unload stage: %w", err)
	}
	return nil
}

// ExpertUses implements sdk.BackendWithExperts.
func (b *Backend) ExpertUses(_ context.Context, _ sdk.ExpertUsesRequest, resp *sdk.ExpertUsesResponse) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loaded == nil {
		return fmt.Errorf("read expert uses: %w", errNoStage)
	}
	resp.Uses = b.loaded.graph.ExpertUses()
	return nil
}

// errNoStage is the answer where nothing is loaded.
var errNoStage = fmt.Errorf("%w: no stage is loaded", sdk.ErrInvalid)
