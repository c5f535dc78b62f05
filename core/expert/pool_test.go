package expert

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/core"
)

func TestPool(t *testing.T) {
	p := New(4, 3)
	if err := p.Place("cpu", 0, 2, core.TierPageCache); err != nil {
		t.Fatal(err)
	}
	if err := p.Place("gpu", 2, 4, core.TierDevice); err != nil {
		t.Fatal(err)
	}
	device, tier, err := p.Residency(2, 1)
	if err != nil || device != "gpu" || tier != core.TierDevice {
		t.Fatalf("Residency(2,1) = %q, %v, %v", device, tier, err)
	}
	for _, uses := range [][]uint64{{1, 2, 3}, {4, 2, 3}, {0, 1, 0}, {2, 1, 0}} { // reloaded after the second
		if err := p.Record(1, uses); err != nil {
			t.Fatal(err)
		}
	}
	want := core.ExpertStats{Layers: 4, Experts: 3, ByTier: map[core.ExpertTier]int{core.TierPageCache: 6, core.TierDevice: 6}, Uses: 4 + 2 + 3 + 2 + 1}
	if d := cmp.Diff(want, p.Stats()); d != "" {
		t.Error(d)
	}
}

func TestPoolRefuses(t *testing.T) {
	p := New(2, 2)
	for _, err := range []error{
		p.Place("cpu", -1, 1, core.TierDevice),
		p.Place("cpu", 1, 3, core.TierDevice),
		p.Place("cpu", 1, 1, core.TierDevice),
		p.Record(2, []uint64{1, 1}),
		p.Record(0, []uint64{1}),
	} {
		if err == nil {
			t.Error("no error")
		}
	}
	for _, at := range [][2]int{{0, 0}, {-1, 0}, {0, 2}, {5, 0}} { // the first is on no device
		if _, _, err := p.Residency(at[0], at[1]); err == nil {
			t.Errorf("Residency(%v): no error", at)
		}
	}
}
