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
// likely tokens. The row must be one that Sample accepts: all are NaN otherwise.
func LogProbs(logits []float32, id int32, n int) (float32, []LogProb) {
	best, err := largest(nil, logits, min(max(n, 1), len(logits)))
	if err != nil {
		return float32(math.NaN()), nil
	}
	top := best[0].logit
	log := math.Log(mass(logits, top, 1))
	of := func(x float32) float32 { return float32(float64(x) - float64(top) - log) }
	var list []LogProb
	for _, c := range best[:min(max(n, 0), len(best))] {
		list = append(list, LogProb{ID: c.id, LogProb: of(c.logit)})
	}
	return of(logits[id]), list
}
