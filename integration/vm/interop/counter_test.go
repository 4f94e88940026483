//go:build vm

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/vm"
)

// verbsCounters are what the ends of a disk over verbs say of themselves.
type verbsCounters struct {
	at         time.Time
	RDMA       []struct{ PostCalls, PollCalls, ArmCalls, Events, Messages, Receives uint64 }
	Initiators []struct{ Registrations uint64 }
	Targets    []struct {
		Stats struct{ Reads, Writes, Sleeps uint64 }
	}
}

// countedSocket is where the disk is whose requests are counted.
const countedSocket = "/run/counted"

// testCounters counts what a request of 4 KiB costs each end while nothing
// spins: calls into libibverbs, events of the device, and messages.
func testCounters(t *testing.T, v *vm.VM) {
	ctx, cancel := context.WithTimeout(t.Context(), scenario)
	defer cancel()
	start := func(says string, command ...string) *vm.Command {
		t.Helper()
		c, err := v.Start(ctx, append([]string{"env", "VIABLK_TARGET_BUSY_POLL=0", "VIABLK_NBD_BUSY_POLL=0", "viablk"}, command...)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Await(ctx, says); err != nil {
			t.Fatal(err)
		}
		return c
	}
	at := "via+verbs://" + near4 + "/"
	admins := []string{"/run/target.sock", "/run/initiator.sock"}
	target := start("via+verbs", "target", "--insecure", "--admin", admins[0], "--keepalive", "30s", "--listen", at, "--export", "disk=memory:32M")
	initiator := start("nbd+unix", "attach", at+"disk", "--admin", admins[1], "--nbd", "nbd+unix:///disk?socket="+countedSocket)
	count := func() (ends [2]verbsCounters) {
		for i, admin := range admins {
			var report struct{ Processes []json.RawMessage }
			err := json.Unmarshal([]byte(v.Must("viablk", "status", "--admin", admin, "-o", "json")), &report)
			if err == nil {
				err = json.Unmarshal([]byte(strings.ReplaceAll(string(report.Processes[0]), "_", "")), &ends[i])
			}
			if err != nil || len(ends[i].RDMA) != 1 {
				t.Fatalf("%v: %s", err, report.Processes)
			}
			ends[i].at = time.Now()
		}
		return ends
	}
	table := []string{fmt.Sprintf("%-9s %5s %-9s | per request: %5s %5s %5s %6s %8s %8s", "4 KiB", "depth", "end", "posts", "polls", "arms", "events", "messages", "receives")}
	const n = 500
	for _, rw := range []string{"randread", "randwrite"} {
		for _, depth := range []int{1, 32} {
			fio := func(n int) {
				v.Must(strings.Fields(fmt.Sprintf("fio --minimal --name=c --ioengine=nbd --uri=nbd+unix:///disk?socket=%s --bs=4k --size=32m --rw=%s --iodepth=%d --number_ios=%d",
					countedSocket, rw, depth, n))...)
			}
			first := count()
			fio(64) // what is made at first use is there
			before := count()
			fio(n)
			after := count()
			table = append(table, compareCounters(t, rw, depth, before, after, n)...)
			// A client's connection has memory of its own; requests have not.
			registered := func(ends [2]verbsCounters) uint64 { return ends[1].Initiators[0].Registrations }
			if got, want := registered(after)-registered(before), registered(before)-registered(first); got != want {
				t.Errorf("%s, depth %d: %d requests registered memory %d times, 64 did %d times", rw, depth, n, got, want)
			}
		}
	}
	t.Log("\n" + strings.Join(table, "\n"))
	for _, c := range []*vm.Command{initiator, target} {
		_ = c.Signal(15)
		if r := c.Wait(); !r.OK() {
			t.Error(r)
		}
	}
}

// The maximum cost of a request of 4 KiB at an end, without busy-polling. There
// are two messages to a request, one of each end. A call posts what is to be
// sent, another the receives if none is left; where requests share a batch they
// share the calls. A sleep is a call that asks for an event, and behind each
// are a poll that finds something and one that does not, before the sleep and
// after it.
const (
	mostPosts, mostPolls, mostArms = 2, 6, 2
	mostMessages                   = 1
)

// compareCounters checks the differences of counters, target's first, and
// returns lines of the table.
func compareCounters(t *testing.T, rw string, depth int, before, after [2]verbsCounters, n uint64) (table []string) {
	t.Helper()
	d, e := before[0].Targets[0].Stats, after[0].Targets[0].Stats
	if did := e.Reads + e.Writes - d.Reads - d.Writes; did != n {
		t.Errorf("%s, depth %d: the target had %d requests of %d", rw, depth, did, n)
	}
	for i, end := range []string{"target", "initiator"} {
		b, a := before[i].RDMA[0], after[i].RDMA[0]
		// Connections are kept alive, and a client comes and goes.
		idle := 50 + 8*uint64(after[i].at.Sub(before[i].at)/time.Second)
		for _, bound := range []struct {
			name      string
			got, most uint64
		}{
			{"calls that post", a.PostCalls - b.PostCalls, mostPosts * n},
			{"calls that poll", a.PollCalls - b.PollCalls, mostPolls * n},
			{"calls that arm", a.ArmCalls - b.ArmCalls, mostArms * n},
			{"messages", a.Messages - b.Messages, mostMessages * n},
		} {
			if bound.got > bound.most+idle {
				t.Errorf("%s, depth %d, %s: %d %s for %d requests, more than %d", rw, depth, end, bound.got, bound.name, n, bound.most+idle)
			}
		}
		if a.Messages-b.Messages < n {
			t.Errorf("%s, depth %d, %s: %d messages for %d requests: counters have gaps", rw, depth, end, a.Messages-b.Messages, n)
		}
		per := func(after, before uint64) float64 { return float64(after-before) / float64(n) }
		table = append(table, fmt.Sprintf("%-9s %5d %-9s | %18.2f %5.2f %5.2f %6.2f %8.2f %8.2f", rw, depth, end,
			per(a.PostCalls, b.PostCalls), per(a.PollCalls, b.PollCalls), per(a.ArmCalls, b.ArmCalls), per(a.Events, b.Events),
			per(a.Messages, b.Messages), per(a.Receives, b.Receives)))
	}
	return table
}
