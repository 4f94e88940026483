package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/cmd/viablk/internal/show"
	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/bytesize"
)

// statusReport is what "viablk status" prints.
type statusReport struct {
	Schema    string          `json:"schema"` // viablk.status/v1
	Processes []processStatus `json:"processes"`
	Devices   []deviceReport  `json:"devices,omitempty"` // of the kernel, whose process is gone
}

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [DEVICE]",
		Short: "Show the counters of the running viablk processes, or a device",
		Long: `Show the counters of the running viablk processes of this user, or of the one
behind --admin: a line for each export and each way in, FACE, which is nbd, device or
via+PROVIDER. STATE is

  connected  requests are answered
  waiting    the target, or the NBD server that is the backend, is away, and for how long
             requests have waited for it
  failed     requests fail: the target did not return within --ctrl-loss-tmo, the NBD
             server within its reconnect=, or the disk is lost for good
  draining   requests in flight finish, and no client is taken

Lines below the table say why a disk waits or has failed, which of several paths to a
target is not up, how far a scrub is, and that the last one found something. A device of
the kernel whose process is gone has a line too.

The exit code is 2 if a disk waits or has failed, and 75 if no process is there. With
-o wide there are the exact counters, the command of the process, the URIs, THROTTLED:
requests that waited for the limits of the export, whichever way they came, and
SECURITY: the cipher of sessions over VIA. With -o latency there is a line for each
operation: the mean time of requests since the process started, from arrival to answer,
IN-BACKEND: the mean of the part in the disk, and percentiles. With -o json there is
everything, such as the names of the peers, until when their certificates are valid,
and the generation of keys.

Of a block device of the kernel, /dev/nbdN, show what it is attached to and which
process serves it. The exit code is 2 if none does, or if its disk has failed. With -o udev, print properties for
a rule of udev.`,
		Annotations: map[string]string{moreOutputs: "wide latency udev"},
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 && a.output == "udev" {
			return usage("--output udev is for a device: name it")
		}
		e, err := a.load(options.file, options.given())
		if err != nil {
			return err
		}
		if len(args) == 1 {
			return a.printDevice(cmd.Context(), e.Config, args[0])
		}
		r := statusReport{Schema: "viablk.status/v1"}
		if e.Config.Admin == "" {
			r.Devices = orphans()
		}
		r.Processes, err = findStatus(cmd.Context(), e.Config)
		if err != nil && (len(r.Devices) == 0 || !errors.Is(err, errNoProcess)) {
			return err
		}
		return a.printStatus(&r)
	}
	return cmd
}

// printStatus prints the report. The exit code says whether all is well.
func (a *app) printStatus(r *statusReport) error {
	var err error
	if a.output == "json" {
		err = a.printJSON(r)
	} else if a.output == "latency" {
		err = a.printTable(r.latencyRows())
	} else if err = a.printTable(r.rows(a.output == "wide")); err == nil {
		for _, line := range r.notes() {
			if _, err = fmt.Fprintln(a.stdout, line); err != nil {
				err = fmt.Errorf("print: %w", err)
				break
			}
		}
	}
	if err == nil && !r.healthy() {
		err = &exit{code: exitFalse}
	}
	return err
}

// errNoProcess is that no process is there to ask.
var errNoProcess = errors.New("no viablk process has a status socket")

// findStatus asks one process, or all. A socket without a listener belongs to a
// process that is gone.
func findStatus(ctx context.Context, c config.Config) ([]processStatus, error) {
	if c.Admin == adminNone {
		return nil, errNoAdmin()
	}
	if c.Admin != "" {
		status, err := askStatus(ctx, c.Admin)
		if err != nil {
			return nil, unreachable(err)
		}
		return []processStatus{status}, nil
	}
	var processes []processStatus
	err := visitAdmins(func(path string) error {
		status, err := askStatus(ctx, path)
		if err == nil {
			processes = append(processes, status)
		}
		return err
	})
	if err != nil {
		return nil, unreachable(err)
	}
	if len(processes) == 0 {
		return nil, errNoneRuns()
	}
	return processes, nil
}

// runningProcesses finds the status of the processes that a command with the
// admin option is about.
func (a *app) runningProcesses(ctx context.Context, options *optionSet) ([]processStatus, error) {
	e, err := a.load(options.file, options.given())
	if err != nil {
		return nil, err
	}
	return findStatus(ctx, e.Config)
}

// errNoAdmin says that the configuration asks for no status socket.
func errNoAdmin() error {
	return usage("the admin setting is %q: name the socket with --admin PATH", adminNone)
}

// errNoneRuns says that there is no process in the runtime folder.
func errNoneRuns() error {
	return &exit{exitTryAgain, fmt.Errorf("%w in %s; name another with --admin PATH", errNoProcess, runtimeFolder())}
}

