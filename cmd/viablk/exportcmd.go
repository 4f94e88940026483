package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/target/reserve"
)

func (a *app) exportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export",
		Short: "List, add, change or remove the exports of a running target",
	}
	cmd.AddCommand(a.exportListCommand(), a.exportAddCommand(), a.exportSetCommand(), a.exportRemoveCommand())
	return cmd
}

// targetOf returns the status socket of the running target.
func (a *app) targetOf(ctx context.Context, options *optionSet) (socket string, err error) {
	p, err := a.runningTarget(ctx, options)
	if err != nil {
		return "", err
	}
	return p.socket, nil
}

// runningTarget returns the status of the running target.
func (a *app) runningTarget(ctx context.Context, options *optionSet) (*processStatus, error) {
	processes, err := a.runningProcesses(ctx, options)
	if err != nil {
		return nil, err
	}
	processes = slices.DeleteFunc(processes, func(p processStatus) bool { return p.Command != "target" })
	switch len(processes) {
	case 1:
		return &processes[0], nil
	case 0:
		return nil, &exit{exitTryAgain, errors.New("no target of this user runs; name its socket with --admin PATH")}
	}
	return nil, usage("%d targets run: name the socket of one with --admin PATH", len(processes))
}

// listedExport is what the table has of an export.
type listedExport struct {
	Name, Backend, Description string
	Size                       int64 // bytes
	Holders                    []reserve.Client
	Removed                    bool
}

func (a *app) exportListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the exports of a running target",
		Long: `List the exports of the running target, and the clients that have each open. Those
that were removed follow while clients still have them.`,
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		socket, err := a.targetOf(cmd.Context(), options)
		if err != nil {
			return err
		}
		var document json.RawMessage
		err = askAdmin(cmd.Context(), socket, adminCall{method: http.MethodGet, route: "/v1/exports", read: func(_ net.Conn, body *json.Decoder) error {
			return body.Decode(&document)
		}})
		if err != nil {
			return err
		}
		if a.output == "json" {
			return a.printJSON(document)
		}
		var report struct{ Exports []listedExport }
		if err := json.Unmarshal(document, &report); err != nil {
			return fmt.Errorf("the answer of %q: %w", socket, err)
		}
		rows := [][]string{{"EXPORT", "STATE", "SIZE", "CLIENTS", "BACKEND", "DESCRIPTION"}}
		for _, x := range report.Exports {
			state := "exported"
			if x.Removed {
				state = "removed"
			}
			rows = append(rows, []string{x.Name, state, config.Size(x.Size).String(), strconv.Itoa(len(x.Holders)), x.Backend, x.Description})
		}
		return a.printTable(rows)
	}
	return cmd
}

func (a *app) exportAddCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME=BACKEND",
		Short: "Export another disk of a running target",
		Long: `Export another disk of the running target. The disk is opened and checked as one of
the configuration, which does not change: the target exports what that says when it
reads it again. To add an export that is there is no error.`,
		Example: `  viablk export add disk3=file:/srv/disk3.img --description scratch
  viablk export add disk4=limit:iops=5000:file:/srv/disk4.img`,
	}
	options := addOptions(cmd, adminOption)
	set := addSettings(cmd)
	readOnly := cmd.Flags().Bool("read-only", false, "refuse writes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var x config.Export
		if err := x.UnmarshalText([]byte(args[0])); err != nil {
			return &exit{exitUsage, err}
		}
		x.ReadOnly = *readOnly
		x, err := x.Merge(set.patch(cmd))
		if err != nil {
			return &exit{exitUsage, err}
		}
		document, err := json.Marshal(x)
		if err != nil {
			return err
		}
		return a.changeExport(cmd.Context(), options, adminCall{method: http.MethodPost, route: "/v1/exports", body: document, timeout: changeTime})
	}
	return cmd
}

func (a *app) exportSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Change an export of a running target",
		Long: `Change an export of the running target: all that is given, or nothing. Lists of clients
hold for those that come from now on, limits for the next request of each client; limits
need an export that has some. The configuration file does not change.

--size grows the disk, which is file: with a regular file, or rbd:, also in crc:. Initiators
and their devices hear of it within seconds, NBD clients when they connect again. --read-only is
refused while a client has the export open for writing, --read-only=false if the disk
was opened for reading only.`,
		Example: `  viablk export set disk0 --iops 2000 --session-bandwidth 50MiB
  viablk export set disk0 --client user:backup --client alice
  viablk export set disk0 --size 20GiB
  viablk export set disk0 --read-only=false`,
	}
	options := addOptions(cmd, adminOption)
	set := addSettings(cmd)
	set.disk(cmd)
	set.limits(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		patch := set.patch(cmd)
		if string(patch) == "{}" {
			return usage("nothing to change: give --size, --read-only, --description, --client or a limit")
		}
		return a.changeExport(cmd.Context(), options, adminCall{method: http.MethodPatch, route: exportRoute(args[0]), body: patch, timeout: changeTime})
	}
	return cmd
}

