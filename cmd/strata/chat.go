package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

const chatHelp = `/clear          forget the conversation
/system [TEXT]  give the model other instructions, or show them
/think [HOW]    on, off, low, medium, high, or what the model does by itself
/stats          tokens and times of the last answer
/save FILE      write the conversation to a new file, as JSON
/help           show this list
/exit           end the chat

A message goes on in the next line behind a \ at the end of a line, and over
many lines between """ and """.`

func (p *program) chatCommand() *cobra.Command {
	var a asking
	cmd := &cobra.Command{
		Use:   "chat",
		Short: "Chat with a model in the terminal",
		Long: `Chat with a model in the terminal, or with a server that runs already (--url).
Without a terminal every line of the standard input is a message, and only
answers are printed.

Ctrl-C ends an answer, a second one the chat. Commands in the chat:
` + chatHelp,
		Example: "  strata chat\n  strata chat --url http://127.0.0.1:8080\n  echo 'Who are you?' | strata chat",
		Args:    usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer release()
			c, end, err := p.connect(ctx, cmd.Flags(), &a)
			if err != nil {
				if ctx.Err() != nil {
					return errInterrupted
				}
				return err
			}
			defer end()
			signals := make(chan os.Signal, 4)
			signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
			defer signal.Stop(signals)
			release() // from here on signals end answers
			return p.chat(c, signals)
		},
	}
	a.bind(cmd.Flags())
	return cmd
}

// chat is a conversation in progress.
type chat struct {
	*program
	client  *client
	signals <-chan os.Signal
	// interactive says that there is a person, who reads hints and corrects
	// mistakes.
	interactive bool
	last        *turn // nil before the first answer
	answers     int
	tokens      int // of all answers
}

// chat reads messages and prints answers until the input ends.
func (p *program) chat(c *client, signals <-chan os.Signal) error {
	ch := &chat{program: p, client: c, signals: signals, interactive: terminal(p.in) && terminal(p.out)}
	var e *editor
	if ch.interactive && !p.dumb() {
		var err error
		if e, err = newEditor(p.in.(*os.File), p.out); err != nil {
			return err
		}
	}
	input := newLines(p.in, e, signals)
	defer input.close()
	ch.hint("/help lists the commands; Ctrl-C ends an answer, Ctrl-D the chat.")
	interrupts := 0 // in sequence, without a message between them
	for {
		if ch.interactive {
			fmt.Fprintln(p.out)
		}
		prompt := "> "
		if ch.interactive && e == nil {
			fmt.Fprint(p.out, prompt)
		}
		text, err := input.message(prompt)
		var stopped errStop
		switch {
		case errors.As(err, &stopped):
			if !ch.interactive {
				return errInterrupted
			}
			if interrupts++; stopped.killed || interrupts > 1 {
				return nil
			}
			ch.hint("Ctrl-C again ends the chat.")
			continue
		case errors.Is(err, io.EOF):
			if ch.interactive {
				fmt.Fprintln(p.out)
			}
			return nil
		case err != nil:
			return err
		}
		interrupts = 0
		done, err := ch.take(text)
		if errors.As(err, &stopped) {
			if !ch.interactive {
				return errInterrupted
			}
			if stopped.killed {
				return nil
			}
			interrupts = 1
			ch.hint("The answer was interrupted; Ctrl-C again ends the chat.")
		} else if err != nil {
			if !ch.interactive {
				return err
			}
			fmt.Fprintln(p.err, "strata:", err)
		}
		if done {
			return nil
		}
	}
}

// hint tells a person something.
func (c *chat) hint(text string) {
	if c.interactive {
		fmt.Fprintln(c.out, text)
	}
}

