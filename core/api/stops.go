package api

import "strings"

// stops ends a text before the first stop string in it: the one that is complete
// first, the longest of those that are complete at the same byte. Text that may
// be the beginning of one is held back. What comes out does not depend on where
// the text was cut.
type stops struct {
	strings []string // none empty
	held    string
	hit     bool
}

// push adds text and returns what is certain now. After a hit there is nothing
// more.
func (s *stops) push(text string) (certain string, hit bool) {
	if s.hit {
		return "", true
	}
	if len(s.strings) == 0 {
		return text, false
	}
	text = s.held + text
	start, end := -1, len(text)+1
	for _, stop := range s.strings {
		at := strings.Index(text, stop)
		if at < 0 {
			continue
		}
		if e := at + len(stop); e < end || e == end && at < start {
			start, end = at, e
		}
	}
	if start >= 0 {
		s.hit, s.held = true, ""
		return text[:start], true
	}
	hold := 0
	for _, stop := range s.strings {
		hold = max(hold, overlap(text, stop))
	}
	s.held = text[len(text)-hold:]
	return text[:len(text)-hold], false
}

// flush ends the text and returns what was held back.
func (s *stops) flush() string {
	held := s.held
	s.held = ""
	return held
}

// overlap returns the length of the longest end of s that is a proper beginning
// of stop.
func overlap(s, stop string) int {
	for n := min(len(s), len(stop)-1); n > 0; n-- {
		if strings.HasSuffix(s, stop[:n]) {
			return n
		}
	}
	return 0
}
