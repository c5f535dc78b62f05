package api

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The parser below is stricter than encoding/json where leniency would hide a
// client's mistake: a member that occurs twice is an error and so is ill-formed
// UTF-8; and it keeps what encoding/json loses: the order of members, which a
// chat template shows to the model, and where in the body every value stands.

// maxDepth bounds how deep arrays and objects nest.
const maxDepth = 512

// kind is the type of a JSON value; its text completes "must be ...".
type kind string

const (
	kindNull   kind = "null"
	kindBool   kind = "a boolean"
	kindNumber kind = "a number"
	kindString kind = "a string"
	kindArray  kind = "an array"
	kindObject kind = "an object"
)

// node is a JSON value.
type node struct {
	kind kind
	// text is the decoded text of a string, and the literal of a number, a
	// boolean or null.
	text string
	// names are the members' names of an object, in order.
	names []string
	// items are an array's elements or an object's members.
	items []node
	// pos is the offset of the value's first byte, end that of the byte behind it.
	pos, end int
}

// member returns the value of an object's member, or nil.
func (n *node) member(name string) *node {
	for i := range n.names {
		if n.names[i] == name {
			return &n.items[i]
		}
	}
	return nil
}

// syntaxError says what is wrong with a JSON text, and where.
type syntaxError struct {
	line, column int // from 1; column counts bytes
	message      string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("%s at line %d, column %d", e.message, e.line, e.column)
}

// parseJSON reads one JSON value (RFC 8259). Errors are of type *syntaxError.
func parseJSON(text string) (*node, error) {
	p := &parser{text: text}
	p.space()
	var n node
	if err := p.value(&n, 0); err != nil {
		return nil, err
	}
	p.space()
	if p.at < len(text) {
		return nil, p.fail("unexpected " + p.here() + " after the end of the value")
	}
	return &n, nil
}

type parser struct {
	text string
	at   int
}

// fail makes an error at the current position.
func (p *parser) fail(message string) error {
	before := p.text[:p.at]
	return &syntaxError{
		line:    strings.Count(before, "\n") + 1,
		column:  p.at - strings.LastIndexByte(before, '\n'),
		message: message,
	}
}

// here names what stands at the current position.
func (p *parser) here() string {
	if p.at >= len(p.text) {
		return "end of input"
	}
	r, n := utf8.DecodeRuneInString(p.text[p.at:])
	if r == utf8.RuneError && n == 1 {
		return fmt.Sprintf("byte 0x%02x", p.text[p.at])
	}
	return strconv.QuoteRune(r)
}

// peek is the byte at the current position, 0 at the end.
func (p *parser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *parser) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) value(n *node, depth int) error {
	n.pos = p.at
	var err error
	switch c := p.peek(); {
	case c == '{' || c == '[':
		if depth == maxDepth {
			return p.fail(fmt.Sprintf("more than %d levels of nesting", maxDepth))
		}
		if c == '{' {
			err = p.object(n, depth+1)
		} else {
			err = p.array(n, depth+1)
		}
	case c == '"':
		n.kind = kindString
		n.text, err = p.string()
	case c == '-' || c >= '0' && c <= '9':
		err = p.number(n)
	default:
		for _, w := range []struct {
			text string
			kind kind
		}{{"true", kindBool}, {"false", kindBool}, {"null", kindNull}} {
			if strings.HasPrefix(p.text[p.at:], w.text) {
				n.kind, n.text = w.kind, w.text
				p.at += len(w.text)
				n.end = p.at
				return nil
			}
		}
		return p.fail("unexpected " + p.here() + " where a value should be")
	}
	n.end = p.at
	return err
}

func (p *parser) object(n *node, depth int) error {
	n.kind = kindObject
	p.at++
	var seen map[string]bool
	for first := true; ; first = false {
		p.space()
		if first && p.peek() == '}' {
			break
		}
		if p.peek() != '"' {
			return p.fail("unexpected " + p.here() + " where a member's name should be")
		}
		start := p.at
		name, err := p.string()
		if err != nil {
			return err
		}
		// Small objects are searched; a map is worth it only for large ones.
		if seen == nil && len(n.names) == 16 {
			seen = make(map[string]bool)
			for _, s := range n.names {
				seen[s] = true
			}
		}
		if seen != nil && seen[name] || seen == nil && n.member(name) != nil {
			p.at = start
			return p.fail(fmt.Sprintf("the member %q occurs twice", name))
		}
		if seen != nil {
			seen[name] = true
		}
		p.space()
		if p.peek() != ':' {
			return p.fail("unexpected " + p.here() + " where a colon should be")
		}
		p.at++
		p.space()
		var item node
		if err := p.value(&item, depth); err != nil {
			return err
		}
		n.names = append(n.names, name)
		n.items = append(n.items, item)
		p.space()
		if p.peek() == '}' {
			break
		}
		if p.peek() != ',' {
			return p.fail("unexpected " + p.here() + " where a comma or a closing brace should be")
		}
		p.at++
	}
	p.at++
	return nil
}

