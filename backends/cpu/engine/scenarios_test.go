package engine

import (
	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/quant"
)

// Tolerances of scenarios. A product of 16-bit activations errs by up to 2^-16 of
// Σ|w||x|, which for random signs is a few times 2^-16 of the result; chains of
// a few of them stay below 4e-4. Keys and values are float16: 2^-12 of each.
// float32 alone is good to 1e-5 over the lengths here.
const (
	plainTolerance   = 1e-5
	productTolerance = 4e-4
	halfTolerance    = 2e-3
)

func (m maker) mix(prefix string, layer, streams, width, rank int, typ, small quant.Type, inject bool) *ops.HyperMix {
	wide := int64(streams * width)
	op := &ops.HyperMix{
		Layer: layer, Streams: streams, Width: width, Rank: rank, Eps: 1e-6,
		Norm: m.positive(prefix+"norm", wide),
		Down: m.make(prefix+"down", typ, wide, int64(rank)),
		Up:   m.make(prefix+"up", typ, int64(rank), wide),
	}
	if inject {
		op.Inject = m.make(prefix+"inject", small, wide, int64(streams))
	}
	return op
}

func mixScenario(name string, streams, width, rank int, typ, small quant.Type, tolerance float64) scenario {
	return scenario{
		name: name, widths: []int{streams * width, width, streams}, outputs: []int{1, 2}, tolerance: tolerance,
		build: func(m maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
			op := m.mix("", 3, streams, width, rank, typ, small, true)
			return func(q ops.Queue, w *ops.Window, b []ops.Buffer) { q.HyperMix(op, w, b[0], b[1], b[2]) }
		},
	}
}

func deltaScenario(name string, op ops.DeltaNet, typ quant.Type, fused bool, tolerance float64) scenario {
	keys, values := op.KeyHeads*op.KeyDim, op.ValueHeads*op.ValueDim
	op.Layer, op.Eps = 5, 1e-6
	return scenario{
		name: name, widths: []int{op.Width, op.Width}, outputs: []int{1}, tolerance: tolerance,
		layout: ops.StateLayout{ID: name, Layers: []ops.LayerState{{Layer: 5, Delta: &ops.DeltaState{
			Heads: op.ValueHeads, KeyDim: op.KeyDim, ValueDim: op.ValueDim, Taps: op.Taps - 1, Channels: 2*keys + values,
		}}}},
		build: func(m maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
			op, width, heads := op, int64(op.Width), int64(op.ValueHeads)
			op.QKV = m.make("qkv", typ, width, int64(2*keys+values))
			op.Gate = m.make("gate", typ, width, int64(values))
			if fused {
				op.BetaAlpha = m.make("ba", quant.BF16, width, 2*heads)
			} else {
				op.Beta, op.Alpha = m.make("beta", quant.BF16, width, heads), m.make("alpha", quant.BF16, width, heads)
			}
			op.Conv = m.make("conv", quant.F32, int64(op.Taps), int64(2*keys+values))
			op.DtBias, op.A = m.positive("dt", heads), m.shifted("a", heads, -0.5)
			op.Norm = m.positive("norm", int64(op.ValueDim))
			op.Out = m.make("out", typ, int64(values), width)
			return func(q ops.Queue, w *ops.Window, b []ops.Buffer) { q.DeltaNet(&op, w, b[0], b[1]) }
		},
	}
}

func attentionScenario(name string, op ops.Attention, index *ops.Index, typ quant.Type) scenario {
	op.Layer, op.Eps = 2, 1e-6
	kv := &ops.KVState{Heads: op.KVHeads, KeyDim: op.HeadDim, ValueDim: op.ValueDim}
	if index != nil {
		kv.IndexDim, kv.IndexRatio = index.Dim, index.Ratio
	}
	return scenario{
		name: name, widths: []int{op.Width, op.Width}, outputs: []int{1}, tolerance: halfTolerance,
		layout: ops.StateLayout{ID: name, Layers: []ops.LayerState{{Layer: 2, KV: kv}}},
		build: func(m maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
			op, width := op, int64(op.Width)
			per := op.HeadDim
			if op.Gated {
				per += op.ValueDim
			}
			op.Q = m.make("q", typ, width, int64(op.Heads*per))
			op.K = m.make("k", typ, width, int64(op.KVHeads*op.HeadDim))
			op.V = m.make("v", typ, width, int64(op.KVHeads*op.ValueDim))
			op.Out = m.make("out", typ, int64(op.Heads*op.ValueDim), width)
			op.QNorm, op.KNorm = m.positive("qn", int64(op.HeadDim)), m.positive("kn", int64(op.HeadDim))
			if index != nil {
				x := *index
				x.Q = m.make("iq", quant.BF16, width, int64(x.Heads*x.Dim))
				x.K = m.make("ik", quant.BF16, width, int64(x.Dim))
				x.QNorm, x.KNorm = m.positive("iqn", int64(x.Dim)), m.positive("ikn", int64(x.Dim))
				op.Index = &x
			}
			return func(q ops.Queue, w *ops.Window, b []ops.Buffer) { q.Attention(&op, w, b[0], b[1]) }
		},
	}
}

