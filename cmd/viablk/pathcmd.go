package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"
)

func (a *app) pathCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "path",
		Short: "List, add or remove the paths of attached disks to their targets",
	}
	cmd.AddCommand(a.pathListCommand(), a.pathAddCommand(), a.pathRemoveCommand())
	return cmd
}

// pathsOf returns the paths of the disks that processes of this user have
// attached, with the status socket of each process.
func (a *app) pathsOf(ctx context.Context, options *optionSet) (reports []pathReport, sockets []string, err error) {
	processes, err := a.runningProcesses(ctx, options)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range processes {
		if len(p.Initiators) == 0 {
			continue
		}
		var r pathReport
		err := askAdmin(ctx, p.socket, adminCall{method: http.MethodGet, route: "/v1/paths", read: func(_ net.Conn, body *json.Decoder) error {
			return body.Decode(&r)
		}})
		if err != nil {
			return nil, nil, fmt.Errorf("ask %q: %w", p.socket, err)
		}
		reports, sockets = append(reports, r), append(sockets, p.socket)
	}
	return reports, sockets, nil
}

func (a *app) pathListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the paths of attached disks",
		Long: `List the paths of the disks that running processes have attached, one for each host
of their target. QUEUES use the path, ACTIVE of them have requests in flight.`,
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		reports, _, err := a.pathsOf(cmd.Context(), options)
		if err != nil {
			return err
		}
		if a.output == "json" {
			return a.printJSON(append([]pathReport{}, reports...))
		}
		rows := [][]string{{"DISK", "HOST", "STATE", "QUEUES", "ACTIVE", "LOSSES", "ERROR"}}
		for _, r := range reports {
			for _, d := range r.Disks {
				for _, p := range d.Paths {
					rows = append(rows, []string{
						d.name(), p.Host, string(p.State), strconv.FormatInt(p.Queues, 10),
						strconv.FormatInt(p.Active, 10), strconv.FormatUint(p.Losses, 10), p.Error,
					})
				}
			}
		}
		return a.printTable(rows)
	}
	return cmd
}

// name returns what the command line calls the disk.
func (d *attachedPaths) name() string {
	if d.Device != "" {
		return d.Device
	}
	return d.Export
}

func (a *app) pathAddCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add DISK HOST|URI",
		Short: "Add a host of an attached disk's target",
		Long: `Add a host of the target of an attached disk, as "viablk path ls" names that. The
process connects a path to the host, or keeps trying. The configuration does not change.
To add a host that is there is no error. A URI names a host of another provider among
those that the disk was attached with.`,
		Example: `  viablk path add /dev/nbd0 198.51.100.1
  viablk path add /dev/nbd0 via+roce://198.51.100.1`,
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.changeHost(cmd.Context(), options, http.MethodPost, args[0], args[1])
	}
	return cmd
}

func (a *app) pathRemoveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove DISK HOST|URI",
		Short: "Remove a host of an attached disk's target",
		Long: `Remove a host of the target of an attached disk. Requests of its path move to another
one; the last path that is up stays. When the command returns, the process has no
connection to the host. The configuration does not change. To remove a host that is not
there is no error.`,
		Example: `  viablk path remove /dev/nbd0 192.0.2.1
  viablk path remove /dev/nbd0 via+roce://192.0.2.1`,
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.changeHost(cmd.Context(), options, http.MethodDelete, args[0], args[1])
	}
	return cmd
}

// changeHost has the process that has attached a disk change its hosts.
func (a *app) changeHost(ctx context.Context, options *optionSet, method, disk, host string) error {
	reports, sockets, err := a.pathsOf(ctx, options)
	if err != nil {
		return err
	}
	var socket string
	var change hostChange
	for i, r := range reports {
		for _, d := range r.Disks {
			if d.Device != disk && d.Export != disk {
				continue
			}
			if socket != "" {
				return usage("several disks are %q: name the socket of one with --admin PATH", disk)
			}
			socket, change = sockets[i], hostChange{d.Export, host}
		}
	}
	if socket == "" {
		return &exit{exitFalse, fmt.Errorf("no disk %q is attached; viablk path ls lists them", disk)}
	}
	body, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode a change: %w", err)
	}
	return askAdmin(ctx, socket, adminCall{method: method, route: "/v1/paths", body: body, timeout: changeTime})
}
