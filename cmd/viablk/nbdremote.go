package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbdclient"
)

// providerNBD is the provider of a remote disk that is an export of an NBD
// server.
const providerNBD = "nbd"

// nbdRemote is an export of an NBD server as a remote disk.
type nbdRemote struct {
	*nbdclient.Device
	uri config.URI
}

// dialRemote opens the disk that a URI names. It continues the life that
// files have, and keeps its own there. The caller closes the disk.
func dialRemote(ctx context.Context, u config.URI, c config.Attach, life *lifeFiles, log *slog.Logger, trace *tracer) (*remoteDisk, error) {
	dial := dialNBDRemote
	if u.VIA() {
		dial = dialVIA
	}
	remote, err := dial(ctx, u, c, life, log, trace)
	if err != nil {
		return nil, withNearExports(ctx, u, err)
	}
	return remote, nil
}

// dialNBDRemote is dialRemote for an NBD URI.
func dialNBDRemote(ctx context.Context, u config.URI, c config.Attach, life *lifeFiles, log *slog.Logger, _ *tracer) (*remoteDisk, error) {
	if c.Exclusive || c.Preempt {
		return nil, usage("%s: an NBD server reserves no disk: leave out --exclusive and --preempt", u)
	}
	if c.DataDigest {
		return nil, usage("%s: NBD has no data digests: leave out --data-digest", u)
	}
	b := nbdBackend{uri: u, reconnect: c.CtrlLossTimeout, durable: c.Durable, timeout: c.Timeout}
	device, err := b.open(ctx, c.ReadOnly, log)
	if err != nil {
		return nil, err
	}
	life.keep(nil)
	return &remoteDisk{u, nil, &nbdRemote{device, u}, sync.OnceValue(func() error {
		if err := device.Close(); err != nil {
			return fmt.Errorf("close %s: %w", u, err)
		}
		return nil
	})}, nil
}

// Done implements remoteDevice.
func (r *nbdRemote) Done() <-chan struct{} { return nil }

// Err implements remoteDevice.
func (r *nbdRemote) Err() error { return r.State().Failure }

// CheckCertificates implements remoteDevice: each connection reads them.
func (r *nbdRemote) CheckCertificates() {}

// Status implements remoteDevice.
func (r *nbdRemote) Status() initiator.Status {
	info, state := r.Info(), r.State()
	s := initiator.Status{
		Export: r.uri.Export, Description: r.Description(), Size: info.Size, ReadOnly: info.Features&block.ReadOnly != 0,
		Provider: providerNBD, SessionLosses: state.Losses, MaxIO: info.MaximumPayload,
	}
	var away time.Duration
	s.State, s.Error, away = serverStateOf(&state)
	s.DisconnectedSeconds = away.Seconds()
	s.Connected = s.State == initiator.StateConnected
	return s
}

// serverStateOf returns the state of the disk of an NBD server, why it is not
// connected, and for how long its requests have waited.
func serverStateOf(s *nbdclient.State) (state initiator.State, why string, away time.Duration) {
	switch {
	case s.Failure != nil:
		return initiator.StateFailed, s.Failure.Error(), 0
	case s.Late:
		return initiator.StateFailed, s.Away.Error(), 0
	case s.Away != nil:
		return initiator.StateWaiting, s.Away.Error(), s.For
	}
	return initiator.StateConnected, "", 0
}

// backendOf returns the kind of a remote disk.
func backendOf(s *initiator.Status) string {
	if s.Provider == providerNBD {
		return providerNBD
	}
	return "via+" + s.Provider
}
