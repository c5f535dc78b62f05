package template

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// splitWhole runs a splitter over pieces.
func splitWhole(open bool, pieces ...string) (reasoning, content string) {
	r := NewReasoningSplitter(open)
	for _, p := range append(pieces, "") {
		a, b := r.Push(p)
		reasoning, content = reasoning+a, content+b
	}
	a, b := r.Flush()
	return reasoning + a, content + b
}

var splitTests = []struct {
	name               string
	open               bool
	in                 string
	reasoning, content string
}{
	{"closed", true, "Two cities.\n</think>\n\nLet me check.", "Two cities.", "Let me check."},
	{"never closed", true, "\nthinking about </thi", "thinking about </thi", ""},
	{"trailing space kept at the end", true, "a b \n", "a b \n", ""},
	{"empty reasoning", true, "\n</think>\n\nok\n", "", "ok\n"},
	{"tag repeated", true, "<think>\nwhy</think>ok", "why", "ok"},
	{"tags inside content", true, "a</think>b</think><think>c", "a", "b</think><think>c"},
	{"inner spaces", true, "a  \n  b</think>c  d ", "a  \n  b", "c  d "},
	{"almost a tag", true, "a</thin</think>b", "a</thin", "b"},
	{"no reasoning", false, "\n hello", "", "\n hello"},
	{"opened by the model", false, "\n<think>why\n</think>\nhello", "why", "hello"},
	{"open tag later is content", false, "x <think>y</think>", "", "x <think>y</think>"},
	{"partial open tag", false, "<thin", "", "<thin"},
	{"not quite open tag", false, "<thinner>", "", "<thinner>"},
	{"only spaces", false, " \n", "", " \n"},
	{"unicode", true, "中文\u3000</think>é", "中文\u3000", "é"},
}

func TestReasoningSplitterAtEveryCut(t *testing.T) {
	for _, tt := range splitTests {
		t.Run(tt.name, func(t *testing.T) {
			check := func(pieces ...string) {
				t.Helper()
				if r, c := splitWhole(tt.open, pieces...); r != tt.reasoning || c != tt.content {
					t.Errorf("%q: reasoning %q, content %q; want %q, %q", pieces, r, c, tt.reasoning, tt.content)
				}
			}
			check(tt.in)
			for i := range tt.in {
				for j := i; j < len(tt.in); j++ {
					check(tt.in[:i], tt.in[i:j], tt.in[j:])
				}
			}
			check(strings.Split(tt.in, "")...)
		})
	}
}

// Text that cannot become a tag is not held back.
func TestReasoningSplitterIsPrompt(t *testing.T) {
	r := NewReasoningSplitter(true)
	for _, step := range []struct{ push, reasoning, content string }{
		{"a", "a", ""}, {" b<", " b", ""}, {"c", "<c", ""}, {"</think>", "", ""}, {"\n", "", ""}, {"x\n", "", "x\n"}, {"</think>", "", "</think>"},
	} {
		if a, b := r.Push(step.push); a != step.reasoning || b != step.content {
			t.Errorf("%q: %q, %q", step.push, a, b)
		}
	}
	if r.InReasoning() {
		t.Error("still in reasoning")
	}
}

func FuzzReasoningSplitter(f *testing.F) {
	for _, tt := range splitTests {
		f.Add(tt.open, tt.in, uint64(3))
	}
	f.Fuzz(func(t *testing.T, open bool, in string, seed uint64) {
		wantR, wantC := splitWhole(open, in)
		rng := rand.New(rand.NewPCG(seed, 1))
		var pieces []string
		for s := in; s != ""; {
			n := 1 + rng.IntN(min(len(s), 5))
			pieces = append(pieces, s[:n])
			s = s[n:]
		}
		if r, c := splitWhole(open, pieces...); r != wantR || c != wantC {
			t.Fatalf("%q: reasoning %q, content %q; in one piece %q, %q", pieces, r, c, wantR, wantC)
		}
	})
}
