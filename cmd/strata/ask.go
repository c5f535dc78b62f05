package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/strata-engine/strata/core/api"
	"github.com/strata-engine/strata/core/config"
)

// sampling says how a model is asked.
type sampling struct {
	system, think string
	seed          int64
	request       chatRequest
}

// thinkChoices are the amounts of thinking that can be asked for.
var thinkChoices = []string{"on", "off", "low", "medium", "high"}

// setThink asks for an amount of thinking; "" leaves it to the model.
func (s *sampling) setThink(amount string) error {
	if amount != "" && !slices.Contains(thinkChoices, amount) {
		return fmt.Errorf("thinking can be %s, not %q", strings.Join(thinkChoices, ", "), amount)
	}
	s.think, s.request.EnableThinking, s.request.ReasoningEffort = amount, nil, ""
	switch amount {
	case "on", "off":
		on := amount == "on"
		s.request.EnableThinking = &on
	default:
		s.request.ReasoningEffort = amount
	}
	return nil
}

// asking is what the flags of the commands that ask a model say.
type asking struct {
	url string
	sampling
}

func (a *asking) bind(flags *pflag.FlagSet) {
	flags.StringVar(&a.url, "url", "", "`ADDRESS` of a running server, such as http://127.0.0.1:8080; its key is STRATA_API_KEY")
	flags.StringVar(&a.system, "system", "", "`TEXT` that instructs the model")
	flags.StringVar(&a.think, "think", "", "`HOW` much thinking before the answer: "+strings.Join(thinkChoices, ", ")+". Default: the model's")
	flags.Float64Var(&a.request.Temperature, "temperature", 0.7, "randomness `T`, from 0 to 2")
	flags.Int64Var(&a.seed, "seed", 0, "number `N` that makes answers repeatable. Default: a new one for every answer")
	flags.IntVar(&a.request.MaxTokens, "max-tokens", 0, "at most `N` tokens of an answer. Default: the rest of the context")
	bindConfigFlag(flags)
	config.BindModelFlags(flags)
}

// connect returns a client of the running server that the flags name, or of one
// in this process that listens on a port of its own with a model loaded for it.
// The end of ctx ends loading, and nothing later. The caller calls end.
func (p *program) connect(ctx context.Context, flags *pflag.FlagSet, a *asking) (_ *client, end func(), err error) {
	if err := a.setThink(a.think); err != nil {
		return nil, nil, with(exitUsage, fmt.Errorf("--think: %w", err))
	}
	if flags.Changed("seed") {
		a.request.Seed = &a.seed
	}
	if a.url != "" {
		u, err := url.Parse(a.url)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, nil, with(exitUsage, fmt.Errorf("--url: %q is not an address such as http://127.0.0.1:8080", a.url))
		}
		c := &client{url: strings.TrimSuffix(a.url, "/"), key: p.variable("STRATA_API_KEY"), sampling: a.sampling}
		c.clear()
		return c, func() {}, c.check(ctx)
	}
	cfg, log, err := p.settings(flags)
	if err != nil {
		return nil, nil, err
	}
	display := newLoadDisplay(p.err)
	l, err := load(ctx, cfg, log, display.update)
	display.done()
	if err != nil {
		return nil, nil, err
	}
	unload := func() {
		if err := l.close(); err != nil {
			log.Warn("close failed", "error", err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		unload()
		return nil, nil, with(exitListen, fmt.Errorf("listen for the chat: %w", err))
	}
	// What is configured for a server, from its address to its keys, is for serve.
	// This one is for nobody else on this machine.
	serving := config.Defaults().Server
	serving.APIKeys = []string{rand.Text()}
	server := api.New(serving, version, log.Named("api"))
	server.SetModel(l.model)
	stop, cancel := context.WithCancel(context.Background())
	force, cut := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(stop, force, listener) }()
	end = func() {
		cancel()
		defer time.AfterFunc(time.Second, cut).Stop() // an answer was interrupted: it ends at once
		if err := <-served; err != nil {
			log.Warn("close failed", "error", err)
		}
		cut()
		unload()
	}
	c := &client{url: baseURL(listener.Addr()), key: serving.APIKeys[0], sampling: a.sampling}
	c.clear()
	if err := c.check(ctx); err != nil {
		end()
		return nil, nil, err
	}
	return c, end, nil
}

// errInterrupted is the end that a signal brings about.
var errInterrupted = with(exitInterrupted, errors.New("interrupted"))
