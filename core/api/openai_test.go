package api

import (
	"context"
	"errors"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"

	"github.com/strata-engine/strata/core/engine"
)

// The official Go client drives the handler: what it reads is what its users see.
func openAIClient(url string) openai.Client {
	return openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

func ask() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: "pebble",
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.DeveloperMessage("Be kind."), openai.UserMessage("Who are you?"),
		},
	}
}

func TestOpenAIClient(t *testing.T) {
	mod, eng := testModel(t, script{text: "Hm.\n</think>\n\nI am Pebble.", finish: engine.FinishLength})
	_, url := serve(t, mod, nil)
	client := openAIClient(url)
	ctx := context.Background()

	t.Run("whole", func(t *testing.T) {
		params := ask()
		params.ReasoningEffort = shared.ReasoningEffortLow
		params.MaxCompletionTokens = openai.Int(50)
		params.Logprobs = openai.Bool(true)
		got, err := client.Chat.Completions.New(ctx, params)
		if err != nil {
			t.Fatal(err)
		}
		c := got.Choices[0]
		if c.Message.Content != "I am Pebble." || c.FinishReason != "length" || string(c.Message.Role) != "assistant" {
			t.Errorf("choice %+v", c)
		}
		if len(c.Logprobs.Content) == 0 || got.Usage.TotalTokens != got.Usage.PromptTokens+got.Usage.CompletionTokens || got.Usage.CompletionTokensDetails.ReasoningTokens == 0 {
			t.Errorf("log-probabilities %v, usage %+v", c.Logprobs.Content, got.Usage)
		}
		if eng.requests[0].MaxTokens != 50 {
			t.Errorf("max tokens %d", eng.requests[0].MaxTokens)
		}
	})

	t.Run("stream", func(t *testing.T) {
		params := ask()
		params.N = openai.Int(2)
		params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
		stream := client.Chat.Completions.NewStreaming(ctx, params)
		defer stream.Close()
		var all openai.ChatCompletionAccumulator
		for stream.Next() {
			if !all.AddChunk(stream.Current()) {
				t.Fatalf("chunk %s does not go with the ones before", stream.Current().RawJSON())
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if len(all.Choices) != 2 || all.Usage.TotalTokens == 0 {
			t.Fatalf("%d choices, usage %+v", len(all.Choices), all.Usage)
		}
		for _, c := range all.Choices {
			if c.Message.Content != "I am Pebble." || c.FinishReason != "length" {
				t.Errorf("choice %+v", c)
			}
		}
	})

	t.Run("models", func(t *testing.T) {
		page, err := client.Models.List(ctx)
		if err != nil || len(page.Data) != 1 || page.Data[0].ID != "pebble" {
			t.Errorf("models %+v, error %v", page, err)
		}
		if one, err := client.Models.Get(ctx, "pebble"); err != nil || one.ID != "pebble" {
			t.Errorf("model %+v, error %v", one, err)
		}
	})

	t.Run("errors", func(t *testing.T) {
		var failure *openai.Error
		params := ask()
		params.Temperature = openai.Float(9)
		_, err := client.Chat.Completions.New(ctx, params)
		if !errors.As(err, &failure) || failure.StatusCode != 400 || failure.Param != "temperature" || failure.Type != typeInvalid || failure.Code != "invalid_value" {
			t.Errorf("error %v", err)
		}
		eng.start = &engine.ContextError{Prompt: 9, Context: 8}
		defer func() { eng.start = nil }()
		stream := client.Chat.Completions.NewStreaming(ctx, ask())
		for stream.Next() {
			t.Errorf("chunk %s", stream.Current().RawJSON())
		}
		if !errors.As(stream.Err(), &failure) || failure.StatusCode != 400 || failure.Code != "context_length_exceeded" {
			t.Errorf("error %v", stream.Err())
		}
	})
}

func TestOpenAIClientSeesAnErrorInMidStream(t *testing.T) {
	mod, _ := testModel(t, script{text: "</think>Some", err: &engine.NonFiniteError{Position: 5, Layer: 1}})
	_, url := serve(t, mod, nil)
	client := openAIClient(url)
	stream := client.Chat.Completions.NewStreaming(context.Background(), ask())
	chunks := 0
	for stream.Next() {
		chunks++
	}
	if stream.Err() == nil || chunks == 0 {
		t.Errorf("error %v after %d chunks", stream.Err(), chunks)
	}
}
