package template

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"

	"github.com/strata-engine/strata/core/tokenizer"
)

// Config is what a template is compiled with.
type Config struct {
	// Source is tokenizer.chat_template of the model file.
	Source string
	// Controls are the texts of all control tokens (Tokenizer.ControlTexts).
	Controls []string
	// BOS and EOS are the variables bos_token and eos_token; may be empty.
	BOS, EOS string
}

// Template is a compiled chat template, safe for concurrent use.
type Template struct {
	compiled *jinja.Template
	original string
	source   source
	guard    guard
	bos, eos string
	caps     capabilities
}

// Message is one message of a conversation as the OpenAI API has them, with the
// text parts of its content joined.
type Message struct {
	// Role is "system", "developer", "user", "assistant" or "tool".
	Role string
	// Content is the text.
	Content string
	// Reasoning is the reasoning of an assistant message; empty where there is
	// none.
	Reasoning string
	// ToolCalls are the calls of an assistant message.
	ToolCalls []ToolCall
	// ToolCallID and Name say which call a tool message answers; may be empty.
	ToolCallID, Name string
}

// ToolCall is a call of a function.
type ToolCall struct {
	// ID tells the calls of a conversation apart; Name is the function's.
	ID, Name string
	// Arguments is a JSON object, as the model wrote it. Anything else reaches
	// the template as a string.
	Arguments string
}

// Source is the template as the model file has it.
func (t *Template) Source() string { return t.original }

// Request is a conversation to render.
type Request struct {
	// Messages are the turns so far, the oldest first.
	Messages []Message
	// Tools are the JSON objects of the request's tools; the order of keys is
	// kept.
	Tools []json.RawMessage
	// AddGenerationPrompt opens the assistant's turn at the end.
	AddGenerationPrompt bool
	// EnableThinking, PreserveThinking and ReasoningEffort set the template's
	// variables of the same names in snake case; nil or empty leaves them
	// undefined. See Template.Effort.
	EnableThinking, PreserveThinking *bool
	ReasoningEffort                  string
	// Kwargs is chat_template_kwargs: a JSON object of more variables, which go
	// before the fields above; may be empty.
	Kwargs json.RawMessage
}

// Prompt is a rendered conversation.
type Prompt struct {
	// Parts are the text for the tokenizer; joined they are exactly what the
	// template wrote.
	Parts []tokenizer.Part
	// Thinking says that the generation prompt left a <think> block open: what
	// the model writes is reasoning up to </think>.
	Thinking bool
	// Degraded says that marks changed what the template does, so that control
	// tokens whose critical characters occur in the request are text everywhere
	// (see the package comment). Rare; worth a warning in a log.
	Degraded bool
}

// String returns the text.
func (p Prompt) String() string {
	var b strings.Builder
	for _, part := range p.Parts {
		b.WriteString(part.Text)
	}
	return b.String()
}

// New compiles a template and finds out what it can do with a few renderings.
func New(cfg Config) (*Template, error) {
	if cfg.Source == "" {
		return nil, errors.New("compile the chat template: the model file has none")
	}
	if len(cfg.Source) > maxSource {
		return nil, fmt.Errorf("compile the chat template: %d bytes of source; at most %d are allowed", len(cfg.Source), maxSource)
	}
	src, err := rewrite(strings.ToValidUTF8(cfg.Source, "\uFFFD"))
	if err != nil {
		return nil, fmt.Errorf("compile the chat template: %w", err)
	}
	t := &Template{original: cfg.Source, source: src, bos: cfg.BOS, eos: cfg.EOS}
	if t.compiled, err = compile(src.text); err != nil {
		return nil, fmt.Errorf("compile the chat template: %w", err)
	}
	t.guard = newGuard(cfg.Controls, append(slices.Clone(src.literals), cfg.BOS, cfg.EOS), src.names)
	t.probe()
	return t, nil
}

// compile calls the engine, whose parser was not made for hostile input.
func compile(text string) (t *jinja.Template, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the engine cannot parse it: %v", p)
		}
	}()
	return jinja.Compile(text)
}

