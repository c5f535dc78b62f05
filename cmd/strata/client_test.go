package main

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestReadAnswer(t *testing.T) {
	const usage = `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}`
	tests := []struct {
		name, stream             string
		content, thought, finish string
		err                      string
		usage                    bool
	}{
		{"whole", ": waiting\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"reasoning_content\":\"h\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata:{\"choices\":[{\"delta\":{\"content\":\"é\"},\"finish_reason\":\"stop\"}]}\n\ndata: " + usage + "\n\ndata: [DONE]\n\n", "aé", "h", "stop", "", true},
		{"line ends of Windows", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\ndata: [DONE]\r\n\r\n", "a", "", "", "", false},
		{"cut", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", "a", "", "", "read answer: the stream ended early: unexpected EOF", false},
		{"nothing", "", "", "", "", "read answer: the stream ended early: unexpected EOF", false},
		{"error", "data: {\"error\":{\"message\":\"the backend is gone\"}}\n\ndata: [DONE]\n\n", "", "", "", "the backend is gone", false},
		{"no JSON", "data: {\n\n", "", "", "", "read answer: unexpected end of JSON input", false},
		{"too long", "data: " + strings.Repeat("x", maxEvent) + "\n\n", "", "", "", "read answer: the stream ended early: bufio.Scanner: token too long", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got turn
			var shown [2]string
			err := got.read(iotest.HalfReader(strings.NewReader(tt.stream)), func(reasoning, content string) {
				shown[0], shown[1] = shown[0]+reasoning, shown[1]+content
			})
			text := ""
			if err != nil {
				text = err.Error()
			}
			want := []string{tt.content, tt.thought, tt.finish, tt.err}
			if d := cmp.Diff(want, []string{got.message.Content, got.message.ReasoningContent, got.finish, text}); d != "" {
				t.Error(d)
			}
			if shown != [2]string{tt.thought, tt.content} || tt.usage != (got.usage != nil && got.usage.PromptTokensDetails.CachedTokens == 1) {
				t.Errorf("shown %q, usage %+v", shown, got.usage)
			}
		})
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	f.Add(": x\n\ndata: {\"error\":{\"message\":\"b\"}}\n\n")
	f.Add("data: [1]\ndata:\n\rdata: {\"choices\":null,\"usage\":{}}\n")
	f.Fuzz(func(t *testing.T, stream string) {
		var got turn
		var content string
		err := got.read(strings.NewReader(stream), func(_, c string) { content += c })
		if got.message.Content != content {
			t.Errorf("content %q, shown %q", got.message.Content, content)
		}
		if err == nil && !strings.Contains(stream, "[DONE]") {
			t.Error("no error without an end")
		}
	})
}

// Whatever comes in, messages end, and are made of what came in.
func FuzzMessages(f *testing.F) {
	f.Add("a\\\nb\n\"\"\"c\nd\"\"\"\n")
	f.Add("\"\"\"")
	f.Add("\\")
	f.Fuzz(func(t *testing.T, text string) {
		input := newLines(strings.NewReader(text), nil, nil)
		defer input.close()
		total := 0
		for {
			message, err := input.message("")
			if err != nil {
				return
			}
			if total += len(message); total > len(text) {
				t.Fatalf("%d bytes of messages from %d", total, len(text))
			}
		}
	})
}

func TestInstructions(t *testing.T) {
	c := &client{}
	roles := func() (out string) {
		for _, m := range c.history {
			out += m.Role[:1] + m.Content
		}
		return out
	}
	c.clear()
	c.history = append(c.history, chatMessage{Role: "user", Content: "1"})
	for _, step := range []struct{ text, want string }{{"A", "sAu1"}, {"B", "sBu1"}, {"", "u1"}, {"C", "sCu1"}} {
		if c.instruct(step.text); roles() != step.want {
			t.Errorf("after %q: %s, want %s", step.text, roles(), step.want)
		}
	}
	if c.clear(); roles() != "sC" {
		t.Errorf("after clear: %s", roles())
	}
}

// Ctrl-C becomes keys that end the line, whatever stands around it.
func TestKeys(t *testing.T) {
	k := &keys{in: strings.NewReader("ab\x03cd")}
	got, err := io.ReadAll(io.LimitReader(iotest.OneByteReader(k), 5))
	if err != nil || string(got) != "ab\x05\x15\r" || !k.interrupted {
		t.Errorf("%q, error %v, interrupted %v", got, err, k.interrupted)
	}
	k = &keys{in: strings.NewReader("ab\x03cd")}
	chunk := make([]byte, 3)
	var all []byte
	for range 2 {
		n, _ := k.Read(chunk)
		all = append(all, chunk[:n]...)
	}
	if string(all) != "ab\x05\x15\r" {
		t.Errorf("%q", all)
	}
}
