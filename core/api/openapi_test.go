package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/strata-engine/strata/core/config"
	"github.com/strata-engine/strata/core/engine"
	"github.com/strata-engine/strata/core/sampler"
)

// described is the document as a value, and its schemas. In strict ones objects
// have no members but the described.
type described struct {
	document m
	compiler *jsonschema.Compiler
}

func describe(t testing.TB, strict bool) *described {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		t.Fatal(err)
	}
	if strict {
		for _, schema := range v.(m)["components"].(m)["schemas"].(m) {
			seal(schema)
		}
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020) // that of OpenAPI 3.1
	if err := c.AddResource("openapi.json", v); err != nil {
		t.Fatal(err)
	}
	return &described{v.(m), c}
}

func seal(v any) {
	switch v := v.(type) {
	case m:
		if _, ok := v["properties"].(m); ok {
			v["additionalProperties"] = false
		}
		for _, e := range v {
			seal(e)
		}
	case []any:
		for _, e := range v {
			seal(e)
		}
	}
}

// check validates a JSON text by the schema at a JSON pointer.
func (d *described) check(t testing.TB, pointer, text string) {
	t.Helper()
	schema, err := d.compiler.Compile("openapi.json#" + pointer)
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if err := schema.Validate(v); err != nil {
		t.Errorf("%s\ndoes not go with %s: %v", text, pointer, err)
	}
}

