package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/plugins"
	"github.com/strata-engine/strata/plugins/remote"
	"github.com/strata-engine/strata/sdk/arch"
	"github.com/strata-engine/strata/sdk/quant"
)

func (p *program) inspectCommand() *cobra.Command {
	var draft string
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what a model file holds, and whether and how fast it runs here",
		Long: `Show what a model file holds: architecture, hyper-parameters, tensors by type,
tensors that are missing or surplus. Only headers are read. A file that cannot be
run ends with exit code 3.

Then: does it fit into the memory of this machine, with sequences as long as the
context, and how fast can it be at most? To compute a token, the processor reads
all weights but the experts that are not in use and the rows of embedding tables
that are not those of the token. The speed is the memory's, measured for a moment,
divided by that amount. Drafted tokens (MTP) can exceed it, long contexts need more.`,
		Example: "  strata inspect models/" + defaultModel,
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			src, err := p.sources(cmd.Flags())
			if err != nil {
				return err
			}
			loaded, err := config.Load(src)
			if err != nil {
				return with(exitUsage, err)
			}
			p.warn(loaded)
			file, err := model.Open(args[0], model.WithDraft(draft))
			if err != nil {
				return err
			}
			return inspect(cmd.Context(), p.out, file, &loaded.Config)
		},
	}
	cmd.Flags().StringVar(&draft, "draft", "", "`FILE` with an MTP block for a model that has none inside")
	config.BindContextFlag(cmd.Flags())
	bindPluginsFlags(cmd.Flags())
	return cmd
}

