// Package plan decides which device holds which part of a model. It is a pure
// function of the model's shape and the configured devices.
package plan

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/strata-engine/strata/core"
)

// Range is a range of layers as people write it: both ends inclusive.
type Range struct {
	// First and Last are 0-based layer indices.
	First, Last int
}

// ParseRange reads "4-7" or "4".
func ParseRange(s string) (Range, error) {
	first, last, found := strings.Cut(s, "-")
	if !found {
		last = first
	}
	a, errA := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	b, errB := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if errA != nil || errB != nil {
		return Range{}, fmt.Errorf("layers %q: write a first and a last layer, both included, like \"0-23\"", s)
	}
	if b < a {
		return Range{}, fmt.Errorf("layers %q: the last layer is before the first", s)
	}
	return Range{First: int(a), Last: int(b)}, nil
}

// String writes the range as ParseRange reads it.
func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Stages assigns a model's layers to devices, in the order of the devices. An
// entry of ranges is nil where the configuration names no layers; then all of
// them must be nil, and the layers are divided evenly. The first stage holds the
// embedding; the last one the head and, where draft is set and the model has
// one, the MTP block.
func Stages(hyper *core.Hyper, ranges []*Range, draft bool) ([]core.Stage, error) {
	n := len(ranges)
	if n == 0 {
		return nil, fmt.Errorf("plan stages: no devices are configured")
	}
	named := 0
	for _, r := range ranges {
		if r != nil {
			named++
		}
	}
	if named != 0 && named != n {
		return nil, fmt.Errorf("plan stages: %d of %d devices name their layers: name the layers of every device or of none", named, n)
	}
	if n > hyper.Layers {
		return nil, fmt.Errorf("plan stages: %d devices for a model of %d layers: configure at most one device per layer", n, hyper.Layers)
	}
	stages := make([]core.Stage, n)
	next := 0
	for i, r := range ranges {
		first, last := next, (i+1)*hyper.Layers/n
		if r != nil {
			if r.First != next {
				return nil, fmt.Errorf("plan stages: devices[%d].layers is %s but the next layer to place is %d: list the devices in layer order, without gaps or overlaps", i, r, next)
			}
			if r.Last >= hyper.Layers {
				return nil, fmt.Errorf("plan stages: devices[%d].layers is %s but the model's layers are 0-%d", i, r, hyper.Layers-1)
			}
			last = r.Last + 1
		}
		stages[i] = core.Stage{First: first, Last: last, Embed: i == 0}
		next = last
	}
	if next != hyper.Layers {
		return nil, fmt.Errorf("plan stages: layers %d-%d are placed on no device", next, hyper.Layers-1)
	}
	stages[n-1].Head = true
	stages[n-1].Draft = draft && hyper.DraftLayers > 0
	return stages, nil
}
