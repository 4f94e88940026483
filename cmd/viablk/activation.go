package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
)

// nbdListeners is where the NBD clients of a process come in: at the sockets
// that it opened or was started with, or as the one client on its standard
// input.
type nbdListeners struct {
	endpoints []endpoint
	client    net.Conn      // on standard input; else nil
	left      chan struct{} // closed when the client is gone
	given     bool          // by who started the process, and knows what it gave
}

// monitorSocket is the name of the socket that is for metrics and health, and
// not for NBD clients.
const monitorSocket = "metrics"

// inherit returns the entrance that the process was started with, nil if it has
// to open its own, and keeps the listener for metrics. The caller closes what
// it returns. It is called before anything is printed.
func (a *app) inherit(stdio bool) (*nbdListeners, error) {
	listeners, names, err := nbd.Inherited()
	if err != nil {
		return nil, usage("the process was started with sockets to listen on: %w", err)
	}
	if i := slices.Index(names, monitorSocket); i >= 0 {
		a.monitorListener = listeners[i]
		listeners, names = slices.Delete(listeners, i, i+1), slices.Delete(names, i, i+1)
	}
	if slices.Contains(names, monitorSocket) { // NBD is not for those who scrape
		return nil, usage("the process was started with two sockets called %s: one is enough", monitorSocket)
	}
	e := &nbdListeners{given: true}
	for i, l := range listeners {
		e.endpoints = append(e.endpoints, endpoint{uri: uriOf(l.Addr()), name: names[i], listener: l})
	}
	switch {
	case stdio && len(listeners) > 0:
		e.close()
		return nil, usage("--stdio serves the client on standard input, and the process was started with sockets to listen on: choose one")
	case stdio:
		if e.client, err = inheritStdio(int(os.Stdin.Fd()), int(os.Stdout.Fd()), int(os.Stderr.Fd())); err != nil {
			return nil, err
		}
		e.left = make(chan struct{})
		return e, nil
	case len(listeners) == 0:
		return nil, nil
	}
	return e, nil
}

// uriOf returns the URI of a listening socket without an export.
func uriOf(a net.Addr) config.URI {
	switch a := a.(type) {
	case *net.TCPAddr:
		ap := a.AddrPort()
		return config.URI{Host: ap.Addr().Unmap().String(), Port: ap.Port()}
	case *net.UnixAddr:
		return config.URI{Socket: a.Name}
	case nbd.VsockAddr:
		text := "nbd+vsock://" + a.String()
		if a.CID == nbd.VsockAny { // as those connect who are in a virtual machine
			text = fmt.Sprintf("nbd+vsock://:%d", a.Port)
		}
		if u, err := config.ParseURI(text); err == nil { // else the port is too large for a URI
			return u
		}
	}
	return config.URI{}
}

// refuseURIs complains about NBD URIs to listen on, which key names, beside an
// entrance that the process was started with.
func (e *nbdListeners) refuseURIs(key string, uris []config.URI) error {
	if e == nil || len(uris) == 0 {
		return nil
	}
	if e.client != nil {
		return usage("--stdio serves one client and listens nowhere: leave out %s, which is %s", key, uris[0])
	}
	return usage("the process was started with the sockets to serve NBD at: leave out %s, which is %s", key, uris[0])
}

// open opens the NBD listeners of URIs, unless the process was started with its
// entrance.
func (e *nbdListeners) open(ctx context.Context, uris []config.URI, secure nbd.TLS, guests []uint32, from handover) (*nbdListeners, error) {
	if e == nil {
		e = &nbdListeners{}
	}
	sockets, err := from.sockets()
	e.endpoints = append(e.endpoints, sockets...)
	if err != nil {
		e.close()
		return nil, err
	}
	for i := range e.endpoints {
		e.endpoints[i].uri.TLS = secure.Required
	}
	for _, u := range uris {
		u.TLS = secure.Required
		l, err := listenNBD(ctx, u, guests, from)
		if err != nil {
			e.close()
			return nil, err
		}
		e.endpoints = append(e.endpoints, l)
	}
	return e, nil
}

// close closes listeners that no server owns yet. A nil receiver has none.
func (e *nbdListeners) close() {
	if e == nil {
		return
	}
	for _, e := range e.endpoints {
		e.listener.Close()
	}
	if e.client != nil {
		e.client.Close()
	}
}

// serves reports whether there is a way in.
func (e *nbdListeners) serves() bool { return len(e.endpoints) > 0 || e.client != nil }

// uris returns the URIs of an export, none if clients cannot connect by one.
func (e *nbdListeners) uris(export string) []string {
	uris := []string{}
	for _, p := range e.endpoints {
		if p.uri != (config.URI{TLS: p.uri.TLS}) {
			uris = append(uris, withExport(p.uri, export))
		}
	}
	return uris
}

// log says what the process was started with.
func (e *nbdListeners) log(log *slog.Logger) {
	if !e.given {
		return
	}
	for _, p := range e.endpoints {
		log.Debug("started with a socket to serve NBD at", "event", "socket_inherited", "name", p.name, "uri", p.uri.String())
	}
}

// parts serves the entrance. The first part drains the server, which ends them
// all.
func (e *nbdListeners) parts(server *nbd.Server) []part {
	if e.client != nil {
		return []part{{
			name: "standard input",
			serve: func(ctx context.Context) error {
				err := server.ServeOne(ctx, e.client)
				if err == nil {
					close(e.left)
				}
				return err
			},
			drain: server.Drain,
		}}
	}
	var parts []part
	for i, p := range e.endpoints {
		part := part{
			name:  p.String(),
			serve: func(ctx context.Context) error { return server.Serve(ctx, p.listener) },
		}
		if i == 0 {
			part.drain = server.Drain
		}
		parts = append(parts, part)
	}
	return parts
}
