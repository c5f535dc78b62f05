// Package arch builds the graphs of the supported architectures out of the block
// operations of sdk/ops: which tensors exist and of which shape, and the order
// of operations for a window. There is one file per architecture.
//
// One walk over a model serves twice. Check walks the whole model and only
// compares names and shapes; Build walks the layers of a stage and makes the
// weights. So a tensor's name stands in one place.
package arch

import (
	"context"
	"fmt"
	"slices"
	"strings"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/ops"
)

// architecture is one file of this package.
type architecture struct {
	// hyper checks the hyper-parameters that only this architecture has.
	hyper func(h *pb.Hyper) error
	// embed and head walk the tensors before and behind the layers.
	embed func(b *builder) *ops.Embed
	head  func(b *builder) *ops.Head
	// layer walks layer i.
	layer func(b *builder, i int) *layer
	// draft walks the MTP block; nil where the architecture's MTP block is not
	// supported. Its tensors are accepted and left alone then.
	draft func(b *builder) *draftBlock
}

var architectures = map[string]*architecture{
	"qwen4exp":  &qwen4exp,
	"qwen35moe": &qwen35moe,
	"qwen3next": &qwen3next,
	"qwen3moe":  &qwen3moe,
}

// Supported are the names of the supported architectures, sorted.
func Supported() []string {
	var names []string
	for name := range architectures {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func find(spec *pb.ModelSpec) (*architecture, error) {
	if a := architectures[spec.GetArchitecture()]; a != nil {
		return a, nil
	}
	return nil, fmt.Errorf("architecture %q is not supported; supported are %s", spec.GetArchitecture(), strings.Join(Supported(), ", "))
}

// Check reports whether the model is complete: hyper-parameters that fit each
// other, every tensor of the architecture there with its exact shape, and none
// besides. The error is one line that names the first few offenders.
func Check(spec *pb.ModelSpec) error {
	a, err := find(spec)
	if err != nil {
		return fmt.Errorf("check model: %w", err)
	}
	if err := checkHyper(spec, a); err != nil {
		return fmt.Errorf("check model: %w", err)
	}
	b := newBuilder(spec)
	a.embed(b)
	for i := range b.layers() {
		a.layer(b, i)
	}
	a.head(b)
	if spec.GetHyper().GetDraftLayers() > 0 {
		if a.draft != nil {
			a.draft(b)
		} else {
			b.ignoreLayer(b.layers())
		}
	}
	if err := b.complaint(); err != nil {
		return fmt.Errorf("check model: %w", err)
	}
	return nil
}

// CanDraft reports whether a stage of the model can be built with an MTP block.
func CanDraft(spec *pb.ModelSpec) bool {
	a := architectures[spec.GetArchitecture()]
	return a != nil && a.draft != nil && spec.GetHyper().GetDraftLayers() > 0
}

// StageConfig says which part of a model to build and how large its windows may
// be.
type StageConfig struct {
	// First and Last bound the layers, half open.
	First, Last int
	// Embed, Head and Draft say whether the stage holds the token embedding, the
	// output head and the MTP block; Draft needs Head.
	Embed, Head, Draft bool
	// MaxRows and MaxLogitRows bound one window.
	MaxRows, MaxLogitRows int
	// Report, where set, is called with a layer's index before its operations
	// are enqueued.
	Report func(ctx context.Context, layer int)
}

func (c *StageConfig) check(spec *pb.ModelSpec) error {
	layers := int(spec.GetHyper().GetLayers())
	switch {
	case c.First < 0 || c.Last < c.First || c.Last > layers:
		return fmt.Errorf("layers [%d, %d) of a model with %d", c.First, c.Last, layers)
	case c.Embed && c.First != 0:
		return fmt.Errorf("the embedding goes with layer 0, not with layer %d", c.First)
	case c.Head && c.Last != layers:
		return fmt.Errorf("the head goes with the last layer, %d, not with layer %d", layers-1, c.Last-1)
	case c.Draft && !c.Head:
		return fmt.Errorf("the MTP block needs the head's stage")
	case c.Draft && !CanDraft(spec):
		return fmt.Errorf("the model has no MTP block that can be used")
	case c.MaxRows < 1 || c.MaxLogitRows < 0:
		return fmt.Errorf("windows of %d rows and %d rows of logits", c.MaxRows, c.MaxLogitRows)
	}
	return nil
}

// Source hands out tensors by name; mapping.Files is one.
type Source interface {
	// Tensor returns the tensor of that name, which stays valid as long as its
	// source, or an error that names it.
	Tensor(name string) (ops.Tensor, error)
}

// Build makes the weights of a stage on the device and returns its graph. The
// spec has passed Check. progress is called with the bytes of each tensor made
// ready out of the stage's total; it may be nil. When ctx ends, Build stops with
// its error.
func Build(ctx context.Context, spec *pb.ModelSpec, src Source, dev ops.Device, cfg StageConfig, progress func(bytes, total int64)) (*Graph, error) {
	g, err := build(ctx, spec, src, dev, cfg, progress)
	if err != nil {
		return nil, fmt.Errorf("build stage: %w", err)
	}
	return g, nil
}

func build(ctx context.Context, spec *pb.ModelSpec, src Source, dev ops.Device, cfg StageConfig, progress func(bytes, total int64)) (*Graph, error) {
	a, err := find(spec)
	if err != nil {
		return nil, err
	}
	if err := checkHyper(spec, a); err != nil {
		return nil, err
	}
	if err := cfg.check(spec); err != nil {
		return nil, err
	}
	// A first walk finds out what is used and whether it is complete.
	plan := newBuilder(spec)
	newGraph(plan, a, cfg)
	if err := plan.mistakes(); err != nil {
		return nil, err
	}
	b := newBuilder(spec)
	b.total = plan.bytes
	b.load = func(t *pb.Tensor, change func(ops.Tensor) ops.Tensor) (ops.Weight, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		data, err := src.Tensor(t.GetName())
		if err != nil {
			return nil, err
		}
		if change != nil {
			data = change(data)
		}
		return dev.Weight(data)
	}
	b.progress = progress
	g := newGraph(b, a, cfg)
	if b.err != nil {
		return nil, b.err
	}
	if err := g.alloc(dev); err != nil {
		return nil, err
	}
	return g, nil
}
