package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// The official Go client completes text.
func TestCompletions(t *testing.T) {
	s := start(t, nil)
	client := s.client()
	ctx := context.Background()
	params := openai.CompletionNewParams{
		Model: "any", Temperature: openai.Float(0), MaxTokens: openai.Int(16),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a time")},
	}
	whole, err := client.Completions.New(ctx, params)
	if err != nil {
		t.Fatal(err)
	}
	text := whole.Choices[0].Text
	if text == "" || whole.Choices[0].FinishReason != "length" || whole.Usage.CompletionTokens != 16 {
		t.Errorf("completion %+v", whole)
	}
	stream := client.Completions.NewStreaming(ctx, params)
	streamed := ""
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			streamed += c.Text
		}
	}
	if stream.Err() != nil || streamed != text {
		t.Errorf("the stream says %q, the whole %q, error %v", streamed, text, stream.Err())
	}
	several := params
	several.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"Once upon a time", "The sea"}}
	several.N, several.Logprobs, several.Stop.OfString = openai.Int(2), openai.Int(1), openai.String(text[5:8])
	got, err := client.Completions.New(ctx, several)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Choices) != 4 {
		t.Fatalf("%d choices of 2 prompts, 2 each", len(got.Choices))
	}
	for i, c := range got.Choices {
		if c.Index != int64(i) || len(c.Logprobs.Tokens) == 0 || len(c.Logprobs.Tokens) != len(c.Logprobs.TokenLogprobs) {
			t.Errorf("choice %d: %+v", i, c)
		}
		if stopped := text[:strings.Index(text, text[5:8])]; i < 2 && (c.Text != stopped || c.FinishReason != "stop") {
			t.Errorf("choice %d is %q, want %q", i, c.Text, stopped)
		}
	}
}

// Errors come to the official Go client as what they are.
func TestErrors(t *testing.T) {
	s := start(t, []string{`STRATA_SERVER__API_KEYS=["first", "second"]`, "STRATA_MAX_SEQUENCES=1", "STRATA_QUEUE_LIMIT=0", "STRATA_SERVER__MAX_BODY=64KiB", "STRATA_CONTEXT=512"})
	client := func(options ...option.RequestOption) openai.Client {
		return openai.NewClient(append([]option.RequestOption{option.WithBaseURL(s.url + "/v1"), option.WithAPIKey("second"), option.WithMaxRetries(0)}, options...)...)
	}
	with := func(change func(p *openai.ChatCompletionNewParams)) openai.ChatCompletionNewParams {
		p := ask(whoAreYou)
		change(&p)
		return p
	}
	tests := []struct {
		name       string
		options    []option.RequestOption
		params     openai.ChatCompletionNewParams
		status     int
		code       string
		param      string
		says, kind string
	}{
		{"no key", []option.RequestOption{option.WithHeaderDel("Authorization")}, ask(whoAreYou), 401, "", "", "", "authentication_error"},
		{"wrong key", []option.RequestOption{option.WithAPIKey("third")}, ask(whoAreYou), 401, "invalid_api_key", "", "", "authentication_error"},
		{"temperature", nil, with(func(p *openai.ChatCompletionNewParams) { p.Temperature = openai.Float(2.5) }), 400, "invalid_value", "temperature", "2.5", "invalid_request_error"},
		{"type", []option.RequestOption{option.WithJSONSet("max_tokens", "many")}, ask(whoAreYou), 400, "invalid_type", "max_tokens", "max_tokens", "invalid_request_error"},
		{"unsupported", []option.RequestOption{option.WithJSONSet("audio", map[string]any{"voice": "x"})}, ask(whoAreYou), 400, "unsupported_value", "audio", "audio", "invalid_request_error"},
		{"no messages", nil, openai.ChatCompletionNewParams{Model: "any", Messages: []openai.ChatCompletionMessageParamUnion{}}, 400, "empty_array", "messages", "", "invalid_request_error"},
		{"over-long prompt", nil, ask(strings.Repeat("many words ", 500)), 400, "context_length_exceeded", "messages", "512", "invalid_request_error"},
		{"large body", nil, ask(strings.Repeat("many words ", 10000)), 413, "", "", "", "invalid_request_error"},
		{"no JSON", []option.RequestOption{option.WithRequestBody("application/json", []byte(`{"messages": [`))}, ask(whoAreYou), 400, "", "", "JSON", "invalid_request_error"},
		{"duplicate", []option.RequestOption{option.WithRequestBody("application/json", []byte(`{"messages": [], "messages": []}`))}, ask(whoAreYou), 400, "", "", "messages", "invalid_request_error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := client(tt.options...)
			_, err := c.Chat.Completions.New(context.Background(), tt.params)
			var failure *openai.Error
			if !errors.As(err, &failure) {
				t.Fatalf("error %v", err)
			}
			if failure.StatusCode != tt.status || tt.code != "" && failure.Code != tt.code || failure.Param != tt.param || failure.Type != tt.kind || !strings.Contains(failure.Message, tt.says) {
				t.Errorf("status %d, code %q, parameter %q, type %q: %s", failure.StatusCode, failure.Code, failure.Param, failure.Type, failure.Message)
			}
		})
	}
	t.Run("queue full, and again", func(t *testing.T) {
		long, leave := context.WithCancel(context.Background())
		defer leave()
		c := client()
		stream := c.Chat.Completions.NewStreaming(long, with(func(p *openai.ChatCompletionNewParams) { p.MaxTokens = openai.Int(400) }), option.WithJSONSet("ignore_eos", true))
		defer stream.Close()
		if !stream.Next() {
			t.Fatal(stream.Err())
		}
		_, err := c.Chat.Completions.New(context.Background(), ask(whoAreYou))
		var failure *openai.Error
		if !errors.As(err, &failure) || failure.StatusCode != http.StatusServiceUnavailable || failure.Code != "queue_full" || failure.Response.Header.Get("Retry-After") == "" {
			t.Errorf("error %v", err)
		}
		time.AfterFunc(300*time.Millisecond, leave)
		got, err := c.Chat.Completions.New(context.Background(), ask(whoAreYou), option.WithMaxRetries(5))
		if err != nil || got.Choices[0].Message.Content != iAmPebble {
			t.Errorf("answer %+v, error %v", got, err)
		}
	})
	t.Run("unknown model and route", func(t *testing.T) {
		c := client()
		for name, call := range map[string]func() error{
			"model": func() error { _, err := c.Models.Get(context.Background(), "another"); return err },
			"route": func() error { return c.Post(context.Background(), "nowhere", map[string]any{}, nil) },
		} {
			var failure *openai.Error
			if err := call(); !errors.As(err, &failure) || failure.StatusCode != http.StatusNotFound {
				t.Errorf("%s: error %v", name, err)
			}
		}
	})
}
