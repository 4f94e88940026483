package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/shm"
	"github.com/viablk/viablk/via/verbs"
)

// providers are the VIA providers of this build. The list is written down: what
// a binary speaks does not depend on what it happens to import. One that is
// built without verbs says so when that is asked for.
var providers = []via.Provider{
	shm.New(shm.Options{}),
	overRoCE,
	overVerbs,
}

// overRoCE is the provider that knows what its network does, and plainRoCE the
// same without offloads, for URIs that ask for that. overVerbs is the one that
// knows what its devices do.
var (
	overRoCE  = roce.New(roce.Options{})
	plainRoCE = roce.New(roce.Options{NoSegmentation: true, NoCoalescing: true})
	overVerbs = verbs.New(verbs.Options{})
)

// providerOf returns the provider of a VIA URI, and nil if this build has none.
func providerOf(u config.URI) via.Provider {
	if u.NoOffloads {
		return plainRoCE
	}
	i := slices.IndexFunc(providers, func(p via.Provider) bool { return p.Name() == u.Provider })
	if i < 0 {
		return nil
	}
	return providers[i]
}

// deviceOf returns the name of the device that reaches the endpoint of a VIA
// URI.
func deviceOf(u config.URI) string {
	if u.Frames != "" {
		return "frames:" + u.Frames
	}
	return u.Device
}

// providerNames returns their names.
func providerNames() []string {
	var names []string
	for _, p := range providers {
		names = append(names, p.Name())
	}
	return names
}

// builtProviders says which providers this build has, for messages.
func builtProviders() string {
	if verbs.Built {
		return strings.Join(providerNames(), ", ")
	}
	without := slices.DeleteFunc(providerNames(), func(name string) bool { return name == overVerbs.Name() })
	return strings.Join(without, ", ") + "; the package viablk-verbs has " + overVerbs.Name() + " too"
}

// openNIC opens the device that reaches the endpoint of a VIA URI. Errors that
// no descriptor reports go to the log, operations to the trace under the role
// of this end.
func openNIC(u config.URI, log *slog.Logger, trace *tracer, role string) (*via.NIC, error) {
	return openProvider(providerOf(u), u, log, trace, role)
}

// openProvider opens the device of a provider, which is nil if this build has
// none for the URI.
func openProvider(p via.Provider, u config.URI, log *slog.Logger, trace *tracer, role string) (*via.NIC, error) {
	if p == nil {
		return nil, errNoProvider(u)
	}
	return openDevice(p, deviceOf(u), u, log, trace, role)
}

// errNoProvider says that this build has no provider for a URI.
func errNoProvider(u config.URI) error {
	return usage("%s: this build has no VIA provider %q; it has %s", u, u.Provider, builtProviders())
}

// openDevice opens a device of a provider for a URI.
func openDevice(p via.Provider, device string, u config.URI, log *slog.Logger, trace *tracer, role string) (*via.NIC, error) {
	nic, err := via.OpenNic(trace.wrap(p, role), device)
	if err != nil {
		return nil, fmt.Errorf("%s: open the %s provider: %w", u, p.Name(), err)
	}
	nic.ErrorCallback(func(e via.AsyncError) { logAsync(log, e) })
	return nic, nil
}

// logAsync logs an asynchronous error. The loss of a peer is logged by the
// connection's owner, and here at debug level.
func logAsync(log *slog.Logger, e via.AsyncError) {
	level := slog.LevelWarn
	if e.Code == via.AsyncConnectionLost {
		level = slog.LevelDebug
	}
	log.Log(context.Background(), level, "asynchronous error", "event", "provider_error", "nic", e.NIC.Name(), "error", e.Code.String(), "cause", e.Cause)
}

// hostOf returns the host part of the VIA address of an endpoint, in the form
// of its provider: a path, or host:port.
func hostOf(u config.URI) string {
	_, address := u.Network()
	return address
}
