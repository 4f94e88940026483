package roce

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/wire"
	roce "github.com/viablk/viablk/via/roce/wire"
)

var (
	holds     = flag.Int("roce.holds", 2, "how often TestLatePackets holds the packets of one of two cables, of each pair of hosts")
	holdBeds  = flag.Int("roce.holdbeds", 1, "of how many pairs, as many of which at once as -parallel says")
	holdFor   = flag.Duration("roce.holdfor", 3*time.Second, "how late they arrive")
	holdPause = flag.Duration("roce.holdpause", 0, "how long a client rests between requests")
)

// lateness holds the packets of a cable, in both directions. Each of them
// arrives late, when others have long been on the cable again.
type lateness struct {
	delay time.Duration

	mu      sync.Mutex
	due     func(heldPackets) bool // hold from the next such packet on
	holding bool
	late    map[*netbed.Host][]lateFrame // to each host, the oldest first
	held    map[*netbed.Host]heldPackets // ever
}

// heldPackets are how many packets were held.
type heldPackets struct {
	all, commands, data int
}

// plus adds the packets of both.
func (h heldPackets) plus(more heldPackets) heldPackets {
	return heldPackets{h.all + more.all, h.commands + more.commands, h.data + more.data}
}

// lateFrame is a frame that is to arrive at a time.
type lateFrame struct {
	frame []byte
	at    time.Time
}

func newLateness(delay time.Duration) *lateness {
	return &lateness{delay: delay, late: make(map[*netbed.Host][]lateFrame), held: make(map[*netbed.Host]heldPackets)}
}

// decide implements netbed.Decide.
func (l *lateness) decide(to *netbed.Host, frame []byte) (arrive [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	p := classify(frame)
	if l.due != nil && l.due(p) {
		l.due, l.holding = nil, true
	}
	if l.holding {
		if frame != nil {
			l.late[to] = append(l.late[to], lateFrame{bytes.Clone(frame), now.Add(l.delay)})
			l.held[to] = l.held[to].plus(p)
		}
		return nil
	}
	late := l.late[to]
	for ; len(late) > 0 && now.After(late[0].at); late = late[1:] {
		arrive = append(arrive, late[0].frame)
	}
	if l.late[to] = late; frame != nil {
		arrive = append(arrive, frame)
	}
	return arrive
}

// classify counts a frame: as a command that begins, as a part of the data that
// one moves between the memories of the hosts, or as neither.
func classify(frame []byte) heldPackets {
	other := heldPackets{all: 1}
	d, err := netbed.ParseDatagram(frame)
	if err != nil || len(d.Payload) < roce.MinPacket {
		return other
	}
	var h roce.BTH
	h.Decode(d.Payload)
	o := h.Opcode
	switch op := o.Operation(); {
	case o.Class() != roce.RC:
	case op == roce.OpWrite, op == roce.OpReadResponse:
		return heldPackets{all: 1, data: 1}
	case op == roce.OpSend && o.Flags()&roce.Start != 0:
		message := d.Payload[o.HeaderSize():]
		if len(message) >= wire.HeaderSize && wire.Opcode(message[0]).IsCommand() {
			return heldPackets{all: 1, commands: 1}
		}
	}
	return other
}

// hold begins to hold packets, from the next one with data on, or with a
// command. Clients that rest seldom have data in flight at another moment.
func (l *lateness) hold(data bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = func(p heldPackets) bool { return data && p.data > 0 || !data && p.commands > 0 }
}

// isHolding reports whether it has begun.
func (l *lateness) isHolding() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holding
}

// release ends it. The packets held arrive now, before any other, or with the
// delay.
func (l *lateness) release(now bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holding = false
	for _, late := range l.late {
		for i := range late {
			if now {
				late[i].at = time.Time{}
			}
		}
	}
}

// packets returns how many packets to a host were held, and how many of these
// are still to arrive.
func (l *lateness) packets(to *netbed.Host) (held heldPackets, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[to], len(l.late[to])
}

// counts returns how many packets to each host were held.
func (l *lateness) counts() map[*netbed.Host]heldPackets {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.held)
}

// lateCounts are what happened to pairs of hosts.
type lateCounts struct {
	operations        int
	requests, answers heldPackets
	losses            uint64
}

