package template

import (
	"context"
	"strings"
	"time"
)

// capabilities are what probing found out about a template.
type capabilities struct {
	// system: system messages reach the prompt.
	system bool
	// alternate: two user messages in a row are refused.
	alternate bool
	// listContent: content must be a list of parts.
	listContent bool
	// stringArguments: tool calls want their arguments as JSON text.
	stringArguments bool
}

// probe renders small conversations to see which forms a template takes. The
// templates of the model families differ there and say so nowhere.
func (t *Template) probe() {
	const needle = "needle"
	user := func(s string) Message { return Message{Role: "user", Content: s} }
	try := func(messages ...Message) (string, bool) {
		vars, err := t.variables(Request{Messages: messages}, func(s string) string { return s })
		if err != nil {
			return "", false
		}
		out, err := t.execute(context.Background(), time.Unix(0, 0), vars)
		return out, err == nil
	}
	found := func(messages ...Message) bool {
		out, _ := try(messages...)
		return strings.Contains(out, needle)
	}
	t.caps = capabilities{}
	if !found(user(needle)) {
		t.caps.listContent = true
		t.caps.listContent = found(user(needle))
	}
	t.caps.system = found(Message{Role: "system", Content: needle}, user("a"))
	_, single := try(user("a"))
	_, double := try(user("a"), user("b"))
	t.caps.alternate = single && !double

	call := []Message{user("a"), {Role: "assistant", ToolCalls: []ToolCall{{ID: "call00001", Name: "f", Arguments: `{"needle": "x"}`}}}}
	asObject, _ := try(call...)
	if !strings.Contains(asObject, needle) || strings.Contains(asObject, "'needle'") {
		t.caps.stringArguments = true
		asText, _ := try(call...)
		t.caps.stringArguments = strings.Contains(asText, needle)
	}
}

// Normalize brings a conversation into a form that templates accept, so that
// where a client puts its instructions is never an error:
//
//   - The system and developer messages at the start become one system message,
//     their texts a blank line apart.
//   - Later ones become user messages in their place.
//   - For a template that does not know system messages, the text goes to the
//     front of the first user message.
//   - For a template that refuses two user messages in a row, such are joined, a
//     blank line apart.
//
// The argument is not changed.
func (t *Template) Normalize(messages []Message) []Message {
	first := 0
	var system []string
	for first < len(messages) && instructs(messages[first]) {
		if messages[first].Content != "" {
			system = append(system, messages[first].Content)
		}
		first++
	}
	var out []Message
	lead := strings.Join(system, "\n\n")
	if lead != "" && t.caps.system {
		out = append(out, Message{Role: "system", Content: lead})
		lead = ""
	}
	for _, m := range messages[first:] {
		if instructs(m) {
			m = Message{Role: "user", Content: m.Content}
		}
		if lead != "" && m.Role == "user" {
			m.Content = joinTexts(lead, m.Content)
			lead = ""
		}
		if n := len(out); t.caps.alternate && m.Role == "user" && n > 0 && out[n-1].Role == "user" {
			out[n-1].Content = joinTexts(out[n-1].Content, m.Content)
			continue
		}
		out = append(out, m)
	}
	if lead != "" {
		out = append(out, Message{Role: "user", Content: lead})
	}
	return out
}

// instructs reports whether a message carries the application's instructions.
func instructs(m Message) bool { return m.Role == "system" || m.Role == "developer" }

func joinTexts(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n\n" + b
}
