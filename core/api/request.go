package api

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/strata-engine/strata/core/sampler"
	"github.com/strata-engine/strata/core/template"
)

// Bounds on what a request may ask for.
const (
	maxChoices     = 128
	maxTopLogProbs = 20
	maxStops       = 16
)

// options are what requests for chat and for text completions have in common,
// understood and checked.
type options struct {
	model string
	// sampling says how tokens are chosen; without a seed, seeded is false.
	sampling  sampler.Config
	seeded    bool
	maxTokens int // 0: the rest of the context
	// ignoreEOS lets the answer go on behind the model's end.
	ignoreEOS bool
	stop      []string
	choices   int // answers to each prompt
	logProbs  int // -1: none
	// stream asks for events; progress for reports on how far a prompt was read.
	stream, includeUsage, progress bool
}

// chatRequest is a request for chat completions.
type chatRequest struct {
	options
	// conversation is what the template renders, without what depends on the
	// template: the order of the messages and effort.
	conversation template.Request
	// effort is the wanted amount of reasoning, "" for the template's default;
	// effortFrom is the parameter that says so.
	effort, effortFrom string
}

// parseBody reads the body of a request: one JSON object.
func parseBody(body string) (*params, *apiError) {
	root, err := parseJSON(body)
	if err != nil {
		return nil, refuse("", "", "We could not parse the JSON body of your request: %s.", err)
	}
	if root.kind != kindObject {
		return nil, refuse("", "", "The body of your request must be a JSON object, but it is %s.", root.kind)
	}
	return &params{object: root}, nil
}

// parseChat reads the body of a request for chat completions.
func parseChat(body string) (*chatRequest, *apiError) {
	p, e := parseBody(body)
	if e == nil {
		e = refuseUnsupported(p, constraints, unsupportedInChat)
	}
	if e != nil {
		return nil, e
	}
	req := &chatRequest{options: parseOptions(p)}
	// 0 and -1 mean the rest of the context, like no bound at all.
	req.maxTokens = int(max(0, p.whole("max_completion_tokens", -1, math.MaxInt32, int64(req.maxTokens))))
	top := p.whole("top_logprobs", 0, maxTopLogProbs, -1)
	if p.boolean("logprobs", false) {
		req.logProbs = int(max(0, top))
	} else if top > 0 && p.err == nil {
		return nil, refuse("top_logprobs", "invalid_value", "Invalid value for 'top_logprobs': it needs 'logprobs' to be true.")
	}
	req.conversation.AddGenerationPrompt = true
	req.conversation.Messages = parseMessages(p, body)
	req.conversation.Tools = parseTools(p, body)
	parseReasoning(p, body, req)
	if p.err != nil {
		return nil, p.err
	}
	return req, nil
}

// parseOptions reads what the two kinds of completions have in common.
func parseOptions(p *params) options {
	o := options{
		model:     p.text("model", ""),
		choices:   int(p.whole("n", 1, maxChoices, 1)),
		maxTokens: int(max(0, p.whole("max_tokens", -1, math.MaxInt32, 0))),
		ignoreEOS: p.boolean("ignore_eos", false),
		stream:    p.boolean("stream", false),
		progress:  p.boolean("return_progress", false),
		logProbs:  -1,
		stop:      parseStop(p),
	}
	parseSampling(p, &o)
	if stream := p.want("stream_options", kindObject); stream != nil {
		s := &params{object: stream, path: "stream_options"}
		o.includeUsage = s.boolean("include_usage", false)
		p.adopt(s)
	}
	return o
}

// limited is a parameter of which only some values can be honoured. The others
// are refused by name: an answer that silently lacks what was asked for is worse
// than none.
type limited struct {
	name      string
	supported func(n *node) bool
	why       string
}

// constraints would bind the form of answers.
var constraints = []limited{
	{"response_format", func(n *node) bool { f := n.member("type"); return f != nil && f.text == "text" }, "only {\"type\": \"text\"} is supported"},
	{"json_schema", never, "the form of answers cannot be constrained"},
	{"grammar", never, "the form of answers cannot be constrained"},
}

