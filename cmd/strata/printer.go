package main

import (
	"io"
	"strings"
)

// printer writes text that a model makes up.
type printer struct {
	out io.Writer
	// safe leaves out what would command a terminal.
	safe bool
	// open says that the last line has no end yet.
	open bool
	err  error // the first one
}

func (w *printer) write(text string) {
	if w.safe {
		text = strings.Map(printable, text)
	}
	if text == "" || w.err != nil {
		return
	}
	w.open = !strings.HasSuffix(text, "\n")
	_, w.err = io.WriteString(w.out, text)
}

// endLine ends a line that has begun.
func (w *printer) endLine() {
	if w.open {
		w.write("\n")
	}
}

// printable drops control characters of the sets C0 and C1 but for line ends and
// tabs, and with them every escape sequence.
func printable(r rune) rune {
	if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
		return -1
	}
	return r
}
