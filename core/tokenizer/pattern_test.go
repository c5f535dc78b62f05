package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// pattern is a slow backtracking matcher for the published regular expressions:
// the plain reference that the hand-written splitters are compared with. It
// knows what those patterns use: alternatives, groups, (?i:), (?!\S), classes,
// \s \S \p{..}, and the greedy repetitions ? * + {m,n}.
type pattern struct {
	alternatives [][]item
}

// item is one element of a sequence with its repetition.
type item struct {
	matches  func(rune) bool // a single character, or
	group    *pattern        // a group, or
	notNext  func(rune) bool // a negative look-ahead for a character
	min, max int
}

// subject is a text as characters; a byte that is not UTF-8 is -1 - byte, a
// character without properties.
func subject(s string) (runes []rune, lens []int) {
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			r = -1 - rune(s[0])
		}
		runes, lens = append(runes, r), append(lens, n)
		s = s[n:]
	}
	return runes, lens
}

// split cuts s into the successive matches of the pattern, which must cover it.
func (p *pattern) split(s string) []string {
	runes, lens := subject(s)
	var pieces []string
	for i := 0; i < len(runes); {
		end := -1
		p.match(runes, i, func(j int) bool { end = j; return true })
		if end <= i {
			panic(fmt.Sprintf("pattern matches nothing at %d of %q", i, s))
		}
		n := 0
		for _, l := range lens[i:end] {
			n += l
		}
		pieces = append(pieces, s[:n])
		s = s[n:]
		i = end
	}
	return pieces
}

// match tries every way to match at i in order of preference until rest accepts.
func (p *pattern) match(s []rune, i int, rest func(int) bool) bool {
	for _, seq := range p.alternatives {
		if matchItems(seq, s, i, rest) {
			return true
		}
	}
	return false
}

func matchItems(seq []item, s []rune, i int, rest func(int) bool) bool {
	if len(seq) == 0 {
		return rest(i)
	}
	return matchTimes(seq[0], 0, s, i, func(j int) bool { return matchItems(seq[1:], s, j, rest) })
}

func matchTimes(it item, done int, s []rune, i int, rest func(int) bool) bool {
	if done < it.max {
		once := func(j int) bool { return matchTimes(it, done+1, s, j, rest) }
		switch {
		case it.notNext != nil:
			if (i >= len(s) || !it.notNext(s[i])) && once(i) {
				return true
			}
		case it.group != nil:
			if it.group.match(s, i, once) {
				return true
			}
		case i < len(s) && it.matches(s[i]):
			if once(i + 1) {
				return true
			}
		}
	}
	return done >= it.min && rest(i)
}

// parsePattern compiles a pattern.
func parsePattern(src string) *pattern {
	p := patternParser{src: src}
	out := p.alternatives(false)
	if p.src != "" {
		panic("pattern: unexpected " + p.src)
	}
	return out
}

type patternParser struct{ src string }

func (p *patternParser) eat(prefix string) bool {
	if !strings.HasPrefix(p.src, prefix) {
		return false
	}
	p.src = p.src[len(prefix):]
	return true
}

func (p *patternParser) alternatives(fold bool) *pattern {
	out := &pattern{}
	for {
		var seq []item
		for p.src != "" && p.src[0] != '|' && p.src[0] != ')' {
			seq = append(seq, p.item(fold))
		}
		out.alternatives = append(out.alternatives, seq)
		if !p.eat("|") {
			return out
		}
	}
}

func (p *patternParser) item(fold bool) item {
	it := item{min: 1, max: 1}
	switch {
	case p.eat(`(?!\S)`):
		it.notNext = func(r rune) bool { return !unicode.IsSpace(r) }
		return it
	case p.eat("(?i:"):
		it.group = p.alternatives(true)
		p.eat(")")
	case p.eat("[^"):
		set := p.set()
		it.matches = func(r rune) bool { return !set(r) }
	case p.eat("["):
		it.matches = p.set()
	default:
		it.matches = p.single(fold)
	}
	const unbounded = 1 << 30
	switch {
	case p.eat("?"):
		it.min = 0
	case p.eat("*"):
		it.min, it.max = 0, unbounded
	case p.eat("+"):
		it.max = unbounded
	case p.eat("{"):
		bounds, after, _ := strings.Cut(p.src, "}")
		p.src = after
		lo, hi, _ := strings.Cut(bounds, ",")
		it.min, _ = strconv.Atoi(lo)
		it.max, _ = strconv.Atoi(hi)
	}
	return it
}

func (p *patternParser) set() func(rune) bool {
	var parts []func(rune) bool
	for !p.eat("]") {
		parts = append(parts, p.single(false))
	}
	return func(r rune) bool {
		for _, f := range parts {
			if f(r) {
				return true
			}
		}
		return false
	}
}

func (p *patternParser) single(fold bool) func(rune) bool {
	switch {
	case p.eat(`\p{`):
		name, after, _ := strings.Cut(p.src, "}")
		p.src = after
		table := unicode.Categories[name]
		return func(r rune) bool { return r >= 0 && unicode.Is(table, r) }
	case p.eat(`\s`):
		return func(r rune) bool { return r >= 0 && unicode.IsSpace(r) }
	case p.eat(`\r`):
		return func(r rune) bool { return r == '\r' }
	case p.eat(`\n`):
		return func(r rune) bool { return r == '\n' }
	}
	want, n := utf8.DecodeRuneInString(p.src)
	p.src = p.src[n:]
	return func(r rune) bool {
		if r == want {
			return true
		}
		if fold && r >= 0 {
			for f := unicode.SimpleFold(want); f != want; f = unicode.SimpleFold(f) {
				if f == r {
					return true
				}
			}
		}
		return false
	}
}
