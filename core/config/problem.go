package config

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing wrong with the configuration.
type Problem struct {
	// Key is the setting, written as the layer that holds it writes it.
	Key string
	// Message says what is wrong, with the value.
	Message string
	// Try is a remedy; empty where the message is remedy enough.
	Try string
}

// String is the line a user reads.
func (p Problem) String() string {
	s := p.Key + ": " + p.Message
	if p.Try != "" {
		s += ". Try: " + p.Try
	}
	return s
}

// Error is everything wrong with a configuration. It is never empty.
type Error struct {
	// Problems are in the order of the layers and, within a layer, of the keys.
	Problems []Problem
}

// Error joins the problems, one a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// suggestKey names the key that was probably meant, or lists the keys there are.
func suggestKey(prefix, name string, keys []string) string {
	if prefix != "" {
		prefix += "."
	}
	if near := nearest(name, keys); near != "" {
		return prefix + near
	}
	where := "the settings are "
	if prefix != "" {
		where = fmt.Sprintf("the settings below %s are ", strings.TrimSuffix(prefix, "."))
	}
	return where + strings.Join(keys, ", ")
}

// nearest returns the candidate that differs least from s, or nothing where even
// that one differs much.
func nearest(s string, candidates []string) string {
	best, bestDistance := "", 0
	for _, c := range candidates {
		d := distance(strings.ToLower(s), c)
		if d <= max(1, min(len(s), len(c))/3) && (best == "" || d < bestDistance) {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the Levenshtein distance with transpositions of neighbours
// (optimal string alignment), over bytes.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	older := make([]int, len(b)+1)
	old := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range old {
		old[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(old[j]+1, row[j-1]+1, old[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
		older, old, row = old, slices.Clone(row), older
	}
	return old[len(b)]
}
