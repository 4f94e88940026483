package main

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
)

// attachedDisk is a process that has a remote disk, in a state.
func attachedDisk(state initiator.State, reason string, seconds float64) processStatus {
	p := processStatus{
		PID: 41, Command: "attach", NBD: &nbd.Status{Exports: []nbd.ExportStatus{{
			Name: "d", Connections: 2, Counters: nbd.Counters{Reads: 7, Writes: 123_456, BytesRead: 3584, BytesWritten: 5 << 30, Errors: 1},
		}}},
		Exports:    []exportStatus{{Name: "d", Size: 1 << 30, URIs: []string{"nbd://localhost/d"}}},
		Initiators: []initiator.Status{{State: state, Error: reason, DisconnectedSeconds: seconds}},
	}
	p.Faces = p.faces()
	return p
}

// degradedDisk is a process whose disk goes on over one of three paths.
func degradedDisk() processStatus {
	p := attachedDisk(initiator.StateConnected, "", 0)
	p.Initiators[0].Paths = []initiator.PathStatus{
		{Host: "192.0.2.1", State: initiator.PathDown, Error: "no answer\x1b[31m", Losses: 2, LastLoss: time.Unix(1700000000, 0)},
		{Host: "192.0.2.2", State: initiator.PathUp, Queues: 1, Requests: 7},
		{Host: "192.0.2.3", State: initiator.PathLost},
	}
	p.Faces = p.faces()
	return p
}

// TestPathsInTop: top shows the paths that status has.
func TestPathsInTop(t *testing.T) {
	x := activityOf(time.Now(), []processStatus{degradedDisk()}).Exports[0]
	want := []activity.HostPath{
		{Host: "192.0.2.1", State: "down", Reason: "no answer\x1b[31m", Losses: 2, LastLoss: time.Unix(1700000000, 0)},
		{Host: "192.0.2.2", State: activity.PathUp, Queues: 1, Requests: 7},
		{Host: "192.0.2.3", State: "lost"},
	}
	if !slices.Equal(x.Paths, want) || x.PathsUp() != 1 {
		t.Errorf("%d up of %+v", x.PathsUp(), x.Paths)
	}
}

// targetProcess serves a disk by NBD and by three VIA providers, of which each
// has its own counters.
func targetProcess(draining bool) processStatus {
	p := processStatus{
		PID: 4194304, Command: "target", NBD: &nbd.Status{Draining: draining, Exports: []nbd.ExportStatus{{Name: "disk0", Counters: nbd.Counters{Reads: 1}}}},
		Exports: []exportStatus{{Name: "disk0", Size: 1<<30 - 512, URIs: []string{"via+shm:///disk0", "nbd://localhost/disk0", "via+roce://h/disk0"}}},
	}
	for i, provider := range []string{"shm", "roce", "verbs"} {
		x := target.ExportStatus{Name: "disk0", Size: 1<<30 - 512, Connections: i}
		x.Stats = target.ExportCounts{Counts: block.Counts{Reads: uint64(10 * (i + 1)), BytesRead: 512}, Errors: uint64(i)}
		p.Targets = append(p.Targets, target.Status{Provider: provider, Draining: draining, Exports: []target.ExportStatus{x}})
	}
	p.Faces = p.faces()
	return p
}

