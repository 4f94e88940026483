package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// providers are the VIA providers of this build. The list is written down: what
// a binary speaks does not depend on what it happens to import.
var providers = []via.Provider{
	shm.New(shm.Options{}),
}

// openNIC opens the device that reaches the endpoint of a VIA URI. What no
// descriptor reports goes to the log.
func openNIC(u config.URI, log *slog.Logger) (*via.NIC, error) {
	var names []string
	for _, p := range providers {
		if p.Name() == u.Provider {
			nic, err := via.OpenNic(p, "")
			if err != nil {
				return nil, fmt.Errorf("%s: open the %s provider: %w", u, p.Name(), err)
			}
			nic.ErrorCallback(func(e via.AsyncError) { logAsync(log, e) })
			return nic, nil
		}
		names = append(names, p.Name())
	}
	return nil, usage("%s: this build has no VIA provider %q; it has %s", u, u.Provider, strings.Join(names, ", "))
}

// logAsync logs an asynchronous error. That a peer went away is no more than its
// connection's owner logs.
func logAsync(log *slog.Logger, e via.AsyncError) {
	level := slog.LevelWarn
	if e.Code == via.AsyncConnectionLost {
		level = slog.LevelDebug
	}
	log.Log(context.Background(), level, "asynchronous error", "nic", e.NIC.Name(), "error", e.Code.String(), "cause", e.Cause)
}

// hostOf returns the host part of the VIA address of an endpoint, in the form of
// its provider: a path, or host:port.
func hostOf(u config.URI) string {
	_, address := u.Network()
	return address
}
