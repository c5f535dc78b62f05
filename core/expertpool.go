package core

// ExpertTier is a place where an expert's weights can lie.
type ExpertTier uint8

// The tiers, fastest first.
const (
	// TierDevice: memory of the device that runs the layer.
	TierDevice ExpertTier = iota
	// TierPinned: host memory that a device can read directly.
	TierPinned
	// TierPageCache: a file mapping, served by the page cache.
	TierPageCache
	// TierDisk: only on the SSD.
	TierDisk
)

// String returns the tier's name as used in metrics.
func (t ExpertTier) String() string {
	switch t {
	case TierDevice:
		return "device"
	case TierPinned:
		return "pinned"
	case TierPageCache:
		return "page-cache"
	case TierDisk:
		return "disk"
	}
	return "unknown"
}

// ExpertPool is the host's knowledge of where every (layer, expert) lives and
// the policy that decides who computes it. Execution is a backend's. Safe for
// concurrent use; every operation is bounded.
type ExpertPool interface {
	// Place records, when a stage is loaded, that device holds the experts of
	// layers [first, last) in tier.
	Place(device string, first, last int, tier ExpertTier) error
	// Residency says where an expert is, and on which device.
	Residency(layer, expert int) (device string, tier ExpertTier, err error)
	// Record takes the routing counters of a layer as a backend reports them:
	// uses[i] is how often expert i was chosen since the stage was loaded. A
	// counter below the one last recorded means that the stage was reloaded.
	Record(layer int, uses []uint64) error
	// Stats returns counters for metrics.
	Stats() ExpertStats
}

// ExpertStats are counters of an ExpertPool.
type ExpertStats struct {
	// Layers and Experts are the pool's extents.
	Layers, Experts int
	// ByTier counts (layer, expert) pairs per tier.
	ByTier map[ExpertTier]int
	// Uses counts expert uses recorded so far.
	Uses uint64
}
