package main

import (
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/identity"
)

// identityReport is what "viablk identity" prints.
type identityReport struct {
	Schema     string `json:"schema"` // viablk.identity/v1
	UUID       string `json:"uuid"`
	Losses     uint64 `json:"write_losses"`      // times that answered writes may have been lost
	Generation uint64 `json:"writer_generation"` // advances with each other writer
	Opens      uint64 `json:"opens"`             // for writing
	Unclean    bool   `json:"unclean"`           // opened for writing and not closed since
	Failed     bool   `json:"failed"`            // a flush failed, and no person has accepted that
	Copied     bool   `json:"copied"`            // the record is another file's
	Changed    bool   `json:"changed"`           // by another program since it was closed
	Place      string `json:"place"`             // of the record
}

// newIdentityReport returns an inspection as it is printed.
func newIdentityReport(i *identity.Inspection) identityReport {
	return identityReport{
		Schema: "viablk.identity/v1", UUID: block.FormatUUID(i.UUID), Losses: i.Losses, Generation: i.Generation,
		Opens: i.Opens, Unclean: i.Unclean, Failed: i.Failed, Copied: i.Copied, Changed: i.Changed, Place: i.Place,
	}
}

func (a *app) identityCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "identity",
		Short: "Show, accept or renew the identity that is kept with a disk",
		Long: `Show, accept or renew the identity that is kept with a file or block device: its UUID, how
often answered writes may have been lost, and the generation of its writers. Clients
that return to a disk compare all three.

The disk is a path, or file:SPEC as in --export. No target serves it for writing: "viablk
info" shows the identity of one that is served.`,
		Example: `  viablk identity show /srv/disk0.img
  viablk identity accept /srv/disk0.img
  viablk identity renew --yes /srv/copy.img
  viablk identity renew --keep --yes /srv/restored.img`,
	}
	cmd.AddCommand(a.identityShowCommand(), a.identityAcceptCommand(), a.identityRenewCommand())
	return cmd
}

func (a *app) identityShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show PATH|file:SPEC",
		Short: "Show the identity of a disk",
		Long: `Show the identity of a disk that no target serves for writing, and change nothing.

  unclean  the disk was opened for writing and not closed: if its machine was started
           since, the next target counts a loss
  failed   a flush failed: no flush succeeds until "viablk identity accept"
  copied   the record belongs to another file, of which this is a copy: the next target
           gives it a UUID of its own
  changed  another program changed the file since it was closed: the next target counts
           another writer

The exit code is 2 if nothing is kept with the disk, and 75 if it is served.`,
	}
	options := addOptions(cmd, stateOption)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		disk, err := a.lockDisk(options, args[0], true)
		if err != nil {
			return err
		}
		defer disk.Close()
		i, err := identity.Inspect(disk.Identity())
		if err != nil {
			return err
		}
		return a.printIdentity(i)
	}
	return cmd
}

func (a *app) identityAcceptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accept PATH|file:SPEC",
		Short: "Accept that a disk has lost writes",
		Long: `Accept that a disk has lost answered writes because a flush failed. Until then every
flush of the disk fails, also in a target that is started again: a client that reconnects
over NBD with lost writes looks like a new one, and would be told that they are durable.

Stop the clients of the disk and its target first, and check what the disk holds. Clients
that kept their state, such as a virtual machine that is paused, must not go on.

The exit code is 2 if no flush of the disk has failed, and 75 if it is served.`,
	}
	options := addOptions(cmd, stateOption)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		disk, err := a.lockDisk(options, args[0], false)
		if err != nil {
			return err
		}
		defer disk.Close()
		i, err := identity.Accept(disk.Identity())
		if err != nil {
			return err
		}
		return a.printIdentity(i)
	}
	return cmd
}

func (a *app) identityRenewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "renew PATH|file:SPEC",
		Short: "Give a disk a new identity",
		Long: `Give a disk that no target serves a new UUID, whatever was kept with it: clients that
return to it find another disk. With --keep it has the UUID that it or the file that it is
a copy of had, as for a disk that was restored: clients that return to write are told that
another writer was there. A copy with --keep and its original must not both be served.

A record that can be read is replaced with --yes only. The exit code is 64 without it, 75
if the disk is served, and 2 if there is nothing to keep.`,
		Example: `  viablk identity renew --yes /srv/copy.img
  viablk identity renew --keep --yes /srv/restored.img`,
	}
	keep := cmd.Flags().Bool("keep", false, "keep the UUID: the disk takes the place of the one that had it")
	yes := cmd.Flags().Bool("yes", false, "replace a record that can be read")
	options := addOptions(cmd, stateOption)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		disk, err := a.lockDisk(options, args[0], false)
		if err != nil {
			return err
		}
		defer disk.Close()
		if err := mayRenew(disk, args[0], *yes); err != nil {
			return err
		}
		i, err := identity.Renew(disk.Identity(), *keep)
		if err != nil {
			return err
		}
		return a.printIdentity(i)
	}
	return cmd
}

// lockDisk opens and locks the disk that an argument names. The caller closes
// it.
func (a *app) lockDisk(options *optionSet, spec string, readOnly bool) (*backend.Locked, error) {
	e, err := a.load(options.file, options.given())
	if err != nil {
		return nil, err
	}
	disk, err := backend.Lock(spec, backend.Options{
		ReadOnly: readOnly, StateFolder: stateFolder(e.Config.Target.StateFolder), Log: newLog(e.Config.Log, a.stderr),
	})
	if errors.Is(err, backend.ErrUsage) {
		err = &exit{exitUsage, err}
	}
	return disk, err
}

// mayRenew returns an error if a record is there that is good, and yes was not
// given.
func mayRenew(disk *backend.Locked, name string, yes bool) error {
	i, err := identity.Inspect(disk.Identity())
	switch {
	case errors.Is(err, identity.ErrNoRecord), errors.Is(err, identity.ErrDamaged):
		return nil
	case errors.Is(err, identity.ErrVersion) && !yes:
		return usage("%w, or add --yes", err)
	case errors.Is(err, identity.ErrVersion):
		return nil
	case err == nil && !yes:
		return usage("%q has the identity %s, which its clients know: add --yes to replace the record", name, block.FormatUUID(i.UUID))
	}
	return err
}

// printIdentity prints an identity.
func (a *app) printIdentity(i *identity.Inspection) error {
	r := newIdentityReport(i)
	if a.output == "json" {
		return a.printJSON(r)
	}
	return a.printTable([][]string{
		{"uuid", r.UUID},
		{"write losses", strconv.FormatUint(r.Losses, 10)},
		{"writer generation", strconv.FormatUint(r.Generation, 10)},
		{"opens", strconv.FormatUint(r.Opens, 10)},
		{"unclean", strconv.FormatBool(r.Unclean)},
		{"failed", strconv.FormatBool(r.Failed)},
		{"copied", strconv.FormatBool(r.Copied)},
		{"changed", strconv.FormatBool(r.Changed)},
		{"place", r.Place},
	})
}