// TestStatusTable: each face has its own counters, a disk that does not answer
// says so, why, and in the exit code.
func TestStatusTable(t *testing.T) {
	orphan := deviceReport{Path: "/dev/nbd3", State: stateWaiting, Size: 1 << 20, Backend: "via+shm:///old?socket=/s"}
	for _, c := range []struct {
		name    string
		report  statusReport
		healthy bool
		want    []string // lines below the head, with single spaces
	}{
		{"each face", statusReport{Processes: []processStatus{targetProcess(false)}}, true, []string{
			"4194304 disk0 nbd connected 1.0GiB 0 1 0 0 0 0",
			"4194304 disk0 via+shm connected 1.0GiB 0 10 0 512 0 0",
			"4194304 disk0 via+roce connected 1.0GiB 1 20 0 512 0 1",
			"4194304 disk0 via+verbs connected 1.0GiB 2 30 0 512 0 2",
		}},
		{"draining", statusReport{Processes: []processStatus{targetProcess(true)}}, true, []string{
			"4194304 disk0 nbd draining 1.0GiB 0 1 0 0 0 0",
			"4194304 disk0 via+shm draining 1.0GiB 0 10 0 512 0 0",
			"4194304 disk0 via+roce draining 1.0GiB 1 20 0 512 0 1",
			"4194304 disk0 via+verbs draining 1.0GiB 2 30 0 512 0 2",
		}},
		{"connected", statusReport{Processes: []processStatus{attachedDisk(initiator.StateConnected, "", 0)}}, true, []string{
			"41 d nbd connected 1GiB 2 7 123.5k 3.5KiB 5.0GiB 1",
		}},
		{"waiting", statusReport{Processes: []processStatus{attachedDisk(initiator.StateWaiting, "", 12.9)}}, false, []string{
			"41 d nbd waiting 12s 1GiB 2 7 123.5k 3.5KiB 5.0GiB 1",
		}},
		{"refused", statusReport{Processes: []processStatus{attachedDisk(initiator.StateWaiting, "no\x1b[31m", 121)}}, false, []string{
			"41 d nbd waiting 2m 1GiB 2 7 123.5k 3.5KiB 5.0GiB 1",
			`41 d: waiting: no\x1b[31m`,
		}},
		{"failed", statusReport{Processes: []processStatus{attachedDisk(initiator.StateFailed, "another disk", 7300)}}, false, []string{
			"41 d nbd failed 1GiB 2 7 123.5k 3.5KiB 5.0GiB 1",
			"41 d: failed: another disk",
		}},
		{"one of two paths down", statusReport{Processes: []processStatus{degradedDisk()}}, true, []string{
			"41 d nbd connected 1GiB 2 7 123.5k 3.5KiB 5.0GiB 1",
			`41 d: path 192.0.2.1: down: no answer\x1b[31m`,
			"41 d: path 192.0.2.3: lost",
		}},
		{"no process", statusReport{Devices: []deviceReport{orphan}}, false, []string{
			"- old device waiting 1MiB 0 0 0 0 0 0",
			"- old: waiting: /dev/nbd3: its process is gone: attach it again with --reattach, or detach it",
		}},
	} {
		var out bytes.Buffer
		a := &app{stdout: &out, output: "table"}
		err := a.printStatus(&c.report)
		var code *exit
		if c.healthy != (err == nil) || err != nil && (!errors.As(err, &code) || code.code != exitFalse) {
			t.Errorf("%s: %v", c.name, err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		if len(got) == 0 || !slices.Equal(got[1:], c.want) {
			t.Errorf("%s:\n%s", c.name, out.String())
		}
	}
}

// TestStatusFits in 110 columns, whatever the counters are.
func TestStatusFits(t *testing.T) {
	p := targetProcess(false)
	for i := range p.Faces {
		f := &p.Faces[i]
		f.Export, f.Face, f.State, f.WaitingSeconds = "twelve-chars", "via+verbs", "waiting", 3e7
		f.Size, f.Connections = 1<<62-512, 10_000
		f.Counts = block.Counts{Reads: math.MaxUint64, Writes: math.MaxUint64, BytesRead: math.MaxUint64, BytesWritten: math.MaxUint64}
		f.Errors = math.MaxUint64
	}
	var out bytes.Buffer
	a := &app{stdout: &out, output: "table"}
	var code *exit
	if err := a.printStatus(&statusReport{Processes: []processStatus{p}}); !errors.As(err, &code) || code.code != exitFalse {
		t.Errorf("a table of disks that wait: %v", err)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 110 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
