//go:build vm

package vm

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Sockets of the target and of the process whose counters are read.
const (
	countedSocket  = "/run/counted.sock"
	countedTarget  = "/run/counted-target.sock"
	countedProcess = "/run/counted-process.sock"
)

// pathCounters are what a device's process and its target say of themselves.
type pathCounters struct {
	at  time.Time
	NBD struct {
		Total struct{ Reads, Writes, Errors, Receives, Sends, Sleeps, Syscalls uint64 }
	}
	Initiators []struct {
		Stats struct {
			Doorbells                      uint64
			MessagesSent, MessagesReceived uint64
			RdmaReads, RdmaWrites          uint64
		}
		Registrations uint64
	}
	Targets []struct {
		Stats struct{ Reads, Writes, Sleeps, Doorbells uint64 }
	}
}

// count reads the counters of both ends.
func (b *exerciseBed) count(t *testing.T) pathCounters {
	t.Helper()
	c := pathCounters{at: time.Now()}
	for _, admin := range []string{countedTarget, countedProcess} {
		var report struct{ Processes []json.RawMessage }
		must(t, json.Unmarshal([]byte(b.run(t, "viablk", "status", "--admin", admin, "-o", "json")), &report))
		text := strings.ReplaceAll(string(report.Processes[0]), "_", "")
		must(t, json.Unmarshal([]byte(text), &c))
	}
	return c
}

// The maximum cost of 4 KiB through the kernel, without busy-polling.
//
// The process of the device: a request that is alone wakes the loop, is
// received, and the loop sleeps until the target has answered, sends that, and
// sleeps again: two wake-ups and four calls. The kernel sends the payload of a
// write separately, behind the request, so that the loop may have to wait for
// it once more: three and six. Of 32 requests at a time some always share an
// iteration of the loop.
//
// The target: a wake-up for a request that is alone.
const (
	mostReadCalls, mostReadSleeps     = 4, 2
	mostWriteCalls, mostWriteSleeps   = 6, 3
	mostSharedCalls, mostSharedSleeps = 2, 1
	mostTargetSleeps                  = 1
	mostDoorbells                     = 1 // of either end
	mostMessages                      = 2
)

// testCounters counts what a request of 4 KiB costs on its way through the
// kernel.
func (b *exerciseBed) testCounters(t *testing.T) {
	target, err := b.Start(b.ctx, "env", "VIABLK_TARGET_BUSY_POLL=0", "viablk", "target", "--admin", countedTarget,
		"--keepalive", "30s", // what is counted is requests
		"--listen", "via+shm:///?socket="+countedSocket, "--export", "disk=memory:32MiB")
	must(t, err)
	must(t, target.Await(b.ctx, "via+shm"))
	device, err := b.Start(b.ctx, "env", "VIABLK_NBD_BUSY_POLL=0", "viablk", "attach", "via+shm:///disk?socket="+countedSocket,
		"--device", "/dev/nbd0", "--admin", countedProcess)
	must(t, err)
	must(t, device.Await(b.ctx, "/dev/nbd0"))
	table := []string{fmt.Sprintf("%-10s %5s %8s | per request: %7s %8s %7s %6s %13s | %14s %15s | %8s", "4 KiB", "depth", "requests",
		"calls", "receives", "sends", "sleeps", "target sleeps", "wakes a target", "wakes initiator", "messages")}
	const n = 1000
	fio := func(rw string, depth, n int) {
		b.script(t, fmt.Sprintf("fio --minimal --name=c --filename=/dev/nbd0 --direct=1 --ioengine=libaio --bs=4k --size=32m --invalidate=0 "+
			"--rw=%s --iodepth=%d --number_ios=%d > /dev/null", rw, depth, n))
	}
	fio("randrw", 32, 64) // what is made at first use is there
	for _, rw := range []string{"randread", "randwrite"} {
		for _, depth := range []int{1, 32} {
			before := b.count(t)
			fio(rw, depth, n)
			table = append(table, compareCounters(t, rw, depth, before, b.count(t), n))
		}
	}
	t.Log("\n" + strings.Join(table, "\n"))
	b.detach(t, device)
}

// compareCounters checks the difference of counters and returns a line of the
// table.
func compareCounters(t *testing.T, rw string, depth int, before, after pathCounters, n uint64) string {
	t.Helper()
	what := fmt.Sprintf("%-10s %5d", rw, depth)
	b, a := before.NBD.Total, after.NBD.Total
	i, j := before.Initiators[0].Stats, after.Initiators[0].Stats
	d, e := before.Targets[0].Stats, after.Targets[0].Stats
	reads, writes := a.Reads-b.Reads, a.Writes-b.Writes
	did := reads + writes
	messages := j.MessagesSent + j.MessagesReceived - i.MessagesSent - i.MessagesReceived
	// The kernel may make one request of two that are neighbours.
	if did < n*9/10 || did > n || e.Reads+e.Writes-d.Reads-d.Writes != did || a.Errors != 0 {
		t.Errorf("%s: the kernel sent %d requests of %d, the target had %d, %d errors in all",
			what, did, n, e.Reads+e.Writes-d.Reads-d.Writes, a.Errors)
	}
	if after.Initiators[0].Registrations != before.Initiators[0].Registrations || j.RdmaReads != i.RdmaReads || j.RdmaWrites != i.RdmaWrites {
		t.Errorf("%s: memory was registered or moved by RDMA: %+v, before %+v", what, after.Initiators, before.Initiators)
	}
	// Both ends are asked for their counters, and timers expire.
	idle := 8 * (2 + uint64(after.at.Sub(before.at)/time.Second))
	calls, sleeps := writes*mostWriteCalls+reads*mostReadCalls, writes*mostWriteSleeps+reads*mostReadSleeps
	if depth > 1 {
		calls, sleeps = did*mostSharedCalls, did*mostSharedSleeps
	}
	for _, bound := range []struct {
		name      string
		got, most uint64
	}{
		{"system calls", a.Syscalls - b.Syscalls, calls + 2*idle},
		{"wake-ups", a.Sleeps - b.Sleeps, sleeps + idle},
		{"wake-ups of the target", e.Sleeps - d.Sleeps, did*mostTargetSleeps + idle},
		{"doorbells of the initiator", j.Doorbells - i.Doorbells, did*mostDoorbells + idle},
		{"doorbells of the target", e.Doorbells - d.Doorbells, did*mostDoorbells + idle},
		{"messages", messages, did*mostMessages + idle},
	} {
		if bound.got > bound.most {
			t.Errorf("%s: %d %s for %d requests, more than %d", what, bound.got, bound.name, did, bound.most)
		}
	}
	if got := a.Receives + a.Sends + a.Sleeps - b.Receives - b.Sends - b.Sleeps; messages < did*mostMessages || got > a.Syscalls-b.Syscalls {
		t.Errorf("%s: %d messages, %d calls of %d: counters have gaps", what, messages, got, a.Syscalls-b.Syscalls)
	}
	per := func(after, before uint64) float64 { return float64(after-before) / float64(did) }
	return fmt.Sprintf("%s %8d | %20.2f %8.2f %7.2f %6.2f %13.2f | %14.2f %15.2f | %8.3f", what, did,
		per(a.Syscalls, b.Syscalls), per(a.Receives, b.Receives), per(a.Sends, b.Sends), per(a.Sleeps, b.Sleeps), per(e.Sleeps, d.Sleeps),
		per(j.Doorbells, i.Doorbells), per(e.Doorbells, d.Doorbells), float64(messages)/float64(did))
}
