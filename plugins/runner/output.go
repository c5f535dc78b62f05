package runner

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
)

const (
	// maxLine is the longest line that is kept whole, in bytes; the rest of a
	// longer one is dropped.
	maxLine = 64 << 10
	// relayBytes bounds what a relay holds for a reader that does not keep up.
	relayBytes = 256 << 10
	// tailLines and tailLineBytes bound what is remembered for error messages.
	tailLines, tailLineBytes = 12, 512
)

// output reads everything a process writes, as fast as it is written: the
// process must never wait for the host's log. It hands the lines on to relays,
// which drop what is not read in time, and remembers the last of them.
type output struct {
	stdout, stderr *relay

	mu sync.Mutex // protects the fields below
	// tail are the last lines, oldest first.
	tail []string
	// fatal are the first lines of a crash report, up to the stacks: these are for
	// the log alone. They say more than the last lines, which are the stacks of
	// idle goroutines.
	fatal []string
	// stacks says that the crash report has come to them.
	stacks bool
}

func newOutput(stdout, stderr *relay) *output {
	return &output{stdout: stdout, stderr: stderr}
}

// pumpStdout hands the first line on as the handshake and treats the others like
// standard error: C libraries print their complaints to either. The relay stays
// open until the process ends, which is what go-plugin waits for.
func (o *output) pumpStdout(r io.Reader) {
	first := true
	eachLine(r, func(line []byte) {
		if first {
			first = false
			o.stdout.writeLine(line)
			if bytes.Count(line, []byte("|")) >= 3 {
				return // a handshake; anything else is worth reporting
			}
		}
		o.line(line)
	})
	o.stdout.Close()
}

func (o *output) pumpStderr(r io.Reader) {
	eachLine(r, o.line)
	o.stderr.Close()
}

func (o *output) line(line []byte) {
	o.stderr.writeLine(line)
	text, ok := wordsOf(line)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	crash := strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ") ||
		strings.HasPrefix(text, "SIG") || strings.HasPrefix(text, "unexpected fault address")
	if len(o.fatal) > 0 && (strings.HasPrefix(text, "goroutine ") || strings.HasPrefix(text, "runtime stack:")) {
		o.stacks = true
	}
	if !o.stacks && len(o.fatal) < tailLines && (crash || len(o.fatal) > 0) {
		o.fatal = append(o.fatal, text)
	}
	if len(o.tail) == tailLines {
		o.tail = append(o.tail[:0], o.tail[1:]...)
	}
	o.tail = append(o.tail, text)
}

// lineWriter cuts what is written into lines.
type lineWriter struct {
	output *output
	rest   []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, more, found := bytes.Cut(p, []byte{'\n'})
		w.rest = append(w.rest, line[:min(len(line), maxLine-len(w.rest))]...)
		if !found {
			return n, nil
		}
		w.output.line(w.rest)
		w.rest, p = w.rest[:0], more
	}
}

// lastWords returns what the process said last, or how it crashed, on one line.
func (o *output) lastWords() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.fatal) > 0 {
		words := strings.Join(o.fatal, "; ")
		if strings.Contains(words, "SIGBUS") {
			words += "; a file in use, such as the model, was cut short or cannot be read any more"
		}
		return words
	}
	return strings.Join(o.tail, "; ")
}

// wordsOf returns what a line has to say in an error message: nothing for blank
// lines and for log entries below a warning, the text of the others.
func wordsOf(line []byte) (string, bool) {
	text := strings.TrimSpace(string(line[:min(len(line), tailLineBytes)]))
	if text == "" {
		return "", false
	}
	if line[0] != '{' {
		return printable(text), true
	}
	// The fields that hclog gives every JSON entry.
	var entry struct {
		Level   string `json:"@level"`
		Message string `json:"@message"`
		Error   string `json:"error"`
	}
	if err := json.Unmarshal(line, &entry); err != nil || entry.Message == "" {
		return printable(text), true
	}
	switch entry.Level {
	case "trace", "debug", "info":
		return "", false
	}
	text = entry.Message
	if entry.Error != "" {
		text += ": " + entry.Error
	}
	return printable(text[:min(len(text), tailLineBytes)]), true
}

// printable replaces what is not text: a terminal would obey it.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// eachLine calls f for every line of r without its end, until r ends. The slice
// is valid during the call.
func eachLine(r io.Reader, f func(line []byte)) {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		line, more, err := b.ReadLine()
		if len(line) > 0 || err == nil {
			f(line)
		}
		for more && err == nil {
			_, more, err = b.ReadLine()
		}
		if err != nil {
			return
		}
	}
}

// relay is a pipe whose writer never waits: lines that do not fit are counted
// and dropped, and the reader is told how many.
type relay struct {
	mu      sync.Mutex // protects the fields below
	filled  *sync.Cond
	buf     []byte
	dropped int
	closed  bool
}

func newRelay() *relay {
	r := &relay{}
	r.filled = sync.NewCond(&r.mu)
	return r
}

func (r *relay) writeLine(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if len(line)+1 > relayBytes-len(r.buf) {
		r.dropped++
		return
	}
	r.tellDropped()
	r.buf = append(append(r.buf, line...), '\n')
	r.filled.Signal()
}

// tellDropped puts a line with the number of dropped lines in their place.
func (r *relay) tellDropped() {
	if r.dropped > 0 {
		r.buf = fmt.Appendf(r.buf, "[WARN] %d lines of output left out: they came faster than the log takes them\n", r.dropped)
		r.dropped = 0
	}
}

// Read blocks until there is something to read. It returns io.EOF once the relay
// is closed and empty.
func (r *relay) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.buf) == 0 {
		if r.closed && r.dropped == 0 {
			return 0, io.EOF
		}
		if r.closed {
			r.tellDropped()
			break
		}
		r.filled.Wait()
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	if len(r.buf) == 0 {
		r.buf = nil // let a burst's memory go
	}
	return n, nil
}

// Close ends the relay; what it holds can still be read. It is idempotent.
func (r *relay) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.filled.Broadcast()
	return nil
}

var _ io.ReadCloser = (*relay)(nil)
