package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"

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
cow:BASE,OVERLAY, crc:DISK,SUMS, null:SIZE, the URI of an NBD server,
run:[COMMAND ...] that starts one, rbd:POOL/IMAGE of Ceph, or one of the wrappers
delay:, fault: and volatile:. Options follow a question mark, such as
file:PATH?create=10GiB&direct=1; viablk.yaml(5) has all. In front of it
limit:iops=N,bandwidth=SIZE,burst=TIME: limits the requests per second of the
disk, and session-iops, session-bandwidth and session-burst those of one client.

The first SIGTERM lets requests finish, a second one stops at once.

A listener that other hosts reach authenticates them, VIA with --certificates, NBD with
--tls require, or is refused without --insecure.

--takeover starts a target in the place of a running one, whose listeners for NBD, shared
memory and RoCE it gets, and its disks with their locks: clients notice a pause. If the
new target cannot serve, the old one goes on. A target with disks that end with their
process, or that the new one does not export, is not taken over.

SIGHUP reads certificates and the exports of --config again. Clients of an export that
is removed keep it until they leave. A mistake in either changes nothing of both.`,
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

// targetRun is a target that serves. One goroutine owns it. Others call
// exports, fillStatus and check, which change nothing.
type targetRun struct {
	a       *app
	svc     *service
	set     *exportSet
	in      *nbdListeners
	overVIA []config.URI
	server  *nbd.Server
	remote  viaServers
	guests  []uint32 // uids that the sockets are open to
	again   *certificates
	log     *slog.Logger
	kept    []takeover.Item // for a successor; see keep
}

// target serves the configured disks until it is told to end, or another target
// takes over, which it then returns. It takes the entrance that it was started
// with, which may be nil, what reads the configuration again, and what it goes
// on with, which may be nil.
func (a *app) target(ctx context.Context, e config.Effective, in *nbdListeners, load func() (config.Effective, error), from handover) (next *departure, err error) {
	defer func() { in.close() }()
	overNBD, overVIA, err := listenURIs(e.Config.Target.Listen)
	if err != nil {
		return nil, err
	}
	if err := checkSources(e.Config, in, from, overNBD, overVIA); err != nil {
		return nil, err
	}
	log, level := a.serviceLog(e.Config.Log)
	svc := a.newService(e.Config, log, level)
	defer svc.release()
	if err := from.Receive(); err != nil {
		return nil, err
	}
	held, err := backend.NewHeld(from.disks())
	if err != nil {
		return nil, err
	}
	defer held.Forget()
	sockets, err := shm.NewSockets(from.descriptors(itemSHM), from.MayFail())
	if err != nil {
		return nil, err
	}
	defer sockets.Close()
	udp := from.overRoCE()
	defer udp.Close()
	overRoCE.AdoptSockets(udp)
	plainRoCE.AdoptSockets(udp)
	disks, err := openDisks(e, held, from.lockWait(), log)
	if err != nil {
		return nil, err
	}
	if export, left := held.MemoryLeft(); left && from.MayFail() {
		return nil, errors.Join(usage("export %q of the target before is in memory, which would end: configure it as memory: with its size, or remove it from that target first", export), closeDisks(disks))
	}
	set := newExportSet(log, e, disks, svc.ending)
	set.load, set.held, set.level, set.sockets = load, held, level, sockets
	defer func() {
		err = errors.Join(err, set.close(svc.leftToDrain()))
		if hang := (*hangingDisks)(nil); errors.As(err, &hang) {
			svc.giveUp(err) // the disks have locks, and what was written, until the process ends
		}
	}()

	t := &targetRun{a: a, svc: svc, set: set, overVIA: overVIA, guests: guestsOf(disks), again: &certificates{log: log}, log: log}
	if t.server, err = newNBD(e.Config, disks, t.again, log); err != nil {
		return nil, err
	}
	if in, err = in.open(ctx, overNBD, t.server.TLS, t.guests, from); err != nil {
		return nil, err
	}
	t.in = in
	if err := t.listen(e.Config, disks); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.remote.close()) }()
	defer svc.release() // before devices and disks close
	if err := t.begin(ctx, e.Config, from); err != nil {
		return nil, err
	}
	held.Forget()
	sockets.Forget()
	udp.Close()
	err = svc.wait(in.left)
	if s := svc.successor; s != nil {
		next = &departure{Departure: takeover.Departure{Successor: s.Successor, Kept: t.kept, Log: log}, config: *set.inEffect.Load()}
		if s.pid == svc.upgrade.pid() {
			next.heir = s.pid
		}
	}
	return next, err
}

// checkSources checks that there is something to serve, and where.
func checkSources(c config.Config, in *nbdListeners, from handover, overNBD, overVIA []config.URI) error {
	switch {
	case len(c.Target.Listen) == 0 && in == nil && from.Inheritance == nil:
		return usage("nothing to listen on: give --listen URI, or target.listen in the configuration file")
	case len(c.Target.Exports) == 0:
		return usage("nothing to export: give --export NAME=BACKEND, or target.exports in the configuration file")
	case in != nil && in.client != nil:
		return in.refuseURIs("--listen or target.listen", slices.Concat(overNBD, overVIA))
	default:
		return in.refuseURIs("the NBD URIs of --listen or target.listen", overNBD)
	}
}

// listen checks who reaches the listeners, and opens those for VIA.
func (t *targetRun) listen(c config.Config, disks []disk) (err error) {
	if !t.in.serves() && len(t.overVIA) == 0 {
		return usage("nothing to listen on: the target that this one takes over from had no socket of a service manager: give --listen URI")
	}
	if err := checkExposure(c, t.in, t.overVIA, disks, t.log); err != nil {
		t.in.close()
		return err
	}
	t.in.log(t.log)
	warnUnknown(disks, t.log)
	if t.remote, err = openTarget(c, t.overVIA, disks, t.set.sockets, t.again, t.log, newTracer(c.Log, t.a.stderr)); err != nil {
		return err
	}
	t.set.overNBD, t.set.overVIA, t.set.ender = t.server.Exports.(*nbd.ExportTable), t.remote, t.server
	t.set.check = t.check
	return nil
}

// begin starts the status socket and metrics, waits until a predecessor has
// ended, and serves.
func (t *targetRun) begin(ctx context.Context, c config.Config, from handover) error {
	status := newStatus("target")
	status.Exports = t.exports()
	if t.in.client == nil {
		t.svc.mayHandOver, t.svc.mayDrain, t.svc.flush = t.set.mayHandOver, true, t.set.flush
	}
	if from.MayFail() {
		t.svc.calls.may = make(chan struct{})
	}
	admin, err := t.svc.startAdmin(ctx, c, from, status, sessionEnder{t.server, t.remote}, t.fillStatus, newExportAdmin(t.set, t.exports).handle, scrubAdmin{t.set}.handle)
	if err != nil {
		return err
	}
	if l, err := from.listener(itemSocket + monitorSocket); l != nil || err != nil {
		if t.a.monitorListener = l; err != nil {
			return err
		}
	}
	url, err := t.svc.startMonitor(ctx, c, t.a.monitorListener, from, t.again)
	if err != nil {
		return err
	}
	if err := from.Opened(); err != nil {
		return err
	}
	if err := t.svc.calls.place(ctx, t.svc.admin); err != nil {
		return err
	}
	t.svc.start(slices.Concat(t.remote.parts(), t.in.parts(t.server))...)
	if from.Resumes() {
		err = notify(stateReady)
	} else {
		err = t.a.printReady(readyReport{processStatus: status, Admin: admin, Metrics: url}, t.in)
	}
	if from.Inheritance != nil && errors.Is(err, syscall.EPIPE) {
		err = nil // the reader of the predecessor's output has ended
	}
	if err != nil {
		return err
	}
	from.serving()
	t.again.attach(t.svc)
	t.svc.busy = t.set.busy
	t.svc.reload, t.svc.keep, t.svc.giveUnfinished = t.reload, t.keep, t.giveUnfinished
	t.svc.calls.begin()
	return nil
}

// exports returns the disks with their URIs.
func (t *targetRun) exports() (all []exportStatus) {
	for _, d := range t.set.current() {
		x := exportStatus{Name: d.Name, Size: d.device.Info().Size, ReadOnly: d.isReadOnly(), URIs: t.in.uris(d.Name)}
		for _, u := range t.overVIA {
			x.URIs = append(x.URIs, withExport(u.Peer(), d.Name))
		}
		all = append(all, x)
	}
	return all
}

// fillStatus adds what the target does to the state of the process.
func (t *targetRun) fillStatus(s *processStatus) {
	if t.in.serves() {
		now := t.server.Status()
		s.NBD = &now
	}
	disks := t.set.current()
	s.Exports, s.Targets, s.Disks, s.Limits = t.exports(), t.remote.status(), diskReports(disks), limitReports(disks)
}

// check returns why the listeners cannot serve other disks.
func (t *targetRun) check(c config.Config, disks []disk) error {
	for _, uid := range guestsOf(disks) {
		if !slices.Contains(t.guests, uid) {
			return fmt.Errorf("uid %d is new on the lists of clients: the sockets open to it at the next start", uid)
		}
	}
	return checkExposure(c, t.in, t.overVIA, disks, t.log)
}

// reload reads certificates and the configuration again. All of it takes
// effect, or nothing.
func (t *targetRun) reload(ctx context.Context) error {
	err := t.set.reload(ctx, t.again.load)
	t.svc.reloads.count(err == nil)
	if err != nil {
		t.log.Error("configuration not read again: exports and certificates stay as they are", "event", "configuration_kept", "error", err)
	}
	return errors.Join(err, t.again.finish(err))
}

// keep copies what a successor gets.
func (t *targetRun) keep(by claim) (err error) {
	if t.kept, err = t.set.keep(by, t.in, t.a.monitorListener); err == nil {
		t.kept = append(t.kept, t.svc.calls.keep(t.svc.admin, by)...)
		if by.RoCE {
			t.kept = append(t.kept, keepRoCE()...)
		}
		t.remote.announceSuccessor()
	}
	return err
}

// giveUnfinished gives the successor what was kept for it, because this process
// ends although a disk still works: memory would end with it.
func (t *targetRun) giveUnfinished(s *successor) {
	if err := s.GiveUnfinished(t.kept); err != nil {
		t.log.Error("disks in memory may be lost", "event", "takeover_failed", "error", err)
	}
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