// take does what a line of input says: a command, or else a message.
func (c *chat) take(text string) (done bool, err error) {
	name, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	rest = strings.TrimSpace(rest)
	switch name {
	case "":
	case "/exit", "/quit":
		return true, nil
	case "/clear":
		c.client.clear()
		c.hint("The conversation is forgotten.")
	case "/help":
		fmt.Fprintln(c.out, chatHelp)
	case "/system":
		c.system(rest)
	case "/think":
		return false, c.think(rest)
	case "/stats":
		fmt.Fprintln(c.out, c.stats())
	case "/save":
		return false, c.save(rest)
	default:
		if c.interactive && strings.HasPrefix(name, "/") && !strings.Contains(name[1:], "/") {
			return false, fmt.Errorf("%s is no command; /help lists them", name)
		}
		return false, c.answer(text)
	}
	return false, nil
}

func (c *chat) system(text string) {
	switch {
	case text != "":
		c.client.instruct(text)
		c.hint("The model has new instructions.")
	case c.client.sampling.system == "":
		fmt.Fprintln(c.out, "There are no instructions.")
	default:
		fmt.Fprintln(c.out, c.client.sampling.system)
	}
}

func (c *chat) think(how string) error {
	if err := c.client.sampling.setThink(how); err != nil {
		return err
	}
	if how == "" {
		how = "as the model does by itself"
	}
	c.hint("Thinking: " + how + ".")
	return nil
}

// stats describes the last answer and the conversation.
func (c *chat) stats() string {
	if c.last == nil || c.last.usage == nil {
		return "There is no whole answer yet."
	}
	u := c.last.usage
	text := fmt.Sprintf("last answer: %d tokens read (%d of them known), first text after %.2f s, %d tokens written in %.2f s",
		u.PromptTokens, u.PromptTokensDetails.CachedTokens, c.last.first.Seconds(), u.CompletionTokens, c.last.rest.Seconds())
	if s := c.last.rest.Seconds(); u.CompletionTokens > 1 && s > 0 {
		text += fmt.Sprintf(", %.1f tokens/s", float64(u.CompletionTokens-1)/s)
	}
	return text + fmt.Sprintf("\nall answers: %d with %d tokens", c.answers, c.tokens)
}

// save writes the conversation in the form in which the API takes it. It
// overwrites nothing.
func (c *chat) save(path string) error {
	if path == "" {
		return errors.New("/save needs the name of a file")
	}
	body, err := json.MarshalIndent(map[string]any{"messages": c.client.history}, "", "  ")
	if err != nil {
		return fmt.Errorf("save the conversation: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("save the conversation: %w", err)
	}
	_, err = f.Write(append(body, '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("save the conversation: %w", err)
	}
	c.hint("Saved to " + path + ".")
	return nil
}

// answer sends a message and prints the answer as it comes.
func (c *chat) answer(text string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done, watched := make(chan struct{}), make(chan struct{})
	var by os.Signal
	go func() {
		defer close(watched)
		select {
		case by = <-c.signals:
			cancel()
		case <-done:
		}
	}()
	out := &printer{out: c.out, safe: terminal(c.out)}
	dim, plain := "", ""
	if !c.plain() && terminal(c.out) {
		dim, plain = "\x1b[2m", "\x1b[0m"
	}
	thinking := false
	t, err := c.client.send(ctx, text, func(reasoning, content string) {
		if reasoning != "" && terminal(c.out) { // elsewhere only answers count
			if !thinking {
				fmt.Fprint(c.out, dim)
			}
			thinking = true
			out.write(reasoning)
		}
		if content == "" {
			return
		}
		if thinking {
			fmt.Fprint(c.out, plain)
			out.endLine()
			out.write("\n")
			thinking = false
		}
		out.write(content)
	})
	close(done)
	<-watched
	if thinking {
		fmt.Fprint(c.out, plain)
	}
	out.endLine()
	if t != nil {
		c.last = t
		if t.usage != nil {
			c.answers, c.tokens = c.answers+1, c.tokens+t.usage.CompletionTokens
		}
	}
	switch {
	case err != nil && by != nil:
		return errStop{killed: by != os.Interrupt}
	case err != nil:
		return err
	case out.err != nil:
		return fmt.Errorf("write the answer: %w", out.err)
	case t.finish == "length":
		c.hint("(cut off at the limit of tokens)")
	}
	return nil
}
