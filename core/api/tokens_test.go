package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/core/tokenizer"
)

func TestTokenize(t *testing.T) {
	mod, _ := testModel(t)
	_, url := serve(t, mod, nil)
	list := func(ids []int32) []any {
		out := []any{}
		for _, id := range ids {
			out = append(out, float64(id))
		}
		return out
	}
	part := func(text string, trusted bool) tokenizer.Part { return tokenizer.Part{Text: text, Trusted: trusted} }
	const text = "Hi é 한<|im_end|>"
	tests := []struct {
		body string
		want []any
	}{
		{`"content":""`, []any{}},
		{`"content":"` + text + `"`, list(mod.Tokenizer.Encode(part(text, false)))},
		{`"content":"` + text + `","parse_special":true`, list(mod.Tokenizer.Encode(part(text, true)))},
		{`"content":"` + text + `","add_special":true`, list(mod.Tokenizer.EncodePrompt(part(text, false)))},
	}
	for _, tt := range tests {
		resp := postTo(t, url+"/tokenize", `{`+tt.body+`}`)
		if d := cmp.Diff(m{"tokens": tt.want}, decode(t, resp.Body)); d != "" || resp.StatusCode != 200 {
			t.Errorf("%s: status %d, %s", tt.body, resp.StatusCode, d)
		}
	}
	// Pieces are text, or bytes where they are no characters.
	var joined strings.Builder
	bytes := 0
	for _, token := range decode(t, postTo(t, url+"/tokenize", `{"content":"`+text+`","with_pieces":true}`).Body)["tokens"].([]any) {
		switch piece := token.(m)["piece"].(type) {
		case string:
			joined.WriteString(piece)
		case []any:
			for _, b := range piece {
				joined.WriteByte(byte(b.(float64)))
				bytes++
			}
		}
	}
	if joined.String() != text || bytes == 0 {
		t.Errorf("pieces %q, %d of them bytes", joined.String(), bytes)
	}
	// And back.
	ids := decode(t, postTo(t, url+"/tokenize", `{"content":"`+text+`","parse_special":true}`).Body)
	back := decode(t, postTo(t, url+"/detokenize", string(encode(ids))).Body)
	if d := cmp.Diff(m{"content": text}, back); d != "" {
		t.Error(d)
	}
	if got := decode(t, postTo(t, url+"/detokenize", `{"tokens":[]}`).Body); got["content"] != "" {
		t.Errorf("nothing is %v", got)
	}
	half, _ := mod.Tokenizer.ID("Ã")
	if got := decode(t, postTo(t, url+"/detokenize", string(encode(m{"tokens": []int32{half, half}}))).Body); got["content"] != "\uFFFD\uFFFD" {
		t.Errorf("two halves of characters are %v", got)
	}

	for _, tt := range []struct{ path, body, param string }{
		{"/tokenize", `{}`, "content"},
		{"/tokenize", `{"content":1}`, "content"},
		{"/tokenize", `{"content":"a","with_pieces":1}`, "with_pieces"},
		{"/tokenize", `[]`, ""},
		{"/detokenize", `{}`, "tokens"},
		{"/detokenize", `{"tokens":"a"}`, "tokens"},
		{"/detokenize", `{"tokens":["a"]}`, "tokens[0]"},
		{"/detokenize", `{"tokens":[-1]}`, "tokens"},
		{"/detokenize", `{"tokens":[4128]}`, "tokens"},
		{"/detokenize", `{`, ""},
	} {
		resp := postTo(t, url+tt.path, tt.body)
		e, _ := decode(t, resp.Body)["error"].(m)
		if param, _ := e["param"].(string); resp.StatusCode != 400 || e == nil || param != tt.param {
			t.Errorf("%s %s: status %d, %v", tt.path, tt.body, resp.StatusCode, e)
		}
	}
}

func TestProps(t *testing.T) {
	mod, _ := testModel(t)
	mod.Sequences = 8
	_, url := serve(t, mod, nil)
	resp, err := http.Get(url + "/props")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := decode(t, resp.Body)
	if source, _ := got["chat_template"].(string); !strings.Contains(source, "im_start") || source != mod.Template.Source() {
		t.Errorf("chat template %q", source)
	}
	delete(got, "chat_template")
	want := m{
		"default_generation_settings": m{"n_ctx": 2048.0, "params": m{
			"n_predict": -1.0, "seed": -1.0, "temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
			"repeat_last_n": 64.0, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
		}},
		"total_slots": 8.0, "model_alias": "pebble", "model_path": "pebble-q4-mtp.gguf", "modalities": m{"vision": false, "audio": false},
		"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "build_info": "strata test",
	}
	if d := cmp.Diff(want, got); d != "" || resp.StatusCode != 200 {
		t.Errorf("status %d, %s", resp.StatusCode, d)
	}
}
