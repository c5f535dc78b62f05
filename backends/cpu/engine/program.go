package engine

import (
	"context"
	"fmt"
	"runtime"

	"github.com/strata-engine/strata/backends/cpu/pool"
	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/stage"
)

// deviceID names the only device.
const deviceID = "cpu"

// Program is what sdk/stage needs to know of this kind of device.
func Program(version string) stage.Program {
	return stage.Program{
		Info: sdk.Info{Name: "cpu", Version: version, Capabilities: []string{sdk.CapInvariant}},
		Probe: func(context.Context) ([]sdk.Device, error) {
			return []sdk.Device{probe()}, nil
		},
		Open: func(_ context.Context, req *sdk.LoadRequest) (ops.Device, error) {
			if req.Device != "" && req.Device != deviceID {
				return nil, fmt.Errorf("%w: device %q; the only one is %q", sdk.ErrInvalid, req.Device, deviceID)
			}
			o, err := ParseOptions(req.Options)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", sdk.ErrInvalid, err)
			}
			return Open(o)
		},
	}
}

// probe describes the processor.
func probe() sdk.Device {
	name := processorName()
	if name == "" {
		name = runtime.GOARCH + " processor"
	}
	total, free := memory()
	return sdk.Device{ID: deviceID, Name: name, MemoryTotal: total, MemoryFree: free, Threads: pool.Available()}
}
