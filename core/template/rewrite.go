package template

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Names that the rewritten source calls; a template cannot know them.
const (
	stepName   = "strata_step"
	enterName  = "strata_enter"
	leaveName  = "strata_leave"
	tojsonName = "strata_tojson"
	stringName = "strata_string"
)

// renamedFilters are the filters that have a more exact version here.
var renamedFilters = map[string]string{"tojson": tojsonName, "string": stringName}

// source is a template in the form that is compiled, and what it mentions.
type source struct {
	text string
	// literals are the texts and string literals: what the template can write.
	literals []string
	// names are the identifiers.
	names map[string]bool
}

// tagKind tells the three kinds of tags apart by their opening.
type tagKind byte

const (
	tagExpression tagKind = '{'
	tagStatement  tagKind = '%'
	tagComment    tagKind = '#'
)

// rewriter walks over a template once.
type rewriter struct {
	src string
	out strings.Builder
	source
}

// rewrite prepares a template for the engine. Jinja's whitespace rules (with
// trim_blocks and lstrip_blocks) are applied here and all text is passed on as
// string literals: the engine applies them across neighbouring tags too, which
// eats spaces that Jinja keeps.
func rewrite(src string) (source, error) {
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	src = strings.TrimSuffix(src, "\n") // keep_trailing_newline is off
	w := &rewriter{src: src, source: source{names: map[string]bool{}}}
	if err := w.run(); err != nil {
		return source{}, err
	}
	w.source.text = w.out.String()
	return w.source, nil
}

func (w *rewriter) run() error {
	lineStart := true // the text begins where a line does
	for i := 0; ; {
		open := nextTag(w.src, i)
		if open < 0 {
			w.writeText(w.src[i:])
			return nil
		}
		kind := tagKind(w.src[open+1])
		body := open + 2
		text := w.src[i:open]
		sign := byte(0)
		if body < len(w.src) && (w.src[body] == '-' || w.src[body] == '+') {
			sign = w.src[body]
			body++
		}
		w.writeText(stripLeft(text, sign, kind, lineStart))

		end, next, closeSign, err := w.closeTag(kind, body)
		if err != nil {
			return err
		}
		content := w.src[body:end]
		next, lineStart = stripRight(w.src, next, closeSign, kind)
		if kind == tagStatement && keyword(content) == "raw" {
			if next, lineStart, err = w.raw(open, next); err != nil {
				return err
			}
			i = next
			continue
		}
		if err := w.writeTag(kind, content, open); err != nil {
			return err
		}
		i = next
	}
}

// nextTag returns the position of the next "{{", "{%" or "{#", or -1.
func nextTag(s string, i int) int {
	for ; i+1 < len(s); i++ {
		if s[i] == '{' && (s[i+1] == '{' || s[i+1] == '%' || s[i+1] == '#') {
			return i
		}
	}
	return -1
}

// stripLeft applies the rules for text before a tag: "-" strips all white space;
// statements and comments that are first on their line lose their indentation
// unless "+" says otherwise.
func stripLeft(text string, sign byte, kind tagKind, lineStart bool) string {
	if sign == '-' {
		return strings.TrimRight(text, " \t\n\v\f")
	}
	if sign == '+' || kind == tagExpression {
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || lineStart) && strings.Trim(text[line:], " \t\v\f") == "" {
		return text[:line]
	}
	return text
}

// stripRight applies the rules for text after a tag that ends at i: "-" strips
// all white space; a newline right after a statement or comment goes unless "+"
// says otherwise. It returns where the text begins and whether a line does there.
func stripRight(s string, i int, sign byte, kind tagKind) (int, bool) {
	start := i
	switch {
	case sign == '-':
		i += len(s[i:]) - len(strings.TrimLeft(s[i:], " \t\n\v\f"))
	case sign == 0 && kind != tagExpression && strings.HasPrefix(s[i:], "\n"):
		i++
	}
	return i, i > start && s[i-1] == '\n'
}

// closeTag finds the end of a tag whose content starts at i: the end of its
// content, the position after it, and the sign before the closing.
func (w *rewriter) closeTag(kind tagKind, i int) (end, next int, sign byte, err error) {
	closing := string(kind) + "}"
	if kind == tagExpression {
		closing = "}}"
	}
	braces := 0
	for j := i; j < len(w.src); j++ {
		switch c := w.src[j]; {
		case (braces == 0 || kind != tagExpression) && strings.HasPrefix(w.src[j:], closing):
			end = j
			if j > i && (w.src[j-1] == '-' || w.src[j-1] == '+') {
				end, sign = j-1, w.src[j-1]
			}
			return end, j + 2, sign, nil
		case kind == tagComment:
		case c == '\'' || c == '"':
			n := quoted(w.src[j:])
			if n == 0 {
				return 0, 0, 0, w.errorAt(j, "string without end")
			}
			j += n - 1
		case c == '{':
			braces++
		case c == '}' && braces > 0:
			braces--
		}
	}
	return 0, 0, 0, w.errorAt(i, "tag without end")
}

