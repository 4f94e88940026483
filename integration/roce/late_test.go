package roce

import (
	"bytes"
	"flag"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

var (
	holds   = flag.Int("roce.holds", 2, "how often TestLatePackets holds the packets of one of two cables")
	holdFor = flag.Duration("roce.holdfor", 3*time.Second, "how late they arrive")
)

// lateness holds the packets of a cable, in both directions. Each of them
// arrives late, when others have long been on the cable again.
type lateness struct {
	delay time.Duration

	mu      sync.Mutex
	holding bool
	held    map[*netbed.Host][]lateFrame // to each host, the oldest first
	count   map[*netbed.Host]int         // ever held
}

// lateFrame is a frame that is to arrive at a time.
type lateFrame struct {
	frame []byte
	at    time.Time
}

func newLateness(delay time.Duration) *lateness {
	return &lateness{delay: delay, held: make(map[*netbed.Host][]lateFrame), count: make(map[*netbed.Host]int)}
}

// decide implements netbed.Decide.
func (l *lateness) decide(to *netbed.Host, frame []byte) (arrive [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.holding {
		if frame != nil {
			l.held[to] = append(l.held[to], lateFrame{bytes.Clone(frame), now.Add(l.delay)})
			l.count[to]++
		}
		return nil
	}
	late := l.held[to]
	for ; len(late) > 0 && now.After(late[0].at); late = late[1:] {
		arrive = append(arrive, late[0].frame)
	}
	if l.held[to] = late; frame != nil {
		arrive = append(arrive, frame)
	}
	return arrive
}

// hold begins to hold packets.
func (l *lateness) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holding = true
}

// release ends it. The packets held arrive now, before any other, or with the
// delay.
func (l *lateness) release(now bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holding = false
	for _, late := range l.held {
		for i := range late {
			if now {
				late[i].at = time.Time{}
			}
		}
	}
}

// packets returns how many packets to a host were held, and how many of these
// are still to arrive.
func (l *lateness) packets(to *netbed.Host) (held, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[to], len(l.held[to])
}

// TestLatePackets: the packets of one of two cables, requests and data among
// them, are held while clients go on over the other cable with the same blocks.
// In each second round they arrive before all others when the cable is whole
// again, else long after that. They change nothing: the disk is linearizable,
// and no request fails.
func TestLatePackets(t *testing.T) {
	t.Parallel()
	b := netbed.New(t, netbed.Options{MTU: 4500})
	cables := b.Cables()
	testbed.StartBinaryAt(t, b.B.StartGroup, testbed.Program(t), "target", "--insecure", "--admin", filepath.Join(testbed.Folder(t), "target"),
		"--listen", testbed.RoCEURI(cables[0].B), "--listen", testbed.RoCEURI(cables[1].B), "--export", "disk=file:"+testbed.SparseFile(t, 1<<20), "--keepalive", "250ms")
	a := testbed.AttachURIAt(t, b.A.StartGroup, testbed.Program(t), fmt.Sprintf("via+roce://%v,%v/disk", cables[0].B, cables[1].B), "disk")
	late := newLateness(*holdFor)
	b.Interpose(late.decide)

	u := startUsers(t, a)
	for round := range *holds {
		u.awaitPath(0)
		u.awaitMore()
		began := time.Now()
		late.hold()
		u.awaitPath(1)
		u.awaitMore()
		first := round%2 == 0
		if first {
			time.Sleep(*holdFor - time.Since(began))
		}
		late.release(first)
	}
	testbed.Eventually(t, "the last of the late packets", func() (any, bool) {
		_, toA := late.packets(b.A)
		_, toB := late.packets(b.B)
		return toA + toB, toA+toB == 0
	})
	u.awaitMore()
	u.end()

	c, st := u.monitor.Counts(), a.Status()
	i := st.Initiators[0]
	answers, _ := late.packets(b.A)
	requests, _ := late.packets(b.B)
	t.Logf("%d operations and %d violations; %d packets to the target and %d to the initiator arrived %v late, in %d fail-overs",
		c.Operations, c.Anomalies, requests, answers, *holdFor, i.Paths[0].Losses)
	if st.NBD.Total.Errors != 0 || i.Stats.Errors != 0 || i.Paths[0].Losses < uint64(*holds) && i.SessionLosses == 0 || requests < *holds {
		t.Errorf("nbd: %d errors; initiator: %+v", st.NBD.Total.Errors, i)
	}
}

// users are clients that read and write few blocks over four connections.
type users struct {
	t       *testing.T
	attach  *testbed.Process
	conns   []history.Disk
	monitor *history.Monitor
	stop    chan struct{}
	ended   chan error
}

// startUsers starts clients of an initiator.
func startUsers(t *testing.T, a *testbed.Process) *users {
	t.Helper()
	u := &users{t: t, attach: a, monitor: history.NewMonitor(), stop: make(chan struct{}), ended: make(chan error, 1)}
	load := history.Load{Blocks: 24, Longest: 8, Hot: 4, Durable: 50, Clients: 3, Requests: 1 << 30, Seed: 1, Stop: u.stop}
	_, socket := testbed.AddressOf(t, a.URI("disk", "nbd+unix"))
	for range 4 {
		c, err := history.Dial(t.Context(), "unix", socket, "disk")
		testbed.Must(t, err)
		t.Cleanup(func() { testbed.Must(t, c.Close()) })
		u.conns = append(u.conns, c)
	}
	go func() { u.ended <- load.Run(u.monitor, 0, u.conns...) }()
	return u
}

// awaitMore waits until there are more operations.
func (u *users) awaitMore() {
	u.t.Helper()
	enough := u.monitor.Counts().Operations + 200
	testbed.Eventually(u.t, "more operations", func() (any, bool) {
		n := u.monitor.Counts().Operations
		return n, n >= enough
	})
}

// awaitPath waits until all connections are on a path.
func (u *users) awaitPath(i int) {
	u.t.Helper()
	testbed.Eventually(u.t, fmt.Sprintf("path %d, with all connections", i), func() (any, bool) {
		p := u.attach.Status().Initiators[0].Paths
		return p, p[i].State == "up" && p[i].Queues == int64(len(u.conns))
	})
}

// end ends the clients, and fails the test if the disk was not linearizable.
func (u *users) end() {
	u.t.Helper()
	close(u.stop)
	testbed.Must(u.t, <-u.ended)
	for _, found := range u.monitor.Finish() {
		u.t.Error(found)
	}
}
