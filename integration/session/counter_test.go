package session

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
)

// counters are the status of both ends of the chain at one moment.
type counters struct {
	at     time.Time
	source initiator.Status
	disk   target.Status
}

// count reads the counters.
func count(t testing.TB, s testbed.Service) counters {
	t.Helper()
	return counters{time.Now(), s.Attach.Status().Initiators[0], s.Target.Status().Targets[0]}
}

// rest is how long the counters stand still before they count as complete: an
// end publishes some while it works, and the others before it sleeps.
const rest = 200 * time.Millisecond

// awaitCompleted waits until both ends have published that this many requests
// ended, with their two messages, and rest.
func awaitCompleted(t testing.TB, s testbed.Service, before counters, requests uint64) counters {
	t.Helper()
	var now, first counters
	testbed.Eventually(t, fmt.Sprintf("%d more requests at both ends", requests), func() (any, bool) {
		now = count(t, s)
		if i, d := &now.source.Stats, &now.disk.Stats; *i != first.source.Stats || d.Reads+d.Writes != first.disk.Stats.Reads+first.disk.Stats.Writes {
			first = now
		}
		i := now.source.Stats.Reads + now.source.Stats.Writes - before.source.Stats.Reads - before.source.Stats.Writes
		d := now.disk.Stats.Reads + now.disk.Stats.Writes - before.disk.Stats.Reads - before.disk.Stats.Writes
		m := messages(before, now)
		return []uint64{i, d, m}, i == requests && d == requests && m >= 2*requests && now.at.Sub(first.at) >= rest
	})
	return now
}

// TestCountersInSteadyState counts what one 4 KiB request costs on a connection
// that exists: two messages, no registration.
func TestCountersInSteadyState(t *testing.T) {
	s := testbed.ChainWay.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "memory:64MiB"})
	k := testbed.Connect(t, s.URI)
	k.Ask("reads 64 1", "ok")
	k.Ask("writes 64 1", "ok")
	before := awaitCompleted(t, s, counters{}, 2*64)
	for _, c := range []struct {
		op    string
		depth int
	}{{"reads", 1}, {"writes", 1}, {"reads", 32}, {"writes", 32}} {
		const n = 4000
		t.Run(fmt.Sprintf("%s at depth %d", c.op, c.depth), func(t *testing.T) {
			k.Ask(fmt.Sprintf("%s %d %d", c.op, n, c.depth), "ok")
			after := awaitCompleted(t, s, before, n)
			checkSteady(t, before, after, n)
			before = after
		})
	}
}

// TestCountersOfFio counts over the whole life of a connection.
func TestCountersOfFio(t *testing.T) {
	s := testbed.ChainWay.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "memory:64MiB"})
	for _, op := range []string{"randread", "randwrite"} {
		t.Run(op, func(t *testing.T) {
			before := count(t, s)
			const n = 8192
			jobs := testbed.Fio(t, s.URI, "--rw="+op, "--bs=4k", "--iodepth=32", "--size=32m", fmt.Sprintf("--number_ios=%d", n))
			if did := jobs[0].Read.IOs + jobs[0].Write.IOs; did != n {
				t.Fatalf("fio did %d requests, not %d", did, n)
			}
			s.Idle(t)
			after := awaitCompleted(t, s, before, n)
			report(t, before, after, n)
			// Login and logout of the connection, and keepalives.
			if got, most := messages(before, after), uint64(2*n+16)+keepalives(before, after); got < 2*n || got > most {
				t.Errorf("%d messages for %d requests, not 2 each", got, n)
			}
		})
	}
}

// socketCall is a line of strace with a system call of an NBD connection. Its
// loop sleeps for other connections too.
var socketCall = regexp.MustCompile(`(?m)^\d+ +(recvfrom|recvmsg|sendmsg)\(`)

