package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

// maxLine bounds a line of input, like the server a request.
const maxLine = 32 << 20

// lines reads lines, from a terminal with editing and history. What reads is a
// goroutine, which may outlive its use: a read cannot be taken back.
type lines struct {
	asked chan string
	got   chan line
	// interrupts are the signals that end waiting.
	interrupts <-chan os.Signal
	// waiting says that a line was asked for and did not come yet.
	waiting bool
	editor  *editor // nil where there is no terminal
}

type line struct {
	text string
	err  error
}

// errStop is the end of waiting for a line because of Ctrl-C or a signal; killed
// tells whether it was a signal.
type errStop struct{ killed bool }

func (errStop) Error() string { return "interrupted" }

// newLines reads from in; e is nil for plain reading.
func newLines(in io.Reader, e *editor, interrupts <-chan os.Signal) *lines {
	l := &lines{asked: make(chan string, 1), got: make(chan line, 1), interrupts: interrupts, editor: e}
	read := plainReader(in)
	if e != nil {
		read = e.read
	}
	go func() {
		for prompt := range l.asked {
			text, err := read(prompt)
			l.got <- line{text, err}
		}
	}()
	return l
}

// next returns a line without its end: io.EOF behind the last, errStop where the
// wait was interrupted.
func (l *lines) next(prompt string) (string, error) {
	if !l.waiting {
		l.asked <- prompt
		l.waiting = true
	}
	select {
	case got := <-l.got:
		l.waiting = false
		return got.text, got.err
	case <-l.interrupts:
		return "", errStop{killed: true}
	}
}

// close gives the terminal back as it was.
func (l *lines) close() {
	close(l.asked)
	if l.editor != nil {
		l.editor.restore()
	}
}

// plainReader reads lines as they come.
func plainReader(in io.Reader) func(prompt string) (string, error) {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, maxLine)
	return func(string) (string, error) {
		if scanner.Scan() {
			return scanner.Text(), nil
		}
		if err := scanner.Err(); err != nil {
			return "", fmt.Errorf("read message: %w", err)
		}
		return "", io.EOF
	}
}

// editor reads lines from a terminal, which is in raw mode only meanwhile.
type editor struct {
	in       *os.File
	out      io.Writer
	before   *term.State
	keys     *keys
	terminal *term.Terminal
}

func newEditor(in *os.File, out io.Writer) (*editor, error) {
	before, err := term.GetState(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("use the terminal: %w", err)
	}
	k := &keys{in: in}
	e := &editor{in: in, out: out, before: before, keys: k}
	e.terminal = term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{k, out}, "")
	e.terminal.History = &history{}
	return e, nil
}

// read returns a line, or all lines of a paste.
func (e *editor) read(prompt string) (string, error) {
	if _, err := term.MakeRaw(int(e.in.Fd())); err != nil {
		return "", fmt.Errorf("use the terminal: %w", err)
	}
	defer e.restore()
	e.terminal.SetBracketedPasteMode(true)
	if f, ok := e.out.(*os.File); ok {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			_ = e.terminal.SetSize(width, height) // it only fails with the next write
		}
	}
	e.terminal.SetPrompt(prompt)
	var pasted []string
	for {
		text, err := e.terminal.ReadLine()
		if e.keys.interrupted {
			e.keys.interrupted = false
			return "", errStop{}
		}
		if errors.Is(err, term.ErrPasteIndicator) {
			e.terminal.SetPrompt("")
			pasted = append(pasted, text)
			continue
		}
		return strings.Join(append(pasted, text), "\n"), err
	}
}

// restore puts the terminal into the mode in which it was found.
func (e *editor) restore() {
	e.terminal.SetBracketedPasteMode(false)
	_ = term.Restore(int(e.in.Fd()), e.before) // it worked before
}

// keys makes of Ctrl-C the keys that discard the line and end it: the terminal
// would take it for the end of the input.
type keys struct {
	in          io.Reader
	pending     []byte
	interrupted bool
}

// Read implements io.Reader.
func (k *keys) Read(b []byte) (int, error) {
	if len(k.pending) == 0 {
		n, err := k.in.Read(b)
		i := slices.Index(b[:n], ctrlC)
		if i < 0 {
			return n, err
		}
		k.interrupted = true
		k.pending = append(slices.Clone(b[:i]), discardLine...) // and with it what follows
	}
	n := copy(b, k.pending)
	k.pending = k.pending[n:]
	return n, nil
}

const ctrlC = 3

// discardLine are Ctrl-E, to the end of the line, Ctrl-U, delete to its start,
// and Enter.
var discardLine = []byte{5, 21, '\r'}

// history keeps the last lines of a session, without repetitions in sequence.
type history struct {
	lines []string // oldest first
}

// maxHistory bounds the lines kept.
const maxHistory = 500

// Add implements term.History.
func (h *history) Add(entry string) {
	if strings.TrimSpace(entry) == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == entry {
		return
	}
	h.lines = append(h.lines, entry)
	if len(h.lines) > maxHistory {
		h.lines = slices.Delete(h.lines, 0, 1)
	}
}

// Len implements term.History.
func (h *history) Len() int { return len(h.lines) }

// At implements term.History: 0 is the newest.
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }

// message reads a message: a line, several joined by backslashes at their ends,
// or all between two """.
func (l *lines) message(prompt string) (string, error) {
	const quotes, more = `"""`, "... "
	text, err := l.next(prompt)
	if err != nil {
		return text, err
	}
	if rest, ok := strings.CutPrefix(strings.TrimLeft(text, " \t"), quotes); ok {
		for {
			if body, ok := strings.CutSuffix(strings.TrimRight(rest, " \t"), quotes); ok {
				return strings.Trim(body, "\n"), nil
			}
			next, err := l.next(more)
			if err != nil {
				return "", unfinished(err, "the closing "+quotes+" is missing")
			}
			rest += "\n" + next
		}
	}
	for {
		body, ok := strings.CutSuffix(text, `\`)
		if !ok {
			return text, nil
		}
		next, err := l.next(more)
		if err != nil {
			return "", unfinished(err, `the line after the last \ is missing`)
		}
		text = body + "\n" + next
	}
}

// unfinished explains the end of the input in the middle of a message.
func unfinished(err error, what string) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("read message: %s: %w", what, io.ErrUnexpectedEOF)
	}
	return err
}
