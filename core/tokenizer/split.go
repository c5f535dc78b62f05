package tokenizer

import (
	"fmt"
	"sort"
	"strings"
)

// splitter returns the end of the piece of x that starts at byte i < len(x.s).
// BPE never merges across pieces. Splitters are written by hand because the
// published patterns need a look-ahead, which package regexp does not have; each
// does what its pattern does with leftmost-first alternatives and greedy
// repetition, in time linear in the text.
type splitter func(x text, i int) int

// preTokenizer is how a family of models cuts text before BPE.
type preTokenizer struct {
	split splitter
	// wholePieces: a piece that is a token as a whole is that token, whatever
	// the merges say (Hugging Face's ignore_merges).
	wholePieces bool
	// addBOS is what a file that does not say add_bos_token means.
	addBOS bool
}

// The published patterns, with (?i:...) also folding U+017F to s as Unicode's
// simple case folding does:
//
//	gpt-2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//	llama-bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//	qwen2      as llama-bpe with \p{N}
//	qwen35     as qwen2 with [\p{L}\p{M}]+ and [^\s\p{L}\p{M}\p{N}]+
//	gpt-4o     [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	           [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	           \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// Names that share a pattern: llama3 and llama-v3 (llama-bpe), deepseek-r1-qwen
// (qwen2), llama4 (gpt-4o).
var preTokenizers = map[string]preTokenizer{
	"gpt-2":            {split: splitGPT2},
	"llama-bpe":        {split: wordSplitter(classLetter, 3), wholePieces: true, addBOS: true},
	"llama3":           {split: wordSplitter(classLetter, 3), wholePieces: true, addBOS: true},
	"llama-v3":         {split: wordSplitter(classLetter, 3), wholePieces: true, addBOS: true},
	"qwen2":            {split: wordSplitter(classLetter, 1)},
	"deepseek-r1-qwen": {split: wordSplitter(classLetter, 1)},
	"qwen35":           {split: wordSplitter(classLetter|classMark, 1)},
	"gpt-4o":           {split: splitGPT4o},
	"llama4":           {split: splitGPT4o},
}