func moeScenario(name string, op ops.MoE, typ, down quant.Type, fused, scales bool, tolerance float64) scenario {
	op.Layer = 4
	return scenario{
		name: name, widths: []int{op.Width, op.Width}, outputs: []int{1}, tolerance: tolerance,
		build: func(m maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
			op, width, e, f, s := op, int64(op.Width), int64(op.Experts), int64(op.ExpertWidth), int64(op.SharedWidth)
			op.Router = m.make("router", quant.F32, width, e)
			if fused {
				op.GateUp = m.make("gate_up", typ, width, 2*f, e)
			} else {
				op.Gate, op.Up = m.make("gate", typ, width, f, e), m.make("up", typ, width, f, e)
			}
			op.Down = m.make("down", down, f, width, e)
			if scales {
				op.GateScale, op.UpScale, op.DownScale = m.positive("gs", e), m.positive("us", e), m.positive("ds", e)
			}
			if s > 0 {
				op.SharedGate = m.make("sg", quant.F32, width)
				op.SharedGateProj, op.SharedUp = m.make("sgp", typ, width, s), m.make("su", typ, width, s)
				op.SharedDown = m.make("sd", down, s, width)
			}
			op.Uses = make([]uint64, e)
			return func(q ops.Queue, w *ops.Window, b []ops.Buffer) { q.MoE(&op, w, b[0], b[1]) }
		},
	}
}

func pleScenario(name string, streams, width, rowWidth, ngram, per, taps int, typ quant.Type, tolerance float64) scenario {
	wide := streams * width
	return scenario{
		name: name, widths: []int{wide}, outputs: []int{0}, vocab: 9, tolerance: tolerance,
		layout: ops.StateLayout{ID: name, Layers: []ops.LayerState{{Layer: 1, PLE: &ops.PLEState{Taps: (taps - 1) * ngram, Channels: wide, Tokens: ngram - 1}}}},
		build: func(m maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
			heads := (ngram - 1) * per
			op := &ops.PLE{
				Layer: 1, Streams: streams, Width: width, RowWidth: rowWidth, NGram: ngram, HeadsPerNGram: per, Reset: 3, Eps: 1e-6,
				Key: m.make("key", typ, int64(heads*rowWidth), int64(wide)), Value: m.make("value", typ, int64(heads*rowWidth), int64(width)),
				NormKey: m.positive("nk", int64(wide)), NormQuery: m.positive("nq", int64(wide)), NormConv: m.positive("nc", int64(wide)),
				Conv: m.make("conv", quant.F32, int64(taps), int64(wide)),
			}
			for i := range ngram {
				op.Multipliers = append(op.Multipliers, int64(seeded("multiplier", i).Uint64()>>18)|1)
			}
			total := int64(0)
			for h := range heads {
				op.Sizes, op.Offsets = append(op.Sizes, int64(31+2*h)), append(op.Offsets, total)
				total += op.Sizes[h]
			}
			op.Table = m.make("table", typ, int64(rowWidth), total)
			return func(q ops.Queue, w *ops.Window, b []ops.Buffer) { q.PLE(op, w, b[0]) }
		},
	}
}

func allRows(w *ops.Window) (rows []int) {
	for i := range w.Rows {
		rows = append(rows, i)
	}
	return rows
}

func headScenario(name string, mix, norm bool) scenario {
	const streams, width, vocab = 3, 64, 77
	in := width
	if mix {
		in *= streams
	}
	return scenario{
		name: name, widths: []int{in, vocab}, outputs: []int{1}, tolerance: productTolerance,
		build: func(m maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
			op := &ops.Head{Layer: 8, Width: width, Vocab: vocab, Output: m.make("output", quant.Q8_0, width, vocab)}
			if mix {
				op.Mix = m.mix("", 8, streams, width, 32, quant.Q8_0, quant.BF16, false)
			}
			if norm {
				op.Norm = &ops.Norm{Layer: 8, Width: width, Eps: 1e-6, Weight: m.positive("norm", width)}
			}
			return func(q ops.Queue, w *ops.Window, b []ops.Buffer) { q.Head(op, w, b[0], allRows(w), b[1]) }
		},
	}
}

