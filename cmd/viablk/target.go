package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/takeover"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/via/shm"
)

func (a *app) targetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "target --listen URI… --export NAME=BACKEND…",
		Short: "Serve disks over VIA and NBD",
		Long: `Serve disks over VIA and NBD until SIGTERM.

Every disk is served at every URI. BACKEND is memory:SIZE, file:PATH, mmap:PATH,
cow:BASE,OVERLAY, null:SIZE, the URI of an NBD server, run:[COMMAND ...] that starts one,
rbd:POOL/IMAGE of Ceph, or one of the
wrappers delay:, fault: and volatile:. In front of it
limit:iops=N,bandwidth=SIZE,burst=TIME: limits the requests per second of the
disk, and session-iops, session-bandwidth and session-burst those of one client. The first SIGTERM lets requests finish, a second one stops at once.

A listener that other hosts reach authenticates them, VIA with --certificates, NBD with
--tls require, or is refused without --insecure.

--takeover starts a target in the place of a running one, whose listeners for NBD and
disks it gets with their locks: clients notice a pause. If the new target cannot serve,
the old one goes on. A target with disks that end with their process, or that the new
one does not export, is not taken over.

SIGHUP reads certificates and the exports of --config again. Clients of an export that
is removed keep it until they leave. A file with a mistake changes nothing.`,
		Example: `  viablk target --listen via+roce://192.0.2.1/ --certificates pki --export disk0=file:/srv/disk0.img
  viablk target --listen nbd://localhost/ --listen 'nbd+unix:///?socket=/run/d.sock' \
      --export disk0=memory:1GiB --export disk1=file:/dev/vg0/disk1
  viablk target --listen nbd://localhost/ \
      --export disk0=limit:bandwidth=200MiB,session-iops=5000:file:/srv/disk0.img
  viablk target --config /etc/viablk/viablk.yaml
  viablk target --config /etc/viablk/viablk.yaml --takeover /run/viablk/4711.sock`,
	}
	options := addOptions(cmd, targetOptions, exportOptions, commonOptions)
	stdio := addStdio(cmd)
	socket := cmd.Flags().String("takeover", "", "take over from the target with this status `SOCKET`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		e, err := a.load(options.file, options.given())
		if err != nil {
			return err
		}
		in, err := a.inherit(*stdio)
		if err != nil {
			return err
		}
		if *stdio && *socket != "" {
			in.close()
			return usage("--stdio serves one client, and --takeover those of a target: choose one")
		}
		load := func() (config.Effective, error) { return a.load(options.file, options.given()) }
		return a.targets(cmd.Context(), e, in, load, *socket)
	}
	return cmd
}

