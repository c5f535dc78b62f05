package runner

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEachLine(t *testing.T) {
	long := strings.Repeat("y", 3*maxLine)
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"a", []string{"a"}},
		{"a\n", []string{"a"}},
		{"a\r\n\nb", []string{"a", "", "b"}},
		{long + "\nend\n", []string{long[:maxLine], "end"}},
		{long, []string{long[:maxLine]}},
	} {
		var got []string
		eachLine(strings.NewReader(c.in), func(line []byte) { got = append(got, string(line)) })
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%.20q: %s", c.in, diff)
		}
	}
}

func TestWords(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"  ", ""},
		{"CUDA error 700", "CUDA error 700"},
		{`{"@level":"debug","@message":"plugin address"}`, ""},
		{`{"@level":"warn","@message":"slow"}`, "slow"},
		{`{"@level":"error","@message":"map","error":"denied"}`, "map: denied"},
		{`{"no":"hclog"}`, `{"no":"hclog"}`},
		{`{broken`, `{broken`},
		{"\xff", "?"},
		{"a\x1b[31m\tred\u0085b", "a?[31m red?b"},
		{`{"@level":"error","@message":"a\u001b[0m"}`, "a?[0m"},
		{strings.Repeat("z", 2*tailLineBytes), strings.Repeat("z", tailLineBytes)},
	} {
		if got, _ := wordsOf([]byte(c.in)); got != c.want {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

func TestLastWords(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
	}{
		{"nothing", "", ""},
		{"tail", "one\ntwo\n", "one; two"},
		{"panic", "up\npanic: boom\n\ngoroutine 1 [running]:\nmain.main()\npanic: later\n", "panic: boom"},
		{"fatal", "fatal error: all goroutines are asleep - deadlock!\n\nruntime stack:\nx\n", "fatal error: all goroutines are asleep - deadlock!"},
		{"file cut short", "unexpected fault address 0x10\nfatal error: fault\n[signal SIGBUS: bus error]\n\ngoroutine 3 gp=0x1 [running]:\nruntime.throw\n",
			"unexpected fault address 0x10; fatal error: fault; [signal SIGBUS: bus error]; a file in use, such as the model, was cut short or cannot be read any more"},
	} {
		o := newOutput(newRelay(), newRelay())
		o.pumpStderr(strings.NewReader(c.in))
		if got := o.lastWords(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestRelay(t *testing.T) {
	r := newRelay()
	got := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		got <- string(b)
	}()
	time.Sleep(10 * time.Millisecond)
	r.writeLine([]byte("one"))
	time.Sleep(10 * time.Millisecond)
	r.writeLine([]byte("two"))
	r.Close()
	r.writeLine([]byte("late"))
	if s := <-got; s != "one\ntwo\n" {
		t.Errorf("read %q", s)
	}

	r = newRelay()
	line := []byte(strings.Repeat("x", 1023))
	for range relayBytes/1024 + 5 {
		r.writeLine(line)
	}
	p := make([]byte, 4096)
	if n, err := io.ReadFull(r, p); n != len(p) || err != nil {
		t.Fatal(n, err)
	}
	r.writeLine([]byte("after"))
	r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(b); !strings.HasSuffix(s, "x\n[WARN] 5 lines of output left out: they came faster than the log takes them\nafter\n") {
		t.Errorf("read ...%q", s[max(0, len(s)-120):])
	}
}

func TestLineWriter(t *testing.T) {
	o := newOutput(newRelay(), newRelay())
	w := &lineWriter{output: o}
	long := strings.Repeat("y", 2*maxLine)
	for _, text := range []string{"on", "e\ntwo\n\nth", "", "ree", "\n" + long, long + "\nend\nno end"} {
		if n, err := io.WriteString(w, text); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	o.stderr.Close()
	b, err := io.ReadAll(o.stderr)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("one\ntwo\n\nthree\n"+long[:maxLine]+"\nend\n", string(b)); diff != "" {
		t.Error(diff)
	}
}

func TestLastWins(t *testing.T) {
	got := lastWins([]string{"A=1", "B=2", "A=3", "C="})
	if diff := cmp.Diff([]string{"B=2", "A=3", "C="}, got); diff != "" {
		t.Error(diff)
	}
}