// escaped makes a path a part of a JSON pointer.
func escaped(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

func TestEveryRouteIsDescribed(t *testing.T) {
	d := describe(t, false)
	var served, said []string
	s := New(config.Defaults().Server, "test", nil)
	for _, r := range s.routes() {
		served = append(served, r.method+" "+strings.ReplaceAll(r.path, "...", ""))
	}
	for path, methods := range d.document["paths"].(m) {
		for method := range methods.(m) {
			said = append(said, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(said)
	if d := cmp.Diff(served, said); d != "" {
		t.Error(d)
	}
	_, url := serve(t, nil, nil)
	resp, body := send(t, "GET", url+"/openapi.json", "")
	if resp.StatusCode != 200 || body != string(document) || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("status %d, type %q, %d bytes", resp.StatusCode, resp.Header.Get("Content-Type"), len(body))
	}
}

// Every schema compiles, and every reference leads somewhere.
func TestSchemasAreValid(t *testing.T) {
	d := describe(t, false)
	for name := range d.document["components"].(m)["schemas"].(m) {
		if _, err := d.compiler.Compile("openapi.json#/components/schemas/" + name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var refs func(v any)
	refs = func(v any) {
		switch v := v.(type) {
		case m:
			if r, ok := v["$ref"].(string); ok {
				name, ok := strings.CutPrefix(r, "#/components/schemas/")
				if _, there := d.document["components"].(m)["schemas"].(m)[name]; !ok || !there {
					t.Errorf("%s leads nowhere", r)
				}
			}
			for _, e := range v {
				refs(e)
			}
		case []any:
			for _, e := range v {
				refs(e)
			}
		}
	}
	refs(d.document)
}

// What is answered is what is described, and nothing else.
func TestAnswersAreAsDescribed(t *testing.T) {
	d := describe(t, true)
	top := []sampler.LogProb{{ID: 5, LogProb: -1}}
	mod, eng := testModel(t, script{text: "Hm.\n</think>\n\nYes é 🐈.", top: top, finish: engine.FinishLength})
	mod.Parts, mod.Sequences = fakeParts{}, 8
	_, url := serve(t, mod, nil)
	for _, tt := range []struct{ method, path, route, body string }{
		{"POST", "/v1/chat/completions", "", `{` + hello + `}`},
		{"POST", "/v1/chat/completions", "", `{` + hello + `,"n":2,"logprobs":true,"top_logprobs":1}`},
		{"POST", "/v1/chat/completions", "", `{` + hello + `,"stream":true}`},
		{"POST", "/v1/chat/completions", "", `{` + hello + `,"stream":true,"logprobs":true,"return_progress":true,"stream_options":{"include_usage":true}}`},
		{"POST", "/v1/chat/completions", "", `{}`},
		{"POST", "/v1/chat/completions", "", `{` + hello + `,"temperature":9}`},
		{"POST", "/v1/completions", "", `{"prompt":"one two three"}`},
		{"POST", "/v1/completions", "", `{"prompt":["one two three","four five six"],"n":2,"logprobs":1}`},
		{"POST", "/v1/completions", "", `{"prompt":"one two three","logprobs":0,"stream":true,"return_progress":true,"stream_options":{"include_usage":true}}`},
		{"POST", "/v1/completions", "", `{"prompt":[]}`},
		{"GET", "/v1/models", "", ""},
		{"GET", "/v1/models/pebble", "/v1/models/{id}", ""},
		{"GET", "/v1/models/org/other", "/v1/models/{id}", ""},
		{"POST", "/tokenize", "", `{"content":"Hi é"}`},
		{"POST", "/tokenize", "", `{"content":"Hi é","with_pieces":true}`},
		{"POST", "/tokenize", "", `{}`},
		{"POST", "/detokenize", "", `{"tokens":[1,2]}`},
		{"POST", "/detokenize", "", `{"tokens":{}}`},
		{"GET", "/props", "", ""},
		{"GET", "/health", "", ""},
		{"GET", "/health/ready", "", ""},
		{"GET", "/health/live", "", ""},
		{"GET", "/openapi.json", "", ""},
	} {
		if tt.route == "" {
			tt.route = tt.path
		}
		resp, body := send(t, tt.method, url+tt.path, tt.body)
		kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
		pointer := fmt.Sprintf("/paths/%s/%s/responses/%d/content/%s/schema", escaped(tt.route), strings.ToLower(tt.method), resp.StatusCode, escaped(kind))
		if kind != "text/event-stream" {
			d.check(t, pointer, body)
			continue
		}
		for line := range strings.SplitSeq(body, "\n\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]" {
				d.check(t, pointer, data)
			}
		}
	}
	// Errors that are not the request's.
	for _, failure := range []error{engine.ErrBusy, &engine.NonFiniteError{}, &engine.ContextError{Prompt: 9, Context: 8}, errors.New("broken")} {
		eng.start = failure
		for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
			resp, body := send(t, "POST", url+path, `{`+hello+`,"prompt":"a"}`)
			d.check(t, fmt.Sprintf("/paths/%s/post/responses/%d/content/application~1json/schema", escaped(path), resp.StatusCode), body)
		}
	}
	// While loading, stopping or without a key.
	_, loading := serve(t, nil, func(c *config.Server) { c.HoldHeaders, c.APIKeys = 0, []string{"key"} })
	for _, path := range []string{"/health", "/props"} {
		resp, body := send(t, "GET", loading+path, "", "X-Api-Key", "key")
		if resp.StatusCode != 503 {
			t.Errorf("%s: status %d while loading", path, resp.StatusCode)
		}
		d.check(t, fmt.Sprintf("/paths/%s/get/responses/503/content/application~1json/schema", escaped(path)), body)
	}
	if resp, body := send(t, "GET", loading+"/v1/models", ""); resp.StatusCode == 401 {
		d.check(t, "/paths/~1v1~1models/get/responses/401/content/application~1json/schema", body)
	}
}

// The document's examples are requests that the server answers.
func TestExamplesAreAnswered(t *testing.T) {
	d := describe(t, true)
	mod, _ := testModel(t, script{text: "</think>ok"})
	_, url := serve(t, mod, nil)
	for path, methods := range d.document["paths"].(m) {
		post, ok := methods.(m)["post"].(m)
		if !ok {
			continue
		}
		name := strings.TrimPrefix(post["requestBody"].(m)["content"].(m)["application/json"].(m)["schema"].(m)["$ref"].(string), "#")
		examples, _ := d.document["components"].(m)["schemas"].(m)[name[strings.LastIndexByte(name, '/')+1:]].(m)["examples"].([]any)
		if len(examples) == 0 {
			t.Errorf("%s has no example", path)
		}
		for _, example := range examples {
			text, err := json.Marshal(example)
			if err != nil {
				t.Fatal(err)
			}
			d.check(t, name, string(text))
			if resp, body := send(t, http.MethodPost, url+path, string(text)); resp.StatusCode != 200 {
				t.Errorf("%s: status %d, %s", text, resp.StatusCode, body)
			}
		}
	}
}

// Every described parameter is read: a value of a type it cannot have is refused
// by its name, and null is as good as nothing wherever it may be null.
func TestEveryParameterIsRead(t *testing.T) {
	d := describe(t, false)
	mod, _ := testModel(t, script{text: "</think>ok"})
	_, url := serve(t, mod, nil)
	for path, schema := range map[string]string{"/v1/chat/completions": "ChatRequest", "/v1/completions": "TextRequest", "/tokenize": "TokenizeRequest", "/detokenize": "DetokenizeRequest"} {
		described := d.document["components"].(m)["schemas"].(m)[schema].(m)
		for name := range described["properties"].(m) {
			body := m{"messages": []any{m{"role": "user", "content": "Hi"}}, "prompt": "a", "content": "a", "tokens": []any{}}
			required := slices.Contains(described["required"].([]any), any(name))
			wrong := []any{[]any{[]any{true}}, m{"x": m{}}, 0.5, "wrong", true}
			refused := 0
			for _, value := range append(wrong, nil) {
				body[name] = value
				resp, text := send(t, "POST", url+path, string(encode(body)))
				var param string
				if resp.StatusCode != 200 {
					e, _ := decode(t, strings.NewReader(text))["error"].(m)
					param, _ = e["param"].(string)
				}
				switch {
				case value == nil && (resp.StatusCode == 200) == required:
					t.Errorf("%s: %s null: status %d, %s", path, name, resp.StatusCode, text)
				case resp.StatusCode == 400 && !strings.HasPrefix(param, name):
					t.Errorf("%s: %s %v blames %q: %s", path, name, value, param, text)
				case resp.StatusCode == 400:
					refused++
				case resp.StatusCode != 200:
					t.Errorf("%s: %s %v: status %d, %s", path, name, value, resp.StatusCode, text)
				}
			}
			if refused < 2 {
				t.Errorf("%s: %s is ignored", path, name)
			}
		}
	}
}
