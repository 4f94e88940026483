package roce

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via/roce/wire"
)

// adversity is what is wrong with the network between a disk and its user.
type adversity struct {
	name string
	on   func(b *netbed.Bed) []*netbed.Fault

	// whole has runs of packets travel, and get lost, as one.
	whole bool

	// told, if not nil, is the counter of a receiver that tells of the first
	// fault at its host.
	told func(*testbed.NetworkDrops) uint64
}

// Counters of receivers.
func badICRC(d *testbed.NetworkDrops) uint64 { return d.BadICRC }

func unknown(d *testbed.NetworkDrops) uint64 { return d.Unknown }

// corrupting flips a bit at an offset of packets at both hosts.
func corrupting(offset int) func(*netbed.Bed) []*netbed.Fault {
	return testbed.AtBothHosts(func(h *netbed.Host) *netbed.Fault {
		return h.Corrupt(netbed.Datagrams, netbed.Randomly(0.01), offset)
	})
}

// adversities are all that a disk has to stand. The offsets of flipped bits are
// in the base transport header: opcode, flags, partition, queue pair, PSN; in
// the header behind it; in the payload.
var adversities = []adversity{
	{name: "nothing", on: func(*netbed.Bed) []*netbed.Fault { return nil }},
	{name: "loss of 0.1 percent", on: testbed.Losing(0.001)},
	{name: "loss of 1 percent", on: testbed.Losing(0.01)},
	{name: "loss of 5 percent", on: testbed.Losing(0.05)},
	{name: "loss of whole runs", on: testbed.Losing(0.02), whole: true},
	{name: "loss of acknowledgements", on: testbed.AtBothHosts(func(h *netbed.Host) *netbed.Fault {
		return h.Lose(netbed.Acknowledgements, netbed.Randomly(0.2))
	})},
	// Connections whose retries keep step would take turns at a period that is
	// as long as there are of them, and one of them would have all the losses.
	{name: "loss of every seventh acknowledgement", on: testbed.AtBothHosts(func(h *netbed.Host) *netbed.Fault {
		return h.Lose(netbed.Acknowledgements, netbed.Every(7))
	})},
	{name: "loss of read responses", on: func(b *netbed.Bed) []*netbed.Fault {
		return []*netbed.Fault{b.B.Lose(netbed.ReadResponses, netbed.Randomly(0.05))}
	}},
	{name: "duplicates", on: testbed.AtBothHosts(func(h *netbed.Host) *netbed.Fault {
		return h.Duplicate(netbed.Datagrams, netbed.Randomly(0.2))
	})},
	{name: "reorder", on: testbed.AtBothHosts(func(h *netbed.Host) *netbed.Fault {
		return h.Reorder(netbed.Datagrams, 20, 5*time.Millisecond)
	})},
	{name: "flipped opcode", on: corrupting(0), told: badICRC},
	{name: "flipped flag", on: corrupting(1), told: badICRC},
	{name: "flipped partition", on: corrupting(3), told: badICRC},
	{name: "flipped queue pair", on: corrupting(6), told: unknown},
	{name: "flipped PSN", on: corrupting(10), told: badICRC},
	{name: "flipped extension", on: corrupting(15), told: badICRC},
	{name: "flipped payload", on: corrupting(100), told: badICRC},
	{name: "slow cable", on: testbed.AtBothHosts(func(h *netbed.Host) *netbed.Fault { return h.Slow(200_000_000, 50_000) })},
	{name: "everything", on: func(b *netbed.Bed) []*netbed.Fault {
		var all []*netbed.Fault
		for _, h := range []*netbed.Host{b.A, b.B} {
			all = append(all,
				h.Lose(netbed.Datagrams, netbed.Randomly(0.01)), h.Duplicate(netbed.Datagrams, netbed.Randomly(0.02)),
				h.Reorder(netbed.Datagrams, 50, 5*time.Millisecond), h.Corrupt(netbed.Datagrams, netbed.Randomly(0.005), 40))
		}
		return all
	}, told: badICRC},
}

// rareLimit is how often the load runs until a rare fault has hit something.
const rareLimit = 10

