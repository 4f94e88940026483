package main

import (
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/viablk/viablk/config"
)

// local reports whether the clients of the endpoint are of this host, by the
// address that the socket has.
func (e endpoint) local() bool {
	_, unix := e.listener.Addr().(*net.UnixAddr)
	return unix || uriOf(e.listener.Addr()).Local()
}

// checkExposure refuses open listeners at which other hosts get the disks
// without authentication, or warns of them if that is accepted. The
// configuration was checked: an exposed listener that is not accepted came from
// the parent process, or its name is that of an address elsewhere.
func checkExposure(c config.Config, in *nbdListeners, overVIA []config.URI, disks []disk, log *slog.Logger) error {
	var exposed []string
	for _, e := range in.endpoints {
		switch {
		case e.local() || c.NBD.TLS == "require":
		case !c.Insecure:
			return &exit{exitConfiguration, fmt.Errorf("%s: any host that reaches %s could read and write the disks: set nbd.tls to require, listen at a loopback address or a unix socket, or accept that with --insecure",
				e, e.listener.Addr())}
		default:
			exposed = append(exposed, e.String())
		}
	}
	for _, e := range in.endpoints {
		for _, d := range disks {
			if err := c.CheckClients(d.Export, uriOf(e.listener.Addr())); err != nil {
				return &exit{exitConfiguration, fmt.Errorf("%s: %w", e, err)}
			}
		}
	}
	for _, u := range overVIA {
		if !u.Local() && !c.Seals(u) {
			exposed = append(exposed, u.String())
		}
	}
	if len(exposed) > 0 {
		log.Warn("any host that reaches these listeners can read and write the disks", "event", "listener_exposed", "uris", strings.Join(exposed, " "))
	}
	return nil
}
