package viatest

import (
	"testing"

	"github.com/viablk/viablk/via"
)

var steadyCases = []kitCase{
	{"NoAllocation", EarlyAdopter, "posting and polling allocate nothing in steady state", anyLevel, 0, noAllocation},
	{"NoAgent", EarlyAdopter, "the data path never enters the kernel agent", anyLevel, 0, noAgent},
	{"CountersCount", Functional, "a connection's counters count messages and operations", anyLevel, 0, countersCount},
}

// cycle is one round of everything, by one goroutine, without bookkeeping.
type cycle struct {
	client, server *end
	sends, recvs   [8]*via.Descriptor
	write, read    *via.Descriptor
	src, dst       buf
	batch          [32]via.Completion
}

func newCycle(e *env) *cycle {
	c := &cycle{client: e.client, server: e.server, src: e.client.buffer(32 << 10), dst: e.server.buffer(32 << 10)}
	for i := range c.sends {
		c.sends[i], c.recvs[i] = e.client.desc(8), e.server.desc(8)
	}
	c.write, c.read = e.client.desc(8), e.client.desc(8)
	return c
}

// run sends eight messages, writes and reads, and takes all completions. It
// returns false if something failed.
func (c *cycle) run(reads bool) bool {
	ok := true
	post := func(d *via.Descriptor, op via.Opcode, n int) {
		d.Reset(op)
		vi, b := c.client.vi, c.src
		if op == via.OpRecv {
			vi, b = c.server.vi, c.dst
		} else if op != via.OpSend {
			d.SetRemote(c.dst.addr(), c.dst.mem.Handle())
		}
		for i := range 6 {
			d.AddSegment(b.addr()+uint64(i*n), b.mem.Handle(), uint32(n))
		}
		if op == via.OpRecv {
			ok = vi.PostRecv(d) == nil && ok
		} else {
			ok = vi.StageSend(d) == nil && ok
		}
	}
	for i, d := range c.recvs {
		post(d, via.OpRecv, 100*i)
	}
	for i, d := range c.sends {
		post(d, via.OpSend, 100*i)
	}
	post(c.write, via.OpRdmaWrite, 4096)
	want := len(c.sends) + len(c.recvs) + 1
	if reads {
		post(c.read, via.OpRdmaRead, 4096)
		want++
	}
	c.client.vi.Doorbell()
	for polls := 0; want > 0 && polls < 1<<20; polls++ {
		for _, x := range [...]*end{c.client, c.server} {
			n := x.cq.Poll(c.batch[:])
			for i := range c.batch[:n] {
				ok = ok && !c.batch[i].Status.Failed()
			}
			want -= n
		}
	}
	return ok && want == 0
}

func noAllocation(e *env) {
	e.connect()
	c := newCycle(e)
	reads := e.client.open().EnableRdmaRead
	for range 300 { // every slot of the queues has been used
		if !c.run(reads) {
			e.t.Fatalf("a cycle failed; client: %v; server: %v", e.client, e.server)
		}
	}
	failed := false
	if n := testing.AllocsPerRun(200, func() { failed = failed || !c.run(reads) }); n != 0 {
		e.t.Errorf("%.1f allocations in a cycle of %d operations", n, 2*len(c.sends)+2)
	}
	if failed {
		e.t.Fatalf("a cycle failed; client: %v; server: %v", e.client, e.server)
	}
	for _, x := range []*end{e.client, e.server} {
		for range 100 { // sleeping does not allocate either
			if x.cq.Arm() {
				x.cq.Poll(x.batch[:])
			}
		}
		if n := testing.AllocsPerRun(100, func() { x.cq.Arm(); x.cq.Poll(x.batch[:]) }); n != 0 {
			e.t.Errorf("%.1f allocations to arm", n)
		}
	}
}

func noAgent(e *env) {
	e.connect()
	mine, theirs := e.client.nic.Agent(), e.server.nic.Agent()
	if mine.Connects.Load() != 1 || theirs.Connects.Load() != 1 || mine.Registrations.Load() != 2 || mine.Calls() < 4 {
		e.t.Errorf("agent counters after a connect: %d connects, %d registrations, %d calls",
			mine.Connects.Load(), mine.Registrations.Load(), mine.Calls())
	}
	before := [2]uint64{mine.Calls(), theirs.Calls()}
	c := newCycle(e)
	for range 100 {
		if !c.run(e.client.open().EnableRdmaRead) {
			e.t.Fatalf("a cycle failed; client: %v; server: %v", e.client, e.server)
		}
	}
	if after := [2]uint64{mine.Calls(), theirs.Calls()}; after != before {
		e.t.Errorf("agent calls went from %v to %v", before, after)
	}
}

func countersCount(e *env) {
	e.connect()
	reads := e.client.open().EnableRdmaRead
	c := newCycle(e)
	const rounds = 10
	for range rounds {
		if !c.run(reads) {
			e.t.Fatalf("a cycle failed; client: %v; server: %v", e.client, e.server)
		}
	}
	check := func() {
		mine, theirs := e.client.vi.Stats(), e.server.vi.Stats()
		wantReads := uint64(0)
		if reads {
			wantReads = rounds
		}
		if mine.Records < mine.Sends {
			e.t.Errorf("%d sends in %d records", mine.Sends, mine.Records)
		}
		if mine.Sends != 8*rounds || mine.RdmaWrites != rounds || mine.RdmaReads != wantReads || theirs.Receives != 8*rounds {
			e.t.Errorf("counters: requester %+v, receiver %+v", mine, theirs)
		}
	}
	check()
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.breaks(e.server)
	check() // they outlive the connection
	e.rejoin()
	if s := e.client.vi.Stats(); s.Sends != 0 {
		e.t.Errorf("a new connection begins with %d sends", s.Sends)
	}
}
