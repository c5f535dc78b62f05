package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/strata-engine/strata/core"
)

// pty is a terminal with a test at its other end.
type pty struct {
	t       *testing.T
	keys    *os.File // the test's end
	program *os.File // the program's end
	screen  *buffer
	read    sync.WaitGroup
}

func newPTY(t *testing.T) *pty {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("NOT RUN: no terminals here: ", err)
	}
	fd := int(keys.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}); err != nil {
		t.Fatal(err)
	}
	p := &pty{t: t, keys: keys, program: program, screen: &buffer{}}
	p.read.Go(func() {
		chunk := make([]byte, 4096)
		for {
			n, err := keys.Read(chunk)
			if err != nil {
				return
			}
			_, _ = p.screen.Write(chunk[:n])
		}
	})
	t.Cleanup(p.close)
	return p
}

// close ends the terminal; what was written is on the screen then.
func (p *pty) close() {
	p.program.Close()
	p.read.Wait()
	p.keys.Close()
}

func (p *pty) press(keys string) {
	p.t.Helper()
	if _, err := p.keys.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// shows waits until the text is on the screen, and takes away all up to there.
func (p *pty) shows(text string) string {
	p.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if i := strings.Index(p.screen.String(), text); i >= 0 {
			p.screen.mu.Lock()
			defer p.screen.mu.Unlock()
			return string(p.screen.b.Next(i + len(text)))
		}
		if time.Now().After(end) {
			p.t.Fatalf("%q is not on the screen:\n%q", text, p.screen.String())
		}
	}
}

// on starts a program with the terminal as its own.
func (p *pty) on(cmd *exec.Cmd) (wait func() int) {
	p.t.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.program, p.program, p.program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return func() int {
		p.t.Helper()
		select {
		case <-ended:
		case <-time.After(15 * time.Second):
			p.t.Fatalf("the program does not end:\n%q", p.screen.String())
		}
		return cmd.ProcessState.ExitCode()
	}
}

const prompt = "> "

func TestChatOnATerminal(t *testing.T) {
	p := newPTY(t)
	before, err := term.GetState(int(p.program.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(t.TempDir(), "saved.json")
	wait := p.on(strata(t, []string{"TERM=xterm"}, "chat", "--temperature", "0"))
	p.shows("/help lists the commands")
	p.shows(prompt)
	p.press(whoAreYou + "\r")
	if s := p.shows(iAmPebble); !strings.Contains(s, "\x1b[2mA simple question") || !strings.Contains(s, "\x1b[0m") {
		t.Errorf("the thinking is not dim in %q", s)
	}
	p.shows(prompt)
	p.press("\x1b[A") // up: the last line again
	p.shows(whoAreYou)
	p.press("\x15/stats\r")
	p.shows("all answers: 1 with")
	p.shows(prompt)
	p.press("/nothing\r")
	p.shows("/nothing is no command")
	p.shows(prompt)
	p.press("/think much\r")
	p.shows("thinking can be")
	p.shows(prompt)
	p.press("\x1b[200~Who\rare\x1b[201~ you?\r") // a paste of two lines
	p.shows(prompt)
	p.press("/save " + saved + "\r")
	p.shows("Saved to")
	p.shows(prompt)
	p.press("half a li\x03") // Ctrl-C discards the line
	p.shows("Ctrl-C again ends the chat.")
	p.shows(prompt)
	p.press("/save " + saved + "\r")
	p.shows("file exists")
	p.shows(prompt)

	// Ctrl-C ends an answer, which goes on without end, and then the chat.
	p.press("/system\r")
	p.shows("There are no instructions.")
	p.shows(prompt)
	p.press("\x03")
	p.shows("Ctrl-C again ends the chat.")
	p.shows(prompt)
	p.press("\x03")
	if code := wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	after, err := term.GetState(int(p.program.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(*before) != fmt.Sprint(*after) {
		t.Error("the terminal is not as it was before")
	}
	text, err := os.ReadFile(saved)
	if err != nil || !strings.Contains(string(text), `"content": "Who\nare you?"`) {
		t.Errorf("saved %s, error %v", text, err)
	}
}

func TestInterruptedAnswerOnATerminal(t *testing.T) {
	p := newPTY(t)
	wait := p.on(strata(t, []string{"TERM=xterm", "NO_COLOR=1"}, "chat", "--temperature", "2", "--think", "off"))
	p.shows("/help lists the commands")
	p.shows(prompt)
	for range 20 { // an answer can be over before it is interrupted
		p.press("Tell me a very long story.\r")
		p.shows("\n")
		time.Sleep(30 * time.Millisecond)
		p.press("\x03")
		if s := p.shows("Ctrl-C again ends the chat."); strings.Contains(s, "The answer was interrupted") {
			p.shows(prompt)
			p.press("\x03")
			if code := wait(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			return
		}
	}
	t.Error("no answer was interrupted")
}

func TestChatWithoutStyles(t *testing.T) {
	for _, variable := range []string{"NO_COLOR=1", "TERM=dumb"} {
		p := newPTY(t)
		wait := p.on(strata(t, []string{variable}, "chat", "--temperature", "0"))
		p.shows(prompt)
		p.press(whoAreYou + "\r")
		if s := p.shows(iAmPebble); strings.Contains(s, "\x1b[2m") || !strings.Contains(s, "A simple question") {
			t.Errorf("with %s: %q", variable, s)
		}
		p.shows(prompt)
		p.press("\x04")
		if code := wait(); code != 0 {
			t.Errorf("with %s: exit code %d", variable, code)
		}
	}
}

// A signal from outside gives the terminal back.
func TestChatIsTerminated(t *testing.T) {
	p := newPTY(t)
	before, err := term.GetState(int(p.program.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	cmd := strata(t, []string{"TERM=xterm"}, "chat")
	wait := p.on(cmd)
	p.shows(prompt)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	after, err := term.GetState(int(p.program.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(*before) != fmt.Sprint(*after) {
		t.Error("the terminal is not as it was before")
	}
}

// A load that takes its time draws a bar on a terminal and writes lines
// elsewhere.
func TestLoadDisplay(t *testing.T) {
	p := newPTY(t)
	var lines bytes.Buffer
	for _, d := range []*loadDisplay{newLoadDisplay(p.program), newLoadDisplay(&lines)} {
		d.update(core.LoadProgress{Phase: "read", Bytes: 1 << 20, Total: 8 << 20}) // too early to show
		d.started = time.Now().Add(-patience)
		for i := range int64(9) {
			d.update(core.LoadProgress{Phase: "read", Bytes: i << 20, Total: 8 << 20})
			if d.bars != nil {
				time.Sleep(150 * time.Millisecond) // longer than between two pictures
			}
		}
		d.done()
	}
	p.close()
	screen := p.screen.String()
	for _, want := range []string{"loading ", "4.0 MiB / 8.0 MiB", "[", "=", ">"} {
		if !strings.Contains(screen, want) {
			t.Errorf("%q is not in %q", want, screen)
		}
	}
	if want := "loading: 25 %\nloading: 50 %\nloading: 75 %\nloading: 100 %\n"; lines.String() != want {
		t.Errorf("lines %q, want %q", lines.String(), want)
	}
}
