package arch_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/sdk/arch"
	"github.com/strata-engine/strata/sdk/arch/archtest"
	"github.com/strata-engine/strata/sdk/mapping"
	"github.com/strata-engine/strata/sdk/ops"
	"github.com/strata-engine/strata/sdk/ops/reference"
)

func name(i int, tensor string) string { return fmt.Sprintf("blk.%d.%s", i, tensor) }

// maxRows is the longest window of the tests.
const maxRows = 64

// rig is a model cut into stages on one device.
type rig struct {
	t      *testing.T
	dev    *reference.Device
	stages []*arch.Graph
}

// newRig builds a model, cut before the given layers.
func newRig(t *testing.T, m *archtest.Model, cuts ...int) *rig {
	t.Helper()
	spec := m.Write(t)
	if err := arch.Check(spec); err != nil {
		t.Fatal(err)
	}
	files, err := mapping.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { files.Close() })
	r := &rig{t: t, dev: reference.New()}
	cuts = append(append([]int{0}, cuts...), int(spec.Hyper.Layers))
	for i := range cuts[1:] {
		head := i == len(cuts)-2
		g, err := arch.Build(t.Context(), spec, files, r.dev, arch.StageConfig{
			First: cuts[i], Last: cuts[i+1], Embed: i == 0, Head: head, Draft: head && arch.CanDraft(spec),
			MaxRows: maxRows, MaxLogitRows: maxRows,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.stages = append(r.stages, g)
	}
	return r
}

// sequence is one state per stage.
type sequence struct {
	states   []ops.State
	executed int
}

func (r *rig) open() *sequence {
	r.t.Helper()
	s := &sequence{}
	for _, g := range r.stages {
		st, err := r.dev.NewState(g.Layout())
		if err != nil {
			r.t.Fatal(err)
		}
		if err := r.dev.Reserve(st, 256); err != nil {
			r.t.Fatal(err)
		}
		s.states = append(s.states, st)
	}
	return s
}

// run executes a window with the given tokens of each sequence and returns the
// logits of all rows and the last stage's flags.
func (r *rig) run(sequences []*sequence, tokens ...[]int32) ([]float32, *ops.Flags) {
	r.t.Helper()
	var residual []float32
	var logits []float32
	var flags *ops.Flags
	for i, g := range r.stages {
		w := &ops.Window{}
		var rows []int
		for j, s := range sequences {
			w.Segments = append(w.Segments, ops.Segment{State: s.states[i], Pos: s.executed, Row: w.Rows, Tokens: tokens[j]})
			w.Rows += len(tokens[j])
		}
		var out []float32
		if i == len(r.stages)-1 {
			for row := range w.Rows {
				rows = append(rows, row)
			}
			logits = make([]float32, w.Rows*g.Vocab())
		} else {
			out = make([]float32, w.Rows*g.ResidualWidth())
		}
		if err := g.Run(r.t.Context(), w, residual, rows, out, logits); err != nil {
			r.t.Fatal(err)
		}
		residual, flags = out, w.Flags
	}
	for j, s := range sequences {
		s.executed += len(tokens[j])
	}
	return logits, flags
}

// prompt are n tokens that hit the reset token of the n-gram layer now and then.
func prompt(n int, seed int32) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = (int32(i)*13 + seed*7 + int32(i*i)%11) % archtest.Vocab
	}
	return out
}

// whole runs tokens in one window.
func (r *rig) whole(tokens []int32) []float32 {
	r.t.Helper()
	logits, flags := r.run([]*sequence{r.open()}, tokens)
	for row := range flags.Rows() {
		if residual, bad, state, layer := flags.Row(row); residual || bad || state {
			r.t.Fatalf("row %d is not finite in layer %d", row, layer)
		}
	}
	return logits
}

func TestSplitsAreEqualToTheBit(t *testing.T) {
	for _, architecture := range arch.Supported() {
		t.Run(architecture, func(t *testing.T) {
			tokens := prompt(40, 1)
			m := archtest.New(architecture)
			want := newRig(t, m).whole(tokens)
			for _, cuts := range [][]int{{1}, {2}, {3}, {1, 2, 3}} {
				if got := newRig(t, m, cuts...).whole(tokens); !slices.Equal(got, want) {
					t.Errorf("cut before layers %v: other logits", cuts)
				}
			}
		})
	}
}

func TestChunksAndCompanyAreEqualToTheBit(t *testing.T) {
	for _, architecture := range arch.Supported() {
		t.Run(architecture, func(t *testing.T) {
			r, tokens := newRig(t, archtest.New(architecture)), prompt(40, 1)
			want := r.whole(tokens)
			for _, chunk := range []int{1, 3, 7, 16} {
				s, other := r.open(), r.open()
				var got []float32
				for at := 0; at < len(tokens); at += chunk {
					part := tokens[at:min(at+chunk, len(tokens))]
					logits, _ := r.run([]*sequence{other, s}, prompt(3, int32(at)), part)
					got = append(got, logits[3*archtest.Vocab:]...)
				}
				if !slices.Equal(got, want) {
					t.Errorf("chunks of %d beside another sequence: other logits", chunk)
				}
			}
		})
	}
}

