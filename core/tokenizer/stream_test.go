package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// pushAll streams single bytes, cut never mattering.
func pushAll(tok *Tokenizer, s string) string {
	st := tok.NewStream(false)
	var b strings.Builder
	for i := range len(s) {
		b.WriteString(st.Push(tok.byteIDs[s[i]]))
	}
	b.WriteString(st.Flush())
	return b.String()
}

func TestReplacements(t *testing.T) {
	const bad = "\uFFFD"
	tests := map[string]string{
		"\xED\xA0\x80":                      bad + bad + bad,
		"\xF0\x80\x80A":                     bad + bad + bad + "A",
		"\xE2\x80A":                         bad + "A",
		"\xE1\x80\xE2\xF0\x91\x92\xF1\xBFA": bad + bad + bad + bad + "A",
		"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82A": strings.Repeat(bad, 8) + "A",
		"\xF4\x91\x92\x93\xFFA\x80\xBFB":    strings.Repeat(bad, 5) + "A" + bad + bad + "B",
		"a\xE2\x82":                         "a" + bad,
		"\xF0\x9F\x99":                      bad,
		"\x80":                              bad,
		"🙂 中 é":                             "🙂 中 é",
		"\uFFFD":                            bad,
		"\xF4\x8F\xBF\xBF":                  "\U0010FFFF",
		"":                                  "",
	}
	tok := pebble(t)
	for in, want := range tests {
		if got := pushAll(tok, in); got != want {
			t.Errorf("% X: %q, want %q", in, got, want)
		}
	}
}

func TestStreamHoldsBackUnfinishedCharacters(t *testing.T) {
	tok := pebble(t)
	st := tok.NewStream(false)
	var got []string
	for _, b := range []byte("a🙂b") {
		got = append(got, st.Push(tok.byteIDs[b]))
	}
	if want := []string{"a", "", "", "", "🙂", "b"}; !cmp.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := st.Flush(); got != "" {
		t.Errorf("flush gives %q", got)
	}
}

func TestStreamControlTokens(t *testing.T) {
	tok := pebble(t)
	ids := tok.Encode(trusted("<think>\nhi</think><|im_end|>"))
	ids = append(ids, 4110, -5, 1<<20)
	for control, want := range map[bool]string{false: "<think>\nhi</think>", true: "<think>\nhi</think><|im_end|>"} {
		st := tok.NewStream(control)
		var b strings.Builder
		for _, id := range ids {
			b.WriteString(st.Push(id))
		}
		if got := b.String() + st.Flush(); got != want {
			t.Errorf("control %v: %q, want %q", control, got, want)
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte("a🙂\xED\xA0\x80"), uint64(1))
	f.Add([]byte("\xE1\x80\xE2\xF0\x91\x92\xF1\xBFA"), uint64(2))
	tok := pebble(f)
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		want := pushAll(tok, string(b))
		if !utf8.ValidString(want) {
			t.Fatalf("%q is not UTF-8", want)
		}
		if utf8.Valid(b) && want != string(b) {
			t.Fatalf("%q became %q", b, want)
		}
		// Tokens of several bytes cut the same bytes elsewhere.
		st := tok.NewStream(true)
		var got strings.Builder
		rng := rand.New(rand.NewPCG(seed, 0))
		for s := string(b); len(s) > 0; {
			n := 1 + rng.IntN(min(len(s), 6))
			for _, id := range tok.Encode(request(s[:n])) {
				text := st.Push(id)
				if !utf8.ValidString(text) {
					t.Fatalf("pushed %q", text)
				}
				got.WriteString(text)
			}
			s = s[n:]
		}
		if got.WriteString(st.Flush()); got.String() != want {
			t.Fatalf("% X: %q, byte by byte %q", b, got.String(), want)
		}
	})
}
