// Package expert implements core.ExpertPool: where every (layer, expert) lives
// and how often it is used.
package expert

import (
	"fmt"
	"sync"

	"github.com/strata-engine/strata/core"
)

// Pool implements core.ExpertPool for models whose experts all lie on the
// device that runs their layer. Safe for concurrent use.
type Pool struct {
	layers, experts int

	mu sync.Mutex // protects the fields below
	// place has one entry per layer.
	place []placement
	// last and uses have layers x experts entries: the counters as last
	// reported, and their growth summed over reloads.
	last, uses []uint64
}

type placement struct {
	device string
	tier   core.ExpertTier
	placed bool
}

var _ core.ExpertPool = (*Pool)(nil)

// New returns a pool for a model with the given extents.
func New(layers, experts int) *Pool {
	return &Pool{
		layers: layers, experts: experts,
		place: make([]placement, layers),
		last:  make([]uint64, layers*experts),
		uses:  make([]uint64, layers*experts),
	}
}

// Place implements core.ExpertPool.
func (p *Pool) Place(device string, first, last int, tier core.ExpertTier) error {
	if first < 0 || last > p.layers || first >= last {
		return fmt.Errorf("place experts: layers [%d,%d) are not within [0,%d)", first, last, p.layers)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := first; i < last; i++ {
		p.place[i] = placement{device: device, tier: tier, placed: true}
	}
	return nil
}

// Residency implements core.ExpertPool.
func (p *Pool) Residency(layer, expert int) (string, core.ExpertTier, error) {
	if layer < 0 || layer >= p.layers || expert < 0 || expert >= p.experts {
		return "", 0, fmt.Errorf("expert residency: (%d, %d) is outside %d layers of %d experts", layer, expert, p.layers, p.experts)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.place[layer].placed {
		return "", 0, fmt.Errorf("expert residency: layer %d is on no device", layer)
	}
	return p.place[layer].device, p.place[layer].tier, nil
}

// Record implements core.ExpertPool.
func (p *Pool) Record(layer int, uses []uint64) error {
	if layer < 0 || layer >= p.layers || len(uses) != p.experts {
		return fmt.Errorf("record expert uses: layer %d with %d counters, the pool has %d layers of %d experts", layer, len(uses), p.layers, p.experts)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range uses {
		at := layer*p.experts + i
		if n < p.last[at] { // the stage was reloaded and counts from zero
			p.last[at] = 0
		}
		p.uses[at] += n - p.last[at]
		p.last[at] = n
	}
	return nil
}

// Stats implements core.ExpertPool.
func (p *Pool) Stats() core.ExpertStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := core.ExpertStats{Layers: p.layers, Experts: p.experts, ByTier: map[core.ExpertTier]int{}}
	for _, l := range p.place {
		if l.placed {
			s.ByTier[l.tier] += p.experts
		}
	}
	for _, n := range p.uses {
		s.Uses += n
	}
	return s
}