// TestVariantsAreEqualToTheBit runs the same weights in other arrangements.
func TestVariantsAreEqualToTheBit(t *testing.T) {
	tests := []struct {
		architecture string
		change       func(m *archtest.Model)
	}{
		{"qwen4exp", fuseExperts},
		{"qwen4exp", dropDraft},
		{"qwen3next", fuseProjections},
		{"qwen3next", func(m *archtest.Model) {
			// A factor of 2 on a half of gate, up and down.
			for _, p := range []string{"gate", "up", "down"} {
				for i, v := range m.Tensors["blk.1.ffn_"+p+"_exps.weight"].Values {
					m.Tensors["blk.1.ffn_"+p+"_exps.weight"].Values[i] = v / 2
				}
				m.Tensors["blk.1.ffn_"+p+"_exps.scale"] = &archtest.Tensor{Dims: []int64{6}, Values: []float32{2, 2, 2, 2, 2, 2}}
			}
		}},
	}
	for i, tt := range tests {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			m, tokens := archtest.New(tt.architecture), prompt(20, 1)
			want := newRig(t, m).whole(tokens)
			tt.change(m)
			if got := newRig(t, m).whole(tokens); !slices.Equal(got, want) {
				t.Error("other logits")
			}
		})
	}
}

// TestEveryTensorMatters changes one tensor at a time: each must show in the
// logits or, for those of the MTP block, in the drafts.
func TestEveryTensorMatters(t *testing.T) {
	for _, architecture := range arch.Supported() {
		t.Run(architecture, func(t *testing.T) {
			tokens := prompt(24, 3)
			result := func(m *archtest.Model) []float32 {
				r := newRig(t, m)
				s := r.open()
				out, _ := r.run([]*sequence{s}, tokens)
				if architecture == "qwen4exp" {
					row := make([]float32, archtest.Vocab)
					if _, err := r.stages[0].DraftRow(t.Context(), s.states[0], s.executed-1, 5, false, row); err != nil {
						t.Fatal(err)
					}
					out = append(out, row...)
				}
				return out
			}
			want := result(archtest.New(architecture))
			for tensor := range archtest.New(architecture).Tensors {
				if testing.Short() && !strings.HasPrefix(tensor, "blk.1.") {
					continue
				}
				if strings.HasPrefix(tensor, "blk.4.indexer") {
					// The MTP block's attention is dense.
					continue
				}
				m := archtest.New(architecture)
				for i, v := range m.Tensors[tensor].Values {
					// A vector that is scaled as a whole would not show behind a norm.
					m.Tensors[tensor].Values[i] = v * (1.2 + 0.6*float32(i%3))
				}
				if slices.Equal(result(m), want) {
					t.Errorf("%s makes no difference", tensor)
				}
			}
		})
	}
}

func TestDraftsDoNotDependOnChunksOrEarlierDrafts(t *testing.T) {
	r, tokens := newRig(t, archtest.New("qwen4exp")), prompt(30, 2)
	g, ctx := r.stages[0], t.Context()
	draft := func(s *sequence) []float32 {
		tokens, logProbs, err := g.Draft(ctx, s.states[0], s.executed, 5, 4)
		if err != nil || len(tokens) != 4 {
			t.Fatalf("%d drafts, error %v", len(tokens), err)
		}
		for _, id := range tokens {
			logProbs = append(logProbs, float32(id))
		}
		return logProbs
	}
	s := r.open()
	r.run([]*sequence{s}, tokens)
	want := draft(s)
	for _, chunk := range []int{1, 4, 29} {
		s := r.open()
		for at := 0; at < len(tokens); at += chunk {
			r.run([]*sequence{s}, tokens[at:min(at+chunk, len(tokens))])
			if got := draft(s); at+chunk >= len(tokens) && !slices.Equal(got, want) {
				t.Errorf("chunks of %d: drafts %v, want %v", chunk, got, want)
			}
		}
	}
	// Drafts leave the trunk alone.
	undisturbed := r.open()
	r.run([]*sequence{undisturbed}, tokens)
	after, _ := r.run([]*sequence{s}, tokens[:3])
	plain, _ := r.run([]*sequence{undisturbed}, tokens[:3])
	if !slices.Equal(after, plain) {
		t.Error("drafts changed the trunk's state")
	}
}

