package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
)

// attached is a remote disk and the name under which NBD serves it.
type attached struct {
	config.Export
	remote *remoteDisk
}

// closeAttached closes the disks.
func closeAttached(disks []attached) error {
	var errs []error
	for _, d := range disks {
		errs = append(errs, d.remote.close())
	}
	return errors.Join(errs...)
}

// gateway is remote disks served over NBD.
type gateway struct {
	endpoint endpoint
	server   *nbd.Server
	disks    []attached
	targets  viaServers // in this process too; may be nil
	ready    readyReport
}

// start serves the disks, and the status socket, at the NBD URI local.
func (g *gateway) start(ctx context.Context, c config.Config, svc *service, command string, local config.URI, log *slog.Logger) error {
	status := newStatus(command)
	var plain []disk
	for _, d := range g.disks {
		plain = append(plain, disk{d.Export, d.remote.device})
	}
	exports, err := nbdExports(plain)
	if err != nil {
		return err
	}
	g.server = &nbd.Server{Exports: exports, Limits: nbdLimits(c.NBD), Log: log}
	if g.endpoint, err = listenNBD(ctx, local); err != nil {
		return err
	}
	for _, d := range plain {
		status.Exports = append(status.Exports, exportStatus{
			Name: d.Name, Size: d.device.Info().Size, ReadOnly: d.isReadOnly(),
			URIs: []string{withExport(g.endpoint.uri, d.Name)},
		})
	}
	g.ready = readyReport{processStatus: status}
	if g.ready.Admin, err = svc.startAdmin(ctx, c.Admin, status, g.fill); err != nil {
		g.endpoint.listener.Close()
		return err
	}
	for _, d := range g.disks {
		svc.start(d.remote.part(log))
	}
	svc.start(nbdParts(g.server, []endpoint{g.endpoint})...)
	return nil
}

// fill adds the counters to a status.
func (g *gateway) fill(s *processStatus) {
	now := g.server.Status()
	s.NBD, s.Targets = &now, g.targets.status()
	for _, d := range g.disks {
		s.Initiators = append(s.Initiators, d.remote.device.Status())
	}
}
