package sampler

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// reference computes the distribution that Sample draws from, slowly and
// plainly: full sorts, one filter after the other. The result has one
// probability per token.
func reference(cfg Config, logits []float32, history []int32) []float64 {
	x := make([]float64, len(logits))
	for i, l := range logits {
		x[i] = float64(l)
	}
	window := cfg.PenaltyWindow
	if window == 0 {
		window = DefaultPenaltyWindow
	}
	if window > 0 && len(history) > window {
		history = history[len(history)-window:]
	}
	for id := range x {
		n := 0
		for _, h := range history {
			if int(h) == id {
				n++
			}
		}
		if n > 0 {
			if r := cfg.RepetitionPenalty; r != 0 {
				if x[id] > 0 {
					x[id] /= r
				} else {
					x[id] *= r
				}
			}
			x[id] = float64(float32(x[id] - cfg.PresencePenalty - cfg.FrequencyPenalty*float64(n)))
		}
		if b, ok := cfg.LogitBias[int32(id)]; ok {
			if b <= -100 {
				x[id] = math.Inf(-1)
			} else {
				x[id] = float64(float32(x[id]) + b)
			}
		}
	}
	type entry struct {
		id int
		p  float64
	}
	var all []entry
	for id, v := range x {
		if !math.IsInf(v, -1) {
			all = append(all, entry{id, v})
		}
	}
	likely := func(a, b entry) int {
		if a.p != b.p {
			if a.p > b.p {
				return -1
			}
			return 1
		}
		return a.id - b.id
	}
	slices.SortFunc(all, likely)
	if cfg.Temperature == 0 {
		all = all[:1]
	} else if cfg.TopK > 0 && cfg.TopK < len(all) {
		all = all[:cfg.TopK]
	}
	t := cfg.Temperature
	if t == 0 {
		t = 1
	}
	top := all[0].p
	for i := range all {
		all[i].p = math.Exp((all[i].p - top) / t)
	}
	normalise := func() {
		sum := 0.0
		for _, e := range all {
			sum += e.p
		}
		for i := range all {
			all[i].p /= sum
		}
	}
	until := func(share float64) {
		if share <= 0 || share >= 1 {
			return
		}
		sum := 0.0
		for i, e := range all {
			if sum += e.p; sum >= share {
				all = all[:i+1]
				break
			}
		}
		normalise()
	}
	normalise()
	if cfg.TypicalP > 0 && cfg.TypicalP < 1 {
		h := 0.0
		for _, e := range all {
			if e.p > 0 {
				h -= e.p * math.Log(e.p)
			}
		}
		slices.SortFunc(all, func(a, b entry) int {
			u, v := math.Abs(-math.Log(a.p)-h), math.Abs(-math.Log(b.p)-h)
			if u != v {
				if u < v {
					return -1
				}
				return 1
			}
			return a.id - b.id
		})
		until(cfg.TypicalP)
	}
	slices.SortFunc(all, likely)
	until(cfg.TopP)
	out := make([]float64, len(logits))
	for _, e := range all {
		if e.p >= cfg.MinP*all[0].p {
			out[e.id] = e.p
		}
	}
	return out
}

func drawConfig(t *rapid.T) Config {
	unit := rapid.Float64Range(0, 1)
	cfg := Config{
		Temperature:       rapid.SampledFrom([]float64{0, 0.3, 1, 2.5}).Draw(t, "temperature"),
		TopK:              rapid.SampledFrom([]int{0, 1, 3, 10, 1000}).Draw(t, "top_k"),
		TopP:              rapid.SampledFrom([]float64{0, 1, unit.Draw(t, "p")}).Draw(t, "top_p"),
		TypicalP:          rapid.SampledFrom([]float64{0, 1, unit.Draw(t, "t")}).Draw(t, "typical_p"),
		MinP:              rapid.SampledFrom([]float64{0, 0.05, 0.9}).Draw(t, "min_p"),
		RepetitionPenalty: rapid.SampledFrom([]float64{0, 1, 1.3, 0.8}).Draw(t, "repetition"),
		PresencePenalty:   rapid.SampledFrom([]float64{0, 1.5, -1}).Draw(t, "presence"),
		FrequencyPenalty:  rapid.SampledFrom([]float64{0, 0.4}).Draw(t, "frequency"),
		PenaltyWindow:     rapid.SampledFrom([]int{0, -1, 2}).Draw(t, "window"),
		Seed:              rapid.Uint64().Draw(t, "seed"),
	}
	if rapid.Bool().Draw(t, "bias") {
		cfg.LogitBias = map[int32]float32{0: -100, 3: 2, 5: -1.5, 9999: 1, -1: 1}
	}
	return cfg
}

