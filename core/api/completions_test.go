package api

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"

	"github.com/strata-engine/strata/core/engine"
	"github.com/strata-engine/strata/core/sampler"
	"github.com/strata-engine/strata/core/tokenizer"
)

func TestTextCompletion(t *testing.T) {
	// Neither reasoning nor anything else is taken out of the text.
	mod, eng := testModel(t, script{text: "<think> is\n</think> text", finish: engine.FinishLength})
	_, url := serve(t, mod, nil)
	got := object(t, postTo(t, url+"/v1/completions", `{"model":"m","prompt":"Once <|im_end|> upon","max_tokens":7}`).Body)
	if want := mod.Tokenizer.Encode(tokenizer.Part{Text: "Once <|im_end|> upon"}); !slices.Equal(want, eng.requests[0].Prompt) || eng.requests[0].MaxTokens != 7 {
		t.Errorf("request %+v, want the prompt %v", eng.requests[0], want)
	}
	prompt, made := float64(len(eng.requests[0].Prompt)), float64(len(eng.running[0].tokens))
	usage := m{
		"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
		"prompt_tokens_details": m{"cached_tokens": 2.0}, "completion_tokens_details": m{"reasoning_tokens": 0.0},
	}
	head := func(choices ...any) m {
		return m{"id": "ID", "object": "text_completion", "created": "NOW", "model": "pebble", "system_fingerprint": "FP", "choices": choices}
	}
	one := func(index int, text string, finish any) m {
		return m{"index": float64(index), "text": text, "logprobs": nil, "finish_reason": finish}
	}
	want := head(one(0, "<think> is\n</think> text", "length"))
	want["usage"] = usage
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	events := sse(t, postTo(t, url+"/v1/completions", `{"prompt":"Once <|im_end|> upon","echo":true,"stream":true,"stream_options":{"include_usage":true}}`).Body)
	var text string
	n := len(events)
	for i, e := range events[:n-2] {
		if u, ok := e.(m)["usage"]; !ok || u != nil {
			t.Errorf("usage %v in chunk %d", u, i)
		}
		c := e.(m)["choices"].([]any)[0].(m)
		text += c["text"].(string)
		if i == 0 && text != "Once <|im_end|> upon" {
			t.Errorf("first chunk %q", text)
		}
		if finish := c["finish_reason"]; (finish != nil) != (i == n-3) || finish != nil && (finish != "length" || c["text"] != "") {
			t.Errorf("chunk %d: %v", i, c)
		}
	}
	if text != "Once <|im_end|> upon<think> is\n</think> text" {
		t.Errorf("text %q", text)
	}
	last := head()
	last["choices"], last["usage"] = []any{}, usage
	if d := cmp.Diff([]any{last, "[DONE]"}, events[n-2:]); d != "" {
		t.Error(d)
	}
}

