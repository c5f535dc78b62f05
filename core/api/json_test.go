package api

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// plainValue is what encoding/json would make of a node.
func plainValue(n *node) any {
	switch n.kind {
	case kindNull:
		return nil
	case kindBool:
		return n.text == "true"
	case kindNumber:
		return json.Number(n.text)
	case kindString:
		return n.text
	case kindArray:
		out := []any{}
		for i := range n.items {
			out = append(out, plainValue(&n.items[i]))
		}
		return out
	}
	out := map[string]any{}
	for i := range n.items {
		out[n.names[i]] = plainValue(&n.items[i])
	}
	return out
}

func TestParseJSONErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", "", "unexpected end of input where a value should be at line 1, column 1"},
		{"word", `{"a": tru}`, "unexpected 't' where a value should be at line 1, column 7"},
		{"trailing comma", "{\n  \"a\": 1,\n}", "unexpected '}' where a member's name should be at line 3, column 1"},
		{"comma in array", "[1 2]", "unexpected '2' where a comma or a closing bracket should be at line 1, column 4"},
		{"comma in object", `{"a":1 "b":2}`, `unexpected '"' where a comma or a closing brace should be at line 1, column 8`},
		{"colon", `{"a" 1}`, "unexpected '1' where a colon should be at line 1, column 6"},
		{"duplicate", `{"a":1,"b":2,"a":3}`, `the member "a" occurs twice at line 1, column 14`},
		{"duplicate by escape", `{"a":1,"\u0061":3}`, `the member "a" occurs twice at line 1, column 8`},
		{"duplicate inside", `[{"x":{"a":1,"a":3}}]`, `the member "a" occurs twice at line 1, column 14`},
		{"duplicate among many", `{"0":0,"1":0,"2":0,"3":0,"4":0,"5":0,"6":0,"7":0,"8":0,"9":0,"10":0,"11":0,"12":0,"13":0,"14":0,"15":0,"16":0,"17":0,"3":1}`, `the member "3" occurs twice at line 1, column 118`},
		{"open string", `{"a":"b`, "unexpected end of input in a string at line 1, column 8"},
		{"open escape", `"\`, "unexpected end of input in a string at line 1, column 3"},
		{"escape", `"\x"`, "unknown escape in a string at line 1, column 2"},
		{"short escape", `"\u12"`, `a \u escape needs four hexadecimal digits at line 1, column 2`},
		{"newline in string", "\"a\nb\"", `unescaped control character '\n' in a string at line 1, column 3`},
		{"ill-formed", "\"a\xffb\"", "ill-formed UTF-8 (byte 0xff) at line 1, column 3"},
		{"number", "[01]", "unexpected '1' where a comma or a closing bracket should be at line 1, column 3"},
		{"minus", "-", "unexpected end of input in a number at line 1, column 2"},
		{"fraction", "1.", "unexpected end of input in a number at line 1, column 3"},
		{"exponent", "1e+", "unexpected end of input in a number at line 1, column 4"},
		{"two values", "1 2", "unexpected '2' after the end of the value at line 1, column 3"},
		{"deep", strings.Repeat("[", 600), "more than 512 levels of nesting at line 1, column 513"},
		{"NaN", "NaN", "unexpected 'N' where a value should be at line 1, column 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseJSON(tt.text)
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestParseJSONKeepsOrderAndPlaces(t *testing.T) {
	text := ` {"z": [1, "\ud83d\ude00é\ud800"], "a": {"y": null, "b": -1.5e3}} `
	n, err := parseJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"z", "a"}, n.names); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"y", "b"}, n.member("a").names); d != "" {
		t.Error(d)
	}
	if s := n.member("z").items[1]; s.text != "😀é\uFFFD" || text[s.pos:s.end] != `"\ud83d\ude00é\ud800"` {
		t.Errorf("string %q at %q", s.text, text[s.pos:s.end])
	}
	if b := n.member("a").member("b"); text[b.pos:b.end] != "-1.5e3" || b.text != "-1.5e3" {
		t.Errorf("number %q at %q", b.text, text[b.pos:b.end])
	}
	if n.member("none") != nil {
		t.Error("a member that is not there was found")
	}
}

// FuzzParseJSON compares with encoding/json: the same texts are accepted, but
// for repeated members and ill-formed UTF-8, and mean the same.
func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e-3,true,null,"x\n\u00e9\ud83d\ude00"]}`, `[[],{}]`, `"\ud800\u0041"`, "1 ", `{"a":1,"a":2}`, "\xff", `""`, `"\u0000"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseJSON(text)
		valid := json.Valid([]byte(text)) && utf8.ValidString(text)
		if err != nil {
			if valid && !strings.Contains(err.Error(), "occurs twice") && !strings.Contains(err.Error(), "nesting") {
				t.Errorf("refused %q: %v", text, err)
			}
			return
		}
		if !valid {
			t.Fatalf("accepted %q", text)
		}
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		var want any
		if err := dec.Decode(&want); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, plainValue(n)); d != "" {
			t.Errorf("%s: %s", strconv.Quote(text), d)
		}
	})
}
