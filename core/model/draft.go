package model

import (
	"fmt"
	"strings"

	"github.com/strata-engine/strata/core"
)

// addDraft adds the MTP block of a sidecar file to the model. A sidecar has the
// tensors of one more block; the embedding and the output head are the trunk's,
// also where the sidecar repeats them. metadata are the trunk's.
func addDraft(spec *core.ModelSpec, metadata *Metadata, path string) error {
	if spec.Hyper.DraftLayers > 0 {
		return invalid(path, "the model %s already contains an MTP block; leave out the draft", metadata.path)
	}
	files, err := readShards(path)
	if err != nil {
		return err
	}
	if err := checkDraft(spec, metadata, files[0].metadata); err != nil {
		return err
	}
	shards, tensors := join(files, len(spec.Shards))
	block := fmt.Sprintf("blk.%d.", spec.Hyper.Layers)
	own := map[string]bool{}
	for _, t := range tensors {
		own[t.Name] = true
	}
	var draft []core.Tensor
	for _, t := range tensors {
		switch head, isHead := strings.CutPrefix(t.Name, "output_hc_"); {
		case strings.HasPrefix(t.Name, block):
			draft = append(draft, t)
		case strings.HasPrefix(t.Name, "blk."):
			return invalid(path, "tensor %q does not belong to an MTP block for %d layers; it is not a sidecar of %s, use the one made for that model", t.Name, spec.Hyper.Layers, metadata.path)
		case isHead && !own[block+"nextn.hc_head_"+head]:
			// Older sidecars call the block's own final mixer like the trunk's.
			t.Name = block + "nextn.hc_head_" + head
			draft = append(draft, t)
		}
	}
	if len(draft) == 0 {
		return invalid(path, "it has no tensors of block %d; it is not an MTP sidecar of %s, use the one made for that model", spec.Hyper.Layers, metadata.path)
	}
	spec.Shards = append(spec.Shards, shards...)
	spec.Tensors = append(spec.Tensors, draft...)
	sortTensors(spec.Tensors)
	for i := 1; i < len(spec.Tensors); i++ {
		if name := spec.Tensors[i].Name; name == spec.Tensors[i-1].Name {
			return invalid(path, "tensor %q is also in %s; use the sidecar made for that model", name, metadata.path)
		}
	}
	spec.Hyper.DraftLayers = 1
	spec.Hyper.Kinds = append(spec.Hyper.Kinds, core.LayerAttention)
	return nil
}

// perModel are hyper-parameters in which a sidecar differs from its trunk: they
// count or list blocks.
var perModel = map[string]bool{
	"block_count":                true,
	"nextn_predict_layers":       true,
	"context_length":             true,
	"attention.compress_ratios":  true,
	"attention.recurrent_layers": true,
	"expert_feed_forward_length": true,
	"attention.head_count_kv":    true,
}

// checkDraft compares the metadata of a sidecar with those of the trunk.
func checkDraft(spec *core.ModelSpec, trunk, draft *Metadata) error {
	architecture, err := draft.String("general.architecture")
	if err != nil {
		return err
	}
	if architecture != spec.Architecture {
		return invalid(draft.path, "its architecture is %q, that of %s is %q; use the sidecar made for that model", architecture, trunk.path, spec.Architecture)
	}
	prefix := architecture + "."
	blocks, err := draft.Int(prefix + "block_count")
	if err != nil {
		return err
	}
	count, err := draft.Int(prefix + "nextn_predict_layers")
	if err != nil {
		return err
	}
	if want := int64(spec.Hyper.Layers) + 1; count != 1 || blocks != want {
		return invalid(draft.path, "it has %d blocks, of which %d are MTP blocks; a sidecar of %s has %d and 1, use the one made for that model", blocks, count, trunk.path, want)
	}
	for _, key := range draft.keys {
		name, ok := strings.CutPrefix(key, prefix)
		if !ok || perModel[name] || !trunk.Has(key) {
			continue
		}
		if !draft.values[key].equal(trunk.values[key]) {
			return invalid(draft.path, "key %q differs from %s; use the sidecar made for that model", key, trunk.path)
		}
	}
	return nil
}
