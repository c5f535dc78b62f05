// The CPU backend: a process that executes stages of a model on the processor,
// started by a Strata host.
package main

import (
	"github.com/hashicorp/go-hclog"

	"github.com/strata-engine/strata/backends/cpu/engine"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/stage"
)

// version is set by the linker.
var version = "unknown"

func main() {
	sdk.Serve(func(hclog.Logger) (sdk.Backend, error) {
		return stage.New(engine.Program(version)), nil
	})
}