// scenarios are small, with odd extents where the format of the weights allows
// it. Choices of experts and blocks are far from ties: two correct devices may
// choose differently there, and the inputs here are fixed.
func scenarios() []scenario {
	return []scenario{
		{
			name: "embed", widths: []int{3 * 64}, outputs: []int{0}, vocab: 50, tolerance: 0,
			build: func(m maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
				op := &ops.Embed{Table: m.make("table", quant.Q8_0, 64, 50), Streams: 3, Width: 64}
				return func(q ops.Queue, w *ops.Window, b []ops.Buffer) { q.Embed(op, w, b[0]) }
			},
		},
		{
			name: "norm", widths: []int{77, 77}, outputs: []int{1}, tolerance: plainTolerance,
			build: func(m maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
				op := &ops.Norm{Layer: 1, Width: 77, Eps: 1e-6, Weight: m.positive("norm", 77)}
				return func(q ops.Queue, w *ops.Window, b []ops.Buffer) { q.Norm(op, w, b[0], b[1]) }
			},
		},
		{
			name: "add", widths: []int{77, 77}, outputs: []int{0}, tolerance: plainTolerance,
			build: func(maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
				op := &ops.Add{Layer: 1, Width: 77}
				return func(q ops.Queue, w *ops.Window, b []ops.Buffer) { q.Add(op, w, b[0], b[1]) }
			},
		},
		{
			name: "inject", widths: []int{4 * 33, 4, 33}, outputs: []int{0}, tolerance: plainTolerance,
			build: func(maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
				op := &ops.HyperInject{Layer: 1, Streams: 4, Width: 33}
				return func(q ops.Queue, w *ops.Window, b []ops.Buffer) { q.HyperInject(op, w, b[0], b[1], b[2]) }
			},
		},
		mixScenario("mix", 4, 64, 32, quant.Q8_0, quant.BF16, productTolerance),
		mixScenario("mix in BF16", 3, 37, 11, quant.BF16, quant.F32, plainTolerance),
		deltaScenario("DeltaNet", ops.DeltaNet{Width: 64, KeyHeads: 2, ValueHeads: 6, KeyDim: 32, ValueDim: 32, Taps: 4}, quant.Q8_0, false, productTolerance),
		deltaScenario("DeltaNet, grouped", ops.DeltaNet{Width: 64, KeyHeads: 2, ValueHeads: 4, KeyDim: 16, ValueDim: 16, Taps: 4, Grouped: true, GateKind: ops.GateSiLU}, quant.Q8_0, true, productTolerance),
		deltaScenario("DeltaNet, odd", ops.DeltaNet{Width: 37, KeyHeads: 1, ValueHeads: 3, KeyDim: 7, ValueDim: 5, Taps: 3}, quant.F32, false, 10*plainTolerance),
		attentionScenario("attention", ops.Attention{Width: 64, Heads: 4, KVHeads: 2, HeadDim: 16, ValueDim: 16, RopeDim: 16, RopeBase: 1e4}, nil, quant.Q8_0),
		attentionScenario("attention, odd", ops.Attention{Width: 37, Heads: 3, KVHeads: 1, HeadDim: 10, ValueDim: 7, RopeDim: 6, RopeBase: 1e6, Gated: true}, nil, quant.F32),
		attentionScenario("sparse attention", ops.Attention{Width: 64, Heads: 6, KVHeads: 2, HeadDim: 32, ValueDim: 32, RopeDim: 8, RopeBase: 1e7, Gated: true},
			&ops.Index{Heads: 2, Dim: 16, Budget: 24, Ratio: 4}, quant.Q8_0),
		moeScenario("experts", ops.MoE{Width: 256, Experts: 9, Used: 3, ExpertWidth: 64, SharedWidth: 32}, quant.Q4_K, quant.IQ4_NL, false, false, productTolerance),
		moeScenario("experts, fused and scaled", ops.MoE{Width: 64, Experts: 5, Used: 2, ExpertWidth: 96}, quant.Q8_0, quant.Q8_0, true, true, productTolerance),
		moeScenario("experts, odd", ops.MoE{Width: 37, Experts: 7, Used: 7, ExpertWidth: 35, SharedWidth: 41}, quant.F32, quant.BF16, false, true, plainTolerance),
		pleScenario("n-gram embedding", 3, 32, 16, 3, 2, 4, quant.BF16, plainTolerance),
		pleScenario("n-gram embedding in Q8_0", 2, 32, 32, 4, 1, 2, quant.Q8_0, productTolerance),
		headScenario("head", false, false),
		headScenario("head with norm", false, true),
		headScenario("head with mixer", true, false),
		{
			name: "draft", widths: []int{2 * 64, 2 * 64}, outputs: []int{1}, vocab: 40, tolerance: productTolerance,
			layout: ops.StateLayout{ID: "draft", Layers: []ops.LayerState{{Layer: 8, Hidden: 2 * 64}}},
			build: func(m maker) func(ops.Queue, *ops.Window, []ops.Buffer) {
				op := &ops.Draft{
					Layer: 8, Streams: 2, Width: 64, Eps: 1e-6, Table: m.make("table", quant.Q8_0, 64, 40),
					EmbedNorm: m.positive("en", 64), HiddenNorm: m.positive("hn", 128), Join: m.make("join", quant.Q8_0, 128, 64),
				}
				keep := &ops.Hidden{Layer: 8, Width: 128}
				return func(q ops.Queue, w *ops.Window, b []ops.Buffer) {
					from := make([]int, w.Rows)
					for _, seg := range w.Segments {
						for i := range seg.Tokens {
							from[seg.Row+i] = seg.Row + i - 1
						}
						from[seg.Row] = -1
					}
					q.Draft(op, w, b[0], from, b[1])
					q.Hidden(keep, w, b[0])
				}
			},
		},
	}
}
