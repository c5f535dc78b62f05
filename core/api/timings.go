package api

import "time"

// timings are the measurements that llama.cpp's server adds to answers, under its
// names. With several choices the counts are their sums, the times the longest.
type timings struct {
	// CacheN and PromptN count the prompt's tokens that were known already, and
	// those that were read.
	CacheN  int `json:"cache_n"`
	PromptN int `json:"prompt_n"`
	// PromptMS is the time from admission to the first token.
	PromptMS         float64 `json:"prompt_ms"`
	PromptPerTokenMS float64 `json:"prompt_per_token_ms"`
	PromptPerSecond  float64 `json:"prompt_per_second"`
	PredictedN       int     `json:"predicted_n"`
	// PredictedMS is the time from the first token to the last.
	PredictedMS         float64 `json:"predicted_ms"`
	PredictedPerTokenMS float64 `json:"predicted_per_token_ms"`
	PredictedPerSecond  float64 `json:"predicted_per_second"`
}

func newTimings(cached, read int, prefill time.Duration, generated int, decode time.Duration) *timings {
	t := &timings{CacheN: cached, PromptN: read, PredictedN: generated}
	t.PromptMS, t.PromptPerTokenMS, t.PromptPerSecond = rates(read, prefill)
	t.PredictedMS, t.PredictedPerTokenMS, t.PredictedPerSecond = rates(generated, decode)
	return t
}

// rates are a time in milliseconds and the rates of n tokens in it; 0 where there
// is none, since JSON has no infinity.
func rates(n int, d time.Duration) (ms, perToken, perSecond float64) {
	ms = float64(d) / float64(time.Millisecond)
	if n > 0 && d > 0 {
		perToken, perSecond = ms/float64(n), float64(n)/d.Seconds()
	}
	return ms, perToken, perSecond
}

// promptProgress says how far a prompt was read: what llama.cpp's server reports
// for return_progress. Processed includes Cache.
type promptProgress struct {
	Total     int   `json:"total"`
	Cache     int   `json:"cache"`
	Processed int   `json:"processed"`
	TimeMS    int64 `json:"time_ms"`
}