// TestDiskOverBadNetwork writes and reads a remote disk while the network does
// its worst: what fio reads is what it wrote, what a copy writes is in the file
// of the target, byte for byte, and no end loses a connection.
func TestDiskOverBadNetwork(t *testing.T) {
	for _, x := range adversities {
		for _, family := range []int{4, 6} {
			t.Run(fmt.Sprintf("%s over IPv%d", x.name, family), func(t *testing.T) {
				t.Parallel()
				const size = 4 << 20
				b := netbed.New(t, netbed.Options{MTU: 1500 * (1 + 2*(family/6)), Whole: x.whole}) // 4500 for IPv6
				file := testbed.SparseFile(t, size)
				r := testbed.OverRoCE(t, testbed.Program(t), b, family, testbed.Disk{Name: "disk", Spec: "file:" + file})
				faults := x.on(b)
				for range rareLimit {
					testbed.Fio(t, r.URI, testbed.WithVerify("--rw=randrw", "--bsrange=512-1m", "--iodepth=32", fmt.Sprint("--size=", size))...)
					r.CopyBothWays(t, file, testbed.RandomBytes(size))
					if !slices.ContainsFunc(faults, func(f *netbed.Fault) bool { return f.Hits() == 0 }) {
						break
					}
				}
				r.Unharmed(t)
				if x.told != nil {
					tells(t, r, x.told)
				}
				for i, f := range faults {
					if f.Hits() == 0 {
						t.Errorf("fault %d of %q hit nothing", i, x.name)
					}
					f.Stop()
				}
			})
		}
	}
}

// tells checks that both ends count damage.
func tells(t testing.TB, r testbed.Remote, count func(*testbed.NetworkDrops) uint64) {
	t.Helper()
	for name, p := range map[string]*testbed.Process{"initiator": r.Attach, "target": r.Target} {
		n := uint64(0)
		for _, a := range p.Status().Network {
			n += count(&a.NetworkDrops)
		}
		t.Logf("the %s counts %d damaged packets", name, n)
		if n == 0 {
			t.Errorf("the %s counts no damaged packet", name)
		}
	}
}

// TestLinkGoesDown takes the link down for 2 s under load, at either end:
// requests wait, and none fails.
func TestLinkGoesDown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		host func(*netbed.Bed) *netbed.Host
	}{
		{"of the disk", func(b *netbed.Bed) *netbed.Host { return b.B }},
		{"of its user", func(b *netbed.Bed) *netbed.Host { return b.A }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const size = 16 << 20
			b := netbed.New(t, netbed.Options{MTU: 4500})
			file := testbed.SparseFile(t, size)
			r := testbed.OverRoCE(t, testbed.Program(t), b, 4, testbed.Disk{Name: "disk", Spec: "file:" + file})
			job := testbed.StartFio(t, r.URI, testbed.WithVerify("--rw=randrw", "--bsrange=4k-256k", "--iodepth=16",
				fmt.Sprint("--size=", size), "--rate=8m")...)
			testbed.Eventually(t, "load", func() (any, bool) {
				n := r.Attach.Status().NBD.Total
				return n, n.Reads > 5 && n.Writes > 5
			})
			plug := c.host(b).Unplug()
			time.Sleep(2 * time.Second) // the link is down
			plug()
			testbed.Succeed(t, job)
			r.CopyBothWays(t, file, testbed.RandomBytes(size))
			r.Unharmed(t)
		})
	}
}

// TestLostPeerTimesOut takes the link away for good: requests of a disk that
// does not wait fail, and both ends say that the connection is lost.
func TestLostPeerTimesOut(t *testing.T) {
	b := netbed.New(t, netbed.Options{})
	r := testbed.OverRoCE(t, testbed.Program(t), b, 4, testbed.Disk{Name: "disk", Spec: "memory:16MiB"}, "--ctrl-loss-tmo", "0s")
	k := testbed.Connect(t, r.URI)
	k.Ask("write 0 65536", "ok")
	b.B.Lose(netbed.Datagrams, netbed.Always)
	k.Ask("write 0 65536", "EIO")
	k.Disconnect()
	testbed.Eventually(t, "the loss of the target", func() (any, bool) {
		i := r.Attach.Status().Initiators[0]
		return i, !i.Connected && i.Error != ""
	})
	initiatorLost(t, r)
}

// initiatorLost waits until the target has given up its initiator.
func initiatorLost(t *testing.T, r testbed.Remote) {
	t.Helper()
	testbed.Eventually(t, "the loss of the initiator", func() (any, bool) {
		d := r.Target.Status().Targets[0]
		return d, d.Connections == 0 && testbed.Opens(d) == 0
	})
}

