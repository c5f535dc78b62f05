package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// client holds a conversation with a server.
type client struct {
	url, key string
	// model is the first that the server lists.
	model    string
	sampling sampling
	history  []chatMessage
}

// chatRequest is the body of a request.
type chatRequest struct {
	Model         string        `json:"model,omitempty"`
	Messages      []chatMessage `json:"messages"`
	Stream        bool          `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Temperature     float64 `json:"temperature"`
	Seed            *int64  `json:"seed,omitempty"`
	MaxTokens       int     `json:"max_tokens,omitempty"`
	EnableThinking  *bool   `json:"enable_thinking,omitempty"`
	ReasoningEffort string  `json:"reasoning_effort,omitempty"`
}

type chatMessage struct {
	Role             string `json:"role"`
	Content          string `json:"content"`
	ReasoningContent string `json:"reasoning_content,omitempty"`
}

// chatEvent is what a client needs of a chunk.
type chatEvent struct {
	Choices []struct {
		Delta        chatMessage `json:"delta"`
		FinishReason string      `json:"finish_reason"`
	} `json:"choices"`
	Usage *chatUsage `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// chatUsage counts the tokens of a turn.
type chatUsage struct {
	PromptTokens        int `json:"prompt_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	PromptTokensDetails struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// turn is an answer with its measurements.
type turn struct {
	message chatMessage
	finish  string
	// usage is nil where the answer did not come to its end.
	usage *chatUsage
	// first is the time to the first piece of text, rest the time from there to
	// the end.
	first, rest time.Duration
}

// clear forgets the conversation but for the instructions.
func (c *client) clear() {
	c.history = nil
	c.instruct(c.sampling.system)
}

// instruct changes the instructions; empty ones are none.
func (c *client) instruct(text string) {
	c.sampling.system = text
	if len(c.history) > 0 && c.history[0].Role == "system" {
		c.history = c.history[1:]
	}
	if text != "" {
		c.history = append([]chatMessage{{Role: "system", Content: text}}, c.history...)
	}
}

// check makes sure that a server is there, with an error that says what is not.
func (c *client) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, err := c.do(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return fmt.Errorf("reach the server at %s: %w", c.url, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("reach the server at %s: it answers %s: %w", c.url, resp.Status, refusal(resp))
	}
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&models); err != nil {
		return fmt.Errorf("reach the server at %s: it does not speak the OpenAI API: %w", c.url, err)
	}
	if len(models.Data) > 0 {
		c.model = models.Data[0].ID
	}
	return nil
}

func (c *client) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	return http.DefaultClient.Do(req)
}

// send adds a message to the conversation and calls show with the pieces of the
// answer. A failed turn leaves the conversation as it was; one that ctx cut short
// is part of it as far as it came, if it came to an answer.
func (c *client) send(ctx context.Context, text string, show func(reasoning, content string)) (*turn, error) {
	messages := append(c.history[:len(c.history):len(c.history)], chatMessage{Role: "user", Content: text})
	request := c.sampling.request
	request.Model, request.Messages, request.Stream, request.StreamOptions.IncludeUsage = c.model, messages, true, true
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("send message: %w", err)
	}
	started := time.Now()
	resp, err := c.do(ctx, http.MethodPost, "/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("send message: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, refusal(resp)
	}
	t := &turn{message: chatMessage{Role: "assistant"}}
	err = t.read(resp.Body, func(reasoning, content string) {
		if t.first == 0 {
			t.first = time.Since(started)
		}
		show(reasoning, content)
	})
	t.rest = time.Since(started) - t.first
	if err == nil || ctx.Err() != nil && t.message.Content != "" {
		c.history = append(messages, t.message)
	}
	return t, err
}

// refusal is the error of a response that is no answer.
func refusal(resp *http.Response) error {
	var e chatEvent
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&e); err != nil || e.Error == nil {
		return fmt.Errorf("the server answers %s", resp.Status)
	}
	return errors.New(e.Error.Message)
}

// maxEvent bounds an event of a stream; a longer one is none of this API.
const maxEvent = 16 << 20

// read reads a stream of events to its end.
func (t *turn) read(r io.Reader, show func(reasoning, content string)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue // blank lines and comments
		}
		if data = strings.TrimSpace(data); data == "[DONE]" {
			return nil
		}
		var e chatEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return fmt.Errorf("read answer: %w", err)
		}
		if e.Error != nil {
			return errors.New(e.Error.Message)
		}
		if e.Usage != nil {
			t.usage = e.Usage
		}
		for _, choice := range e.Choices {
			t.message.Content += choice.Delta.Content
			t.message.ReasoningContent += choice.Delta.ReasoningContent
			if choice.Delta.Content != "" || choice.Delta.ReasoningContent != "" {
				show(choice.Delta.ReasoningContent, choice.Delta.Content)
			}
			if choice.FinishReason != "" {
				t.finish = choice.FinishReason
			}
		}
	}
	err := lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read answer: the stream ended early: %w", err)
}