// quoted returns the length of the string literal at the start of s, quotes
// included, or 0 where it does not end.
func quoted(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return i + 1
		}
	}
	return 0
}

// raw copies the text of a raw block whose content starts at i.
func (w *rewriter) raw(open, i int) (next int, lineStart bool, err error) {
	for j := i; ; j++ {
		k := strings.Index(w.src[j:], "{%")
		if k < 0 {
			return 0, false, w.errorAt(open, "raw block without end")
		}
		j += k
		body, sign := j+2, byte(0)
		if body < len(w.src) && (w.src[body] == '-' || w.src[body] == '+') {
			sign = w.src[body]
			body++
		}
		rest := strings.TrimLeft(w.src[body:], " \t\n")
		after, ok := strings.CutPrefix(rest, "endraw")
		if !ok {
			continue
		}
		after = strings.TrimLeft(after, " \t\n")
		closeSign := byte(0)
		if after != "" && (after[0] == '-' || after[0] == '+') {
			closeSign, after = after[0], after[1:]
		}
		if !strings.HasPrefix(after, "%}") {
			continue
		}
		w.writeText(stripLeft(w.src[i:j], sign, tagStatement, false))
		next, lineStart = stripRight(w.src, len(w.src)-len(after)+2, closeSign, tagStatement)
		return next, lineStart, nil
	}
}

// writeText passes text on as an expression.
func (w *rewriter) writeText(text string) {
	if text == "" {
		return
	}
	w.literals = append(w.literals, text)
	w.out.WriteString("{{ ")
	w.writeLiteral(text)
	w.out.WriteString(" }}")
}

// writeLiteral writes a string literal that the engine reads back unchanged.
func (w *rewriter) writeLiteral(text string) {
	w.out.WriteByte('\'')
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' || text[i] == '\'' {
			w.out.WriteByte('\\')
		}
		w.out.WriteByte(text[i])
	}
	w.out.WriteByte('\'')
}

// writeTag writes an expression or a statement, and the counting that goes with
// loops and macros.
func (w *rewriter) writeTag(kind tagKind, content string, at int) error {
	switch kind {
	case tagComment:
		return nil
	case tagExpression:
		w.out.WriteString("{{ ")
		if err := w.writeCode(content, at); err != nil {
			return err
		}
		w.out.WriteString(" }}")
		return nil
	}
	word := keyword(content)
	if word == "endmacro" {
		w.call(leaveName)
	}
	w.out.WriteString("{% ")
	if err := w.writeCode(content, at); err != nil {
		return err
	}
	w.out.WriteString(" %}")
	switch word {
	case "for":
		w.call(stepName)
	case "macro":
		w.call(enterName)
	}
	return nil
}

// call writes a statement that calls a function for its effect.
func (w *rewriter) call(name string) {
	w.out.WriteString("{% if " + name + "() %}{% endif %}")
}

// keyword returns the first word of a statement.
func keyword(content string) string {
	content = strings.TrimLeft(content, " \t\n")
	for i := 0; i < len(content); i++ {
		if !wordByte(content[i]) {
			return content[:i]
		}
	}
	return content
}

func wordByte(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// writeCode copies the inside of a tag: literals with their escapes resolved,
// filters by their new names, and closing braces apart from each other, because
// the engine ends an expression at the first "}}".
func (w *rewriter) writeCode(code string, at int) error {
	filter := false // the next name is a filter's
	for i := 0; i < len(code); {
		switch c := code[i]; {
		case c == '\'' || c == '"':
			n := quoted(code[i:])
			if n == 0 {
				return w.errorAt(at, "string without end")
			}
			text := unescape(code[i+1 : i+n-1])
			w.literals = append(w.literals, text)
			w.writeLiteral(text)
			i += n
			filter = false
		case wordByte(c):
			start := i
			for i < len(code) && wordByte(code[i]) {
				i++
			}
			name := code[start:i]
			w.names[name] = true
			if to, ok := renamedFilters[name]; ok && filter {
				name = to
			}
			w.out.WriteString(name)
			filter = false
		default:
			w.out.WriteByte(c)
			if c == '}' {
				w.out.WriteByte(' ')
			}
			filter = c == '|' || filter && (c == ' ' || c == '\n' || c == '\t')
			i++
		}
	}
	return nil
}

// unescape resolves Python's escapes in a string literal; unknown ones stay.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	simple := map[byte]string{'n': "\n", 't': "\t", 'r': "\r", '\\': `\`, '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v", '0': "\x00", '\n': ""}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		if text, ok := simple[s[i]]; ok {
			b.WriteString(text)
			continue
		}
		if n, ok := digits[s[i]]; ok && i+n < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32); err == nil && utf8.ValidRune(rune(v)) {
				b.WriteRune(rune(v))
				i += n
				continue
			}
		}
		b.WriteByte('\\')
		b.WriteByte(s[i])
	}
	return b.String()
}

// errorAt names the line of a fault.
func (w *rewriter) errorAt(i int, what string) error {
	return fmt.Errorf("line %d: %s", 1+strings.Count(w.src[:i], "\n"), what)
}
