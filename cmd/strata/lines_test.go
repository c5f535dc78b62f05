package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMessages(t *testing.T) {
	tests := []struct {
		name, input string
		want        []string
		err         error
	}{
		{"lines", "one\n\ntwo", []string{"one", "", "two"}, io.EOF},
		{"backslash", "one\\\ntwo\\\nthree\nfour\n", []string{"one\ntwo\nthree", "four"}, io.EOF},
		{"quotes", "\"\"\"one\n\n  two\\\n\"\"\"\nthree\n", []string{"one\n\n  two\\", "three"}, io.EOF},
		{"quotes with text", "\"\"\"\none\ntwo\"\"\"\n", []string{"one\ntwo"}, io.EOF},
		{"quotes in a line", "  \"\"\"one\"\"\"\n", []string{"one"}, io.EOF},
		{"nothing in quotes", "\"\"\"\"\"\"\n", []string{""}, io.EOF},
		{"quotes later", "one \"\"\"\ntwo\n", []string{"one \"\"\"", "two"}, io.EOF},
		{"open quotes", "\"\"\"one\n", nil, io.ErrUnexpectedEOF},
		{"open backslash", "one\\\n", nil, io.ErrUnexpectedEOF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			input := newLines(strings.NewReader(tt.input), nil, nil)
			defer input.close()
			var got []string
			for {
				text, err := input.message("> ")
				if err != nil {
					if !errors.Is(err, tt.err) {
						t.Errorf("error %v, want %v", err, tt.err)
					}
					break
				}
				got = append(got, text)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestHistory(t *testing.T) {
	var h history
	for _, s := range []string{"a", "", "b", "b", "  ", "c"} {
		h.Add(s)
	}
	if h.Len() != 3 || h.At(0) != "c" || h.At(2) != "a" {
		t.Errorf("history %q", h.lines)
	}
	for range maxHistory {
		h.Add("x")
		h.Add("y")
	}
	if h.Len() != maxHistory || h.At(0) != "y" {
		t.Errorf("%d lines, the newest is %q", h.Len(), h.At(0))
	}
}

// What a model makes up commands no terminal.
func TestPrinter(t *testing.T) {
	const text = "a\tb\x1b[31mc\x07\r\u009bd\u0085é\x7f\n"
	for safe, want := range map[bool]string{false: text, true: "a\tb[31mcdé\n"} {
		var out strings.Builder
		w := &printer{out: &out, safe: safe}
		w.write(text)
		w.endLine() // there is none to end
		if out.String() != want {
			t.Errorf("safe %v: %q, want %q", safe, out.String(), want)
		}
		w.write("open")
		w.endLine()
		w.endLine()
		if out.String() != want+"open\n" {
			t.Errorf("safe %v: %q", safe, out.String())
		}
	}
}