// Render writes the conversation. What the template refuses or fails at is an
// *Error with its own message; other errors are faults of the request: arguments
// that no template ever sees. It ends early when ctx does.
func (t *Template) Render(ctx context.Context, req Request) (Prompt, error) {
	now := time.Now()
	var texts []string
	vars, err := t.variables(req, func(s string) string {
		texts = append(texts, s)
		return s
	})
	if err != nil {
		return Prompt{}, err
	}
	plain, err := t.execute(ctx, now, vars)
	if err != nil {
		return Prompt{}, err
	}
	p := Prompt{Thinking: req.AddGenerationPrompt && OpensThinking(plain)}
	if !slices.ContainsFunc(texts, t.guard.suspicious) {
		if plain != "" {
			p.Parts = []tokenizer.Part{{Text: plain, Trusted: true}}
		}
		return p, nil
	}
	if m, ok := t.guard.newMarker(append(texts, plain)); ok {
		if vars, err = t.variables(req, m.mark); err != nil {
			return Prompt{}, err
		}
		marked, err := t.execute(ctx, now, vars)
		if ctx.Err() != nil {
			return Prompt{}, ctx.Err()
		}
		if err == nil {
			p.Parts = m.parts(marked)
			if sameText(p.Parts, plain) {
				return p, nil
			}
		}
	}
	p.Degraded = true
	p.Parts = distrust(plain, t.guard.exposed(texts))
	return p, nil
}

// exposed returns the critical characters that request strings contain: all of
// them where a string could complete a token without any.
func (g *guard) exposed(texts []string) []rune {
	for _, m := range g.middles {
		if slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, m) }) {
			return g.critical
		}
	}
	var chars []rune
	for _, r := range g.critical {
		if slices.ContainsFunc(texts, func(s string) bool { return strings.ContainsRune(s, r) }) {
			chars = append(chars, r)
		}
	}
	return chars
}

// execute renders once, within the limits.
func (t *Template) execute(ctx context.Context, now time.Time, vars map[string]jinja.Value) (out string, err error) {
	r := &run{ctx: ctx, now: now, until: now.Add(maxDuration)}
	r.functions(vars)
	defer func() {
		if p := recover(); p != nil {
			out, err = "", &Error{Message: fmt.Sprint(p)}
		}
	}()
	out, err = t.compiled.RenderValues(vars)
	switch {
	case err == nil:
		return out, nil
	case r.raised != nil:
		return "", r.raised
	case ctx.Err() != nil:
		return "", fmt.Errorf("render the chat template: %w", ctx.Err())
	}
	return "", &Error{Message: err.Error()}
}

// roles are the server's words, not the request's, whoever wrote them.
var roles = []string{"system", "developer", "user", "assistant", "tool", "function"}

// reserved are variables that a request must not replace.
var reserved = []string{
	"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "range", "namespace", "dict", "joiner", "cycler",
	"raise_exception", "strftime_now", stepName, enterName, leaveName, tojsonName, stringName,
}

// variables builds what the template sees. Every string of the request goes
// through mark.
func (t *Template) variables(req Request, mark func(string) string) (map[string]jinja.Value, error) {
	text := func(s string) jinja.Value {
		return jinja.NewString(mark(strings.ToValidUTF8(s, "\uFFFD")))
	}
	vars := map[string]jinja.Value{
		"bos_token":             jinja.NewString(t.bos),
		"eos_token":             jinja.NewString(t.eos),
		"add_generation_prompt": jinja.NewBool(req.AddGenerationPrompt),
		"tools":                 jinja.None(),
	}
	var messages []jinja.Value
	for _, m := range req.Messages {
		messages = append(messages, t.message(m, text, mark))
	}
	vars["messages"] = jinja.NewList(messages)
	if len(req.Tools) > 0 {
		var tools []jinja.Value
		for i, raw := range req.Tools {
			v, err := decodeJSON(raw, mark)
			if err != nil {
				return nil, fmt.Errorf("read tool %d: %w", i, err)
			}
			if !v.IsDict() {
				return nil, fmt.Errorf("read tool %d: it is not a JSON object", i)
			}
			tools = append(tools, v)
		}
		vars["tools"] = jinja.NewList(tools)
	}
	if req.EnableThinking != nil {
		vars["enable_thinking"] = jinja.NewBool(*req.EnableThinking)
	}
	if req.PreserveThinking != nil {
		vars["preserve_thinking"] = jinja.NewBool(*req.PreserveThinking)
	}
	if req.ReasoningEffort != "" {
		vars["reasoning_effort"] = text(req.ReasoningEffort)
	}
	if len(req.Kwargs) > 0 {
		v, err := decodeJSON(req.Kwargs, mark)
		if err != nil {
			return nil, fmt.Errorf("read chat_template_kwargs: %w", err)
		}
		if !v.IsDict() && !v.IsNone() {
			return nil, errors.New("read chat_template_kwargs: it is not a JSON object")
		}
		if v.IsDict() {
			for name, value := range v.AsDict().Data {
				if slices.Contains(reserved, name) {
					return nil, fmt.Errorf("read chat_template_kwargs: %q cannot be set there", name)
				}
				vars[name] = value
			}
		}
	}
	return vars, nil
}

