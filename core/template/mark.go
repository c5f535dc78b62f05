package template

import (
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/strata-engine/strata/core/tokenizer"
)

// guard knows what request text must not be able to complete.
type guard struct {
	// critical has at least one character of every control token.
	critical []rune
	// middles are texts without critical characters that become a control token
	// between pieces that the template writes.
	middles []string
	// known are strings that the template compares with or looks up. A request
	// string that is one of them as a whole and no middle needs no mark.
	known map[string]bool
	// marked are the characters that may be replaced: critical and the first of
	// each middle.
	marked []rune
	chars  string // marked as a string
}

// newGuard chooses the critical characters for a vocabulary and finds the middles
// that a template with these literals and names leaves open.
func newGuard(controls, literals []string, names map[string]bool) guard {
	g := guard{known: maps.Clone(names)}
	for _, l := range literals {
		g.known[l] = true
	}
	byRank := slices.Clone(controls)
	slices.SortStableFunc(byRank, func(a, b string) int { return minRank(a) - minRank(b) })
	for _, token := range byRank {
		if token != "" && !strings.ContainsFunc(token, g.isCritical) {
			g.critical = append(g.critical, rarest(token))
		}
	}
	g.findMiddles(controls, literals)
	g.marked = slices.Clone(g.critical)
	for _, m := range g.middles {
		if r, _ := utf8.DecodeRuneInString(m); !slices.Contains(g.marked, r) {
			g.marked = append(g.marked, r)
		}
	}
	g.chars = string(g.marked)
	return g
}

func (g *guard) isCritical(r rune) bool { return slices.Contains(g.critical, r) }

// rank orders characters by how often text has them, rarest first.
func rank(r rune) int {
	switch {
	case unicode.IsSpace(r):
		return 9
	case r >= utf8.RuneSelf && !unicode.IsLetter(r):
		return 0
	case r == '|':
		return 1
	case strings.ContainsRune("[]", r):
		return 2
	case strings.ContainsRune("<>", r):
		return 3
	case unicode.IsLetter(r):
		return 8
	case unicode.IsDigit(r):
		return 7
	}
	return 5
}

func rarest(token string) rune {
	best := rune(-1)
	for _, r := range token {
		if best < 0 || rank(r) < rank(best) {
			best = r
		}
	}
	return best
}

func minRank(token string) int { return rank(rarest(token)) }

// findMiddles looks at every way to cut a control token in three such that the
// template's literals can end with the first piece and begin with the last.
func (g *guard) findMiddles(controls, literals []string) {
	const longest = 64
	ends, begins := map[string]bool{"": true}, map[string]bool{"": true}
	for _, l := range literals {
		for n := 1; n <= min(len(l), longest); n++ {
			begins[l[:n]] = true
			ends[l[len(l)-n:]] = true
		}
	}
	found := map[string]bool{}
	for _, token := range controls {
		for i := range len(token) {
			if !ends[token[:i]] {
				continue
			}
			for j := i + 1; j <= len(token); j++ {
				m := token[i:j]
				if begins[token[j:]] && utf8.ValidString(m) && !strings.ContainsFunc(m, g.isCritical) && !found[m] {
					found[m] = true
					g.middles = append(g.middles, m)
				}
			}
		}
	}
}

// suspicious reports whether a request string needs marks.
func (g *guard) suspicious(s string) bool {
	if strings.ContainsAny(s, string(g.critical)) {
		return true
	}
	if g.known[s] {
		return slices.Contains(g.middles, s)
	}
	return slices.ContainsFunc(g.middles, func(m string) bool { return strings.Contains(s, m) })
}

// markers are the blocks of private-use characters that marks are taken from, by
// the first byte of their UTF-8.
var markers = []struct {
	base rune
	lead byte
}{{0xE000, 0xEE}, {0xF0000, 0xF3}, {0x100000, 0xF4}}

// maxMarked bounds the characters that may be replaced: all of a block share the
// first byte.
const maxMarked = 0x1000

// marker replaces characters of request strings by private-use ones.
type marker struct {
	*guard
	base rune
	lead byte
}

// newMarker finds private-use characters that occur in none of the texts; not ok
// where there are none.
func (g *guard) newMarker(texts []string) (marker, bool) {
	if len(g.marked) > maxMarked {
		return marker{}, false
	}
	for _, m := range markers {
		if !slices.ContainsFunc(texts, func(s string) bool { return strings.IndexByte(s, m.lead) >= 0 }) {
			return marker{g, m.base, m.lead}, true
		}
	}
	return marker{}, false
}

// mark replaces the critical characters of one request string and the first one
// of every middle in it.
func (m marker) mark(s string) string {
	if !m.suspicious(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + len(s)/4)
	start := 0
	for {
		n := strings.IndexAny(s[start:], m.chars)
		if n < 0 {
			b.WriteString(s[start:])
			return b.String()
		}
		b.WriteString(s[start : start+n])
		start += n
		r, size := utf8.DecodeRuneInString(s[start:])
		if m.isCritical(r) || slices.ContainsFunc(m.middles, func(t string) bool { return strings.HasPrefix(s[start:], t) }) {
			b.WriteRune(m.base + rune(slices.Index(m.marked, r)))
		} else {
			b.WriteString(s[start : start+size])
		}
		start += size
	}
}

// parts changes marked output back: every mark becomes the character it stands
// for, untrusted; the rest is trusted.
func (m marker) parts(output string) []tokenizer.Part {
	chars := make([]string, len(m.marked))
	for k, r := range m.marked {
		chars[k] = string(r)
	}
	return split(output, func(i int) (at, size int, text string) {
		for at = i; ; at += size {
			n := strings.IndexByte(output[at:], m.lead)
			if n < 0 {
				return len(output), 0, ""
			}
			at += n
			r, size := utf8.DecodeRuneInString(output[at:])
			if k := r - m.base; k >= 0 && int(k) < len(m.marked) {
				return at, size, chars[k]
			}
		}
	})
}

// distrust cuts output such that none of the given characters is trusted.
func distrust(output string, chars []rune) []tokenizer.Part {
	return split(output, func(i int) (at, size int, text string) {
		n := strings.IndexAny(output[i:], string(chars))
		if n < 0 {
			return len(output), 0, ""
		}
		_, size = utf8.DecodeRuneInString(output[i+n:])
		return i + n, size, output[i+n : i+n+size]
	})
}

// split cuts a text where trust changes. next finds the first untrusted character
// from byte i on: where it is, how long, and what to write for it; the end of the
// text where there is none.
func split(text string, next func(i int) (at, size int, text string)) []tokenizer.Part {
	var parts []tokenizer.Part
	at, size, char := next(0)
	for i := 0; i < len(text); {
		if at > i {
			parts = append(parts, tokenizer.Part{Text: text[i:at], Trusted: true})
		}
		if i = at; i == len(text) {
			break
		}
		first := char
		i += size
		if at, size, char = next(i); at > i || i == len(text) {
			parts = append(parts, tokenizer.Part{Text: first})
			continue
		}
		var run strings.Builder
		for run.WriteString(first); at == i && i < len(text); at, size, char = next(i) {
			run.WriteString(char)
			i += size
		}
		parts = append(parts, tokenizer.Part{Text: run.String()})
	}
	return parts
}

// sameText reports whether the joined parts are the text.
func sameText(parts []tokenizer.Part, text string) bool {
	for _, p := range parts {
		rest, ok := strings.CutPrefix(text, p.Text)
		if !ok {
			return false
		}
		text = rest
	}
	return text == ""
}
