package main

import (
	"context"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// TestHungBackend: a backend that does not answer holds up neither health nor
// the end after a second signal.
func TestHungBackend(t *testing.T) {
	s := start(t, nil)
	pid, err := strconv.Atoi(s.children(t)[0])
	if err != nil {
		t.Fatal(err)
	}
	client := s.client()
	params := ask(whoAreYou)
	params.MaxTokens = openai.Int(30000)
	stream := client.Chat.Completions.NewStreaming(context.Background(), params, option.WithJSONSet("ignore_eos", true))
	defer stream.Close()
	if !stream.Next() {
		t.Fatal(stream.Err())
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if code, _ := s.health(t); code != 200 {
		t.Errorf("health answers %d", code)
	}
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if code := s.stop(t, os.Interrupt, 7*time.Second); code != exitInterrupted {
		t.Errorf("exit code %d, want %d: %s", code, exitInterrupted, s.stderr)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("the backend is left")
	}
}
