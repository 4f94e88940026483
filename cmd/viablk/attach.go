package main

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbdkernel"
)

func (a *app) attachCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "attach [URI|nbdN] [--device DEVICE] [--nbd URI]",
		Short: "Attach a remote disk as /dev/nbdN or as a local NBD server",
		Long: `Connect to the disk that a VIA or NBD URI names and serve it until SIGTERM: to the
kernel, as the block device that --device names, or at an NBD URI, under the export name of
that URI, or both.

Instead of a URI, nbdN names a line of /etc/nbdtab with the option
_viablk_transport=PROVIDER: what it says is attached as that device.

When the target goes away requests wait for it, for --ctrl-loss-tmo, and are retried
when it is back; those to an NBD server, unless it was lost with writes that were not
flushed (--durable). A device that is in use when the process ends is left: its requests
wait as long, and the next process takes it over with --reattach, and the unix socket of
--nbd too: NBD clients that connect again go on. It does not if another client wrote to the
disk meanwhile, or answered writes may be lost.`,
		Example: `  viablk attach via+roce://storage/disk0 --device auto
  viablk attach via+roce://storage/disk0 --nbd 'nbd+unix:///?socket=/run/disk0.sock'
  viablk attach 'via+shm:///disk0?socket=/run/viablk/t' --nbd nbd://localhost/disk0
  viablk attach 'via+shm:///disk0?socket=/run/viablk/t' --path via+roce://localhost --device auto
  viablk attach nbds://storage/disk0 --certificates client --device auto`,
	}
	options := addOptions(cmd, remoteOptions, attachOptions, deviceOptions, commonOptions)
	tab := cmd.Flags().String("nbdtab", "/etc/nbdtab", "`FILE` that says what is attached as a device")
	stdio := addStdio(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		flags := options.given()
		if err := nameDisk(flags, args, *tab); err != nil {
			return err
		}
		e, err := a.load(options.file, flags)
		if err != nil {
			return err
		}
		in, err := a.inherit(*stdio)
		if err != nil {
			return err
		}
		return a.attach(cmd.Context(), e.Config, in)
	}
	return cmd
}

// nameDisk adds to the flags what the argument says: a URI, or a device of
// which the file tab says what is attached. Flags come before what that says.
func nameDisk(flags config.Flags, args []string, tab string) error {
	if len(args) == 0 {
		return nil
	}
	if !isDevicePath(args[0]) {
		flags["attach.uri"] = config.Flag{Name: uriArgument, Value: args[0]}
		return nil
	}
	n, err := nbdkernel.ParseNode(args[0])
	if err != nil {
		return usage("%w", err)
	}
	settings, err := config.Nbdtab(tab, strings.TrimPrefix(n.String(), "/dev/"))
	if err != nil {
		return &exit{exitConfiguration, err}
	}
	for key, value := range settings {
		if _, given := flags[key]; !given {
			flags[key] = config.Flag{Name: tab, Value: value}
		}
	}
	return nil
}

// attach serves one remote disk until it is told to end. It takes the entrance
// that it was started with, which may be nil.
func (a *app) attach(ctx context.Context, c config.Config, in *nbdListeners) (err error) {
	defer in.close()
	switch {
	case c.Attach.URI == "":
		return usage("no disk to attach: give its URI, or attach.uri in the configuration file")
	case c.Attach.NBD == "" && c.Attach.Device == "" && in == nil:
		return usage("nowhere to serve the disk: give --device auto or --nbd URI, or attach.device or attach.nbd in the configuration file")
	case c.Attach.Device != "" && in != nil && in.client != nil:
		return usage("--stdio serves one client and ends with it: leave out --device")
	}
	uri, err := c.Attach.Remote()
	if err != nil {
		return err
	}
	name := uri.Export
	local, err := attachLocal(c.Attach)
	if err == nil {
		err = in.refuseURIs("--nbd or attach.nbd", local)
	}
	if err != nil {
		return err
	}
	if len(local) > 0 {
		name = local[0].Export
	}
	kernel, err := openKernelDevice(c.Attach, uri)
	if err != nil {
		return err
	}
	defer kernel.close()
	log, level := a.serviceLog(c.Log)
	again := &certificates{log: log}
	if err := again.useRemote(uri); err != nil {
		return err
	}
	svc := a.newService(c, log, level)
	defer svc.release()

	life, err := openLifeFiles(kernel.addTo(placeOf(local)), uri, c.Attach.Reattach, log)
	if err != nil {
		return err
	}
	defer func() { life.close(err == nil) }()
	remote, err := dialAttached(ctx, svc, uri, c.Attach, life, log, newTracer(c.Log, a.stderr))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remote.close()) }()
	defer svc.release() // before the disk closes
	again.then = append(again.then, remote.device.CheckCertificates)
	served, err := serveRemote(c.Attach.Over(config.Export{
		Name: name, Description: cmp.Or(remote.device.Description(), uri.String()), Default: true,
	}), remote)
	if err != nil {
		return err
	}
	g := &gateway{in: in, monitor: a.monitorListener, disks: []attached{served}, again: again, kernel: kernel}
	if err := g.start(ctx, c, svc, "attach", local, log); err != nil {
		return err
	}
	var done <-chan struct{} = g.in.left
	if kernel != nil {
		if err := life.publish(kernel.lifePath()); err != nil {
			return errors.Join(err, kernel.abandon())
		}
		done = kernel.attachment.Done()
	}
	if err := a.printReady(g.ready, g.in); err != nil {
		return errors.Join(err, kernel.abandon())
	}
	return svc.wait(done)
}

// attachLocal returns the NBD URI to serve at, if one is configured.
func attachLocal(c config.Attach) ([]config.URI, error) {
	if c.NBD == "" {
		return nil, nil
	}
	u, err := config.ParseURI(c.NBD)
	return []config.URI{u}, err
}