// TestLatePackets: the packets of one of two cables, requests and data among
// them, are held while clients go on over the other cable with the same blocks.
// In each second round they arrive before all others when the cable is whole
// again, else long after that. They change nothing: the disk is linearizable,
// and no request fails. Half of the rounds begin with a command, the others
// with data, which may leave commands no room on the cable.
func TestLatePackets(t *testing.T) {
	t.Parallel()
	counts := make([]lateCounts, *holdBeds)
	t.Run("hosts", func(t *testing.T) {
		for i := range counts {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				counts[i] = holdPackets(t, uint64(i)+1)
			})
		}
	})
	var all lateCounts
	for _, c := range counts {
		all.operations += c.operations
		all.requests = all.requests.plus(c.requests)
		all.answers = all.answers.plus(c.answers)
		all.losses += c.losses
	}
	t.Logf("%d operations; %d packets to the target, %d of them commands and %d data, and %d to the initiator, %d of them data, arrived %v late, in %d fail-overs",
		all.operations, all.requests.all, all.requests.commands, all.requests.data, all.answers.all, all.answers.data, *holdFor, all.losses)
}

// holdPackets holds the packets of one of two cables of two hosts, in rounds.
func holdPackets(t *testing.T, seed uint64) lateCounts {
	b := netbed.New(t, netbed.Options{MTU: 4500})
	cables := b.Cables()
	testbed.StartBinaryAt(t, b.B.StartGroup, testbed.Program(t), "target", "--insecure", "--admin", filepath.Join(testbed.Folder(t), "target"),
		"--listen", testbed.RoCEURI(cables[0].B), "--listen", testbed.RoCEURI(cables[1].B), "--export", "disk=file:"+testbed.SparseFile(t, 1<<20), "--keepalive", "250ms")
	a := testbed.AttachURIAt(t, b.A.StartGroup, testbed.Program(t), fmt.Sprintf("via+roce://%v,%v/disk", cables[0].B, cables[1].B), "disk")
	late := newLateness(*holdFor)
	b.Interpose(late.decide)

	u := startUsers(t, a, seed)
	for round := range *holds {
		u.awaitPath(0)
		u.awaitMore()
		before := late.counts()
		data := round%4 == 1 || round%4 == 2
		late.hold(data)
		testbed.Eventually(t, "a packet with a request", func() (any, bool) { return nil, late.isHolding() })
		began := time.Now()
		u.awaitPath(1)
		u.awaitMore()
		first := round%2 == 0
		if first {
			time.Sleep(*holdFor - time.Since(began))
		}
		late.release(first)
		held := late.counts()
		for _, h := range []*netbed.Host{b.A, b.B} {
			if held[h].all == before[h].all {
				t.Errorf("round %d held nothing to %v: %+v", round, h.IPv4, held[h])
			}
		}
		was, is := before[b.A].plus(before[b.B]), held[b.A].plus(held[b.B])
		if data && is.data == was.data || !data && is.commands == was.commands {
			t.Errorf("round %d held no request: %+v so far, %+v before", round, is, was)
		}
	}
	testbed.Eventually(t, "the last of the late packets", func() (any, bool) {
		_, toA := late.packets(b.A)
		_, toB := late.packets(b.B)
		return toA + toB, toA+toB == 0
	})
	u.awaitMore()
	u.end()

	st := a.Status()
	i := st.Initiators[0]
	c := lateCounts{operations: u.monitor.Counts().Operations, losses: i.Paths[0].Losses}
	c.answers, _ = late.packets(b.A)
	c.requests, _ = late.packets(b.B)
	if st.NBD.Total.Errors != 0 || i.Stats.Errors != 0 || c.losses < uint64(*holds) && i.SessionLosses == 0 {
		t.Errorf("nbd: %d errors; initiator: %+v", st.NBD.Total.Errors, i)
	}
	return c
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
func startUsers(t *testing.T, a *testbed.Process, seed uint64) *users {
	t.Helper()
	u := &users{t: t, attach: a, monitor: history.NewMonitor(), stop: make(chan struct{}), ended: make(chan error, 1)}
	load := history.Load{
		Blocks: 24, Longest: 8, Hot: 4, Durable: 50, Clients: 3, Requests: 1 << 30, Seed: seed, Pause: *holdPause, Stop: u.stop,
	}
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