func TestTextPrompts(t *testing.T) {
	mod, eng := testModel(t, script{text: "a"}, script{text: "b"}, script{text: "c"}, script{text: "d"})
	_, url := serve(t, mod, nil)
	ids := func(text string) []int32 { return mod.Tokenizer.Encode(tokenizer.Part{Text: text}) }
	control := mod.Tokenizer.Stops()[0]
	tests := []struct {
		body  string
		want  [][]int32
		texts []string
	}{
		{`"prompt":"Hi"`, [][]int32{ids("Hi")}, []string{"a"}},
		{`"prompt":["Hi"]`, [][]int32{ids("Hi")}, []string{"a"}},
		{`"prompt":["Hi","you"],"n":2`, [][]int32{ids("Hi"), ids("Hi"), ids("you"), ids("you")}, []string{"a", "b", "c", "d"}},
		{`"prompt":[1,2,3]`, [][]int32{{1, 2, 3}}, []string{"a"}},
		{`"prompt":[[1,2],[3]]`, [][]int32{{1, 2}, {3}}, []string{"a", "b"}},
		{`"prompt":[4098]`, [][]int32{{4098}}, []string{"a"}},
		{`"prompt":["Hi","you"],"echo":true`, [][]int32{ids("Hi"), ids("you")}, []string{"Hia", "youb"}},
		{`"prompt":[4098],"echo":true`, [][]int32{{4098}}, []string{mod.Tokenizer.Text(control) + "a"}},
	}
	for _, tt := range tests {
		eng.requests, eng.running = nil, nil
		resp := postTo(t, url+"/v1/completions", `{`+tt.body+`}`)
		got := object(t, resp.Body)
		if resp.StatusCode != 200 {
			t.Errorf("%s: %v", tt.body, got)
			continue
		}
		var prompts [][]int32
		seeds := map[uint64]bool{}
		for _, r := range eng.requests {
			prompts = append(prompts, r.Prompt)
			seeds[r.Sampler.Seed] = true
		}
		var texts []string
		for i, c := range got["choices"].([]any) {
			if c.(m)["index"] != float64(i) {
				t.Errorf("%s: index %v at %d", tt.body, c.(m)["index"], i)
			}
			texts = append(texts, c.(m)["text"].(string))
		}
		if d := cmp.Diff(tt.want, prompts); d != "" {
			t.Errorf("%s: prompts %s", tt.body, d)
		}
		if d := cmp.Diff(tt.texts, texts); d != "" {
			t.Errorf("%s: texts %s", tt.body, d)
		}
		distinct := map[string]bool{}
		total := 0
		for i, p := range tt.want {
			if i == 0 || !slices.Equal(p, tt.want[i-1]) {
				distinct[string(rune(i))] = true
				total += len(p)
			}
		}
		if len(seeds) != len(distinct) {
			t.Errorf("%s: %d seeds for %d prompts", tt.body, len(seeds), len(distinct))
		}
		if used := got["usage"].(m)["prompt_tokens"]; used != float64(total) {
			t.Errorf("%s: %v prompt tokens, want %d", tt.body, used, total)
		}
	}
	// With a seed, a prompt's answer does not depend on the others.
	eng.requests = nil
	postTo(t, url+"/v1/completions", `{"prompt":["Hi","you"],"n":2,"seed":4}`)
	for i, r := range eng.requests {
		if r.Sampler.Seed != 4 || r.Choice != i%2 {
			t.Errorf("request %d: seed %d, choice %d", i, r.Sampler.Seed, r.Choice)
		}
	}
}

func TestTextRefusals(t *testing.T) {
	mod, _ := testModel(t, script{text: "ok"})
	_, url := serve(t, mod, nil)
	tests := []struct{ body, param, code string }{
		{``, "prompt", "missing_required_parameter"},
		{`"prompt":null`, "prompt", "missing_required_parameter"},
		{`"prompt":1`, "prompt", "invalid_type"},
		{`"prompt":{}`, "prompt", "invalid_type"},
		{`"prompt":[]`, "prompt", "empty_array"},
		{`"prompt":""`, "prompt", "invalid_value"},
		{`"prompt":["a",""]`, "prompt", "invalid_value"},
		{`"prompt":[[]]`, "prompt", "invalid_value"},
		{`"prompt":["a",1]`, "prompt[1]", "invalid_type"},
		{`"prompt":[1,"a"]`, "prompt[1]", "invalid_type"},
		{`"prompt":[true]`, "prompt[0]", "invalid_type"},
		{`"prompt":[[1],"a"]`, "prompt[1]", "invalid_type"},
		{`"prompt":[[1],["a"]]`, "prompt[1][0]", "invalid_type"},
		{`"prompt":[-1]`, "prompt", "invalid_value"},
		{`"prompt":[1.5]`, "prompt", "invalid_value"},
		{`"prompt":[99999999999]`, "prompt", "invalid_value"},
		{`"prompt":[4128]`, "prompt", "invalid_value"},
		{`"prompt":"a","suffix":"b"`, "suffix", "unsupported_value"},
		{`"prompt":"a","suffix":1`, "suffix", "unsupported_value"},
		{`"prompt":"a","best_of":3`, "best_of", "unsupported_value"},
		{`"prompt":"a","logprobs":true`, "logprobs", "invalid_type"},
		{`"prompt":"a","logprobs":21`, "logprobs", "invalid_value"},
		{`"prompt":"a","logprobs":1,"echo":true`, "echo", "unsupported_value"},
		{`"prompt":"a","echo":"yes"`, "echo", "invalid_type"},
		{`"prompt":"a","grammar":"root ::= x"`, "grammar", "unsupported_value"},
		{`"prompt":"a","response_format":{"type":"json_object"}`, "response_format", "unsupported_value"},
		{`"prompt":["a","b"],"n":65`, "n", "invalid_value"},
		{`"prompt":"a","n":0`, "n", "invalid_value"},
	}
	for _, tt := range tests {
		resp := postTo(t, url+"/v1/completions", `{`+tt.body+`}`)
		got, _ := object(t, resp.Body)["error"].(m)
		if resp.StatusCode != 400 || got["param"] != tt.param || got["code"] != tt.code || got["type"] != typeInvalid {
			t.Errorf("%s: status %d, %v, want %s of %s", tt.body, resp.StatusCode, got, tt.code, tt.param)
		}
	}
	for _, body := range []string{`"suffix":null`, `"suffix":""`, `"best_of":2,"n":2`, `"logprobs":null`, `"logprobs":0`, `"user":"me","unknown":1`} {
		if resp := postTo(t, url+"/v1/completions", `{"prompt":"a",`+body+`}`); resp.StatusCode != 200 {
			t.Errorf("%s: %v", body, object(t, resp.Body))
		}
	}
}

