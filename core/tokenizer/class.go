package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// class is a set of properties of a character that the pre-tokenizers ask for.
type class uint8

const (
	classLetter  class = 1 << iota // \p{L}
	classMark                      // \p{M}
	classNumber                    // \p{N}
	classSpace                     // \s: the White_Space property
	classNewline                   // \r and \n
	classUpper                     // \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}
	classLower                     // \p{Ll}\p{Lm}\p{Lo}\p{M}
)

// classTables pairs every property with the Unicode ranges that have it.
var classTables = []struct {
	class class
	table *unicode.RangeTable
}{
	{classLetter, unicode.L},
	{classMark, unicode.M},
	{classNumber, unicode.N},
	{classSpace, unicode.White_Space},
	{classUpper, unicode.Lu}, {classUpper, unicode.Lt}, {classUpper, unicode.Lm}, {classUpper, unicode.Lo}, {classUpper, unicode.M},
	{classLower, unicode.Ll}, {classLower, unicode.Lm}, {classLower, unicode.Lo}, {classLower, unicode.M},
}

// planes holds the classes of every character of the basic multilingual plane:
// looking into 20 range tables for each character of a prompt would cost more
// than merging its tokens.
var planes = sync.OnceValue(func() *[1 << 16]class {
	var t [1 << 16]class
	for _, ct := range classTables {
		for _, r := range ct.table.R16 {
			for c := uint32(r.Lo); c <= uint32(r.Hi); c += uint32(r.Stride) {
				t[c] |= ct.class
			}
		}
		for _, r := range ct.table.R32 {
			for c := r.Lo; c <= r.Hi && c < 1<<16; c += r.Stride {
				t[c] |= ct.class
			}
		}
	}
	t['\r'] |= classNewline
	t['\n'] |= classNewline
	return &t
})

// classOf returns the classes of r.
func classOf(t *[1 << 16]class, r rune) class {
	if r < 1<<16 {
		return t[r]
	}
	var c class
	for _, ct := range classTables {
		if unicode.Is(ct.table, r) {
			c |= ct.class
		}
	}
	return c
}

// text is a string that is being split, with the class table at hand.
type text struct {
	s string
	t *[1 << 16]class
}

// at returns the classes and the length in bytes of the character at byte i; 0
// and 0 at the end. A byte that is not UTF-8 is a character of its own without
// any class.
func (x text) at(i int) (class, int) {
	if i >= len(x.s) {
		return 0, 0
	}
	if b := x.s[i]; b < utf8.RuneSelf {
		return x.t[b], 1
	}
	r, n := utf8.DecodeRuneInString(x.s[i:])
	if r == utf8.RuneError && n <= 1 {
		return 0, 1
	}
	return classOf(x.t, r), n
}

// run returns the end of the longest run of characters from byte i on that have
// one of the wanted classes.
func (x text) run(i int, want class) int {
	for {
		c, n := x.at(i)
		if c&want == 0 {
			return i
		}
		i += n
	}
}

// runWithout returns the end of the longest run of characters from byte i on
// that have none of the classes.
func (x text) runWithout(i int, avoid class) int {
	for i < len(x.s) {
		c, n := x.at(i)
		if c&avoid != 0 {
			break
		}
		i += n
	}
	return i
}
