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

// chatClient holds a conversation with a server.
type chatClient struct {
	url     string
	options *chatOptions
	history []chatMessage
}

// chatRequest is the body of a request.
type chatRequest struct {
	Messages        []chatMessage `json:"messages"`
	Stream          bool          `json:"stream"`
	Temperature     float64       `json:"temperature"`
	MaxTokens       int           `json:"max_tokens,omitempty"`
	ReasoningEffort string        `json:"reasoning_effort,omitempty"`
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
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// clear forgets the conversation but for the instructions.
func (c *chatClient) clear() {
	c.history = nil
	if c.options.system != "" {
		c.history = append(c.history, chatMessage{Role: "system", Content: c.options.system})
	}
}

// check makes sure that a server is there, with an error that says what is not.
func (c *chatClient) check() error {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(c.url + "/v1/models")
	if err != nil {
		return fmt.Errorf("reach the server at %s: %w", c.url, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("reach the server at %s: it answers %s", c.url, resp.Status)
	}
	return nil
}

// send adds a message to the conversation and calls show with the pieces of the
// answer. A failed turn leaves the conversation as it was.
func (c *chatClient) send(ctx context.Context, text string, show func(reasoning, content string)) error {
	messages := append(c.history[:len(c.history):len(c.history)], chatMessage{Role: "user", Content: text})
	request := c.options.request
	request.Messages, request.Stream, request.ReasoningEffort = messages, true, c.options.effort
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	answer, err := readAnswer(resp.Body, show)
	if err != nil {
		return err
	}
	c.history = append(messages, answer)
	return nil
}

// refusal is the error of a response that is no answer.
func refusal(resp *http.Response) error {
	var e chatEvent
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&e); err != nil || e.Error == nil {
		return fmt.Errorf("the server answers %s", resp.Status)
	}
	return errors.New(e.Error.Message)
}

// readAnswer reads a stream of events to its end.
func readAnswer(r io.Reader, show func(reasoning, content string)) (chatMessage, error) {
	answer := chatMessage{Role: "assistant"}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return answer, fmt.Errorf("read answer: the stream ended early: %w", err)
		}
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue // blank lines and comments
		}
		if data == "[DONE]" {
			return answer, nil
		}
		var e chatEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return answer, fmt.Errorf("read answer: %w", err)
		}
		if e.Error != nil {
			return answer, errors.New(e.Error.Message)
		}
		for _, choice := range e.Choices {
			answer.Content += choice.Delta.Content
			answer.ReasoningContent += choice.Delta.ReasoningContent
			show(choice.Delta.ReasoningContent, choice.Delta.Content)
		}
	}
}
