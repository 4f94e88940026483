package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
	"github.com/viablk/viablk/config"
)

// peerEventfds are the file descriptors of the eventfds in the second process.
const (
	peerPrivateEventfd = 3
	peerOtherEventfd   = 4
)

// benchPeerCommand is the second process of a benchmark. It ends when its
// standard input does: the process that started it is gone then.
func (a *app) benchPeerCommand() *cobra.Command {
	processor, network := -1, ""
	cmd := &cobra.Command{
		Use:    "peer URI",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			signal.Ignore(syscall.SIGINT, syscall.SIGHUP) // the first process gets them, too
			u, err := config.ParseURI(args[0])
			if err != nil {
				return usage("%v", err)
			}
			var at netip.Addr
			if network != "" {
				if at, err = netip.ParseAddr(network); err != nil {
					return usage("--network: %v", err)
				}
			}
			ctx, cancel := context.WithCancelCause(cmd.Context())
			go func() {
				_, _ = io.Copy(io.Discard, a.stdin)
				cancel(errParentGone)
				time.Sleep(peerTimeout)
				os.Exit(exitFailure) // it hangs
			}()
			// No process is left to remove the folder of the socket if the
			// first process was killed; else it is not empty, or gone.
			if u.Socket != "" {
				defer func() { _ = os.Remove(filepath.Dir(u.Socket)) }()
			}
			err = serveBench(ctx, u, a.newBenchLog(), func(s *bench.Server) error {
				s.Network = at
				s.Eventfds = &bench.Eventfds{Private: peerPrivateEventfd, Peer: peerOtherEventfd}
				if processor >= 0 {
					s.Processor = &processor
				}
				_, err := fmt.Fprintln(a.stdout, "ready")
				return err
			})
			if errors.Is(err, errParentGone) {
				return &exit{code: exitFailure} // no reader is left
			}
			return err
		},
	}
	cmd.Flags().IntVar(&processor, "processor", processor, "run on processor `NUMBER`")
	cmd.Flags().StringVar(&network, "network", "", "measure the network at `ADDRESS`")
	return cmd
}

// errParentGone ends the second process.
var errParentGone = errors.New("the process that measures is gone")

// newBenchLog returns the log of a benchmark: warnings, on standard error.
func (a *app) newBenchLog() *slog.Logger {
	return newLog(config.Log{Level: "warn", Format: "text"}, a.stderr)
}

// serveBench is the other end at a URI, for one measuring end; ready is called
// when that can connect.
func serveBench(ctx context.Context, u config.URI, log *slog.Logger, ready func(*bench.Server) error) (err error) {
	nic, err := openNIC(u, log, nil, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	server, err := bench.Listen(nic, hostOf(u))
	if err != nil {
		return listenFailure(u, err)
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if err := ready(server); err != nil {
		return err
	}
	return server.Serve(ctx)
}