// inspect describes an opened file. The description comes out whole also where
// the model is incomplete; that is then the error.
func inspect(ctx context.Context, out io.Writer, file *model.File, cfg *config.Config) error {
	spec := file.Spec
	wire := remote.ModelSpec(spec)
	bad := arch.Check(wire)

	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("name", "%s", strings.Map(printable, spec.Name))
	row("architecture", "%s", spec.Architecture)
	for _, s := range spec.Shards {
		row("file", "%s (%v)", s.Path, size(s.Size))
	}
	hyper(row, &spec.Hyper)

	fmt.Fprintln(t)
	fmt.Fprintln(t, "tensor type\ttensors\tbytes")
	var total int64
	for _, u := range usesOf(spec) {
		fmt.Fprintf(t, "%v\t%d\t%v\n", u.kind, u.tensors, size(u.bytes))
		total += u.bytes
	}
	fmt.Fprintf(t, "all\t%d\t%v\n", len(spec.Tensors), size(total))
	if bad == nil {
		fmt.Fprintln(t)
		layout, err := arch.Layout(wire, arch.CanDraft(wire))
		if err != nil {
			return err
		}
		perToken, fixed := layout.Bytes()
		length := cfg.Context
		if length == 0 {
			length = min(spec.Hyper.Context, config.DefaultContext)
		}
		row("weights", "%v, used in place from the file where the device allows it", size(total))
		row("state", "%v per token and %v per sequence; %v for one sequence of %d tokens",
			size(perToken), size(fixed), size(fixed+perToken*int64(length)), length)
		row("complete", "yes: every tensor is there with its shape, and none besides")
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(t)
		cpu := cpuDevice(ctx, cfg.Plugins.Dir)
		row("memory here", "%s", fits(total, perToken, fixed, length, cfg.MaxSequences, cpu.MemoryFree))
		bandwidth, read := measureBandwidth(cpu.MemoryFree), touched(spec)
		row("speed here", "at most about %.3g tokens/s on this machine's CPU: it reads %v for a token, and memory at %.3g GB/s",
			bandwidth/float64(max(1, read)), size(read), bandwidth/1e9)
	} else {
		row("complete", "no")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if bad != nil {
		return with(exitModel, fmt.Errorf("inspect %s: %w", spec.Shards[0].Path, bad))
	}
	return nil
}

// cpuDevice is the processor as the CPU backend sees it; zero where there is no
// such backend.
func cpuDevice(ctx context.Context, dir string) core.Device {
	program, err := plugins.Find("cpu", dir)
	if err != nil {
		return core.Device{}
	}
	if r := probe(ctx, program, remote.DefaultStartTimeout); r.err == nil && len(r.devices) > 0 {
		return r.devices[0]
	}
	return core.Device{}
}

// fits says whether a model fits into the available memory, where that is known:
// with all the sequences that may run at once, with one, or not even that.
func fits(weights, perToken, perSequence int64, context, sequences int, available int64) string {
	one, all := need(weights, perToken, perSequence, context, 1), need(weights, perToken, perSequence, context, sequences)
	text := fmt.Sprintf("%v with one sequence of %d tokens, %v with %d", size(one), context, size(all), sequences)
	switch {
	case available <= 0:
		return text + "; how much there is, is not known (no CPU backend tells it)"
	case all <= available:
		return fmt.Sprintf("%s; %v are available: it fits", text, size(available))
	case one <= available:
		return fmt.Sprintf("%s; %v are available: it fits with fewer sequences or a smaller context", text, size(available))
	case weights > available:
		return fmt.Sprintf("%s; %v are available: the weights do not fit, and parts of them will be read from the disk again and again", text, size(available))
	}
	return fmt.Sprintf("%s; %v are available: it fits with a smaller context", text, size(available))
}

// hyper writes the hyper-parameters that a model has.
func hyper(row func(name, format string, args ...any), h *core.Hyper) {
	counts := map[core.LayerKind]int{}
	for _, k := range h.Kinds[:min(h.Layers, len(h.Kinds))] {
		counts[k]++
	}
	var kinds []string
	for _, k := range []core.LayerKind{core.LayerDeltaNet, core.LayerSparseAttention, core.LayerAttention} {
		if counts[k] > 0 {
			kinds = append(kinds, fmt.Sprintf("%d %v", counts[k], k))
		}
	}
	row("layers", "%d (%s)", h.Layers, strings.Join(kinds, ", "))
	if h.DraftLayers > 0 {
		row("MTP blocks", "%d", h.DraftLayers)
	}
	row("context", "%d tokens trained", h.Context)
	row("width", "%d", h.Width)
	if h.Streams > 1 {
		row("hyper-connections", "%d streams, rank %d", h.Streams, h.StreamRank)
	}
	row("vocabulary", "%d", h.Vocab)
	row("attention", "%d heads, %d key/value heads, head length %d, rotary %d, base %g", h.Heads, h.KVHeads, h.HeadDim, h.RopeDim, h.RopeBase)
	if h.IndexHeads > 0 {
		row("indexer", "%d heads of %d, %d tokens selected in blocks of %d", h.IndexHeads, h.IndexDim, h.IndexBudget, h.IndexRatio)
	}
	if h.KeyHeads > 0 {
		row("DeltaNet", "%d key heads, %d value heads, state length %d, convolution over %d", h.KeyHeads, h.ValueHeads, h.StateDim, h.ConvKernel)
	}
	row("experts", "%d per layer, %d used, width %d; shared expert width %d", h.Experts, h.ExpertsUsed, h.ExpertWidth, h.SharedExpertWidth)
	if h.PLE != nil {
		rows := int64(0)
		for _, n := range h.PLE.Sizes {
			rows += n
		}
		row("n-gram embedding", "layers %v, %d rows of %d", h.PLE.Layers, rows, h.PLE.RowWidth)
	}
}

// typeUse is how much of a model is of one tensor type.
type typeUse struct {
	kind    quant.Type
	tensors int
	bytes   int64
}

// usesOf adds up tensors by type, largest first.
func usesOf(spec *core.ModelSpec) []typeUse {
	var out []typeUse
	for _, t := range spec.Tensors {
		i := slices.IndexFunc(out, func(u typeUse) bool { return u.kind == quant.Type(t.Type) })
		if i < 0 {
			i = len(out)
			out = append(out, typeUse{kind: quant.Type(t.Type)})
		}
		out[i].tensors++
		out[i].bytes += t.Bytes
	}
	slices.SortStableFunc(out, func(a, b typeUse) int { return int(min(1, max(-1, b.bytes-a.bytes))) })
	return out
}

// size is a number of bytes for people.
type size int64

// String writes the number with three digits and a binary unit.
func (s size) String() string {
	v, unit := float64(s), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, next
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", int64(s))
	}
	return fmt.Sprintf("%.3g %s", v, unit)
}
