package main

import (
	"fmt"
	"io"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/strata-engine/strata/core"
)

// patience is how long a load may take before there is something to see.
const patience = 500 * time.Millisecond

// loadDisplay shows how a load goes on that takes its time: a bar on a terminal,
// elsewhere a line for every quarter.
type loadDisplay struct {
	out      io.Writer
	started  time.Time
	bars     *mpb.Progress // nil where there is no terminal
	bar      *mpb.Bar
	quarters int
}

func newLoadDisplay(out io.Writer) *loadDisplay {
	d := &loadDisplay{out: out, started: time.Now()}
	if terminal(out) {
		d.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(48))
	}
	return d
}

// update shows a state of the load.
func (d *loadDisplay) update(p core.LoadProgress) {
	if p.Total <= 0 || time.Since(d.started) < patience {
		return
	}
	if d.bars != nil {
		if d.bar == nil {
			d.bar = d.bars.AddBar(p.Total,
				mpb.BarRemoveOnComplete(),
				mpb.PrependDecorators(decor.Name("loading ")),
				mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f")))
		}
		d.bar.SetTotal(p.Total, false)
		d.bar.SetCurrent(p.Bytes)
		return
	}
	for q := int(4 * p.Bytes / p.Total); d.quarters < q; {
		d.quarters++
		fmt.Fprintf(d.out, "loading: %d %%\n", 25*d.quarters)
	}
}

// done ends the display and takes the bar away.
func (d *loadDisplay) done() {
	if d.bars == nil {
		return
	}
	if d.bar != nil {
		d.bar.Abort(true)
	}
	d.bars.Wait()
}