// target serves the configured disks until it is told to end, or another target
// takes over, which it then returns. It takes the entrance that it was started
// with, which may be nil, what reads the configuration again, and what it goes
// on with, which may be nil.
func (a *app) target(ctx context.Context, e config.Effective, in *nbdListeners, load func() (config.Effective, error), from *handover) (next *departure, err error) {
	defer func() { in.close() }()
	c := e.Config
	overNBD, overVIA, err := listenURIs(c.Target.Listen)
	if err != nil {
		return nil, err
	}
	switch {
	case len(c.Target.Listen) == 0 && in == nil && from == nil:
		return nil, usage("nothing to listen on: give --listen URI, or target.listen in the configuration file")
	case len(c.Target.Exports) == 0:
		return nil, usage("nothing to export: give --export NAME=BACKEND, or target.exports in the configuration file")
	case in != nil && in.client != nil:
		err = in.refuseURIs("--listen or target.listen", slices.Concat(overNBD, overVIA))
	default:
		err = in.refuseURIs("the NBD URIs of --listen or target.listen", overNBD)
	}
	if err != nil {
		return nil, err
	}
	log, level := a.serviceLog(c.Log)
	svc := a.newService(c, log, level)
	defer svc.release()
	if err := from.receive(); err != nil {
		return nil, err
	}
	held, err := backend.NewHeld(from.descriptors(itemDisk))
	if err != nil {
		return nil, err
	}
	defer held.Forget()
	sockets, err := shm.NewSockets(from.descriptors(itemSHM))
	if err != nil {
		return nil, err
	}
	defer sockets.Close()
	disks, err := openDisks(e, held, from.lockWait(), log)
	if err != nil {
		return nil, err
	}
	set := newExportSet(log, e, disks, svc.ending)
	set.load, set.held, set.level, set.sockets = load, held, level, sockets
	defer func() { err = errors.Join(err, set.close()) }()

	again := &certificates{log: log}
	server, err := newNBD(c, disks, again, log)
	if err != nil {
		return nil, err
	}
	guests := guestsOf(disks)
	if in, err = in.open(ctx, overNBD, server.TLS, guests, from); err != nil {
		return nil, err
	}
	if !in.serves() && len(overVIA) == 0 {
		return nil, usage("nothing to listen on: the target that this one takes over from had no socket of a service manager: give --listen URI")
	}
	if err := checkExposure(c, in, overVIA, disks, log); err != nil {
		in.close()
		return nil, err
	}
	in.log(log)
	warnUnknown(disks, log)
	remote, err := openTarget(c, overVIA, disks, sockets, again, log, newTracer(c.Log, a.stderr))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remote.close()) }()
	defer svc.release() // before devices and disks close
	set.overNBD, set.overVIA, set.ender = server.Exports.(*nbd.ExportTable), remote, server
	set.check = func(c config.Config, disks []disk) error {
		for _, uid := range guestsOf(disks) {
			if !slices.Contains(guests, uid) {
				return fmt.Errorf("uid %d is new on the lists of clients: the sockets open to it at the next start", uid)
			}
		}
		return checkExposure(c, in, overVIA, disks, log)
	}
	exports := func() (all []exportStatus) {
		for _, d := range set.current() {
			x := exportStatus{Name: d.Name, Size: d.device.Info().Size, ReadOnly: d.isReadOnly(), URIs: in.uris(d.Name)}
			for _, u := range overVIA {
				x.URIs = append(x.URIs, withExport(u.Peer(), d.Name))
			}
			all = append(all, x)
		}
		return all
	}
	status := newStatus("target")
	status.Exports = exports()
	if in.client == nil {
		svc.mayHandOver, svc.mayDrain, svc.flush = set.mayHandOver, true, set.flush
	}
	admin, err := svc.startAdmin(ctx, c, status, sessionEnder{server, remote}, func(s *processStatus) {
		if in.serves() {
			now := server.Status()
			s.NBD = &now
		}
		disks := set.current()
		s.Exports, s.Targets, s.Disks, s.Limits = exports(), remote.status(), diskReports(disks), limitReports(disks)
	}, newExportAdmin(set, exports).handle)
	if err != nil {
		return nil, err
	}
	if l, err := from.listener(itemSocket + monitorSocket); l != nil || err != nil {
		if a.monitorListener = l; err != nil {
			return nil, err
		}
	}
	url, err := svc.startMonitor(ctx, c, a.monitorListener, again)
	if err != nil {
		return nil, err
	}
	if err := from.opened(); err != nil {
		return nil, err
	}
	svc.start(remote.parts()...)
	svc.start(in.parts(server)...)
	if from.resumes() {
		err = notify(stateReady)
	} else {
		err = a.printReady(readyReport{processStatus: status, Admin: admin, Metrics: url}, in)
	}
	if err != nil {
		return nil, err
	}
	from.serving()
	held.Forget()
	sockets.Forget()
	again.attach(svc)
	svc.reload = func(ctx context.Context) error {
		failed := again.reload()
		err := set.reload(ctx)
		if err != nil {
			log.Error("configuration not read again: exports stay as they are", "event", "configuration_kept", "error", err)
		}
		return errors.Join(err, failed)
	}
	var kept []takeover.Item
	svc.keep = func(by claim) (err error) {
		if kept, err = set.keep(by, in, a.monitorListener); err == nil {
			remote.announceSuccessor()
		}
		return err
	}
	err = svc.wait(in.left)
	if svc.successor != nil {
		next = &departure{*svc.successor, kept, *set.inEffect.Load(), log}
	}
	return next, err
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
