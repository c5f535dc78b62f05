package model

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/strata-engine/strata/core"
)

// hash computes core.ModelSpec.Hash: SHA-256 over a text of one line each for the
// architecture, the hyper-parameters (as JSON), every shard's size and every
// tensor in order of names. Paths, times and inodes are not part of it.
func hash(spec *core.ModelSpec) string {
	hyper, err := json.Marshal(spec.Hyper)
	if err != nil {
		// Only non-finite numbers cannot be encoded, and readHyper refuses them.
		panic("model: encode hyper-parameters: " + err.Error())
	}
	h := sha256.New()
	fmt.Fprintf(h, "strata-model-1\n%q\n%s\n", spec.Architecture, hyper)
	for _, s := range spec.Shards {
		fmt.Fprintf(h, "shard %d\n", s.Size)
	}
	for _, t := range spec.Tensors {
		fmt.Fprintf(h, "tensor %q %d %d %d %d %d\n", t.Name, t.Type, t.Dims, t.Shard, t.Offset, t.Bytes)
	}
	return hex.EncodeToString(h.Sum(nil))
}