var unsupportedInChat = []limited{
	{"tool_choice", func(n *node) bool { return n.text == "auto" || n.text == "none" }, "only \"auto\" and \"none\" are supported"},
	{"functions", func(n *node) bool { return len(n.items) == 0 }, "use 'tools' instead"},
	{"function_call", func(n *node) bool { return n.text == "auto" || n.text == "none" }, "use 'tools' instead"},
	{"modalities", func(n *node) bool { return len(n.items) == 1 && n.items[0].text == "text" }, "only [\"text\"] is supported"},
	{"audio", never, "only text is supported"},
	{"web_search_options", never, "there is no web search"},
	{"verbosity", func(n *node) bool { return n.text == "medium" }, "only \"medium\" is supported"},
}

func never(*node) bool { return false }

func refuseUnsupported(p *params, lists ...[]limited) *apiError {
	for _, list := range lists {
		for _, u := range list {
			if n := p.get(u.name); n != nil && !u.supported(n) {
				return refuse(u.name, "unsupported_value", "Unsupported value for '%s': %s.", u.name, u.why)
			}
		}
	}
	return nil
}

// parseSampling reads how tokens are to be chosen. What is not said is as the
// OpenAI API has it: the model's own distribution.
func parseSampling(p *params, o *options) {
	o.sampling = sampler.Config{
		Temperature:       p.number("temperature", 0, 2, 1),
		TopP:              p.number("top_p", 0, 1, 1),
		TopK:              int(max(0, p.whole("top_k", -1, math.MaxInt32, 0))),
		MinP:              p.number("min_p", 0, 1, 0),
		TypicalP:          p.number("typical_p", 0, 1, 1),
		PresencePenalty:   p.number("presence_penalty", -2, 2, 0),
		FrequencyPenalty:  p.number("frequency_penalty", -2, 2, 0),
		RepetitionPenalty: p.number("repetition_penalty", 0.01, 100, 1),
		PenaltyWindow:     int(p.whole("penalty_last_n", -1, math.MaxInt32, 0)),
	}
	if p.get("penalty_last_n") != nil && o.sampling.PenaltyWindow == 0 {
		// As elsewhere: a window of nothing.
		o.sampling.PresencePenalty, o.sampling.FrequencyPenalty, o.sampling.RepetitionPenalty = 0, 0, 1
	}
	if p.get("top_p") != nil && o.sampling.TopP == 0 {
		// The sampler's 0 keeps all; the API's keeps the most likely token.
		o.sampling.TopP = math.SmallestNonzeroFloat64
	}
	if p.get("seed") != nil {
		o.sampling.Seed, o.seeded = uint64(p.whole("seed", math.MinInt64, math.MaxInt64, 0)), true
	}
	bias := p.want("logit_bias", kindObject)
	if bias == nil {
		return
	}
	o.sampling.LogitBias = make(map[int32]float32, len(bias.items))
	b := &params{object: bias, path: "logit_bias"}
	for _, name := range bias.names {
		id, err := strconv.ParseInt(name, 10, 32)
		if err != nil || id < 0 {
			p.fail(refuse("logit_bias", "invalid_value", "Invalid value for 'logit_bias': %q is not a token id.", name))
			return
		}
		o.sampling.LogitBias[int32(id)] = float32(b.number(name, -100, 100, 0))
	}
	p.adopt(b)
}

func parseStop(p *params) []string {
	n := p.get("stop")
	if n == nil {
		return nil
	}
	list := []node{*n}
	if n.kind == kindArray {
		list = n.items
	}
	if len(list) > maxStops {
		p.fail(refuse("stop", "array_above_max_length", "Invalid 'stop': array too long. Expected an array with maximum length %d, but got an array with length %d instead.", maxStops, len(list)))
		return nil
	}
	var out []string
	for i := range list {
		switch s := &list[i]; {
		case s.kind != kindString:
			p.fail(wrongType("stop", "a string or an array of strings", s))
		case s.text == "":
			p.fail(refuse("stop", "invalid_value", "Invalid value for 'stop': a stop string must not be empty."))
		default:
			out = append(out, s.text)
		}
	}
	return out
}

