package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/strata-engine/strata/core/api"
	"github.com/strata-engine/strata/core/config"
)

const chatHelp = `/clear  forget the conversation
/exit   end the chat
/help   show this list`

// chatOptions are what the flags of chat say.
type chatOptions struct {
	url, system, effort string
	request             chatRequest
}

func (p *program) chatCommand() *cobra.Command {
	var o chatOptions
	cmd := &cobra.Command{
		Use:   "chat",
		Short: "Chat with a model in the terminal",
		Long: `Chat with a model in the terminal, or with a server that runs already (--url).
Without a terminal every line of the standard input is a message.

Commands in the chat:
` + chatHelp,
		Example: "  strata chat\n  strata chat --url http://127.0.0.1:8080\n  echo 'Who are you?' | strata chat",
		Args:    usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.url != "" {
				return p.chat(strings.TrimSuffix(o.url, "/"), &o)
			}
			cfg, log, err := p.settings(cmd.Flags())
			if err != nil {
				return err
			}
			return p.chatHere(cfg, log, &o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.url, "url", "", "`ADDRESS` of a running server, such as http://127.0.0.1:8080")
	flags.StringVar(&o.system, "system", "", "instructions for the model")
	flags.StringVar(&o.effort, "reasoning", "", "amount of reasoning: none, low, medium, high. Default: the model's")
	flags.Float64Var(&o.request.Temperature, "temperature", 0.7, "randomness, from 0 to 2")
	flags.IntVar(&o.request.MaxTokens, "max-tokens", 0, "most tokens of an answer. Default: the rest of the context")
	bindConfigFlag(flags)
	config.BindModelFlags(flags)
	return cmd
}

// chatHere loads the model into this process, behind the same server that serve
// runs, on a port of its own.
func (p *program) chatHere(cfg *config.Config, log hclog.Logger, o *chatOptions) error {
	stop, force, release := signals()
	defer release()
	display := newLoadDisplay(p.err)
	l, err := load(stop, cfg, log, display.update)
	display.done()
	if err != nil {
		if stop.Err() != nil {
			return nil
		}
		return err
	}
	defer func() {
		if err := l.close(); err != nil {
			log.Warn("close failed", "error", err)
		}
	}()
	release() // from here on signals end answers
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return with(exitListen, fmt.Errorf("listen for the chat: %w", err))
	}
	server := api.New(cfg.Server, version, log.Named("api"))
	server.SetModel(l.model)
	ctx, end := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, force, listener) }()
	err = p.chat(baseURL(listener.Addr()), o)
	end()
	<-served
	return err
}

// chat reads messages and prints answers until the input ends.
func (p *program) chat(url string, o *chatOptions) error {
	interactive := terminal(p.in)
	incoming := make(chan os.Signal, 1)
	signal.Notify(incoming, os.Interrupt)
	defer signal.Stop(incoming)
	if interactive {
		fmt.Fprintln(p.out, "/help lists the commands; Ctrl-C ends an answer, Ctrl-D the chat.")
	}
	c := &chatClient{url: url, options: o}
	if err := c.check(); err != nil {
		return err
	}
	c.clear()
	lines, failed := readLines(p.in)
	for {
		if interactive {
			fmt.Fprint(p.out, "\n> ")
		}
		var line string
		var ok bool
		select {
		case line, ok = <-lines:
		case <-incoming:
		}
		if !ok {
			if interactive {
				fmt.Fprintln(p.out)
			}
			return <-failed
		}
		switch line = strings.TrimSpace(line); line {
		case "":
			continue
		case "/exit", "/quit":
			return nil
		case "/clear":
			c.clear()
			continue
		case "/help":
			fmt.Fprintln(p.out, chatHelp)
			continue
		}
		if interactive && strings.HasPrefix(line, "/") {
			fmt.Fprintf(p.out, "unknown command %s\n%s\n", line, chatHelp)
			continue
		}
		if err := p.answer(c, line, incoming); err != nil {
			if !interactive {
				return err
			}
			fmt.Fprintln(p.err, "strata:", err)
		}
	}
}

// readLines reads lines in a goroutine, which may outlive the chat: a read from
// a terminal cannot be taken back. failed delivers the error, or nil at the end;
// it also delivers nil while lines are still being read.
func readLines(in io.Reader) (lines <-chan string, failed <-chan error) {
	out, end := make(chan string), make(chan error, 1)
	go func() {
		scanner := bufio.NewScanner(in)
		scanner.Buffer(nil, 16<<20)
		for scanner.Scan() {
			out <- scanner.Text()
		}
		if err := scanner.Err(); err != nil {
			end <- fmt.Errorf("read message: %w", err)
		}
		close(end)
		close(out)
	}()
	return out, end
}

// answer sends a message and prints the answer as it comes.
func (p *program) answer(c *chatClient, line string, interrupt <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-interrupt:
			cancel()
		case <-done:
		}
	}()
	styled := terminal(p.out) && p.variable("NO_COLOR") == ""
	thinking := false
	show := func(reasoning, content string) {
		if reasoning != "" && terminal(p.out) { // elsewhere only answers count
			if !thinking && styled {
				fmt.Fprint(p.out, "\x1b[2m")
			}
			thinking = true
			fmt.Fprint(p.out, reasoning)
		}
		if content != "" {
			if thinking {
				if styled {
					fmt.Fprint(p.out, "\x1b[0m")
				}
				fmt.Fprint(p.out, "\n\n")
				thinking = false
			}
			fmt.Fprint(p.out, content)
		}
	}
	err := c.send(ctx, line, show)
	if thinking && styled {
		fmt.Fprint(p.out, "\x1b[0m")
	}
	fmt.Fprintln(p.out)
	if err != nil && ctx.Err() != nil {
		return errors.New("the answer was interrupted")
	}
	return err
}
