package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/bytesize"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
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
behind --admin: a line for each export and each way in, FACE, which is nbd, device or
via+PROVIDER. STATE is

  connected  requests are answered
  waiting    the target is away, and requests wait for it
  failed     requests fail: the target did not return within --ctrl-loss-tmo, or the
             disk is lost for good
  draining   requests in flight finish, and no client is taken

The exit code is 2 if a disk has failed, and 75 if no process is there. THROTTLED
counts requests that waited for the limits of the export, whichever way they came. SECURITY is the cipher
of sessions over VIA; with -o json there are the names of the peers, until when their
certificates are valid, and the generation of keys.

Of a block device of the kernel, /dev/nbdN, show what it is attached to and which
process serves it. The exit code is 2 if none does. With -o udev, print properties for
a rule of udev.`,
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
			err = a.printJSON(statusReport{Schema: "viablk.status/v1", Processes: processes})
		} else {
			err = a.printTable(statusRows(processes))
		}
		if err == nil && anyFailed(processes) {
			err = &exit{code: exitFalse}
		}
		return err
	}
	return cmd
}

// findStatus asks one process, or all. A socket without a listener belongs to a
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

// statusHead names the columns of the table.
var statusHead = []string{
	"PID", "COMMAND", "EXPORT", "FACE", "STATE", "SIZE", "CONNECTIONS", "READS", "WRITES",
	"READ-BYTES", "WRITTEN-BYTES", "ERRORS", "THROTTLED", "SECURITY", "URI",
}

// stateDraining is the state of an export whose server lets requests finish and
// takes no new clients. The other states are those of the initiator; a disk of
// the target's own is always connected.
const stateDraining = "draining"

// faceRow is an export as it is served in one way: by NBD, as the kernel's
// device, or by a VIA provider.
type faceRow struct {
	export      exportStatus
	face        string
	state       string
	connections int
	counts      target.ExportCounts
	throttled   uint64
	security    string
	places      []string
}

// cells formats the row.
func (r *faceRow) cells(p *processStatus) []string {
	c := &r.counts
	return slices.Concat(
		[]string{strconv.Itoa(p.PID), p.Command, r.export.Name, r.face, r.state, config.Size(r.export.Size).String()},
		numbers(uint64(r.connections), c.Reads, c.Writes), volumes(c.BytesRead, c.BytesWritten), numbers(c.Errors, r.throttled),
		[]string{cmp.Or(r.security, "none"), strings.Join(r.places, " ")})
}

// statusRows returns the table: a row for each export and each way in.
func statusRows(processes []processStatus) [][]string {
	rows := [][]string{statusHead}
	for i := range processes {
		p := &processes[i]
		for _, r := range slices.Concat(p.overNBD(), p.overVIA()) {
			rows = append(rows, r.cells(p))
		}
	}
	return rows
}

// overNBD returns the exports as NBD clients and the kernel see them.
func (p *processStatus) overNBD() []faceRow {
	if p.NBD == nil {
		return nil
	}
	var rows []faceRow
	for i, e := range p.Exports {
		r := faceRow{export: e, face: "nbd", state: string(initiator.StateConnected), throttled: p.throttled(e.Name)}
		for _, u := range e.URIs {
			if strings.HasPrefix(u, "nbd") {
				r.places = append(r.places, u)
			}
		}
		if e.Device != "" {
			if len(r.places) == 0 {
				r.face = "device"
			}
			r.places = append([]string{e.Device}, r.places...)
		}
		if i < len(p.Initiators) { // in the order of the exports
			r.state = stateOf(&p.Initiators[i])
			if s := p.Initiators[i].Security; s != nil {
				r.security = s.Cipher
			}
		}
		if p.NBD.Draining {
			r.state = stateDraining
		}
		if k := slices.IndexFunc(p.NBD.Exports, func(x nbd.ExportStatus) bool { return x.Name == e.Name }); k >= 0 {
			x := &p.NBD.Exports[k]
			r.connections = x.Connections
			r.counts.Reads, r.counts.Writes, r.counts.Errors = x.Reads, x.Writes, x.Errors
			r.counts.BytesRead, r.counts.BytesWritten = x.BytesRead, x.BytesWritten
		}
		rows = append(rows, r)
	}
	return rows
}

// stateOf describes the state of a remote disk, with what is in quarantine.
func stateOf(i *initiator.Status) string {
	k := i.Quarantine
	switch {
	case k == nil || k.Pools+k.Requests == 0:
		return string(i.State)
	case k.Pools == 0:
		return fmt.Sprintf("%s, quarantine: %d requests", i.State, k.Requests)
	default:
		return fmt.Sprintf("%s, quarantine: %s, %d requests", i.State, config.Size(k.Bytes), k.Requests)
	}
}

// overVIA returns the exports as initiators see them.
func (p *processStatus) overVIA() []faceRow {
	var rows []faceRow
	for _, t := range p.Targets {
		for _, x := range t.Exports {
			r := faceRow{
				export: exportStatus{Name: x.Name, Size: x.Size}, face: "via+" + t.Provider, state: string(initiator.StateConnected),
				connections: x.Connections, counts: x.Stats, throttled: p.throttled(x.Name),
			}
			if t.Security != nil {
				r.security = t.Security.Cipher
			}
			if t.Draining {
				r.state = stateDraining
			}
			for _, e := range p.Exports {
				for _, u := range e.URIs {
					if e.Name == x.Name && strings.HasPrefix(u, r.face+":") {
						r.places = append(r.places, u)
					}
				}
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// anyFailed reports whether requests to a remote disk fail.
func anyFailed(processes []processStatus) bool {
	return slices.ContainsFunc(processes, func(p processStatus) bool {
		return slices.ContainsFunc(p.Initiators, func(i initiator.Status) bool { return i.State == initiator.StateFailed })
	})
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

// volumes formats numbers of bytes.
func volumes(list ...uint64) []string {
	cells := make([]string, 0, len(list))
	for _, n := range list {
		cells = append(cells, bytesize.Approximate(n))
	}
	return cells
}

// numbers formats counters.
func numbers(list ...uint64) []string {
	cells := make([]string, 0, len(list))
	for _, n := range list {
		cells = append(cells, strconv.FormatUint(n, 10))
	}
	return cells
}
