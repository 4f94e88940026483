package viatest

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

var fairnessCases = []kitCase{
	{"FairOnOneQueue", Functional, "a VI that floods a completion queue does not starve another one there", anyLevel, 0, fairOnOneQueue},
	{"FairOnOneNIC", Functional, "a VI that floods its NIC does not starve another one with a queue of its own", anyLevel, 0, fairOnOneNIC},
	{"FairWhileFlushing", Functional, "many VIs that break at once do not starve one that works", anyLevel, 0, fairWhileFlushing},
}

const (
	floodDepth = 64             // messages of the flooding VI in flight, always
	floodBatch = 8              // completions taken at a time
	fairLimit  = 4 * floodDepth // completions of the flooding VI while the modest waits

	// A message may be late because the kernel has interrupted the thread that
	// moves it, while the flood goes on upon another processor. So few may in
	// which it interrupted any, and none for ever; a NIC that is unfair is so to
	// all.
	fairMessages = 50
	lateMessages = 5
	starved      = 64 * fairLimit
)

// flooding is a VI of the client, whose messages to one of the server never
// end.
type flooding struct {
	e            *env
	client       *via.VI
	server       *via.VI
	sends, recvs []*via.Descriptor

	sent, done, got int // messages: posted, completed at the client, received
}

// newFlooding connects flooding VIs on completion queues of both ends.
func newFlooding(e *env, client, server *via.CQ) *flooding {
	e.t.Helper()
	f := &flooding{e: e}
	cfg := func(cq *via.CQ) via.ViConfig {
		return via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: queueDepth, RecvDepth: queueDepth}
	}
	f.client = e.client.newViOn(e.client.attributes(), cfg(client))
	f.server = e.server.newViOn(e.server.attributes(), cfg(server))
	e.join(f.client, f.server)
	for range queueDepth {
		f.sends, f.recvs = append(f.sends, e.client.desc(1)), append(f.recvs, e.server.desc(1))
	}
	room := e.server.buffer(64)
	for _, d := range f.recvs[:floodDepth] {
		e.server.postRecv(f.server, build(d, via.OpRecv, nil, []buf{room}))
	}
	return f
}

// feed keeps the flooding VI's messages in flight.
func (f *flooding) feed(src, room buf) {
	f.e.t.Helper()
	for ; f.sent < min(f.done, f.got)+floodDepth; f.sent++ {
		d := f.sends[f.sent%queueDepth]
		f.e.client.postSend(f.client, build(d, via.OpSend, nil, []buf{src}))
		r := f.recvs[(f.sent+floodDepth)%queueDepth]
		f.e.server.postRecv(f.server, build(r, via.OpRecv, nil, []buf{room}))
	}
}

// sip takes a few completions of an end from one queue, and says whether the
// modest VI's were among them.
func (f *flooding) sip(x *end, cq *via.CQ, modest *via.VI, recv bool) bool {
	f.e.t.Helper()
	n := cq.Poll(x.batch[:floodBatch])
	x.collect(x.batch[:n])
	found := false
	for _, c := range x.batch[:n] {
		if c.Status.Failed() {
			f.e.t.Fatalf("%s: completed with %v", x.name, c.Status)
		}
		switch c.VI {
		case f.client:
			f.done++
		case f.server:
			f.got++
		}
		found = found || c.VI == modest && c.Recv == recv
	}
	x.done = x.done[:0]
	return found
}

// compete sends messages of the default VIs while the flooding ones send, and
// counts how many of the flood's overtake each.
func (f *flooding) compete(mine, theirs *via.CQ) {
	f.e.t.Helper()
	e := f.e
	src, room := e.client.buffer(64), e.server.buffer(64)
	late := 0
	for i := range fairMessages {
		for range 10 { // in full spate
			f.feed(src, room)
			f.sip(e.client, e.client.cq, nil, false)
			f.sip(e.server, e.server.cq, nil, false)
		}
		e.server.recv()
		e.client.send()
		sent, received := false, false
		before, switches := f.got, interruptions(e.t)
		for !sent || !received {
			f.feed(src, room)
			sent = f.sip(e.client, e.client.cq, e.client.vi, false) || sent
			received = f.sip(e.server, e.server.cq, e.server.vi, true) || received
			if mine != e.client.cq {
				sent = f.sip(e.client, mine, e.client.vi, false) || sent
				received = f.sip(e.server, theirs, e.server.vi, true) || received
			}
			if waited := f.got - before; waited > starved {
				e.t.Fatalf("message %d: sent %v, received %v, while another vi received %d", i, sent, received, waited)
			}
		}
		if waited := f.got - before; waited > fairLimit {
			late++
			if interruptions(e.t) == switches {
				e.t.Errorf("message %d waited while another vi received %d, and no thread was interrupted", i, waited)
			}
		}
	}
	if late > lateMessages {
		e.t.Errorf("%d of %d messages waited while another vi received more than %d each", late, fairMessages, fairLimit)
	}
}

// interruptions counts how often the kernel has taken a processor from a thread
// of this process.
func interruptions(t testing.TB) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Nivcsw
}

func fairOnOneQueue(e *env) {
	e.connect()
	f := newFlooding(e, e.client.cq, e.server.cq)
	f.compete(e.client.cq, e.server.cq)
}

func fairOnOneNIC(e *env) {
	mine, theirs := e.client.newCQ(16), e.server.newCQ(16)
	for x, cq := range map[*end]*via.CQ{e.client: mine, e.server: theirs} {
		x.vi = x.newViOn(x.attributes(), via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 8, RecvDepth: 8})
	}
	e.join(e.client.vi, e.server.vi)
	f := newFlooding(e, e.client.cq, e.server.cq)
	f.compete(mine, theirs)
}

func fairWhileFlushing(e *env) {
	const others, depth = 8, 32
	var broken []*via.VI
	for range others {
		e.client.vi = e.client.newViOn(e.client.small(4096), via.ViConfig{
			SendCQ: e.client.cq, RecvCQ: e.client.cq, SendDepth: depth, RecvDepth: depth,
		})
		e.server.vi = e.server.newViOn(e.server.small(4096), via.ViConfig{
			SendCQ: e.server.cq, RecvCQ: e.server.cq, SendDepth: depth, RecvDepth: depth,
		})
		e.join(e.client.vi, e.server.vi)
		broken = append(broken, e.client.vi)
		for range depth {
			e.server.recv()
		}
	}
	e.connect()
	r := e.server.recv()
	for _, vi := range broken {
		e.check(vi.Disconnect(), "disconnect")
	}
	e.client.send()
	taken := 0
	e.untilBy("the message among the flushes", func() bool {
		n := e.server.cq.Poll(e.server.batch[:floodBatch])
		e.server.collect(e.server.batch[:n])
		taken += n
		_, ok := e.server.seen[r]
		return ok
	}, e.client)
	if taken > others*depth+floodBatch {
		e.t.Errorf("the message came after %d completions, more than there are", taken)
	}
	e.until("all flushes", func() bool { return len(e.server.done) == others*depth+1 })
}
