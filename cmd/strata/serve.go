package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/api"
	"github.com/strata-engine/strata/core/config"
)

func (p *program) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a model through an OpenAI-compatible API",
		Long: `Serve a model through an OpenAI-compatible API.

Settings come from the defaults, the file of --config, environment variables
(STRATA_SERVER__LISTEN is server.listen) and flags; each overrides the one before.

SIGINT and SIGTERM let running requests finish; a second one cuts them off.`,
		Example: "  strata serve\n  strata serve --model model.gguf --listen 127.0.0.1:9000 --context 8192",
		Args:    usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, log, err := p.settings(cmd.Flags())
			if err != nil {
				return err
			}
			return p.serve(cfg, log)
		},
	}
	bindConfigFlag(cmd.Flags())
	config.BindModelFlags(cmd.Flags())
	config.BindServerFlags(cmd.Flags())
	return cmd
}

// serve binds the address, loads the model while health says so, and answers
// requests until a signal ends it.
func (p *program) serve(cfg *config.Config, log hclog.Logger) error {
	started := time.Now()
	encryption, err := protection(&cfg.Server)
	if err != nil {
		return with(exitUsage, err)
	}
	listener, err := net.Listen("tcp", cfg.Server.Listen)
	if err != nil {
		return with(exitListen, listenError(cfg.Server.Listen, err))
	}
	address, curl := addresses(listener.Addr(), &cfg.Server)
	if exposed(listener.Addr()) && len(cfg.Server.APIKeys) == 0 {
		log.Warn("the server asks for no key: everybody who reaches it can use it; set server.api_keys, or listen on 127.0.0.1", "listen", cfg.Server.Listen)
	}
	if encryption != nil {
		listener = tls.NewListener(listener, encryption)
	}
	stop, force, release := signals()
	defer release()

	server := api.New(cfg.Server, version, log.Named("api"))
	ctx, end := context.WithCancel(stop)
	defer end()
	force, cut := context.WithCancel(force)
	defer cut()
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, force, listener) }()

	display := newLoadDisplay(p.err)
	l, err := load(ctx, cfg, log, func(progress core.LoadProgress) {
		display.update(progress)
		if progress.Total > 0 {
			server.SetProgress(progress.Phase, float64(progress.Bytes)/float64(progress.Total))
		}
	})
	display.done()
	if err != nil {
		cut()
		end()
		<-served
		if stop.Err() != nil {
			return nil // the signal came while the model was loaded
		}
		return err
	}
	server.SetModel(l.model)
	fmt.Fprintf(p.out, "Strata serves %s on %s (context %d tokens, ready in %.2f s)\n\nTry it:\n  %s\n\nCtrl-C stops it.\n",
		l.model.ID, address, l.model.Context, time.Since(started).Seconds(), curl)
	err = <-served
	if stop.Err() != nil {
		log.Info("shutting down")
	}
	if closeErr := l.stop(force); closeErr != nil {
		err = errors.Join(err, closeErr)
	}
	if force.Err() != nil {
		return with(exitInterrupted, errors.Join(errors.New("interrupted: running requests were cut off"), err))
	}
	return err
}

// signals returns a context that ends with the first SIGINT or SIGTERM and one
// that ends with the second.
func signals() (stop, force context.Context, release func()) {
	stop, cancelStop := context.WithCancel(context.Background())
	force, cancelForce := context.WithCancel(context.Background())
	incoming := make(chan os.Signal, 2)
	signal.Notify(incoming, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for _, cancel := range []func(){cancelStop, cancelForce} {
			select {
			case <-incoming:
				cancel()
			case <-done:
				return
			}
		}
	}()
	return stop, force, sync.OnceFunc(func() {
		signal.Stop(incoming)
		close(done)
		cancelStop()
		cancelForce()
	})
}

// listenError says what to do where the address cannot be had.
func listenError(address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("listen on %s: another program listens there\nTry: --listen with another port, or stop that program", address)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("listen on %s: not allowed\nTry: --listen with a port above 1023", address)
	}
	return fmt.Errorf("listen on %s: %w", address, err)
}

// baseURL is where a client on this machine reaches the listener.
func baseURL(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return "http://" + addr.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// addresses are where a client reaches the listener, and a line for a shell that
// tries it.
func addresses(addr net.Addr, cfg *config.Server) (address, curl string) {
	address = baseURL(addr)
	if cfg.TLS.CertFile != "" {
		address = strings.Replace(address, "http:", "https:", 1)
	}
	key := ""
	if len(cfg.APIKeys) > 0 {
		key = `-H 'Authorization: Bearer KEY' `
	}
	return address, `curl ` + address + `/v1/chat/completions ` + key + `-H 'Content-Type: application/json' -d '{"messages": [{"role": "user", "content": "Who are you?"}]}'`
}

// protection reads what keeps strangers out: the keys, into cfg, and the
// certificate. Without a certificate it returns nil.
func protection(cfg *config.Server) (*tls.Config, error) {
	var err error
	if cfg.APIKeys, err = cfg.Keys(); err != nil || cfg.TLS.CertFile == "" {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(cfg.TLS.CertFile, cfg.TLS.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("server.tls: %w\nTry: PEM files with a certificate and the private key it belongs to", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}, nil
}

// exposed reports whether other machines can reach an address.
func exposed(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return !ok || !tcp.IP.IsLoopback()
}
