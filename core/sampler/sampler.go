// Package sampler chooses tokens from logits. Every choice is a function of the
// logits, the settings, and a counter (seed, choice, position), so a sequence
// that is resumed after a fault goes on exactly as it would have.
package sampler

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Config says how tokens are chosen. The zero value is greedy. Filters apply in
// the order of the fields, after penalties, bias and temperature, to what the
// filter before left.
type Config struct {
	// Temperature divides the logits; 0 chooses the most likely token.
	Temperature float64
	// TopK keeps the K most likely tokens; 0 keeps all.
	TopK int
	// TypicalP keeps the tokens whose surprise is closest to the expected one
	// until they hold this probability (Meister et al., "Locally Typical
	// Sampling", 2022); 0 and 1 keep all.
	TypicalP float64
	// TopP keeps the most likely tokens until they hold this probability
	// (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019); 0
	// and 1 keep all.
	TopP float64
	// MinP keeps tokens at least this share as likely as the most likely one.
	MinP float64

	// RepetitionPenalty divides positive and multiplies negative logits of
	// tokens in the window (Keskar et al., "CTRL", 2019); 0 and 1 do nothing.
	RepetitionPenalty float64
	// PresencePenalty is subtracted from the logit of every token in the window,
	// FrequencyPenalty as often as it occurs there.
	PresencePenalty, FrequencyPenalty float64
	// PenaltyWindow is how many of the last tokens the penalties look at; 0 means
	// DefaultPenaltyWindow, -1 all.
	PenaltyWindow int
	// LogitBias is added to the logits of single tokens; -100 or less bans one.
	LogitBias map[int32]float32

	// Seed is the key of the random numbers.
	Seed uint64
}

// DefaultPenaltyWindow is how many tokens penalties look at unless told
// otherwise.
const DefaultPenaltyWindow = 64

// biasBan is the bias from which on a token is never chosen, as the OpenAI API
// documents -100.
const biasBan = -100

// ErrNotANumber: a logit was NaN. Nothing was chosen.
var ErrNotANumber = errors.New("a logit is not a number")

// Validate reports the first setting that is out of range, by its name in
// requests.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name     string
		v        float64
		min, max float64
	}{
		{"temperature", c.Temperature, 0, math.MaxFloat32},
		{"top_p", c.TopP, 0, 1},
		{"typical_p", c.TypicalP, 0, 1},
		{"min_p", c.MinP, 0, 1},
		{"repetition_penalty", c.RepetitionPenalty, 0, math.MaxFloat32},
		{"presence_penalty", c.PresencePenalty, -math.MaxFloat32, math.MaxFloat32},
		{"frequency_penalty", c.FrequencyPenalty, -math.MaxFloat32, math.MaxFloat32},
	} {
		if math.IsNaN(f.v) || f.v < f.min || f.v > f.max {
			return fmt.Errorf("%s is %v, it must be between %g and %g", f.name, f.v, f.min, f.max)
		}
	}
	if c.TopK < 0 {
		return fmt.Errorf("top_k is %d, it must be 0 (all) or more", c.TopK)
	}
	if c.PenaltyWindow < -1 {
		return fmt.Errorf("penalty_last_n is %d, it must be -1 (all), 0 (the default) or more", c.PenaltyWindow)
	}
	for id, b := range c.LogitBias {
		if math.IsNaN(float64(b)) || math.IsInf(float64(b), 1) {
			return fmt.Errorf("logit_bias of token %d is %v, it must be a number", id, b)
		}
	}
	return nil
}

// Sampler chooses the tokens of one answer. It is not safe for concurrent use.
type Sampler struct {
	cfg    Config
	choice uint64

	candidates []candidate
	touched    []touched
	counts     map[int32]int
	buckets    []float64
}

type candidate struct {
	id     int32
	logit  float32
	weight float64 // exp of the distance to the largest logit, over the temperature
}

// touched is a logit that a penalty or a bias changed, and its former value.
type touched struct {
	id     int32
	former float32
}

// New returns a sampler for the choice-th answer to a prompt.
func New(cfg Config, choice int) (*Sampler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Sampler{cfg: cfg, choice: uint64(choice)}, nil
}

// Sample chooses the token at a position. history are the tokens before it. The
// logits are changed while Sample runs and are as before when it returns. Equal
// logits favour the lower id. ErrNotANumber where a logit is NaN, another error
// where no token can be chosen.
func (s *Sampler) Sample(logits []float32, position int, history []int32) (int32, error) {
	s.adjust(logits, history)
	id, err := s.choose(logits, position)
	for i := len(s.touched) - 1; i >= 0; i-- {
		logits[s.touched[i].id] = s.touched[i].former
	}
	return id, err
}

func (s *Sampler) choose(logits []float32, position int) (int32, error) {
	c := &s.cfg
	if c.Temperature == 0 {
		return argmax(logits)
	}
	k := c.TopK
	if k == 0 || k > len(logits) {
		k = len(logits)
	}
	var err error
	if s.candidates, err = largest(s.candidates[:0], logits, k); err != nil {
		return 0, err
	}
	s.weigh()
	if c.TypicalP > 0 && c.TypicalP < 1 {
		s.typical()
	}
	if c.TopP > 0 && c.TopP < 1 {
		s.nucleus()
	}
	if c.MinP > 0 {
		s.likely()
	}
	return s.draw(uniform(c.Seed, s.choice, uint64(position))), nil
}

