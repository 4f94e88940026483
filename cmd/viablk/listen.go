package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
)

// endpoint is an open NBD listener and its URI, which has the port that the
// system chose.
type endpoint struct {
	uri      config.URI
	name     string // that the service manager gave it; empty if it did not
	listener net.Listener
}

// String says which endpoint it is, for errors.
func (e endpoint) String() string {
	if e.name != "" {
		return "inherited socket " + e.name
	}
	return e.uri.String()
}

// makeFolder makes the folder of a URI's socket if it is missing, as
// /run/viablk is after a boot; its parent must be there, so that a mistyped
// path is an error.
func makeFolder(u config.URI) error {
	if u.Socket == "" {
		return nil
	}
	if err := os.Mkdir(filepath.Dir(u.Socket), 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: make the folder of the socket: %w", u, err)
	}
	return nil
}

// listenNBD opens the NBD listener of a URI, or takes that of the process
// before; at a socket for guests too.
func listenNBD(ctx context.Context, u config.URI, guests []uint32, from handover) (endpoint, error) {
	if err := makeFolder(u); err != nil {
		return endpoint{}, err
	}
	at := u
	at.Host = u.ListenHost()
	network, address := at.Network()
	l, err := from.listener(itemURI + u.String())
	if l != nil || err != nil {
		return endpoint{uri: u, listener: l}, err
	}
	if u.Socket != "" && len(guests) > 0 {
		l, err = nbd.ListenForGuests(ctx, address, guests)
	} else {
		l, err = nbd.Listen(ctx, network, address)
	}
	if errors.Is(err, nbd.ErrInUse) {
		return endpoint{}, fmt.Errorf("%w: stop its owner, or choose another path", about("listen at", u, err))
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return endpoint{}, fmt.Errorf("%w: stop its owner, which ss -ltnp shows, or choose another port", about("listen at", u, err))
	}
	if err != nil {
		return endpoint{}, listenFailure(u, err)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && u.Port == 0 {
		u.Port = tcp.AddrPort().Port()
	}
	return endpoint{uri: u, listener: l}, nil
}

// listenFailure returns why nothing listens at u, with the same exit code
// whatever would have listened.
func listenFailure(u config.URI, err error) error {
	var name *net.DNSError
	switch failed := about("listen at", u, err); {
	case notSocket(u) != "":
		return &exit{exitFailure, &subjectError{"listen at " + u.String() + ": the file is not a socket: remove it, or choose another path", failed}}
	case errors.As(err, &name):
		return &exit{exitTryAgain, failed}
	default:
		return failed
	}
}

// withExport returns the URI of an export at the endpoint of u.
func withExport(u config.URI, name string) string {
	u.Export = name
	return u.String()
}

// dialNBD connects to the endpoint of an NBD URI, and returns who may ask
// there.
func dialNBD(ctx context.Context, u config.URI) (net.Conn, nbd.Client, error) {
	client, err := nbdClient(u)
	if err != nil {
		return nil, client, err
	}
	network, address := u.Network()
	c, err := nbd.Dial(ctx, network, address)
	if err != nil {
		return nil, client, unreachable(about("connect to", u, err))
	}
	return c, client, nil
}