// message builds one message in the form this template wants.
func (t *Template) message(m Message, text func(string) jinja.Value, mark func(string) string) jinja.Value {
	role := text(m.Role)
	if slices.Contains(roles, m.Role) {
		role = jinja.NewString(m.Role)
	}
	content := text(m.Content)
	if t.caps.listContent {
		content = jinja.NewList([]jinja.Value{dict("type", jinja.NewString("text"), "text", content)})
	}
	v := dict("role", role, "content", content)
	d := v.AsDict()
	if m.Reasoning != "" {
		d.Set(t.reasoningKey(), text(m.Reasoning))
	}
	if len(m.ToolCalls) > 0 {
		var calls []jinja.Value
		for _, c := range m.ToolCalls {
			function := dict("name", text(c.Name), "arguments", t.arguments(c.Arguments, text, mark))
			calls = append(calls, dict("id", text(c.ID), "type", jinja.NewString("function"), "function", function))
		}
		d.Set("tool_calls", jinja.NewList(calls))
	}
	if m.ToolCallID != "" {
		d.Set("tool_call_id", text(m.ToolCallID))
	}
	if m.Name != "" {
		d.Set("name", text(m.Name))
	}
	return v
}

// arguments are an object where the template takes one and they are one.
func (t *Template) arguments(raw string, text func(string) jinja.Value, mark func(string) string) jinja.Value {
	if !t.caps.stringArguments {
		if strings.TrimSpace(raw) == "" {
			raw = "{}"
		}
		if v, err := decodeJSON([]byte(raw), mark); err == nil && v.IsDict() {
			return v
		}
	}
	return text(raw)
}

// reasoningKey is the name under which the template looks for reasoning.
func (t *Template) reasoningKey() string {
	for _, key := range []string{"reasoning_content", "reasoning", "thinking"} {
		if t.source.names[key] || slices.Contains(t.source.literals, key) {
			return key
		}
	}
	return "reasoning_content"
}

// OpensThinking reports whether a prompt ends inside a <think> block that has
// nothing in it yet.
func OpensThinking(prompt string) bool {
	i := strings.LastIndex(prompt, thinkOpen)
	return i >= 0 && strings.TrimSpace(prompt[i+len(thinkOpen):]) == ""
}

// Effort translates the API's reasoning_effort for this template: none, off and
// minimal turn thinking off; low and medium are themselves; high, xhigh and max
// are the highest level the template names. Empty leaves everything to the
// template.
func (t *Template) Effort(effort string) (level string, thinking *bool, err error) {
	on, off := true, false
	switch strings.ToLower(effort) {
	case "":
		return "", nil, nil
	case "none", "off", "minimal":
		return "", &off, nil
	case "low", "medium":
		return strings.ToLower(effort), &on, nil
	case "high", "xhigh", "max":
		if slices.Contains(t.source.literals, "xhigh") {
			return "xhigh", &on, nil
		}
		return "high", &on, nil
	}
	if !utf8.ValidString(effort) || len(effort) > 40 {
		effort = "that value"
	}
	return "", nil, fmt.Errorf("reasoning_effort: %q is unknown; use none, minimal, low, medium or high", effort)
}
