package main

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/internal/bytesize"
	"github.com/viablk/viablk/target/backend"
)

// snapshotReport is what "viablk snapshot ls" prints.
type snapshotReport struct {
	Schema    string          `json:"schema"` // viablk.snapshots/v1
	Snapshots []snapshotEntry `json:"snapshots"`
}

// snapshotEntry is a snapshot, of which the newest is first.
type snapshotEntry struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes"`  // that its file takes
	Unused  bool      `json:"unused"` // left by a change that was interrupted
}

func (a *app) snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Make, list, delete and return to snapshots of a copy-on-write disk",
		Long: `Make, list, delete and return to snapshots of a copy-on-write disk, the backend
cow:BASE,OVERLAY, by the FILE of its overlay. A file or block device becomes such a disk
when it is served as the BASE of a new overlay.

Only ls works while a target serves the disk; for the others, stop it first.`,
		Example: `  viablk snapshot create db1.cow before-upgrade
  viablk snapshot ls db1.cow
  viablk snapshot rollback --yes db1.cow before-upgrade`,
	}
	cmd.AddCommand(
		a.snapshotChange("create FILE NAME", "Make a snapshot of a disk", `Make a snapshot of a disk as it is. It takes no room until the disk is written to, and
some milliseconds. Clients that return to the disk find it unchanged.

A disk has 32 snapshots at most.`, (*backend.Chain).Create),
		a.snapshotListCommand(),
		a.snapshotChange("delete FILE NAME", "Delete a snapshot", `Delete a snapshot. Blocks that newer snapshots or the disk still read of it are copied to
them first: that takes as long as a copy, and as much room.`, (*backend.Chain).Delete),
		a.snapshotRollbackCommand(),
	)
	return cmd
}

// snapshotChange returns a command that changes the snapshots of a disk.
func (a *app) snapshotChange(use, short, long string, change func(*backend.Chain, string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long + `

The exit code is 2 if there is no such snapshot, and 75 if a process serves the disk.`}
	options := addOptions(cmd, stateOption)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return a.onChain(options, args[0], func(c *backend.Chain) error { return change(c, args[1]) })
	}
	return cmd
}

// onChain runs a change of the snapshots of a disk.
func (a *app) onChain(options *optionSet, path string, change func(*backend.Chain) error) error {
	e, err := a.load(options.file, options.given())
	if err != nil {
		return err
	}
	c, err := backend.OpenChain(path, backend.Options{
		StateFolder: stateFolder(e.Config.Target.StateFolder), Log: newLog(e.Config.Log, a.stderr),
	})
	if err == nil {
		err = change(c)
		c.Close()
	}
	return snapshotExit(err)
}

// snapshotExit gives an error of an argument its exit code.
func snapshotExit(err error) error {
	switch {
	case errors.Is(err, backend.ErrNoSnapshot):
		return &exit{exitFalse, err}
	case errors.Is(err, backend.ErrUsage):
		return &exit{exitUsage, err}
	}
	return err
}

func (a *app) snapshotListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls FILE",
		Short: "List the snapshots of a disk",
		Long: `List the snapshots of a disk, the newest first. BYTES is what the file of a snapshot
takes: the blocks that were written between the one before and this one. An interrupted
change leaves a snapshot that is "unused"; "viablk snapshot delete" removes it.`,
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		all, err := backend.Snapshots(args[0])
		if err != nil {
			return snapshotExit(err)
		}
		r := snapshotReport{Schema: "viablk.snapshots/v1", Snapshots: []snapshotEntry{}}
		rows := [][]string{{"NAME", "CREATED", "BYTES", "STATE"}}
		for _, s := range all {
			r.Snapshots = append(r.Snapshots, snapshotEntry(s))
			state := "-"
			if s.Unused {
				state = "unused"
			}
			rows = append(rows, []string{s.Name, s.Created.Format(time.RFC3339), bytesize.Approximate(uint64(s.Bytes)), state})
		}
		if a.output == "json" {
			return a.printJSON(r)
		}
		return a.printTable(rows)
	}
	return cmd
}

func (a *app) snapshotRollbackCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback FILE NAME",
		Short: "Make a disk what it was at a snapshot",
		Long: `Make a disk what it was at a snapshot, which stays. All writes since then, and newer
snapshots, are lost: that needs --yes. Clients that return to write are
told that another writer was there.

The exit code is 64 without --yes, 2 if there is no such snapshot, and 75 if a process
serves the disk.`,
	}
	yes := cmd.Flags().Bool("yes", false, "lose what was written since")
	options := addOptions(cmd, stateOption)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return a.onChain(options, args[0], func(c *backend.Chain) error {
			newer, err := c.Newer(args[1])
			if err != nil {
				return err
			}
			if !*yes {
				also := ""
				if len(newer) > 0 {
					also = " and the snapshots " + strings.Join(newer, ", ")
				}
				return usage("all that was written to %q since snapshot %q%s would be lost: add --yes", args[0], args[1], also)
			}
			return c.Rollback(args[1])
		})
	}
	return cmd
}
