package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
)

func (a *app) attachCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "attach [URI] --nbd URI",
		Short: "Turn a remote disk into a local NBD device",
		Long: `Connect to the disk that a VIA URI names and serve it at an NBD URI, under the
export name of that URI, until SIGTERM.`,
		Example: `  viablk attach via+roce://storage/disk0 --nbd 'nbd+unix:///?socket=/run/disk0.sock'
  viablk attach 'via+shm:///disk0?socket=/run/viablk/t' --nbd nbd://localhost/disk0`,
		Args: cobra.MaximumNArgs(1),
	}
	options := addOptions(cmd, attachOptions, commonOptions)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		flags := options.given()
		if len(args) == 1 {
			flags["attach.uri"] = config.Flag{Name: "the URI argument", Value: args[0]}
		}
		e, err := a.load(options.file, flags)
		if err != nil {
			return err
		}
		return a.attach(cmd.Context(), e.Config)
	}
	return cmd
}

// attach serves one remote disk until it is told to end.
func (a *app) attach(ctx context.Context, c config.Config) (err error) {
	switch {
	case c.Attach.URI == "":
		return usage("no disk to attach: give its VIA URI, or attach.uri in the configuration file")
	case c.Attach.NBD == "":
		return usage("nowhere to serve the disk: give --nbd URI, or attach.nbd in the configuration file")
	}
	uri, err := config.ParseURI(c.Attach.URI)
	if err != nil {
		return err
	}
	if !uri.VIA() {
		return usage("%s is an NBD server already: connect NBD clients to it, or attach a via+PROVIDER:// URI", uri)
	}
	local, err := config.ParseURI(c.Attach.NBD)
	if err != nil {
		return err
	}
	log := newLog(c.Log, a.stderr)
	svc := a.newService(c, log)
	defer svc.release()

	remote, err := dialVIA(ctx, uri, c.Attach, log)
	if err != nil {
		return err
	}
	disks := []attached{{config.Export{
		Name: local.Export, Description: uri.String(), Default: true, ReadOnly: c.Attach.ReadOnly,
	}, remote}}
	defer func() { err = errors.Join(err, closeAttached(disks)) }()
	defer svc.release() // before the disk closes
	g := &gateway{disks: disks}
	if err := g.start(ctx, c, svc, "attach", local, log); err != nil {
		return err
	}
	if err := a.printReady(g.ready); err != nil {
		return err
	}
	return svc.wait(nil)
}
