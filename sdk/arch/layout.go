package arch

import (
	"fmt"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/ops"
)

// Layout describes the state that a sequence keeps of a whole model on one stage,
// without building it. The spec has passed Check.
func Layout(spec *pb.ModelSpec, draft bool) (*ops.StateLayout, error) {
	a, err := find(spec)
	if err != nil {
		return nil, fmt.Errorf("describe state: %w", err)
	}
	cfg := StageConfig{Last: int(spec.GetHyper().GetLayers()), Embed: true, Head: true, Draft: draft, MaxRows: 1}
	if err := cfg.check(spec); err != nil {
		return nil, fmt.Errorf("describe state: %w", err)
	}
	b := newBuilder(spec)
	g := newGraph(b, a, cfg)
	if err := b.mistakes(); err != nil {
		return nil, fmt.Errorf("describe state: %w", err)
	}
	return g.Layout(), nil
}