func parseMessages(p *params, body string) []template.Message {
	n := p.get("messages")
	if n == nil {
		p.fail(refuse("messages", "missing_required_parameter", "Missing required parameter: 'messages'."))
		return nil
	}
	if n.kind != kindArray {
		p.fail(wrongType("messages", "an array of objects", n))
		return nil
	}
	if len(n.items) == 0 {
		p.fail(refuse("messages", "empty_array", "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."))
		return nil
	}
	var out []template.Message
	for i := range n.items {
		path := fmt.Sprintf("messages[%d]", i)
		if n.items[i].kind != kindObject {
			p.fail(wrongType(path, "an object", &n.items[i]))
			return nil
		}
		m := &params{object: &n.items[i], path: path}
		message := parseMessage(m, body)
		if m.err != nil {
			p.fail(m.err)
			return nil
		}
		out = append(out, message)
	}
	return out
}

func parseMessage(m *params, body string) template.Message {
	out := template.Message{Role: m.text("role", ""), Name: m.text("name", ""), ToolCallID: m.text("tool_call_id", "")}
	switch out.Role {
	case "system", "developer", "user", "assistant", "tool":
	case "":
		m.fail(refuse(m.name("role"), "missing_required_parameter", "Missing required parameter: '%s'.", m.name("role")))
	default:
		m.fail(refuse(m.name("role"), "invalid_value", "Invalid value: '%s'. Supported values are: 'system', 'developer', 'user', 'assistant', and 'tool'.", out.Role))
	}
	if out.Role == "assistant" {
		for _, name := range []string{"reasoning_content", "reasoning"} {
			if n := m.get(name); n != nil && n.kind == kindString && out.Reasoning == "" {
				out.Reasoning = n.text
			}
		}
		if m.get("function_call") != nil {
			m.fail(refuse(m.name("function_call"), "unsupported_value", "Unsupported value for '%s': use 'tool_calls' instead.", m.name("function_call")))
		}
		if calls := m.want("tool_calls", kindArray); calls != nil {
			out.ToolCalls = parseCalls(m, calls, body)
		}
	}
	content := m.get("content")
	if content == nil {
		if out.Role != "assistant" {
			m.fail(refuse(m.name("content"), "missing_required_parameter", "Missing required parameter: '%s'.", m.name("content")))
		}
		return out
	}
	out.Content = parseContent(m, content)
	return out
}

// parseContent joins the text of a message.
func parseContent(m *params, n *node) string {
	path := m.name("content")
	switch n.kind {
	case kindString:
		return n.text
	case kindArray:
	default:
		m.fail(wrongType(path, "a string or an array of content parts", n))
		return ""
	}
	var out strings.Builder
	for i := range n.items {
		part := &params{object: &n.items[i], path: fmt.Sprintf("%s[%d]", path, i)}
		if n.items[i].kind != kindObject {
			m.fail(wrongType(part.path, "an object", &n.items[i]))
			return ""
		}
		switch kind := part.text("type", "text"); kind {
		case "text", "input_text", "output_text":
			if part.get("text") == nil {
				part.fail(refuse(part.name("text"), "missing_required_parameter", "Missing required parameter: '%s'.", part.name("text")))
			}
			out.WriteString(part.text("text", ""))
		case "refusal":
			out.WriteString(part.text("refusal", ""))
		default:
			part.fail(refuse(part.name("type"), "unsupported_value", "Unsupported value: '%s' is of type %q, but this model reads text only.", part.path, kind))
		}
		m.adopt(part)
	}
	return out.String()
}

