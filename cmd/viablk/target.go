package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
)

func (a *app) targetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "target --listen URI… --export NAME=SPEC…",
		Short: "Serve disks over VIA and NBD",
		Long: `Serve disks over VIA and NBD until SIGTERM.

Every disk is served at every URI. SPEC is memory:SIZE, file:PATH, null:SIZE,
or one of the wrappers delay:, fault: and volatile:. The first SIGTERM lets
requests finish, a second one stops at once.`,
		Example: `  viablk target --listen via+roce://0.0.0.0/ --export disk0=file:/srv/disk0.img
  viablk target --listen nbd://localhost/ --listen 'nbd+unix:///?socket=/run/d.sock' \
      --export disk0=memory:1GiB --export disk1=file:/dev/vg0/disk1
  viablk target --config /etc/viablk/viablk.yaml`,
		Args: cobra.NoArgs,
	}
	options := addOptions(cmd, targetOptions, exportOptions, commonOptions)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		e, err := a.load(options.file, options.given())
		if err != nil {
			return err
		}
		return a.target(cmd.Context(), e)
	}
	return cmd
}

// target serves the configured disks until it is told to end.
func (a *app) target(ctx context.Context, e config.Effective) (err error) {
	c := e.Config
	switch {
	case len(c.Target.Listen) == 0:
		return usage("nothing to listen on: give --listen URI, or target.listen in the configuration file")
	case len(c.Target.Exports) == 0:
		return usage("nothing to export: give --export NAME=SPEC, or target.exports in the configuration file")
	}
	log := newLog(c.Log, a.stderr)
	svc := a.newService(c, log)
	defer svc.release()
	disks, err := openDisks(e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDisks(disks)) }()

	overNBD, overVIA, err := listenURIs(c.Target.Listen)
	if err != nil {
		return err
	}
	server, endpoints, err := targetNBD(ctx, c, overNBD, disks, log)
	if err != nil {
		return err
	}
	defer closeEndpoints(endpoints)
	remote, err := openTarget(c.Target, overVIA, disks, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remote.close()) }()
	defer svc.release() // before devices and disks close

	status := newStatus("target")
	for _, d := range disks {
		x := exportStatus{Name: d.Name, Size: d.device.Info().Size, ReadOnly: d.isReadOnly()}
		for _, l := range endpoints {
			x.URIs = append(x.URIs, withExport(l.uri, d.Name))
		}
		for _, u := range overVIA {
			x.URIs = append(x.URIs, withExport(u, d.Name))
		}
		status.Exports = append(status.Exports, x)
	}
	admin, err := svc.startAdmin(ctx, c.Admin, status, func(s *processStatus) {
		if len(endpoints) > 0 {
			now := server.Status()
			s.NBD = &now
		}
		s.Targets = remote.status()
	})
	if err != nil {
		return err
	}
	svc.start(remote.parts()...)
	svc.start(nbdParts(server, endpoints)...)
	if err := a.printReady(readyReport{processStatus: status, Admin: admin}); err != nil {
		return err
	}
	return svc.wait(nil)
}

// listenURIs parses the URIs, which were validated, and sorts them by protocol.
func listenURIs(listen []string) (overNBD, overVIA []config.URI, err error) {
	for _, s := range listen {
		u, err := config.ParseURI(s)
		if err != nil {
			return nil, nil, err
		}
		if u.VIA() {
			overVIA = append(overVIA, u)
		} else {
			overNBD = append(overNBD, u)
		}
	}
	return overNBD, overVIA, nil
}

// targetNBD opens the NBD listeners and the server for them.
func targetNBD(ctx context.Context, c config.Config, uris []config.URI, disks []disk, log *slog.Logger) (*nbd.Server, []endpoint, error) {
	exports, err := nbdExports(disks)
	if err != nil {
		return nil, nil, err
	}
	server := &nbd.Server{Exports: exports, Limits: nbdLimits(c.NBD), Log: log}
	var endpoints []endpoint
	for _, u := range uris {
		l, err := listenNBD(ctx, u)
		if err != nil {
			closeEndpoints(endpoints)
			return nil, nil, fmt.Errorf("listen: %w", err)
		}
		endpoints = append(endpoints, l)
	}
	return server, endpoints, nil
}