// PreTokenizers returns the names of the known pre-tokenizers in order.
func PreTokenizers() []string {
	names := make([]string, 0, len(preTokenizers))
	for name := range preTokenizers {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// findPreTokenizer looks a name up, or says which names there are.
func findPreTokenizer(name string) (preTokenizer, error) {
	p, ok := preTokenizers[name]
	if !ok {
		return p, fmt.Errorf("unknown pre-tokenizer %q (tokenizer.ggml.pre); known are %s; set the pre-tokenizer of the model by hand if you know which one fits",
			name, strings.Join(PreTokenizers(), ", "))
	}
	return p, nil
}

// wordSplitter covers the llama-bpe and Qwen patterns: word is the set that a
// word is made of, digits the most digits in a piece.
func wordSplitter(word class, digits int) splitter {
	symbolAvoids := classSpace | classNumber | word
	return func(x text, i int) int {
		if n := contraction(x.s, i, true); n > 0 {
			return i + n
		}
		c, n := x.at(i)
		if end := prefixedWord(x, i, c, n, word); end > 0 {
			return end
		}
		if c&classNumber != 0 {
			return upTo(x, i, classNumber, digits)
		}
		if end := symbols(x, i, c, n, symbolAvoids); end > 0 {
			return x.run(end, classNewline)
		}
		return spaces(x, i, true)
	}
}

// splitGPT2 is the gpt-2 pattern.
func splitGPT2(x text, i int) int {
	if n := contraction(x.s, i, false); n > 0 {
		return i + n
	}
	j := i
	if x.s[i] == ' ' {
		j++
	}
	for _, set := range [...]class{classLetter, classNumber} {
		if end := x.run(j, set); end > j {
			return end
		}
	}
	if end := x.runWithout(j, classSpace|classLetter|classNumber); end > j {
		return end
	}
	return spaces(x, i, false)
}

// splitGPT4o is the gpt-4o pattern. Its two word alternatives both try the
// optional leading character first and then do without it.
func splitGPT4o(x text, i int) int {
	c, n := x.at(i)
	prefix := c&(classNewline|classLetter|classNumber) == 0
	for _, word := range [...]func(text, int) int{lowerWord, upperWord} {
		end := 0
		if prefix {
			end = word(x, i+n)
		}
		if end == 0 {
			end = word(x, i)
		}
		if end > 0 {
			return end + contraction(x.s, end, true)
		}
	}
	if c&classNumber != 0 {
		return upTo(x, i, classNumber, 3)
	}
	if end := symbols(x, i, c, n, classSpace|classLetter|classNumber); end > 0 {
		for end < len(x.s) && (x.s[end] == '\r' || x.s[end] == '\n' || x.s[end] == '/') {
			end++
		}
		return end
	}
	return spaces(x, i, true)
}

// lowerWord matches [upper]*[lower]+ at i; 0 where it does not match. The two
// sets overlap, so where no lower-only character follows the run, the run gives
// back characters until the last one it keeps outside is in both sets.
func lowerWord(x text, i int) int {
	shared, j := 0, i
	for {
		c, n := x.at(j)
		if c&classUpper == 0 {
			break
		}
		j += n
		if c&classLower != 0 {
			shared = j
		}
	}
	if end := x.run(j, classLower); end > j {
		return end
	}
	return shared
}

// upperWord matches [upper]+[lower]* at i; 0 where it does not match.
func upperWord(x text, i int) int {
	j := x.run(i, classUpper)
	if j == i {
		return 0
	}
	return x.run(j, classLower)
}

// prefixedWord matches [^\r\n\p{L}\p{N}]?[word]+ at i, where the character at i
// has class c and length n; 0 where it does not match.
func prefixedWord(x text, i int, c class, n int, word class) int {
	if c&(classNewline|classLetter|classNumber) == 0 {
		if end := x.run(i+n, word); end > i+n {
			return end
		}
	}
	if end := x.run(i, word); end > i {
		return end
	}
	return 0
}

// symbols matches " ?[^avoid]+" at i, where the character at i has class c and
// length n; 0 where it does not match.
func symbols(x text, i int, c class, n int, avoid class) int {
	j := i
	if x.s[i] == ' ' {
		j++
	} else if c&avoid == 0 {
		j += n
		return x.runWithout(j, avoid)
	}
	if end := x.runWithout(j, avoid); end > j {
		return end
	}
	return 0
}

// spaces matches \s*[\r\n]+ (only where newlines is set), then \s+(?!\S), then
// \s+. What none of the other alternatives took is white space.
func spaces(x text, i int, newlines bool) int {
	end, last, newline := i, i, 0
	for {
		c, n := x.at(end)
		if c&classSpace == 0 {
			break
		}
		last = end
		end += n
		if c&classNewline != 0 {
			newline = end
		}
	}
	if newlines && newline > 0 {
		return newline
	}
	if end < len(x.s) && last > i {
		return last // leave the last one to the word that follows
	}
	return end
}

// upTo returns the end of the run of at most most characters of a class.
func upTo(x text, i int, want class, most int) int {
	for ; most > 0; most-- {
		c, n := x.at(i)
		if c&want == 0 {
			break
		}
		i += n
	}
	return i
}

// contraction returns the length of the English contraction ('s 't 're 've 'm
// 'll 'd) at byte i, or 0.
func contraction(s string, i int, fold bool) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return 0
	}
	if fold && strings.HasPrefix(s[i+1:], "\u017f") {
		return 1 + len("\u017f") // long s folds to s
	}
	lower := func(j int) byte {
		if j >= len(s) {
			return 0
		}
		if b := s[j]; fold && b >= 'A' && b <= 'Z' {
			return b + 'a' - 'A'
		}
		return s[j]
	}
	next := lower(i + 2)
	switch lower(i + 1) {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if next == 'e' {
			return 3
		}
	case 'l':
		if next == 'l' {
			return 3
		}
	}
	return 0
}
