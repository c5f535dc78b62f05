package api

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// cuts cuts a text at every rune boundary, at none, and at one place.
func cuts(text string) [][]string {
	var runes []string
	for _, r := range text {
		runes = append(runes, string(r))
	}
	out := [][]string{{text}, runes}
	for i := range text {
		out = append(out, []string{text[:i], text[i:]})
	}
	return out
}

func TestStops(t *testing.T) {
	tests := []struct {
		name  string
		stops []string
		text  string
		want  string
		hit   bool
	}{
		{"none", nil, "abc", "abc", false},
		{"inside", []string{"DEF"}, "ABCDEFG", "ABC", true},
		{"at the start", []string{"A"}, "ABC", "", true},
		{"not completed", []string{"DEFX"}, "ABCDEF", "ABCDEF", false},
		{"across words", []string{"own fox"}, "the brown fox", "the br", true},
		{"first complete wins", []string{"abc", "b"}, "xabc", "xa", true},
		{"longest at the same end", []string{"c", "bc"}, "abc", "a", true},
		{"second of two", []string{"zz", "lo w"}, "hello world", "hel", true},
		{"self-overlapping", []string{"aab"}, "aaab", "a", true},
		{"held then released", []string{"ab!"}, "ab?ab", "ab?ab", false},
		{"unicode", []string{"本"}, "日本語", "日", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, pieces := range cuts(tt.text) {
				s := &stops{strings: tt.stops}
				var got string
				var hit bool
				for _, piece := range pieces {
					var certain string
					certain, hit = s.push(piece)
					got += certain
				}
				if !hit {
					got += s.flush()
				}
				if got != tt.want || hit != tt.hit {
					t.Fatalf("pieces %q: %q, hit %v, want %q, %v", pieces, got, hit, tt.want, tt.hit)
				}
			}
		})
	}
}

// The slow and plain rule: look at ever longer beginnings of the text; the first
// that ends with a stop string is cut before the longest such.
func TestStopsAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.StringOfN(rapid.RuneFrom([]rune("abé")), 0, 12, -1)
		text := letters.Draw(t, "text")
		list := rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune("abé")), 1, 4, -1), 0, 3).Draw(t, "stops")
		want, wantHit := text, false
	search:
		for n := range len(text) + 1 {
			for from := range n {
				for _, stop := range list {
					if text[from:n] == stop {
						want, wantHit = text[:from], true
						break search
					}
				}
			}
		}
		s := &stops{strings: list}
		got, hit := "", false
		for rest := text; rest != "" && !hit; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			for n < len(rest) && !utf8.RuneStart(rest[n]) {
				n++
			}
			var certain string
			certain, hit = s.push(rest[:n])
			got, rest = got+certain, rest[n:]
			if !strings.HasPrefix(want, got) {
				t.Fatalf("sent %q of %q too early, stops %q", got, text, list)
			}
		}
		if !hit {
			got += s.flush()
		}
		if got != want || hit != wantHit {
			t.Fatalf("text %q, stops %q: %q, %v, want %q, %v", text, list, got, hit, want, wantHit)
		}
	})
}