func (p *parser) array(n *node, depth int) error {
	n.kind = kindArray
	p.at++
	for first := true; ; first = false {
		p.space()
		if first && p.peek() == ']' {
			break
		}
		var item node
		if err := p.value(&item, depth); err != nil {
			return err
		}
		n.items = append(n.items, item)
		p.space()
		if p.peek() == ']' {
			break
		}
		if p.peek() != ',' {
			return p.fail("unexpected " + p.here() + " where a comma or a closing bracket should be")
		}
		p.at++
	}
	p.at++
	return nil
}

func (p *parser) number(n *node) error {
	n.kind = kindNumber
	start := p.at
	digits := func() bool {
		from := p.at
		for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
			p.at++
		}
		return p.at > from
	}
	if p.peek() == '-' {
		p.at++
	}
	if p.peek() == '0' {
		p.at++
	} else if !digits() {
		return p.fail("unexpected " + p.here() + " in a number")
	}
	if p.peek() == '.' {
		p.at++
		if !digits() {
			return p.fail("unexpected " + p.here() + " in a number")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if !digits() {
			return p.fail("unexpected " + p.here() + " in a number")
		}
	}
	n.text = p.text[start:p.at]
	return nil
}

// string reads a string from its opening to its closing quote. Without escapes
// the result shares the body's memory.
func (p *parser) string() (string, error) {
	p.at++
	start := p.at
	var out strings.Builder // empty as long as there was no escape: each writes something
	for {
		// Up to the next byte that needs thought.
		from := p.at
		for p.at < len(p.text) {
			if c := p.text[p.at]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
				break
			}
			p.at++
		}
		if out.Len() > 0 {
			out.WriteString(p.text[from:p.at])
		}
		if p.at == len(p.text) {
			return "", p.fail("unexpected end of input in a string")
		}
		switch c := p.text[p.at]; {
		case c == '"':
			s := p.text[start:p.at]
			if out.Len() > 0 {
				s = out.String()
			}
			p.at++
			return s, nil
		case c == '\\':
			if out.Len() == 0 {
				out.WriteString(p.text[start:p.at])
			}
			if err := p.escape(&out); err != nil {
				return "", err
			}
		case c < 0x20:
			return "", p.fail("unescaped control character " + p.here() + " in a string")
		default:
			r, n := utf8.DecodeRuneInString(p.text[p.at:])
			if r == utf8.RuneError && n == 1 {
				return "", p.fail("ill-formed UTF-8 (" + p.here() + ")")
			}
			if out.Len() > 0 {
				out.WriteString(p.text[p.at : p.at+n])
			}
			p.at += n
		}
	}
}

// escape reads an escape sequence. Halves of surrogate pairs that stand alone
// become U+FFFD.
func (p *parser) escape(out *strings.Builder) error {
	if p.at+1 >= len(p.text) {
		p.at = len(p.text)
		return p.fail("unexpected end of input in a string")
	}
	switch c := p.text[p.at+1]; c {
	case '"', '\\', '/':
		out.WriteByte(c)
	case 'b':
		out.WriteByte('\b')
	case 'f':
		out.WriteByte('\f')
	case 'n':
		out.WriteByte('\n')
	case 'r':
		out.WriteByte('\r')
	case 't':
		out.WriteByte('\t')
	case 'u':
		r, ok := p.hex(p.at)
		if !ok {
			return p.fail(`a \u escape needs four hexadecimal digits`)
		}
		p.at += 6
		if utf16.IsSurrogate(r) {
			if low, ok := p.hex(p.at); ok {
				if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
					out.WriteRune(pair)
					p.at += 6
					return nil
				}
			}
			r = utf8.RuneError
		}
		out.WriteRune(r)
		return nil
	default:
		return p.fail("unknown escape in a string")
	}
	p.at += 2
	return nil
}

// hex reads the code unit of the \uXXXX at offset at.
func (p *parser) hex(at int) (rune, bool) {
	if len(p.text)-at < 6 || p.text[at] != '\\' || p.text[at+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range []byte(p.text[at+2 : at+6]) {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
