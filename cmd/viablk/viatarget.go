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
	"github.com/viablk/viablk/via/shm"
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

// serverOf names the server of a URI. One server seals all of its sessions, or
// none.
func serverOf(u config.URI, seals bool) string {
	name := u.Provider
	if seals {
		name += " with certificates"
	}
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

// openTarget opens a server for each provider among the URIs, with the same
// sessions: an initiator may have a path over each. The caller closes it after
// its parts have ended.
func openTarget(c config.Config, uris []config.URI, disks []disk, sockets *shm.Sockets, again *certificates, log *slog.Logger, trace *tracer) (viaServers, error) {
	servers := make(viaServers)
	by, err := newSealedBy(c, uris, again)
	if err != nil {
		return nil, err
	}
	sessions, err := target.NewSessions(nil)
	if err != nil {
		return nil, err
	}
	for _, u := range uris {
		if err := servers.listen(c, u, disks, sessions, sockets, by, log, trace); err != nil {
			return nil, errors.Join(err, servers.close())
		}
	}
	return servers, nil
}

// listen listens at a URI, with the server of its provider, which it opens at
// need.
func (v viaServers) listen(c config.Config, u config.URI, disks []disk, sessions *target.Sessions, sockets *shm.Sockets, by *sealedBy, log *slog.Logger, trace *tracer) error {
	name := serverOf(u, c.Seals(u))
	s := v[name]
	if s == nil {
		p := providerOf(u)
		if u.Provider == "shm" {
			p = shm.New(shm.Options{AdmitUIDs: guestsOf(disks), Sockets: sockets})
		}
		nic, err := openProvider(p, u, log, trace, "target")
		if err != nil {
			return err
		}
		cfg := targetConfig(c.Target, nic, log)
		cfg.Sessions = sessions
		if cfg.Exports, err = viaExports(disks); err != nil {
			return errors.Join(err, nic.Close())
		}
		if c.Seals(u) {
			cfg.Security = by.guard()
		}
		server, err := target.New(cfg)
		if err != nil {
			return errors.Join(err, nic.Close())
		}
		if c.Seals(u) {
			by.add(server)
		}
		s = &viaServer{nic: nic, server: server}
		v[name] = s
	}
	if err := makeFolder(u); err != nil {
		return err
	}
	l, err := s.server.Listen(hostOf(u))
	if err != nil {
		return listenFailure(u, err)
	}
	s.uris, s.listeners = append(s.uris, u), append(s.listeners, l)
	return nil
}

// targetConfig translates the configuration. There zero stands for the default
// and a negative duration for none.
func targetConfig(c config.Target, nic *via.NIC, log *slog.Logger) target.Config {
	t := target.Config{
		NIC:            nic,
		Depth:          c.Depth,
		InlineMax:      int(c.InlineMax),
		MaxIO:          int(c.MaxIO),
		PoolBytes:      int(c.Pool),
		CopyMode:       regcache.CopyMode(c.CopyMode),
		RegisterMax:    int64(c.RegisterMax),
		MaxConnections: c.Connections,
		MaxPerOrigin:   c.ConnectionsPerAddress,
		KeepAlive:      c.KeepAlive,
		IOTimeout:      c.IOTimeout,
		BusyPoll:       c.BusyPoll,
		RequireDigest:  c.RequireDataDigest,
		Log:            log,
	}
	if t.BusyPoll == 0 {
		t.BusyPoll = -1
	}
	return t
}

// viaExports returns the disks as VIA serves them.
func viaExports(disks []disk) (exports []target.Export, err error) {
	for _, d := range disks {
		rights, err := d.Rights()
		if err != nil {
			return nil, err
		}
		exports = append(exports, target.Export{
			Name: d.Name, Description: d.Description, Device: d.device,
			Default: d.Default, ReadOnly: d.ReadOnly, Rights: rights, Reservations: d.reservations,
		})
	}
	return exports, nil
}

// prepareExports has all servers check the exports. The functions that it
// returns replace those of each.
func (v viaServers) prepareExports(disks []disk) (publish []func(), err error) {
	exports, err := viaExports(disks)
	if err != nil {
		return nil, err
	}
	for _, s := range v {
		one, err := s.server.PrepareExports(exports)
		if err != nil {
			return nil, err
		}
		publish = append(publish, one)
	}
	return publish, nil
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

// announceSuccessor has the drain tell initiators to return at once.
func (v viaServers) announceSuccessor() {
	for _, s := range v {
		s.server.AnnounceSuccessor()
	}
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
