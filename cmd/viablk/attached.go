package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
)

// attached is a remote disk as NBD serves it: under a name, and with what the
// configuration says of it.
type attached struct {
	disk
	remote *remoteDisk
}

// serveRemote returns a remote disk as the export x.
func serveRemote(x config.Export, remote *remoteDisk) (attached, error) {
	device, err := block.Adjust(remote.device, adjustments(x))
	if err != nil {
		return attached{}, &exit{exitUsage, fmt.Errorf("%s: %w", remote.uri, err)}
	}
	return attached{disk{Export: x, device: device}, remote}, nil
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
	in      *nbdListeners
	server  *nbd.Server
	disks   []attached
	targets viaServers // in this process too; may be nil
	behind  []disk     // those of the targets
	ready   readyReport
	again   *certificates
	monitor net.Listener // that the process was started with; may be nil

	kernel *kernelDevice // of the first disk; nil if there is none
}

// start serves the disks, and the status socket, at the NBD URIs local, of
// which there are none beside an entrance that the process was started with.
func (g *gateway) start(ctx context.Context, c config.Config, svc *service, command string, local []config.URI, log *slog.Logger) error {
	status := newStatus(command)
	var plain []disk
	for _, d := range g.disks {
		plain = append(plain, d.disk)
	}
	warnUnknown(plain, log)
	var err error
	if g.server, err = newNBD(c, plain, g.again, log); err != nil {
		return err
	}
	g.again.attach(svc)
	if g.in, err = g.in.open(ctx, local, g.server.TLS, guestsOf(plain), handover{}); err != nil {
		return err
	}
	if err := checkExposure(c, g.in, nil, plain, log); err != nil {
		g.in.close()
		return err
	}
	g.in.log(log)
	for _, d := range plain {
		status.Exports = append(status.Exports, exportStatus{
			Name: d.Name, Size: d.device.Info().Size, ReadOnly: d.isReadOnly(),
			URIs: g.in.uris(d.Name),
		})
	}
	if g.kernel != nil {
		if err := g.kernel.attach(ctx, g.server, g.disks[0], log); err != nil {
			g.in.close()
			return err
		}
		status.Exports[0].Device = g.kernel.attachment.Node().String()
	}
	g.ready = readyReport{processStatus: status}
	if g.ready.Admin, err = svc.startAdmin(ctx, c, handover{}, status, sessionEnder{g.server, g.targets}, g.fill, pathAdmin{g.disks, g.kernel}.handle); err != nil {
		g.in.close()
		return errors.Join(err, g.kernel.abandon())
	}
	if g.ready.Metrics, err = svc.startMonitor(ctx, c, g.monitor, handover{}, g.again); err != nil {
		g.in.close()
		return errors.Join(err, g.kernel.abandon())
	}
	for _, d := range g.disks {
		svc.start(d.remote.part(log))
	}
	svc.start(g.in.parts(g.server)...)
	svc.start(g.kernel.parts()...)
	return nil
}

// fill adds the counters to a status.
func (g *gateway) fill(s *processStatus) {
	now := g.server.Status()
	s.NBD, s.Targets = &now, g.targets.status()
	s.Disks, s.Limits = diskReports(g.behind), limitReports(g.behind)
	for _, d := range g.disks {
		s.Initiators = append(s.Initiators, d.remote.device.Status())
	}
	s.Device = g.kernel.status()
}

// first returns the URI of the first disk at the first endpoint.
func (g *gateway) first() config.URI {
	u := g.in.endpoints[0].uri
	u.Export = g.disks[0].Name
	return u
}