func TestStateSurvivesExportAndImport(t *testing.T) {
	for _, architecture := range arch.Supported() {
		t.Run(architecture, func(t *testing.T) {
			r, tokens := newRig(t, archtest.New(architecture)), prompt(maxRows, 1)
			s := r.open()
			// Beyond one page of 64 tokens.
			r.run([]*sequence{s}, tokens)
			r.run([]*sequence{s}, tokens[:10])
			sections, err := r.dev.Export(s.states[0], s.executed)
			if err != nil {
				t.Fatal(err)
			}
			shapes := r.stages[0].Layout().Sections(s.executed)
			for i, shape := range shapes {
				if sections[i].Layer != shape.Layer || sections[i].Kind != shape.Kind || len(sections[i].Data) != shape.Bytes {
					t.Errorf("section %d is layer %d, kind %d, %d bytes, want %+v", i, sections[i].Layer, sections[i].Kind, len(sections[i].Data), shape)
				}
			}
			other := r.open()
			if err := r.dev.Import(other.states[0], s.executed, sections); err != nil {
				t.Fatal(err)
			}
			again, err := r.dev.Export(other.states[0], s.executed)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(sections, again); diff != "" {
				t.Errorf("exported after import: %s", diff)
			}
			if err := r.dev.Reserve(other.states[0], 256); err != nil {
				t.Fatal(err)
			}
			other.executed = s.executed
			got, _ := r.run([]*sequence{other}, tokens[:5])
			want, _ := r.run([]*sequence{s}, tokens[:5])
			for i := range got {
				// Keys and values were rounded to float16.
				if math.Abs(float64(got[i]-want[i])) > 2e-2 {
					t.Fatalf("logit %d is %g after import, want %g", i, got[i], want[i])
				}
			}
		})
	}
}

func TestFlagsNameTheFirstBadLayer(t *testing.T) {
	nan := float32(math.NaN())
	tests := []struct {
		tensor string
		// at is the index of the poisoned value.
		at                      int
		residual, logits, state bool
		layer                   int
	}{
		{"token_embd.weight", 5 * 16, true, true, true, -1},
		{"blk.1.ple_value.weight", 0, true, true, true, 1},
		{"blk.2.attn_qkv.weight", 0, true, true, true, 2},
		{"blk.2.ssm_out.weight", 0, true, true, true, 2},
		{"blk.3.attn_k.weight", 0, true, true, true, 3},
		// The experts chosen in its place are finite.
		{"blk.3.ffn_gate_inp.weight", 0, true, false, false, 3},
		{"output.weight", 0, false, true, false, 4},
		{"blk.4.attn_v.weight", 0, false, false, true, 4},
	}
	for _, tt := range tests {
		t.Run(tt.tensor, func(t *testing.T) {
			m := archtest.New("qwen4exp")
			m.Tensors[tt.tensor].Values[tt.at] = nan
			r := newRig(t, m)
			_, flags := r.run([]*sequence{r.open()}, []int32{5, 5, 5})
			residual, logits, state, layer := flags.Row(2)
			if residual != tt.residual || logits != tt.logits || state != tt.state || layer != tt.layer {
				t.Errorf("residual %v, logits %v, state %v in layer %d; want %v, %v, %v, %d",
					residual, logits, state, layer, tt.residual, tt.logits, tt.state, tt.layer)
			}
		})
	}
}

func TestBadRowsDoNotReachOthers(t *testing.T) {
	m := archtest.New("qwen4exp")
	want := newRig(t, m).whole(prompt(20, 1))
	for i := range 16 {
		m.Tensors["token_embd.weight"].Values[39*16+i] = float32(math.Inf(1))
	}
	r, tokens := newRig(t, m), prompt(20, 1)
	if slices.Contains(tokens, 39) {
		t.Fatal("the prompt has the poisoned token")
	}
	logits, flags := r.run([]*sequence{r.open(), r.open()}, []int32{3, 39, 4}, tokens)
	if !slices.Equal(logits[3*archtest.Vocab:], want) {
		t.Error("a neighbour's logits changed")
	}
	for row, bad := range map[int]bool{0: false, 1: true, 2: true, 3: false, 22: false} {
		if residual, _, state, _ := flags.Row(row); residual != bad && state != bad {
			t.Errorf("row %d: residual %v, state %v", row, residual, state)
		}
	}
}

