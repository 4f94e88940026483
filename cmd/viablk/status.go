package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
)

// statusReport is what "viablk status" prints.
type statusReport struct {
	Schema    string          `json:"schema"` // viablk.status/v1
	Processes []processStatus `json:"processes"`
}

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [DEVICE]",
		Short: "Show the counters of the running viablk processes, or a device",
		Long: `Show the counters of the running viablk processes of this user, or of the one
behind --admin. The exit code is 75 if there is none.

Of a block device of the kernel, /dev/nbdN, show what it is attached to and which
process serves it. The exit code is 2 if none does. With -o udev, print properties for
a rule of udev.`,
		Args:        cobra.MaximumNArgs(1),
		Annotations: map[string]string{moreOutputs: "udev"},
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return a.printDevice(args[0])
		}
		if a.output == "udev" {
			return usage("--output udev is for a device: name it")
		}
		e, err := a.load(options.file, options.given())
		if err != nil {
			return err
		}
		processes, err := findStatus(cmd.Context(), e.Config)
		if err != nil {
			return err
		}
		if a.output == "json" {
			return a.printJSON(statusReport{Schema: "viablk.status/v1", Processes: processes})
		}
		return a.printTable(statusRows(processes))
	}
	return cmd
}

// findStatus asks one process, or all. A socket that nobody serves belongs to a
// process that is gone.
func findStatus(ctx context.Context, c config.Config) ([]processStatus, error) {
	if c.Admin == adminNone {
		return nil, usage("the admin setting is %q: name the socket with --admin PATH", adminNone)
	}
	if c.Admin != "" {
		status, err := askStatus(ctx, c.Admin)
		if err != nil {
			return nil, unreachable(err)
		}
		return []processStatus{status}, nil
	}
	paths, err := adminSockets()
	if err != nil {
		return nil, err
	}
	var processes []processStatus
	for _, path := range paths {
		status, err := askStatus(ctx, path)
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
			continue
		}
		if err != nil {
			return nil, unreachable(err)
		}
		processes = append(processes, status)
	}
	if len(processes) == 0 {
		return nil, &exit{exitTryAgain, fmt.Errorf("no viablk process has a status socket in %s; name another with --admin PATH", runtimeFolder())}
	}
	return processes, nil
}

// statusRows returns the table: a row for each export as NBD serves it, and one
// for all exports as a VIA provider serves them.
func statusRows(processes []processStatus) [][]string {
	rows := [][]string{{"PID", "COMMAND", "EXPORT", "SIZE", "CONNECTIONS", "READS", "WRITES", "READ", "WRITTEN", "ERRORS", "THROTTLED", "URI"}}
	for _, p := range processes {
		for _, e := range p.Exports {
			var x nbd.ExportStatus
			if p.NBD != nil {
				if i := slices.IndexFunc(p.NBD.Exports, func(x nbd.ExportStatus) bool { return x.Name == e.Name }); i >= 0 {
					x = p.NBD.Exports[i]
				}
			}
			rows = append(rows, slices.Concat(
				[]string{strconv.Itoa(p.PID), p.Command, e.Name, config.Size(e.Size).String()},
				numbers(uint64(x.Connections), x.Reads, x.Writes, x.BytesRead, x.BytesWritten, x.Errors, p.throttled(e.Name)),
				[]string{strings.Join(e.places(), " ")}))
		}
		for _, t := range p.Targets {
			rows = append(rows, slices.Concat(
				[]string{strconv.Itoa(p.PID), p.Command, "*", "-"},
				numbers(uint64(t.Connections), t.Stats.Reads, t.Stats.Writes, t.Stats.BytesRead, t.Stats.BytesWritten, t.Stats.Errors),
				[]string{"-", "via+" + t.Provider}))
		}
	}
	return rows
}

// throttled returns how many requests to an export had to wait for its limits,
// whichever way they came.
func (p *processStatus) throttled(export string) uint64 {
	for _, l := range p.Limits {
		if l.Export == export {
			return l.Throttled
		}
	}
	return 0
}

// numbers formats counters.
func numbers(list ...uint64) []string {
	cells := make([]string, 0, len(list))
	for _, n := range list {
		cells = append(cells, strconv.FormatUint(n, 10))
	}
	return cells
}