// TestLostPeerReconnects takes the link away until both ends have given each
// other up, and gives it back: requests wait, and go on in another session.
func TestLostPeerReconnects(t *testing.T) {
	b := netbed.New(t, netbed.Options{})
	r := testbed.OverRoCE(t, testbed.Program(t), b, 4, testbed.Disk{Name: "disk", Spec: "memory:16MiB"}, "--reconnect-delay", "100ms", "--timeout", "1s")
	k := testbed.Connect(t, r.URI)
	k.Ask("write 0 65536", "ok")
	lost := b.B.Lose(netbed.Datagrams, netbed.Always)
	k.Send("write 0 65536")
	testbed.Eventually(t, "the loss of the target", func() (any, bool) {
		i := r.Attach.Status().Initiators[0]
		return i, !i.Connected && i.DisconnectedSeconds > 0
	})
	initiatorLost(t, r)
	lost.Stop()
	k.Expect("ok")
	k.Ask("flush", "ok")
	k.Disconnect()
	if i := r.Attach.Status().Initiators[0]; !i.Connected || i.SessionLosses != 1 || i.Stats.Errors != 0 {
		t.Errorf("initiator: %+v", i)
	}
}

// TestAttachUnreachable attaches a disk of a host that does not answer.
func TestAttachUnreachable(t *testing.T) {
	b := netbed.New(t, netbed.Options{})
	for name, host := range map[string]string{
		"no process": b.B.IPv4.String(), "no host": "10.0.0.99", "no route": "192.0.2.1",
	} {
		t.Run(name, func(t *testing.T) {
			uri := "via+roce://" + host + "/disk"
			c := testbed.StartPathAt(t, b.A.StartGroup, testbed.Environment(t), testbed.Program(t), "attach", uri, "--admin", "none",
				"--timeout", "3s", "--nbd", "nbd+unix:///?socket="+testbed.Folder(t)+"/n")
			if code := c.Wait(t, testbed.EndLimit); code != 75 {
				t.Errorf("exit code %d, want 75", code)
			}
			if text := c.Stderr.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, host) {
				t.Errorf("it says %q, want one line about %s", text, host)
			}
		})
	}
}

// TestRoceIsInfiniBand captures the life of a session: connecting, requests of
// all kinds, the end.
func TestRoceIsInfiniBand(t *testing.T) {
	testbed.Requires(t, "tshark")
	for _, family := range []int{4, 6} {
		for _, mtu := range []int{1500, 4500} {
			t.Run(fmt.Sprintf("IPv%d, MTU %d", family, mtu), func(t *testing.T) {
				b := netbed.New(t, netbed.Options{MTU: mtu})
				paths := []string{t.TempDir() + "/a.pcap", t.TempDir() + "/b.pcap"}
				captures := []*netbed.Capture{b.A.Capture(paths[0]), b.B.Capture(paths[1])}
				r := testbed.OverRoCE(t, testbed.Program(t), b, family, testbed.Disk{Name: "disk", Spec: "memory:8MiB"})
				testbed.Fio(t, r.URI, testbed.WithVerify("--rw=randrw", "--bsrange=512-256k", "--iodepth=8", "--size=4m")...)
				r.Unharmed(t)
				r.Attach.Stop()
				r.Target.Stop()
				for i, c := range captures {
					c.Stop()
					checkExchange(t, paths[i])
				}
			})
		}
	}
}

// checkExchange checks the capture of a whole session.
func checkExchange(t testing.TB, path string) {
	t.Helper()
	count, all := capturedPackets(t, path), 0
	kinds := make(map[wire.Operation]int)
	for op, n := range count {
		kinds[op.Operation()] += n
		all += n
	}
	t.Logf("%s: %d packets, %v", path, all, count)
	d := dissect(t, path)
	if d.packets != all || d.infiniband != all || len(d.complaints) > 0 {
		t.Errorf("tshark takes %d of %d packets for InfiniBand, want %d, and complains of %q", d.infiniband, d.packets, all, d.complaints)
	}
	if d.connecting < 5 { // request, reply, ready to use, disconnect request and reply
		t.Errorf("%d messages of the connection manager", d.connecting)
	}
	for _, o := range []wire.Operation{wire.OpSend, wire.OpWrite, wire.OpReadRequest, wire.OpReadResponse, wire.OpAcknowledge} {
		if kinds[o] == 0 {
			t.Errorf("no packet of operation %d: %v", o, count)
		}
	}
}