// adjust applies penalties and bias in place and remembers the former values.
func (s *Sampler) adjust(logits []float32, history []int32) {
	c := &s.cfg
	s.touched = s.touched[:0]
	repeat := c.RepetitionPenalty != 0 && c.RepetitionPenalty != 1
	if repeat || c.PresencePenalty != 0 || c.FrequencyPenalty != 0 {
		window := c.PenaltyWindow
		if window == 0 {
			window = DefaultPenaltyWindow
		}
		if window > 0 && len(history) > window {
			history = history[len(history)-window:]
		}
		if s.counts == nil {
			s.counts = make(map[int32]int)
		}
		clear(s.counts)
		for _, id := range history {
			if id >= 0 && int(id) < len(logits) {
				s.counts[id]++
			}
		}
		for id, n := range s.counts {
			x := float64(logits[id])
			s.touched = append(s.touched, touched{id, logits[id]})
			if repeat {
				if x > 0 {
					x /= c.RepetitionPenalty
				} else {
					x *= c.RepetitionPenalty
				}
			}
			logits[id] = float32(x - c.PresencePenalty - c.FrequencyPenalty*float64(n))
		}
	}
	for id, b := range c.LogitBias {
		if id < 0 || int(id) >= len(logits) {
			continue
		}
		s.touched = append(s.touched, touched{id, logits[id]})
		if b <= biasBan {
			logits[id] = float32(math.Inf(-1))
		} else {
			logits[id] += b
		}
	}
}

// weigh sets the candidates' weights. The first holds the largest logit where
// the candidates are sorted; all are looked at in any case.
func (s *Sampler) weigh() {
	top := s.candidates[0].logit
	for _, c := range s.candidates {
		top = max(top, c.logit)
	}
	for i := range s.candidates {
		c := &s.candidates[i]
		c.weight = math.Exp((float64(c.logit) - float64(top)) / s.cfg.Temperature)
	}
}

func (s *Sampler) total() float64 {
	sum := 0.0
	for i := range s.candidates {
		sum += s.candidates[i].weight
	}
	return sum
}

// typical keeps the candidates of typical surprise.
func (s *Sampler) typical() {
	total := s.total()
	entropy := 0.0
	for _, c := range s.candidates {
		if p := c.weight / total; p > 0 {
			entropy -= p * math.Log(p)
		}
	}
	surprise := func(c candidate) float64 { return math.Abs(-math.Log(c.weight/total) - entropy) }
	slices.SortFunc(s.candidates, func(a, b candidate) int {
		if x, y := surprise(a), surprise(b); x != y {
			if x < y {
				return -1
			}
			return 1
		}
		return int(a.id - b.id)
	})
	s.candidates = s.candidates[:cut(s.candidates, s.cfg.TypicalP*total)]
}

// nucleus keeps the most likely candidates that together hold TopP. To sort few
// candidates of a large vocabulary, it first finds the weight below which none
// is needed, from a histogram of the weights' logarithms.
func (s *Sampler) nucleus() {
	const buckets, scale = 1024, 32 // 32 buckets for a factor of e
	if s.buckets == nil {
		s.buckets = make([]float64, buckets)
	}
	clear(s.buckets)
	top := s.candidates[0].logit
	for _, c := range s.candidates {
		top = max(top, c.logit)
	}
	bucket := func(c candidate) int {
		d := (float64(top) - float64(c.logit)) / s.cfg.Temperature * scale
		if !(d < buckets-1) {
			return buckets - 1
		}
		return int(d)
	}
	total := 0.0
	for _, c := range s.candidates {
		s.buckets[bucket(c)] += c.weight
		total += c.weight
	}
	want, sum, last := s.cfg.TopP*total, 0.0, buckets-1
	for i, w := range s.buckets {
		if sum += w; sum >= want {
			last = min(i+1, buckets-1) // one more: sums in another order may differ in the last bit
			break
		}
	}
	s.candidates = slices.DeleteFunc(s.candidates, func(c candidate) bool { return bucket(c) > last })
	s.sort()
	s.candidates = s.candidates[:cut(s.candidates, want)]
}

// cut returns how many leading candidates hold the wanted weight, at least one.
func cut(candidates []candidate, want float64) int {
	sum := 0.0
	for i, c := range candidates {
		if sum += c.weight; sum >= want {
			return i + 1
		}
	}
	return len(candidates)
}

// likely drops candidates far less likely than the most likely one.
func (s *Sampler) likely() {
	top := 0.0
	for _, c := range s.candidates {
		top = max(top, c.weight)
	}
	s.candidates = slices.DeleteFunc(s.candidates, func(c candidate) bool { return c.weight < s.cfg.MinP*top })
}

// sort orders candidates from likely to unlikely, equals by id.
func (s *Sampler) sort() { slices.SortFunc(s.candidates, compare) }

// draw chooses by a uniform number in [0,1).
func (s *Sampler) draw(u float64) int32 {
	want, sum := u*s.total(), 0.0
	for _, c := range s.candidates {
		if sum += c.weight; sum > want {
			return c.id
		}
	}
	// Rounding left u·total above the sum: the last candidate with any weight.
	for i := len(s.candidates) - 1; i > 0; i-- {
		if s.candidates[i].weight > 0 {
			return s.candidates[i].id
		}
	}
	return s.candidates[0].id
}