func parseCalls(m *params, list *node, body string) []template.ToolCall {
	var out []template.ToolCall
	for i := range list.items {
		call := &params{object: &list.items[i], path: fmt.Sprintf("%s[%d]", m.name("tool_calls"), i)}
		if list.items[i].kind != kindObject {
			m.fail(wrongType(call.path, "an object", &list.items[i]))
			return nil
		}
		if kind := call.text("type", "function"); kind != "function" {
			call.fail(refuse(call.name("type"), "unsupported_value", "Unsupported value for '%s': only \"function\" is supported.", call.name("type")))
		}
		function := call.want("function", kindObject)
		if function == nil {
			call.fail(refuse(call.name("function"), "missing_required_parameter", "Missing required parameter: '%s'.", call.name("function")))
			m.adopt(call)
			return nil
		}
		f := &params{object: function, path: call.name("function")}
		c := template.ToolCall{ID: call.text("id", ""), Name: f.text("name", "")}
		if c.Name == "" {
			f.fail(refuse(f.name("name"), "missing_required_parameter", "Missing required parameter: '%s'.", f.name("name")))
		}
		c.Arguments = parseArguments(f, body)
		call.adopt(f)
		m.adopt(call)
		out = append(out, c)
	}
	return out
}

// parseArguments reads a call's arguments: the API carries them as a string of
// JSON, some clients as the object itself.
func parseArguments(f *params, body string) string {
	n := f.get("arguments")
	switch {
	case n == nil:
		return ""
	case n.kind == kindString:
		return n.text
	case n.kind == kindObject:
		return body[n.pos:n.end]
	}
	f.fail(wrongType(f.name("arguments"), "a string", n))
	return ""
}

func parseTools(p *params, body string) []json.RawMessage {
	n := p.want("tools", kindArray)
	if n == nil || len(n.items) == 0 {
		return nil
	}
	var out []json.RawMessage
	for i := range n.items {
		t := &params{object: &n.items[i], path: fmt.Sprintf("tools[%d]", i)}
		if n.items[i].kind != kindObject {
			p.fail(wrongType(t.path, "an object", &n.items[i]))
			return nil
		}
		if kind := t.text("type", ""); kind != "function" {
			t.fail(refuse(t.name("type"), "unsupported_value", "Unsupported value for '%s': only \"function\" is supported.", t.name("type")))
		}
		function := t.want("function", kindObject)
		if function == nil || function.member("name") == nil || function.member("name").kind != kindString {
			t.fail(refuse(t.name("function.name"), "missing_required_parameter", "Missing required parameter: '%s'.", t.name("function.name")))
		}
		p.adopt(t)
		out = append(out, json.RawMessage(body[n.items[i].pos:n.items[i].end]))
	}
	if choice := p.get("tool_choice"); choice != nil && choice.text == "none" {
		return nil // the model must not call any, so it need not know them
	}
	return out
}

// parseReasoning reads what a request tells the template about reasoning. The
// more specific field wins: chat_template_kwargs over reasoning_effort over
// reasoning.effort.
func parseReasoning(p *params, body string, req *chatRequest) {
	effort := func(from *params, member string) {
		if n := from.want(member, kindString); n != nil {
			req.effort, req.effortFrom = n.text, from.name(member)
		}
	}
	if reasoning := p.want("reasoning", kindObject); reasoning != nil {
		r := &params{object: reasoning, path: "reasoning"}
		effort(r, "effort")
		p.adopt(r)
	}
	effort(p, "reasoning_effort")
	req.conversation.EnableThinking = p.optionalBoolean("enable_thinking")
	req.conversation.PreserveThinking = p.optionalBoolean("preserve_thinking")
	kwargs := p.want("chat_template_kwargs", kindObject)
	if kwargs == nil {
		return
	}
	// reasoning_effort is translated, the rest reaches the template as it is.
	k := &params{object: kwargs, path: "chat_template_kwargs"}
	effort(k, "reasoning_effort")
	p.adopt(k)
	rest := []byte{'{'}
	for i, name := range kwargs.names {
		if name == "reasoning_effort" {
			continue
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(rest, encode(name)...), ':')
		rest = append(rest, body[kwargs.items[i].pos:kwargs.items[i].end]...)
	}
	req.conversation.Kwargs = append(rest, '}')
}