// TestAgainstReference: what is chosen is possible in the reference, and what is
// kept agrees with it in every probability.
func TestAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(6, 60).Draw(t, "vocabulary")
		// Distinct values spaced well apart, so that no filter is decided by
		// rounding; equal logits have a test of their own.
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "logits"), 1))
		logits := make([]float32, n)
		for i, p := range r.Perm(n) {
			logits[i] = float32(p)*0.37 - 6
		}
		history := rapid.SliceOfN(rapid.Int32Range(0, int32(n-1)), 0, 100).Draw(t, "history")
		cfg := drawConfig(t)
		before := slices.Clone(logits)
		want := reference(cfg, logits, history)
		s, err := New(cfg, 0)
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.Sample(logits, 7, history)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(before, logits) {
			t.Fatal("the logits were changed")
		}
		if want[id] == 0 {
			t.Fatalf("chose %d, which the reference excludes: %v", id, want)
		}
		if cfg.Temperature == 0 {
			return
		}
		total, kept, sum := s.total(), 0, 0.0
		for _, p := range want {
			sum += p
		}
		for _, c := range s.candidates {
			if d := math.Abs(c.weight/total - want[c.id]/sum); d > 1e-9 {
				t.Fatalf("token %d: probability %v, want %v", c.id, c.weight/total, want[c.id]/sum)
			}
			kept++
		}
		for _, p := range want {
			if p > 0 {
				kept--
			}
		}
		if kept != 0 {
			t.Fatalf("kept %d tokens more than the reference", kept)
		}
	})
}

// TestFrequencies compares the frequencies of many draws with the reference by
// Pearson's chi-square. Seeds are fixed; the bound is the 0.999 quantile for the
// given degrees of freedom.
func TestFrequencies(t *testing.T) {
	logits := []float32{2, 1.5, 1, 0.5, 0, -0.5, -1, -1.5, -2, -2.5}
	for _, tt := range []struct {
		cfg   Config
		bound float64
	}{
		{Config{Temperature: 1}, 27.88},                              // 9
		{Config{Temperature: 1.7, TopK: 5}, 18.47},                   // 4
		{Config{Temperature: 0.8, TopP: 0.9}, 16.27},                 // 3, at most
		{Config{Temperature: 1, TopK: 8, MinP: 0.1, Seed: 9}, 22.46}, // 6, at most
	} {
		t.Run(fmt.Sprintf("%+v", tt.cfg), func(t *testing.T) {
			want := reference(tt.cfg, logits, nil)
			sum := 0.0
			for _, p := range want {
				sum += p
			}
			const draws = 20000
			counts := make([]int, len(logits))
			for i := range draws {
				s, err := New(tt.cfg, i%4)
				if err != nil {
					t.Fatal(err)
				}
				id, err := s.Sample(logits, i/4, nil)
				if err != nil {
					t.Fatal(err)
				}
				counts[id]++
			}
			chi := 0.0
			for i, p := range want {
				if p == 0 {
					if counts[i] != 0 {
						t.Errorf("token %d was drawn %d times", i, counts[i])
					}
					continue
				}
				e := p / sum * draws
				chi += (float64(counts[i]) - e) * (float64(counts[i]) - e) / e
			}
			if chi > tt.bound {
				t.Errorf("chi-square %.2f above %.2f: %v", chi, tt.bound, counts)
			}
		})
	}
}

