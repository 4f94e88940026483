package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/nbdclient"
	"github.com/viablk/viablk/target/backend"
)

// defaultReconnect is how long requests to an NBD server as a backend wait for
// it when it is lost.
const defaultReconnect = 30 * time.Second

// nbdBackend is a backend that is an NBD URI, and its parameters beside
// those of the URI.
type nbdBackend struct {
	uri       config.URI
	reconnect time.Duration
	durable   bool
	timeout   time.Duration // of an attempt to connect; 0: the default
}

// checkBackend is the [config.BackendCheck] of this program.
func checkBackend(spec string, insecure bool) error {
	_, err := backend.Parse(spec, parseNBD(insecure))
	return err
}

// parseNBD returns what parses backends that are NBD URIs or commands. A server
// elsewhere is asked without TLS only if that is accepted.
func parseNBD(insecure bool) func(spec string) (backend.Opener, error) {
	return func(spec string) (backend.Opener, error) {
		if command, ok := strings.CutPrefix(spec, "run:"); ok {
			return parseCommandBackend(command)
		}
		b, err := parseNBDBackend(spec)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %w", backend.ErrUsage, err)
		case b.uri.InClear() && !insecure:
			return nil, &config.UnsafeError{Message: fmt.Sprintf("any host on the path to %s could read and change the disk: use nbds: with tls-certificates=FOLDER, or accept that with --insecure", b.uri)}
		}
		return func(options backend.Options) (block.Device, error) {
			if b.uri.InClear() {
				options.Log.Warn("any host on the path to the server can read and change the disk", "event", "server_in_clear", "server", b.uri.String())
			}
			return b.open(context.Background(), options.ReadOnly, options.Log)
		}, nil
	}
}

// parseNBDBackend reads an NBD URI with parameters of the backend.
func parseNBDBackend(spec string) (nbdBackend, error) {
	b := nbdBackend{reconnect: defaultReconnect}
	address, query, _ := strings.Cut(spec, "?")
	var rest []string
	for pair := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		var err error
		switch name {
		case "reconnect":
			if b.reconnect, err = time.ParseDuration(value); err == nil && b.reconnect < 0 {
				err = fmt.Errorf("%v is negative", b.reconnect)
			}
		case "durable":
			b.durable, err = strconv.ParseBool(value)
		default:
			if pair != "" {
				rest = append(rest, pair)
			}
		}
		if err != nil {
			return b, fmt.Errorf("the parameter %s of %s: %w", name, address, err)
		}
	}
	if len(rest) > 0 {
		address += "?" + strings.Join(rest, "&")
	}
	var err error
	if b.uri, err = config.ParseURI(address); err == nil {
		err = b.uri.CheckRemote()
	}
	return b, err
}

// open opens the export. The caller closes it.
func (b nbdBackend) open(ctx context.Context, readOnly bool, log *slog.Logger) (*nbdclient.Device, error) {
	device, err := nbdclient.Open(ctx, nbdclient.Config{
		Name: b.uri.String(), ReadOnly: readOnly, Reconnect: b.reconnect, Durable: b.durable, Timeout: b.timeout, Log: log,
		Connect: func(ctx context.Context) (*nbd.Opened, error) {
			conn, client, err := dialNBD(ctx, b.uri)
			if err != nil {
				return nil, err
			}
			return client.Open(ctx, conn, b.uri.Export)
		},
	})
	if err != nil {
		return nil, unreachable(about("open", b.uri, err))
	}
	return device, nil
}

// commandTimeout is how long a command has until it serves its disk.
const commandTimeout = time.Minute

// parseCommandBackend reads [COMMAND …].
func parseCommandBackend(spec string) (backend.Opener, error) {
	inside, opened := strings.CutPrefix(spec, "[")
	inside, closed := strings.CutSuffix(inside, "]")
	if !opened || !closed {
		return nil, fmt.Errorf("%w: run:%s: write run:[COMMAND ARGUMENT …]", backend.ErrUsage, spec)
	}
	words, err := nbdclient.SplitCommand(inside)
	if err != nil {
		return nil, fmt.Errorf("%w: run:%s: %w", backend.ErrUsage, spec, err)
	}
	return func(options backend.Options) (block.Device, error) {
		return openCommandBackend(words, options.ReadOnly, options.Log)
	}, nil
}

// openCommandBackend starts a command, an NBD server, and opens its default
// export. The server ends with the disk, and the disk fails with the server.
func openCommandBackend(words []string, readOnly bool, log *slog.Logger) (block.Device, error) {
	server, err := nbdclient.StartCommand(words, log)
	if err != nil {
		return nil, err
	}
	device, err := nbdclient.Open(context.Background(), nbdclient.Config{
		Name: words[0], ReadOnly: readOnly, Timeout: commandTimeout, Log: log, Release: server.Close,
		Connect: func(ctx context.Context) (*nbd.Opened, error) {
			conn, err := server.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return nbd.Client{}.Open(ctx, conn, "")
		},
	})
	if err != nil {
		return nil, server.Abandon(err)
	}
	return device, nil
}
