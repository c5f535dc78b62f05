package host

import (
	"context"
	"fmt"

	"github.com/strata-engine/strata/core/telemetry"
	"github.com/strata-engine/strata/plugins/supervisor"
)

// Down returns why nothing can run any more, or nil: the engine has given up, or
// one of the devices has failed.
func (h *Host) Down() error {
	for _, d := range h.devices {
		if s := d.Status(); s.State == supervisor.StateFailed {
			return fmt.Errorf("device %s has failed: %w", s.Name, s.Err)
		}
	}
	return h.Engine.Down()
}

// Devices returns what is known of every device now. It does not wait.
func (h *Host) Devices() []telemetry.Device {
	out := make([]telemetry.Device, len(h.devices))
	for i, d := range h.devices {
		s := d.Status()
		out[i] = telemetry.Device{
			Name: s.Name, State: s.State.String(), Since: s.Since, Error: s.Err,
			First: h.stages[i].First, Last: h.stages[i].Last,
			PID: s.PID, Starts: s.Starts, Transport: string(s.Transport),
			WeightBytes: s.Result.WeightBytes, MappedBytes: s.Result.MappedBytes,
		}
	}
	return out
}

// Snapshot returns what the parts are doing now. It asks the backends how often
// each expert was chosen; those that have not answered when ctx ends count as they
// did the last time.
func (h *Host) Snapshot(ctx context.Context) telemetry.Snapshot {
	if err := h.CountExperts(ctx); err != nil {
		h.log.Debug("expert uses are as of the last time", "error", err)
	}
	return telemetry.Snapshot{Engine: h.Engine.Stats(), KV: h.KV.Stats(), Experts: h.Experts.Stats(), Devices: h.Devices()}
}
