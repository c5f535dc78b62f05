package engine

import (
	"fmt"
	"time"

	"github.com/strata-engine/strata/core"
)

// windowResult is what a window produced over all stages.
type windowResult struct {
	// rows are the flags of every row, the stages' joined.
	rows []core.RowFlags
	// logits are the wanted rows; they belong to the last stage's slot.
	logits []float32
	// busy is the time the stages spent working.
	busy time.Duration
	// release returns the slot.
	release func()
}

// execute runs a window through the stages in order. On error nothing of it
// counts.
func (e *Engine) execute(w *core.Window) (*windowResult, error) {
	result := &windowResult{}
	var previous *core.Done
	for i, s := range e.cfg.Stages {
		step := &core.Step{Window: *w, Deadline: time.Now().Add(e.cfg.StepTimeout), Posted: e.deliver}
		if previous != nil {
			step.Input = previous.Output
		}
		done, err := s.Backend.Step(e.ctx, step)
		if previous != nil {
			previous.Release()
		}
		if err != nil {
			return nil, fmt.Errorf("step on %s: %w", s.Device, err)
		}
		result.busy += done.Busy
		if i == 0 {
			result.rows = append(make([]core.RowFlags, 0, len(done.Rows)), done.Rows...)
		} else {
			joinFlags(result.rows, done.Rows)
		}
		previous = done
	}
	result.logits, result.release = previous.Logits, previous.Release
	return result, nil
}

// joinFlags adds a later stage's flags. Stages are in layer order, so the first
// bad layer stays.
func joinFlags(rows, later []core.RowFlags) {
	for i, f := range later {
		if f.Finite() {
			continue
		}
		if rows[i].Finite() {
			rows[i].Layer = f.Layer
		}
		rows[i].Residual = rows[i].Residual || f.Residual
		rows[i].Logits = rows[i].Logits || f.Logits
		rows[i].State = rows[i].State || f.State
	}
}