func TestGreedyAndTies(t *testing.T) {
	inf := float32(math.Inf(-1))
	for _, tt := range []struct {
		cfg    Config
		logits []float32
		want   int32
	}{
		{Config{}, []float32{1, 3, 3, 2}, 1},
		{Config{}, []float32{inf, inf, -5}, 2},
		{Config{Temperature: 1, TopK: 1}, []float32{1, 3, 3, 2}, 1},
		{Config{Temperature: 1, TopP: 1e-9}, []float32{1, 3, 3, 2}, 1},
		{Config{Temperature: 1e-30}, []float32{0, 1e-3}, 1},
		{Config{LogitBias: map[int32]float32{1: -100}}, []float32{1, 3, 3, 2}, 2},
	} {
		s, err := New(tt.cfg, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Sample(tt.logits, 0, nil); err != nil || got != tt.want {
			t.Errorf("%+v of %v = %d, %v; want %d", tt.cfg, tt.logits, got, err, tt.want)
		}
	}
}

func TestNeverSamplesNaN(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, cfg := range []Config{{}, {Temperature: 1}, {Temperature: 1, TopK: 2}, {Temperature: 1, TopP: 0.5, TopK: 3}} {
		for at := range 5 {
			logits := []float32{9, 1, 2, 3, 4}
			logits[at] = nan
			s, err := New(cfg, 0)
			if err != nil {
				t.Fatal(err)
			}
			if id, err := s.Sample(logits, 0, nil); !errors.Is(err, ErrNotANumber) {
				t.Errorf("%+v, NaN at %d: %d, %v", cfg, at, id, err)
			}
		}
		s, err := New(cfg, 0)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := s.Sample([]float32{inf, inf}, 0, nil); err == nil {
			t.Errorf("%+v chose %d of nothing", cfg, id)
		}
	}
}

func TestCounterBased(t *testing.T) {
	logits := make([]float32, 500)
	pick := func(seed uint64, choice, position int) int32 {
		s, err := New(Config{Temperature: 1, Seed: seed}, choice)
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.Sample(logits, position, nil)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	differ := 0
	for p := range 50 {
		if first, again := pick(1, 0, p), pick(1, 0, p); first != again {
			t.Fatal("the same counter gave two tokens")
		}
		for _, other := range []int32{pick(2, 0, p), pick(1, 1, p), pick(1, 0, p+1), pick(1<<40, 0, p)} {
			if other != pick(1, 0, p) {
				differ++
			}
		}
	}
	if differ < 190 { // of 200; equal by chance with probability 1/500
		t.Errorf("only %d of 200 other counters differ", differ)
	}
}

// TestPhilox checks the known-answer vectors published with the Random123
// library.
func TestPhilox(t *testing.T) {
	f := uint32(0xffffffff)
	for _, tt := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{f, f, f, f}, [2]uint32{f, f}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(tt.counter, tt.key); got != tt.want {
			t.Errorf("philox(%x, %x) = %x, want %x", tt.counter, tt.key, got, tt.want)
		}
	}
}

func TestLogProbs(t *testing.T) {
	logits := []float32{1, 2, 3, float32(math.Inf(-1))}
	lp, top := LogProbs(logits, 1, 2)
	norm := math.Log(math.E + math.E*math.E + math.E*math.E*math.E)
	if math.Abs(float64(lp)-(2-norm)) > 1e-6 {
		t.Errorf("log-probability %v, want %v", lp, 2-norm)
	}
	if len(top) != 2 || top[0].ID != 2 || top[1].ID != 1 || top[1].LogProb != lp {
		t.Errorf("top %v", top)
	}
}

func TestValidate(t *testing.T) {
	for _, bad := range []Config{
		{Temperature: -1}, {Temperature: math.NaN()}, {TopP: 1.5}, {TypicalP: -0.1}, {MinP: 2}, {TopK: -1}, {PenaltyWindow: -2},
		{RepetitionPenalty: -1}, {PresencePenalty: math.Inf(1)}, {LogitBias: map[int32]float32{1: float32(math.NaN())}},
	} {
		if _, err := New(bad, 0); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

func BenchmarkSample(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, 151_936)
	for i := range logits {
		logits[i] = float32(r.NormFloat64() * 3)
	}
	for _, cfg := range []Config{{}, {Temperature: 1, TopK: 20, TopP: 0.95}, {Temperature: 1, TopK: 40, TopP: 0.95, MinP: 0.05, PresencePenalty: 1.5}, {Temperature: 1, TopP: 0.95}} {
		b.Run(fmt.Sprintf("T=%v,top_k=%d,top_p=%v,presence=%v", cfg.Temperature, cfg.TopK, cfg.TopP, cfg.PresencePenalty), func(b *testing.B) {
			s, err := New(cfg, 0)
			if err != nil {
				b.Fatal(err)
			}
			history := make([]int32, 100)
			i := 0
			for b.Loop() {
				if _, err := s.Sample(logits, i, history); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

// skip must agree with a plain loop at every length and position, also where
// groups end, and stop at NaN.
func TestSkip(t *testing.T) {
	nan := float32(math.NaN())
	for n := range 70 {
		for at := -1; at < n; at++ {
			for _, x := range []float32{1.5, nan, float32(math.Inf(1))} {
				logits := make([]float32, n+1)[1:]
				for i := range logits {
					logits[i] = []float32{1, -3, minusInf, 0.5}[i%4]
				}
				want := n / 16 * 16
				if at >= 0 {
					logits[at] = x
					want = min(want, at/16*16)
				}
				if got := skip(logits, 1); got != want {
					t.Fatalf("%d logits, %v at %d: %d, want %d", n, x, at, got, want)
				}
			}
		}
	}
}

func TestExp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		x := -r.Float64() * 700
		if i := r.IntN(3); i > 0 {
			x /= float64(i * 1000)
		}
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > 1e-13*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	if exp(0) != 1 || exp(math.Inf(-1)) != 0 || exp(-1e9) != 0 || exp(math.NaN()) != 0 {
		t.Errorf("exp(0) %v, exp(-Inf) %v, exp(-1e9) %v, exp(NaN) %v", exp(0), exp(math.Inf(-1)), exp(-1e9), exp(math.NaN()))
	}
}

// TestLargeVocabulary compares the paths that a whole vocabulary takes with the
// reference: logits with ties, bans and steep and flat temperatures.
func TestLargeVocabulary(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	logits := make([]float32, 5003)
	for i := range logits {
		logits[i] = float32(math.Round(r.NormFloat64()*300) / 100)
		if r.IntN(10) == 0 {
			logits[i] = minusInf
		}
	}
	for _, cfg := range []Config{
		{Temperature: 1}, {Temperature: 0.05, TopP: 0.9}, {Temperature: 1, TopP: 0.95}, {Temperature: 3, TopP: 0.99, MinP: 0.01},
		{Temperature: 1, TopK: 40}, {Temperature: 1, TopK: 4000, TopP: 0.9}, {Temperature: 1, MinP: 0.2}, {Temperature: 0},
	} {
		want := reference(cfg, logits, nil)
		s, err := New(cfg, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Sample(logits, 0, nil); err != nil {
			t.Fatal(err)
		}
		if cfg.Temperature == 0 {
			if want[s.candidates[0].id] == 0 {
				t.Errorf("greedy chose %d", s.candidates[0].id)
			}
			continue
		}
		total, sum := s.total(), 0.0
		for _, p := range want {
			sum += p
		}
		kept := map[int32]bool{}
		for _, c := range s.candidates {
			kept[c.id] = true
			if d := math.Abs(c.weight/total - want[c.id]/sum); d > 1e-9 {
				t.Errorf("%+v, token %d: probability %v, want %v", cfg, c.id, c.weight/total, want[c.id]/sum)
			}
		}
		for id, p := range want {
			if (p > 0) != kept[int32(id)] {
				t.Errorf("%+v, token %d: kept %v, probability %v", cfg, id, kept[int32(id)], p)
			}
		}
	}
}

func TestInfinityIsRefused(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, cfg := range []Config{{}, {Temperature: 1}, {Temperature: 1, TopK: 2}, {Temperature: 1, TopP: 0.5}, {Temperature: 1, TypicalP: 0.5}} {
		s, err := New(cfg, 0)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := s.Sample([]float32{1, inf, 2}, 0, nil); !errors.Is(err, ErrNotANumber) {
			t.Errorf("%+v: %d, %v", cfg, id, err)
		}
	}
}
