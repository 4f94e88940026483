package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
)

// viaServer is the disks served over one VIA provider.
type viaServer struct {
	nic       *via.NIC
	server    *target.Server
	uris      []config.URI
	listeners []*via.Listener // one for each URI
}

// viaServers are the disks served over VIA, by provider and device.
type viaServers map[string]*viaServer

// serverOf names the server of a URI.
func serverOf(u config.URI) string {
	name := u.Provider
	if u.NoOffloads {
		name += " without offloads"
	}
	if u.Frames != "" {
		name += " over " + u.Frames
	}
	if u.Device != "" {
		name += " over " + u.Device
	}
	return name
}

// openTarget opens a server for each provider among the URIs. The caller closes
// it after its parts have ended.
func openTarget(c config.Target, uris []config.URI, disks []disk, log *slog.Logger) (viaServers, error) {
	servers := make(viaServers)
	for _, u := range uris {
		if err := servers.listen(c, u, disks, log); err != nil {
			return nil, errors.Join(err, servers.close())
		}
	}
	return servers, nil
}

// listen listens at a URI, with the server of its provider, which it opens at
// need.
func (v viaServers) listen(c config.Target, u config.URI, disks []disk, log *slog.Logger) error {
	s := v[serverOf(u)]
	if s == nil {
		nic, err := openNIC(u, log)
		if err != nil {
			return err
		}
		server, err := target.New(targetConfig(c, nic, disks, log))
		if err != nil {
			return errors.Join(err, nic.Close())
		}
		s = &viaServer{nic: nic, server: server}
		v[serverOf(u)] = s
	}
	if err := makeFolder(u); err != nil {
		return err
	}
	l, err := s.server.Listen(hostOf(u))
	if err != nil {
		return fmt.Errorf("%s: %w", u, err)
	}
	s.uris, s.listeners = append(s.uris, u), append(s.listeners, l)
	return nil
}

// targetConfig translates the configuration. There zero stands for the default
// and a negative duration for none.
func targetConfig(c config.Target, nic *via.NIC, disks []disk, log *slog.Logger) target.Config {
	t := target.Config{
		NIC:            nic,
		Depth:          c.Depth,
		InlineMax:      int(c.InlineMax),
		MaxIO:          int(c.MaxIO),
		PoolBytes:      int(c.Pool),
		CopyMode:       regcache.CopyMode(c.CopyMode),
		RegisterMax:    int64(c.RegisterMax),
		MaxConnections: c.Connections,
		Heartbeat:      c.Heartbeat,
		Spin:           c.Spin,
		Log:            log,
	}
	if t.Spin == 0 {
		t.Spin = -1
	}
	for _, d := range disks {
		t.Exports = append(t.Exports, target.Export{
			Name: d.Name, Description: d.Description, Device: d.device,
			Default: d.Default, ReadOnly: d.ReadOnly,
		})
	}
	return t
}

// parts serves the URIs. Each server is drained once.
func (v viaServers) parts() []part {
	var parts []part
	for _, s := range v {
		for i, u := range s.uris {
			p := part{
				name:  u.String(),
				serve: func(ctx context.Context) error { return s.server.Serve(ctx, s.listeners[i]) },
			}
			if i == 0 {
				p.drain = s.server.Drain
			}
			parts = append(parts, p)
		}
	}
	return parts
}

// status returns the counters of each server, in the order of the providers.
func (v viaServers) status() []target.Status {
	var all []target.Status
	for _, name := range slices.Sorted(maps.Keys(v)) {
		all = append(all, v[name].server.Status())
	}
	return all
}

// close closes the devices.
func (v viaServers) close() error {
	var errs []error
	for name, s := range v {
		for _, l := range s.listeners {
			errs = append(errs, l.Close()) // nothing, once it was served
		}
		if err := s.nic.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close the %s provider: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