// TestCallsAreWhatTheKernelSees compares the count of system calls, but for
// sleeps, with strace's.
func TestCallsAreWhatTheKernelSees(t *testing.T) {
	testbed.Requires(t, "strace")
	// Nothing spins: a spin gives the processor away, which the Go runtime does
	// too.
	place := testbed.Folder(t)
	testbed.Must(t, os.WriteFile(filepath.Join(place, "c.yaml"), []byte("nbd: {busy_poll: 0s}\n"), 0o600))
	p := testbed.Start(t, "target", "--config", filepath.Join(place, "c.yaml"), "--admin", filepath.Join(place, "a"),
		"--listen", "nbd+unix:///?socket="+filepath.Join(place, "n"), "--export", "disk=memory:64MiB")
	k := testbed.Connect(t, p.URI("disk", "nbd+unix"))
	// idle waits until the connection is parked once more than it was, which it
	// may be between two requests, too, and returns what it counted.
	idle := func(was nbd.Counters) (now nbd.Counters) {
		testbed.Eventually(t, "an idle connection", func() (any, bool) {
			now = p.Status().NBD.Total
			return now, now.IdleReleases > was.IdleReleases && now.Reads+now.Writes > was.Reads+was.Writes
		})
		return now
	}
	k.Ask("reads 64 1", "ok")
	idle(nbd.Counters{})
	trace := filepath.Join(t.TempDir(), "trace")
	c := testbed.StartTool(t, "strace", "-f", "-o", trace, "-e", "trace=recvfrom,recvmsg,sendmsg", "-p", strconv.Itoa(p.PID()))
	testbed.Eventually(t, "strace being attached", func() (any, bool) { return c.Output(), strings.Contains(c.Output(), "attached") })
	before := p.Status().NBD.Total
	now := before
	for _, command := range []string{"reads 300 1", "writes 300 1", "reads 1000 32", "writes 1000 32", "write 0 1000000"} {
		k.Ask(command, "ok")
		now = idle(now)
	}
	testbed.KillProcess(t, c.Cmd.Process.Pid, syscall.SIGINT)
	c.Wait(t, testbed.ToolLimit)
	text, err := os.ReadFile(trace)
	testbed.Must(t, err)
	calls := socketCall.FindAll(text, -1)
	testbed.Eventually(t, fmt.Sprintf("a count of the %d system calls that strace saw", len(calls)), func() (any, bool) {
		now = p.Status().NBD.Total
		got := int(now.Syscalls - now.Sleeps - before.Syscalls + before.Sleeps)
		return got, got == len(calls) && got >= 1200
	})
	t.Logf("%d calls for %d requests", len(calls), now.Reads+now.Writes-before.Reads-before.Writes)
}

// checkSteady compares the counters before and after n requests.
func checkSteady(t *testing.T, before, after counters, n uint64) {
	t.Helper()
	report(t, before, after, n)
	if got := messages(before, after); got < 2*n || got > 2*n+keepalives(before, after) {
		t.Errorf("%d messages for %d requests, not 2 each and at most %d keepalives", got, n, keepalives(before, after))
	}
	for _, end := range []struct {
		name          string
		before, after uint64
	}{
		{"initiator", before.source.Registrations, after.source.Registrations},
		{"target", before.disk.Registrations, after.disk.Registrations},
	} {
		if end.before != end.after {
			t.Errorf("the %s registered memory %d times", end.name, end.after-end.before)
		}
	}
	if e := after.source.Stats.Errors + after.disk.Stats.Errors; e != 0 {
		t.Errorf("%d errors", e)
	}
	if moved := after.disk.Stats.BytesPlaced + after.disk.Stats.BytesPulled; moved != before.disk.Stats.BytesPlaced+before.disk.Stats.BytesPulled {
		t.Errorf("RDMA moved %d bytes for requests that fit into a message", moved)
	}
}

// messages counts the messages that the initiator sent and received.
func messages(before, after counters) uint64 {
	b, a := before.source.Stats, after.source.Stats
	return a.MessagesSent + a.MessagesReceived - b.MessagesSent - b.MessagesReceived
}

// keepalives bounds the messages that keep connections alive, two in a second.
func keepalives(before, after counters) uint64 {
	return 2 * (2 + uint64(after.at.Sub(before.at)/time.Second))
}

// report logs what one request cost.
func report(t testing.TB, before, after counters, n uint64) {
	t.Helper()
	per := func(after, before uint64) float64 { return float64(after-before) / float64(n) }
	i, j := before.source.Stats, after.source.Stats
	d, e := before.disk.Stats, after.disk.Stats
	t.Logf("messages %.3f, bytes copied: %.0f by initiator, %.0f by target, %.0f to or from the pool", float64(messages(before, after))/float64(n),
		per(j.BytesCopied, i.BytesCopied), per(e.BytesCopied, d.BytesCopied), per(j.BytesBounced, i.BytesBounced))
	t.Logf("sleeps: %.3f of initiator, %.3f of target; doorbells that woke: %.3f by initiator, %.3f by target; stalls %.3f and %.3f",
		per(j.Sleeps, i.Sleeps), per(e.Sleeps, d.Sleeps), per(j.Doorbells, i.Doorbells), per(e.Doorbells, d.Doorbells),
		per(j.Stalls, i.Stalls), per(e.Stalls, d.Stalls))
}
