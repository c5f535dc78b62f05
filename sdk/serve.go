package sdk

import (
	"fmt"
	"os"
	"strconv"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/strata-engine/strata/sdk/shm"
)

// Factory makes the backend of a process. It returns at once: what takes time,
// such as initialising a driver, belongs in Probe or Load. The logger writes to
// the host's log.
type Factory func(log hclog.Logger) (Backend, error)

// Serve runs a backend as a process of a Strata host. It is all that main has to
// call. It returns when the host has asked the process to end; it exits with an
// explanation where the program was started by hand or could not be set up.
func Serve(factory Factory) {
	if os.Getenv(Handshake.MagicCookieKey) != Handshake.MagicCookieValue {
		// It prints that this program is a plugin, and exits.
		plugin.Serve(&plugin.ServeConfig{HandshakeConfig: Handshake})
		return
	}
	if err := serve(factory); err != nil {
		fmt.Fprintf(os.Stderr, "strata backend: %v\n", err)
		os.Exit(1)
	}
}

func serve(factory Factory) error {
	// The lifeline first: from here on this process cannot outlive its host.
	lifeline, err := inherited(EnvLifeline)
	if err != nil {
		return err
	}
	if lifeline != nil {
		go watchLifeline(lifeline)
	}
	// go-plugin reads the host's log lines from stderr, as JSON.
	log := hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr, JSONFormat: true})
	opts := ServerOptions{Logger: log}
	page, err := inherited(EnvVitals)
	if err != nil {
		return err
	}
	if page != nil {
		if opts.Vitals, err = shm.AttachVitals(page); err != nil {
			return err
		}
	}
	segment, err := inherited(EnvData)
	if err != nil {
		return err
	}
	if segment != nil {
		if opts.Data, err = shm.AttachData(segment); err != nil {
			return err
		}
	}
	if opts.Backend, err = factory(log); err != nil {
		return fmt.Errorf("make backend: %w", err)
	}
	server := NewServer(opts)
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  Handshake,
		VersionedPlugins: Plugins(server),
		GRPCServer:       NewGRPCServer,
		Logger:           log,
	})
	return server.Close()
}

// inherited returns the file whose descriptor number the host put into a
// variable, or nil where it is not set. The variable is removed, since the number
// means nothing to this process's children.
func inherited(name string) (*os.File, error) {
	value := os.Getenv(name)
	if value == "" {
		return nil, nil
	}
	if err := os.Unsetenv(name); err != nil {
		return nil, fmt.Errorf("unset %s: %w", name, err)
	}
	if value == "0" {
		return os.Stdin, nil
	}
	fd, err := strconv.ParseUint(value, 10, 31)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%s: want the number of an inherited file descriptor, 3 or more or 0", name, value)
	}
	return os.NewFile(uintptr(fd), name), nil
}