func TestExpertUses(t *testing.T) {
	r := newRig(t, archtest.New("qwen4exp"))
	r.whole(prompt(20, 1))
	uses := r.stages[0].ExpertUses()
	if len(uses) != 4 {
		t.Fatalf("%d layers, want 4", len(uses))
	}
	for i, layer := range uses {
		sum := uint64(0)
		for _, n := range layer {
			sum += n
		}
		if len(layer) != 6 || sum != 40 {
			t.Errorf("layer %d: uses %v, want 40 of 6 experts", i, layer)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	r := newRig(t, archtest.New("qwen3moe"), 2)
	s, wide := r.open(), r.stages[0].ResidualWidth()
	window := func(i, n int) *ops.Window {
		return &ops.Window{Segments: []ops.Segment{{State: s.states[i], Tokens: make([]int32, n)}}, Rows: n}
	}
	tests := []struct {
		name          string
		stage, n      int
		input         int
		rows          []int
		output, logit int
		want          string
	}{
		{"empty window", 0, 0, 0, nil, 0, 0, "0 rows, 1 to 64"},
		{"long window", 0, maxRows + 1, 0, nil, 0, 0, "65 rows, 1 to 64"},
		{"input for the embedding", 0, 1, wide, nil, wide, 0, "input of 16 values, must be 0"},
		{"no input", 1, 1, 0, nil, 0, 0, "input of 0 values, must be 16"},
		{"no output", 0, 1, 0, nil, 0, 0, "output of 0 values, must be 16"},
		{"output of the head", 1, 1, wide, nil, wide, 0, "output of 16 values, must be 0"},
		{"logits without head", 0, 1, 0, []int{0}, wide, archtest.Vocab, "logits are wanted of a stage without the head"},
		{"short logits", 1, 2, 2 * wide, []int{0, 1}, 0, archtest.Vocab, "logits of 40 values, must be 80"},
		{"descending rows", 1, 2, 2 * wide, []int{1, 0}, 0, 2 * archtest.Vocab, "not ascending"},
		{"row beyond", 1, 2, 2 * wide, []int{2}, 0, archtest.Vocab, "not ascending within 2 rows"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := r.stages[tt.stage].Run(t.Context(), window(tt.stage, tt.n), make([]float32, tt.input), tt.rows, make([]float32, tt.output), make([]float32, tt.logit))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v does not contain %q", err, tt.want)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.stages[0].Run(ctx, window(0, 1), nil, nil, make([]float32, wide), nil); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("not reserved", func(t *testing.T) {
		w := window(0, 1)
		w.Segments[0].Pos = 256
		if err := r.stages[0].Run(t.Context(), w, nil, nil, make([]float32, wide), nil); err == nil || !strings.Contains(err.Error(), "was not reserved") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("draft", func(t *testing.T) {
		if _, _, err := r.stages[1].Draft(t.Context(), s.states[1], 1, 0, 1); err == nil {
			t.Error("a draft without an MTP block")
		}
	})
}

func TestBuildRefuses(t *testing.T) {
	base := arch.StageConfig{Last: 4, Embed: true, Head: true, MaxRows: 1, MaxLogitRows: 1}
	tests := []struct {
		name, architecture string
		change             func(c *arch.StageConfig)
		want               string
	}{
		{"layers", "qwen3moe", func(c *arch.StageConfig) { c.Last = 5 }, "layers [0, 5) of a model with 4"},
		{"reversed", "qwen3moe", func(c *arch.StageConfig) { c.First, c.Last = 3, 2 }, "layers [3, 2)"},
		{"embedding", "qwen3moe", func(c *arch.StageConfig) { c.First = 1 }, "the embedding goes with layer 0"},
		{"head", "qwen3moe", func(c *arch.StageConfig) { c.Last = 3 }, "the head goes with the last layer"},
		{"draft without head", "qwen4exp", func(c *arch.StageConfig) { c.Head, c.Draft = false, true }, "needs the head's stage"},
		{"draft without block", "qwen3moe", func(c *arch.StageConfig) { c.Draft = true }, "no MTP block"},
		{"rows", "qwen3moe", func(c *arch.StageConfig) { c.MaxRows = 0 }, "windows of 0 rows"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := archtest.New(tt.architecture).Write(t)
			files, err := mapping.Open(spec)
			if err != nil {
				t.Fatal(err)
			}
			defer files.Close()
			cfg := base
			tt.change(&cfg)
			if _, err := arch.Build(t.Context(), spec, files, reference.New(), cfg, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v does not contain %q", err, tt.want)
			}
		})
	}
}

func TestBuildReportsProgressAndStops(t *testing.T) {
	spec := archtest.New("qwen4exp").Write(t)
	files, err := mapping.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	cfg := arch.StageConfig{Last: 4, Embed: true, Head: true, Draft: true, MaxRows: 1, MaxLogitRows: 1}
	var last, end int64
	g, err := arch.Build(t.Context(), spec, files, reference.New(), cfg, func(bytes, total int64) {
		if bytes < last || bytes > total {
			t.Errorf("progress of %d after %d out of %d", bytes, last, total)
		}
		last, end = bytes, total
	})
	if err != nil {
		t.Fatal(err)
	}
	if last == 0 || last != end || last != g.WeightBytes() {
		t.Errorf("progress ended at %d of %d, the weights are %d", last, end, g.WeightBytes())
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = arch.Build(ctx, spec, files, reference.New(), cfg, func(int64, int64) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v after cancelling", err)
	}
}