// changeExport makes a call that changes an export.
func (a *app) changeExport(ctx context.Context, options *optionSet, call adminCall) error {
	socket, err := a.targetOf(ctx, options)
	if err != nil {
		return err
	}
	return askAdmin(ctx, socket, call)
}

// exportRoute returns the route of an export.
func exportRoute(name string) string { return "/v1/exports?name=" + url.QueryEscape(name) }

// exportSettings are flags that set keys of an export.
type exportSettings struct{ keys map[string]string } // key of each flag

func addSettings(cmd *cobra.Command) *exportSettings {
	flags := cmd.Flags()
	flags.String("description", "", "describe the disk as `TEXT`")
	flags.StringArray("client", nil, "serve the disk to the client with `NAME` in its certificate, or user:NAME or uid:N of this host, and no other; may be repeated")
	flags.StringArray("client-read-only", nil, "serve the disk for reading to the client `NAME`, and no other; may be repeated")
	return &exportSettings{map[string]string{"description": "description", "client": "clients", "client-read-only": "clients_read_only"}}
}

// disk adds the flags of the disk behind the export.
func (s *exportSettings) disk(cmd *cobra.Command) {
	cmd.Flags().String("size", "", "grow the disk to `SIZE`")
	cmd.Flags().Bool("read-only", false, "refuse writes; =false accepts them again")
	s.keys["size"], s.keys["read-only"] = "size", "read_only"
}

// limits adds the flags of limits.
func (s *exportSettings) limits(cmd *cobra.Command) {
	for _, l := range [...]struct{ prefix, key, of string }{{"", "limits", "all clients"}, {"session-", "session_limits", "each client"}} {
		cmd.Flags().String(l.prefix+"iops", "", "`NUMBER` of requests per second of "+l.of+"; 0: unlimited")
		cmd.Flags().String(l.prefix+"bandwidth", "", "`SIZE` per second of "+l.of+"; 0: unlimited")
		cmd.Flags().String(l.prefix+"burst", "", "`TIME` of unused rate that is kept for "+l.of)
		for _, name := range [...]string{"iops", "bandwidth", "burst"} {
			s.keys[l.prefix+name] = l.key + "." + name
		}
	}
}

// patch returns what the flags change as a merge patch.
func (s *exportSettings) patch(cmd *cobra.Command) []byte {
	patch := make(map[string]any)
	for flag, key := range s.keys {
		f := cmd.Flags().Lookup(flag)
		if !f.Changed {
			continue
		}
		var value any = f.Value.String()
		if list, err := cmd.Flags().GetStringArray(flag); err == nil {
			value = slices.DeleteFunc(list, func(name string) bool { return name == "" })
		}
		section, inner, nested := strings.Cut(key, ".")
		if !nested {
			patch[key] = value
			continue
		}
		m, ok := patch[section].(map[string]any)
		if !ok {
			m = make(map[string]any)
			patch[section] = m
		}
		m[inner] = value
	}
	text, err := json.Marshal(patch)
	if err != nil {
		panic(err) // of strings and lists of them
	}
	return text
}

func (a *app) exportRemoveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove an export of a running target",
		Long: `Remove an export of the running target, which clients do not have, and close its
disk. With --drain clients are ended when their requests in flight are answered: NBD
clients by the end of their connection, initiators as by a target that goes down, and
they hear why when they come back. Other clients do not get the disk meanwhile. With
--force what is in flight after that time is cut off. The configuration file does not
change.`,
		Example: `  viablk export remove disk3 --drain 30s
  viablk export remove disk3 --drain 30s --force`,
	}
	options := addOptions(cmd, adminOption)
	drain := cmd.Flags().Duration("drain", 0, "`TIME` that clients have to finish their requests")
	force := cmd.Flags().Bool("force", false, "cut off requests in flight")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *drain < 0 || *drain > maximumDrain {
			return usage("--drain: %v is not in 0…%v", *drain, maximumDrain)
		}
		query := url.Values{"drain": {drain.String()}, "force": {strconv.FormatBool(*force)}}
		call := adminCall{method: http.MethodDelete, route: exportRoute(args[0]) + "&" + query.Encode(), timeout: changeTime + *drain + cutTime + closeTime}
		err := a.changeExport(cmd.Context(), options, call)
		var answer *answerCode
		if errors.As(err, &answer) && answer.code == http.StatusNotFound {
			return &exit{exitFalse, fmt.Errorf("there is no export %q; viablk export ls lists them", args[0])}
		}
		return err
	}
	return cmd
}
