package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
)

// The shapes of the OpenAI API. Fields that the API writes as null are pointers
// without omitempty.

type completion struct {
	ID                string   `json:"id"`
	Object            string   `json:"object"`
	Created           int64    `json:"created"`
	Model             string   `json:"model"`
	Choices           []choice `json:"choices"`
	Usage             usage    `json:"usage"`
	SystemFingerprint string   `json:"system_fingerprint"`
	Timings           *timings `json:"timings"`
}

type choice struct {
	Index        int       `json:"index"`
	Message      message   `json:"message"`
	LogProbs     *logProbs `json:"logprobs"`
	FinishReason string    `json:"finish_reason"`
}

type message struct {
	Role             string  `json:"role"`
	Content          string  `json:"content"`
	Refusal          *string `json:"refusal"`
	ReasoningContent string  `json:"reasoning_content,omitempty"`
}

type chunk struct {
	ID                string        `json:"id"`
	Object            string        `json:"object"`
	Created           int64         `json:"created"`
	Model             string        `json:"model"`
	SystemFingerprint string        `json:"system_fingerprint"`
	Choices           []chunkChoice `json:"choices"`
	// Usage is absent where it was not asked for, and else null in all chunks but
	// the last.
	Usage *optionalUsage `json:"usage,omitempty"`
	// Timings are in a stream's last chunk, PromptProgress where it was asked for.
	Timings        *timings        `json:"timings,omitempty"`
	PromptProgress *promptProgress `json:"prompt_progress,omitempty"`
}

type chunkChoice struct {
	Index        int       `json:"index"`
	Delta        delta     `json:"delta"`
	LogProbs     *logProbs `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
}

type delta struct {
	Role             string  `json:"role,omitempty"`
	Content          *string `json:"content,omitempty"`
	ReasoningContent *string `json:"reasoning_content,omitempty"`
}

type usage struct {
	PromptTokens            int               `json:"prompt_tokens"`
	CompletionTokens        int               `json:"completion_tokens"`
	TotalTokens             int               `json:"total_tokens"`
	PromptTokensDetails     promptDetails     `json:"prompt_tokens_details"`
	CompletionTokensDetails completionDetails `json:"completion_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

type completionDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// optionalUsage is a usage or null.
type optionalUsage struct{ usage *usage }

// MarshalJSON writes null where there is no usage yet.
func (o *optionalUsage) MarshalJSON() ([]byte, error) { return json.Marshal(o.usage) }

type logProbs struct {
	Content []tokenLogProb  `json:"content"`
	Refusal *[]tokenLogProb `json:"refusal"`
}

type tokenLogProb struct {
	tokenProb
	TopLogProbs []tokenProb `json:"top_logprobs"`
	// offset is where in the content the token begins, in characters.
	offset int
}

type tokenProb struct {
	Token   string  `json:"token"`
	LogProb float32 `json:"logprob"`
	Bytes   byteSeq `json:"bytes"`
}

// byteSeq is written as an array of numbers, never as base64.
type byteSeq []byte

// MarshalJSON writes the bytes as numbers.
func (b byteSeq) MarshalJSON() ([]byte, error) {
	out := []byte{'['}
	for i, c := range b {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(c), 10)
	}
	return append(out, ']'), nil
}

// encode writes v as JSON without a newline and without escaping <, > and &,
// which no client of this API expects.
func encode(v any) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		// The shapes of this package cannot fail: there are no channels, no keys
		// but text and no non-finite numbers in them.
		panic("api: encode response: " + err.Error())
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// writeJSON sends a whole response. A client that is gone is nobody's error.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body := append(encode(v), '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