// narrowHead names the columns of the table, which fits in 110 columns; "-o
// wide" prints wideHead.
var (
	narrowHead = []string{"PID", "EXPORT", "FACE", "STATE", "SIZE", "CONNS", "READS", "WRITES", "READ-BYTES", "WRITE-BYTES", "ERRORS"}
	wideHead   = []string{
		"PID", "COMMAND", "EXPORT", "FACE", "STATE", "SIZE", "CONNECTIONS", "READS", "WRITES",
		"READ-BYTES", "WRITTEN-BYTES", "ERRORS", "THROTTLED", "SECURITY", "URI",
	}
)

// stateText returns the state, with the time of a disk that waits.
func (f *faceStatus) stateText() string {
	if f.State == string(initiator.StateWaiting) && f.WaitingSeconds > 0 {
		return f.State + " " + show.Age(time.Duration(f.WaitingSeconds*float64(time.Second)))
	}
	return f.State
}

// narrow formats the row of a narrow table.
func (f *faceStatus) narrow(pid int) []string {
	return slices.Concat(
		[]string{processID(pid), f.Export, f.Face, f.stateText(), sizeCell(f.Size), strconv.Itoa(f.Connections)},
		[]string{show.Count(f.Reads), show.Count(f.Writes)}, volumes(f.BytesRead, f.BytesWritten), []string{show.Count(f.Errors)})
}

// wide formats the row of a wide table.
func (f *faceStatus) wide(pid int, command string) []string {
	return slices.Concat(
		[]string{processID(pid), command, f.Export, f.Face, f.stateText(), config.Size(f.Size).String()},
		numbers(uint64(f.Connections), f.Reads, f.Writes), volumes(f.BytesRead, f.BytesWritten), numbers(f.Errors, f.Throttled),
		[]string{cmp.Or(f.Security, "none"), strings.Join(f.Places, " ")})
}

// rows returns the table: a row for each export and each way in.
func (r *statusReport) rows(wide bool) [][]string {
	rows := [][]string{narrowHead}
	if wide {
		rows = [][]string{wideHead}
	}
	r.each(func(f *faceStatus, pid int, command string) {
		if wide {
			rows = append(rows, f.wide(pid, command))
		} else {
			rows = append(rows, f.narrow(pid))
		}
	})
	return rows
}

// notes returns a line for each export that is not as it should be.
func (r *statusReport) notes() (lines []string) {
	r.each(func(f *faceStatus, pid int, _ string) {
		if f.Reason != "" {
			lines = append(lines, fmt.Sprintf("%s %s: %s: %s", processID(pid), show.Text(f.Export), f.State, visible(f.Reason)))
		}
		for _, p := range f.Paths {
			if p.State != initiator.PathUp {
				lines = append(lines, strings.TrimSuffix(fmt.Sprintf("%s %s: path %s: %s: %s", processID(pid), show.Text(f.Export), p.Host, p.State, visible(p.Error)), ": "))
			}
		}
		if f.Quarantine != "" {
			lines = append(lines, fmt.Sprintf("%s %s: in quarantine: %s", processID(pid), show.Text(f.Export), f.Quarantine))
		}
	})
	for i := range r.Processes {
		for _, d := range r.Processes[i].Disks {
			if note := scrubNote(d.Scrub); note != "" {
				lines = append(lines, fmt.Sprintf("%s %s: %s", processID(r.Processes[i].PID), show.Text(d.Name), note))
			}
		}
	}
	return lines
}

// visible returns text from outside with escapes for what a terminal would not
// print.
func visible(s string) string {
	q := strconv.Quote(s)
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(q[1 : len(q)-1])
}

// each calls f with each face of each process, and with the devices that have
// none, whose process is 0.
func (r *statusReport) each(f func(face *faceStatus, pid int, command string)) {
	for i := range r.Processes {
		p := &r.Processes[i]
		for k := range p.Faces {
			f(&p.Faces[k], p.PID, p.Command)
		}
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		f(d.face(), 0, "")
	}
}

// healthy reports whether every disk answers requests.
func (r *statusReport) healthy() bool {
	healthy := true
	r.each(func(f *faceStatus, _ int, _ string) { healthy = healthy && f.healthy() })
	return healthy
}

// processID formats a PID; 0 is no process.
func processID(pid int) string {
	if pid == 0 {
		return "-"
	}
	return strconv.Itoa(pid)
}

// sizeCell formats a size: exactly if that is short.
func sizeCell(n int64) string {
	if s := config.Size(n).String(); len(s) <= 8 {
		return s
	}
	return bytesize.Approximate(uint64(n))
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
