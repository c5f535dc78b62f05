package tokenizer

import "strings"

// Stream turns tokens into text as they come. What it returns is always whole
// characters: bytes of an unfinished one are held back until the token that
// finishes it. Ill-formed bytes become U+FFFD, one for each maximal subpart
// (Unicode standard, section 3.9, "Constraints on Conversion Processes"), so
// that joining what Push and Flush return never depends on where the tokens cut
// the bytes. Not safe for concurrent use.
type Stream struct {
	t       *Tokenizer
	control bool
	held    []byte
}

// NewStream starts a text. With control set, control tokens appear as their
// text; without, they contribute nothing.
func (t *Tokenizer) NewStream(control bool) *Stream {
	return &Stream{t: t, control: control}
}

// Push adds a token and returns the text that is certain now, often "". Unused
// tokens and ids outside the vocabulary contribute nothing.
func (s *Stream) Push(id int32) string {
	if !s.control && s.t.IsControl(id) {
		return ""
	}
	b := s.t.tokenBytes(id)
	if len(s.held) == 0 && wholeText(b) {
		return string(b)
	}
	s.held = append(s.held, b...)
	text, rest := repair(s.held, false)
	s.held = append(s.held[:0], rest...)
	return text
}

// Flush ends the text and returns what was held back: U+FFFD for an unfinished
// character.
func (s *Stream) Flush() string {
	text, _ := repair(s.held, true)
	s.held = s.held[:0]
	return text
}

// wholeText reports whether b is ASCII, the common case that needs no repair.
func wholeText(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

// repair returns b as well-formed UTF-8 and the bytes at its end that may become
// a character with what follows; at the end of the text there are none.
func repair(b []byte, end bool) (text string, rest []byte) {
	var out strings.Builder
	out.Grow(len(b))
	for len(b) > 0 {
		n, ok := subpart(b)
		switch {
		case ok:
			out.Write(b[:n])
		case n == len(b) && !end && unfinished(b):
			return out.String(), b
		default:
			out.WriteString("\uFFFD")
		}
		b = b[n:]
	}
	return out.String(), nil
}

// sequence returns the length of the sequence that a lead byte starts and the
// range of its second byte; 0 for a byte that starts none (Unicode standard,
// table 3-7).
func sequence(lead byte) (n int, lo, hi byte) {
	switch {
	case lead < 0x80:
		return 1, 0, 0
	case lead < 0xC2 || lead > 0xF4:
		return 0, 0, 0
	case lead < 0xE0:
		return 2, 0x80, 0xBF
	case lead == 0xE0:
		return 3, 0xA0, 0xBF
	case lead == 0xED:
		return 3, 0x80, 0x9F
	case lead < 0xF0:
		return 3, 0x80, 0xBF
	case lead == 0xF0:
		return 4, 0x90, 0xBF
	case lead == 0xF4:
		return 4, 0x80, 0x8F
	}
	return 4, 0x80, 0xBF
}

// subpart returns the length of the character at the start of b, or, not ok, of
// the maximal subpart of an ill-formed one: the longest prefix of a well-formed
// sequence, at least one byte.
func subpart(b []byte) (n int, ok bool) {
	want, lo, hi := sequence(b[0])
	n = 1
	for n < want && n < len(b) && b[n] >= lo && b[n] <= hi {
		n++
		lo, hi = 0x80, 0xBF
	}
	return n, n == want
}

// unfinished reports whether b, a maximal subpart, could go on: its lead byte
// starts a longer sequence.
func unfinished(b []byte) bool {
	want, _, _ := sequence(b[0])
	return len(b) < want
}
