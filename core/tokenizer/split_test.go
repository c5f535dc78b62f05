package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// publishedPatterns are the regular expressions of the model families, as their
// tokenizer files have them.
var publishedPatterns = map[string]*pattern{
	"gpt-2":     parsePattern(`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`),
	"llama-bpe": parsePattern(`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`),
	"qwen2":     parsePattern(`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`),
	"qwen35":    parsePattern(`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`),
	"gpt-4o": parsePattern(`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`),
}

// pieces cuts s with the splitter under test.
func pieces(split splitter, s string) []string {
	var out []string
	x := text{s: s, t: planes()}
	for i := 0; i < len(s); {
		end := split(x, i)
		out = append(out, s[i:end])
		i = end
	}
	return out
}

// samples are characters of every class that a pattern tells apart.
var samples = []string{
	"a", "b", "s", "t", "r", "e", "v", "m", "l", "d", "S", "T", "L", "E", "Z", "é", "ß", "Ω", "ǅ", "ʰ", "中", "ª", "न",
	"\u0301", "\u094d", "\u20dd", "1", "9", "٣", "½", "Ⅷ", "'", "'", "’", "\u017f", "\u212a", ".", "!", "/", "/", "-", "_", "<", "|",
	" ", " ", "  ", "\t", "\n", "\n", "\r", "\r\n", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "🙂", "\U0001f1e9", "𝒳", "\U00010330", "\xff", "\xc3", "\xe2\x80", "\x00",
}

func TestSplittersAgreeWithPublishedPatterns(t *testing.T) {
	fixed := []string{
		"", " ", "Hello world", "don't I'LL we'Ve 'S '", "a\n\n \n b", "  \n  \n  x", "x   ", "12345 6", "foo/bar//\n/", "\u0301A", " \u0301ab", "ǅʰaB'sC",
		"HTTPServerError's", "ABCªDEFg", "ªABC", "'\u017f", "’s", " 's", "!'s", "\r\n \r", "a\r\n", " \r\n.", "🙂🙂\n\n/x",
	}
	for name, want := range publishedPatterns {
		t.Run(name, func(t *testing.T) {
			split := preTokenizers[name].split
			for _, s := range fixed {
				if diff := cmp.Diff(want.split(s), pieces(split, s)); diff != "" {
					t.Errorf("%q (-pattern +splitter):\n%s", s, diff)
				}
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for range 5000 {
				var b strings.Builder
				for n := rng.IntN(14); n >= 0; n-- {
					b.WriteString(samples[rng.IntN(len(samples))])
				}
				s := b.String()
				if diff := cmp.Diff(want.split(s), pieces(split, s)); diff != "" {
					t.Fatalf("%q (-pattern +splitter):\n%s", s, diff)
				}
			}
		})
	}
}

func FuzzSplitters(f *testing.F) {
	for _, s := range []string{"Hello, world's", "\xe2\x80\x99s \n\n x", "ªABCd'LL 1234"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 300 {
			return // the reference recurses for every character
		}
		for name, want := range publishedPatterns {
			if diff := cmp.Diff(want.split(s), pieces(preTokenizers[name].split, s)); diff != "" {
				t.Errorf("%s, %q (-pattern +splitter):\n%s", name, s, diff)
			}
		}
	})
}

// No splitter may look at the rest of the text again for every piece.
func TestSplittersAreLinear(t *testing.T) {
	const n = 1 << 20
	for name := range publishedPatterns {
		for _, unit := range []string{"a", "A", "ªA", "Aª", " ", "\n", " \n", "1", ".", "'", "\u0301", "中", "\u0301A", "\xff", "/"} {
			s := strings.Repeat(unit, n/len(unit)) + "x"
			start := time.Now()
			end := 0
			x := text{s: s, t: planes()}
			for end < len(s) {
				end = preTokenizers[name].split(x, end)
			}
			if d := time.Since(start); d > 2*time.Second {
				t.Errorf("%s needs %v for 1 MB of %q", name, d, unit)
			}
		}
	}
}
