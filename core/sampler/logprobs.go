package sampler

import "math"

// LogProb is a token and its natural log-probability.
type LogProb struct {
	// ID is the token.
	ID int32
	// LogProb is its natural log-probability.
	LogProb float32
}

// LogProbs returns the log-probability of a token under the model's own
// distribution (no temperature, penalties, bias or filters), and the n most
// likely tokens.
func LogProbs(logits []float32, id int32, n int) (float32, []LogProb) {
	top := math.Inf(-1)
	for _, x := range logits {
		top = max(top, float64(x))
	}
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x) - top)
	}
	norm := top + math.Log(sum)
	of := func(x float32) float32 { return float32(float64(x) - norm) }
	var list []LogProb
	if n > 0 {
		best, err := largest(nil, logits, min(n, len(logits)-1))
		if err == nil {
			for _, c := range best {
				list = append(list, LogProb{ID: c.id, LogProb: of(c.logit)})
			}
		}
	}
	return of(logits[id]), list
}
