package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// maxPrompt bounds the standard input, like the server a request.
const maxPrompt = 32 << 20

func (p *program) runCommand() *cobra.Command {
	var a asking
	var showThinking bool
	cmd := &cobra.Command{
		Use:   "run [PROMPT]",
		Short: "Answer one prompt, for scripts",
		Long: `Answer one prompt and end. The prompt is the argument, the standard input, or
both: what is piped in follows the argument. The standard output gets the answer
and nothing else. An answer that was cut off by --max-tokens or the context says
so on the standard error.`,
		Example: "  strata run 'Who are you?'\n  strata run --temperature 0 'Summarize this.' < report.txt\n  strata run --url http://127.0.0.1:8080 --seed 7 'Tell me a story.'",
		Args:    usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			prompt, err := p.prompt(args)
			if err != nil {
				return err
			}
			ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer release()
			c, end, err := p.connect(ctx, cmd.Flags(), &a)
			if err == nil {
				err = p.answerOnce(ctx, c, prompt, showThinking)
				end()
			}
			if err != nil && ctx.Err() != nil {
				return errInterrupted
			}
			return err
		},
	}
	a.bind(cmd.Flags())
	cmd.Flags().BoolVar(&showThinking, "show-thinking", false, "write what the model thinks to the standard error")
	return cmd
}

// prompt joins the argument and what is piped in.
func (p *program) prompt(args []string) (string, error) {
	var parts []string
	if len(args) > 0 && strings.TrimSpace(args[0]) != "" {
		parts = append(parts, args[0])
	}
	if len(parts) == 0 && terminal(p.in) {
		return "", with(exitUsage, errors.New("there is no prompt\nTry: strata run 'Who are you?', or strata chat"))
	}
	if !terminal(p.in) {
		text, err := io.ReadAll(io.LimitReader(p.in, maxPrompt+1))
		if err != nil {
			return "", fmt.Errorf("read the prompt: %w", err)
		}
		if len(text) > maxPrompt {
			return "", with(exitUsage, fmt.Errorf("read the prompt: the standard input is longer than %v", size(maxPrompt)))
		}
		if s := strings.TrimSuffix(string(text), "\n"); strings.TrimSpace(s) != "" {
			parts = append(parts, s)
		}
	}
	if len(parts) == 0 {
		return "", with(exitUsage, errors.New("there is no prompt: no argument, and nothing on the standard input"))
	}
	return strings.Join(parts, "\n\n"), nil
}

// answerOnce writes the answer as it comes.
func (p *program) answerOnce(ctx context.Context, c *client, prompt string, showThinking bool) error {
	out := &printer{out: p.out, safe: terminal(p.out)}
	thoughts := &printer{out: io.Discard}
	if showThinking {
		thoughts = &printer{out: p.err, safe: terminal(p.err)}
	}
	t, err := c.send(ctx, prompt, func(reasoning, content string) {
		thoughts.write(reasoning)
		if content != "" {
			thoughts.endLine()
		}
		out.write(content)
	})
	thoughts.endLine()
	out.endLine()
	switch {
	case err != nil:
		return err
	case out.err != nil:
		return fmt.Errorf("write the answer: %w", out.err)
	case t.finish == "length":
		fmt.Fprintln(p.err, "strata: the answer was cut off at the limit of tokens")
	}
	return nil
}