func TestTextLogProbs(t *testing.T) {
	mod, eng := testModel(t)
	id := func(text string) int32 {
		got, ok := mod.Tokenizer.ID(text)
		if !ok {
			t.Fatalf("no token %q", text)
		}
		return got
	}
	eng.scripts = []script{{
		ids: []int32{id("Ã"), id("©"), id("b"), id("c")},
		top: []sampler.LogProb{{ID: id("x"), LogProb: -1.5}, {ID: id("b"), LogProb: float32(math.Inf(-1))}},
	}}
	_, url := serve(t, mod, nil)
	choice := object(t, postTo(t, url+"/v1/completions", `{"prompt":"a","logprobs":2}`).Body)["choices"].([]any)[0].(m)
	top := func(token string) m { return m{"x": -1.5, "b": float64(leastLogProb), token: -0.5} }
	want := m{
		"tokens":         []any{`bytes:\xc3`, `bytes:\xa9`, "b", "c"},
		"token_logprobs": []any{-0.5, -0.5, -0.5, -0.5},
		"top_logprobs":   []any{top(`bytes:\xc3`), top(`bytes:\xa9`), top("b"), top("c")},
		"text_offset":    []any{0.0, 0.0, 1.0, 2.0},
	}
	if d := cmp.Diff(want, choice["logprobs"]); d != "" || choice["text"] != "ébc" {
		t.Errorf("text %q, %s", choice["text"], d)
	}
	// Streams say the same piece by piece, and with 0 there are no alternatives.
	tokens := 0
	for _, e := range sse(t, postTo(t, url+"/v1/completions", `{"prompt":"a","logprobs":0,"stream":true}`).Body) {
		if e == "[DONE]" {
			break
		}
		lp, ok := e.(m)["choices"].([]any)[0].(m)["logprobs"].(m)
		if !ok {
			continue
		}
		if lp["top_logprobs"] != nil {
			t.Errorf("log-probabilities %v", lp)
		}
		for i, token := range lp["tokens"].([]any) {
			if token != want["tokens"].([]any)[tokens] || lp["text_offset"].([]any)[i] != want["text_offset"].([]any)[tokens] {
				t.Errorf("log-probabilities %v at token %d", lp, tokens)
			}
			tokens++
		}
	}
	if tokens != 4 {
		t.Errorf("%d tokens", tokens)
	}
}

func TestOpenAIClientCompletesText(t *testing.T) {
	mod, _ := testModel(t, script{text: " upon a time", finish: engine.FinishLength})
	_, url := serve(t, mod, nil)
	client := openAIClient(url)
	params := openai.CompletionNewParams{
		Model: "pebble", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once")},
		Echo: openai.Bool(true), StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	stream := client.Completions.NewStreaming(context.Background(), params)
	var text string
	var usage openai.CompletionUsage
	for stream.Next() {
		c := stream.Current()
		for _, choice := range c.Choices {
			text += choice.Text
		}
		usage = c.Usage
	}
	if stream.Err() != nil || text != "Once upon a time" || usage.TotalTokens == 0 {
		t.Errorf("text %q, usage %+v, error %v", text, usage, stream.Err())
	}
	params.StreamOptions, params.Echo = openai.ChatCompletionStreamOptionsParam{}, openai.Bool(false)
	params.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{1, 2}}
	params.Logprobs = openai.Int(1)
	got, err := client.Completions.New(context.Background(), params)
	if err != nil {
		t.Fatal(err)
	}
	if c := got.Choices[0]; c.Text != " upon a time" || c.FinishReason != "length" || len(c.Logprobs.Tokens) == 0 || got.Usage.PromptTokens != 2 {
		t.Errorf("answer %+v", got)
	}
}
