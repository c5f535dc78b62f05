// Package sampler chooses tokens from logits. Every choice is a function of the
// logits, the settings, and a counter (seed, choice, position), so a sequence
// that is resumed after a fault goes on exactly as it would have.
package sampler

import (
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
// logits favour the lower id. ErrNotANumber where a logit is NaN or plus infinity,
// another error where no token can be chosen.
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
		var err error
		if s.candidates, err = largest(s.candidates, logits, 1); err != nil {
			return 0, err
		}
		return s.candidates[0].id, nil
	}
	if err := s.keep(logits); err != nil {
		return 0, err
	}
	if c.MinP > 0 {
		s.likely()
	}
	return s.draw(uniform(c.Seed, s.choice, uint64(position))), nil
}

// keep makes the tokens that top-k, typical-p and top-p leave the candidates.
func (s *Sampler) keep(logits []float32) error {
	c := &s.cfg
	typical, nucleus := c.TypicalP > 0 && c.TypicalP < 1, c.TopP > 0 && c.TopP < 1
	few := c.TopK > 0 && c.TopK < len(logits)
	var err error
	switch {
	case few || typical:
		k := len(logits)
		if few {
			k = c.TopK
		}
		if s.candidates, err = largest(s.candidates, logits, k); err != nil {
			return err
		}
		s.weigh()
		if typical {
			s.typical()
		}
		if nucleus {
			s.cut(c.TopP * s.total())
		}
	case nucleus:
		return s.nucleus(logits)
	default:
		return s.everything(logits)
	}
	return nil
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

// weigh sets the candidates' weights; they are sorted.
func (s *Sampler) weigh() {
	top, scale := s.candidates[0].logit, 1/s.cfg.Temperature
	for i := range s.candidates {
		c := &s.candidates[i]
		c.weight = exp((float64(c.logit) - float64(top)) * scale)
	}
}

func (s *Sampler) total() float64 {
	sum := 0.0
	for i := range s.candidates {
		sum += s.candidates[i].weight
	}
	return sum
}

// typical keeps the candidates of typical surprise, sorted by likelihood.
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
	s.cut(s.cfg.TypicalP * total)
	slices.SortFunc(s.candidates, compare)
}

// nucleus keeps the most likely tokens of a row that together hold TopP. To sort
// few of a large vocabulary it first finds the logit below which none is needed,
// from a histogram of the weights' logarithms.
func (s *Sampler) nucleus(logits []float32) error {
	best, err := largest(s.candidates, logits, 1)
	if err != nil {
		return err
	}
	const buckets, perE = 1024, 32 // 32 buckets for a factor of e
	top, scale := best[0].logit, 1/s.cfg.Temperature
	var held [buckets]float64
	total := 0.0
	for _, x := range logits {
		d := (float64(top) - float64(x)) * scale
		if w := exp(-d); w > 0 {
			held[min(int(d*perE), buckets-1)] += w
			total += w
		}
	}
	want, sum, last := s.cfg.TopP*total, 0.0, buckets-1
	for i, w := range held {
		if sum += w; sum >= want {
			last = min(i+1, buckets-1) // one more: sums in another order may differ in the last bit
			break
		}
	}
	s.candidates = best[:0]
	for i, x := range logits {
		d := (float64(top) - float64(x)) * scale
		if d*perE >= float64(last+1) && last < buckets-1 {
			continue
		}
		if w := exp(-d); w > 0 {
			s.candidates = append(s.candidates, candidate{int32(i), x, w})
		}
	}
	slices.SortFunc(s.candidates, compare)
	s.cut(want)
	return nil
}

// everything makes all tokens candidates, in order of id, that have any weight.
func (s *Sampler) everything(logits []float32) error {
	best, err := largest(s.candidates, logits, 1)
	if err != nil {
		return err
	}
	top, scale := best[0].logit, 1/s.cfg.Temperature
	s.candidates = best[:0]
	for i, x := range logits {
		if w := exp((float64(x) - float64(top)) * scale); w > 0 {
			s.candidates = append(s.candidates, candidate{int32(i), x, w})
		}
	}
	return nil
}

// cut keeps the leading candidates that hold the wanted weight, at least one.
func (s *Sampler) cut(want float64) {
	sum := 0.0
	for i := range s.candidates {
		if sum += s.candidates[i].weight; sum >= want {
			s.candidates = s.candidates[:i+1]
			return
		}
	}
}

// likely drops candidates far less likely than the most likely one.
func (s *Sampler) likely() {
	top := 0.0
	for _, c := range s.candidates {
		top = max(top, c.weight)
	}
	s.candidates = slices.DeleteFunc(s.candidates, func(c candidate) bool { return c.weight < s.cfg.MinP*top })
}

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
