package viatest

import (
	"slices"
	"time"

	"github.com/viablk/viablk/via"
)

var lossyCases = []kitCase{
	{"SenderNeverWaits", EarlyAdopter, "unreliable Sends complete although their receiver is not polled; messages that then arrive are whole, in order and once", unreliable, 0, senderNeverWaits},
	{"LossesAreCounted", Functional, "of unreliable messages every one is received or counted as dropped, at one end", unreliable, 0, lossesAreCounted},
	{"EmptyQueueDrops", Functional, "unreliable messages that meet no receive are dropped and reported, and what meets one afterwards arrives", unreliable, 0, emptyQueueDrops},
	{"UnreliableReadClaim", Functional, "no NIC claims RDMA Read at unreliable delivery", unreliable, 0, unreliableReadClaim},
}

// flood sends numbered messages to a receiver that gets no turn, and returns
// how many arrive of them once it does. Of the marks behind them, how many were
// sent and how many arrived.
func (e *env) flood(count, size int) (arrived, marked, marksArrived int) {
	e.t.Helper()
	dst := make([]buf, count)
	number := make(map[*via.Descriptor]int)
	for i := range count {
		dst[i] = e.server.buffer(size)
		number[e.server.recv(dst[i])] = i
	}
	src := e.client.buffer(size)
	fill(src.b, 3)
	for i := range count {
		e.client.sendImmediate(uint32(i), src)
	}
	e.untilBy("all sends to complete", func() bool { return len(e.client.done) == count }, e.client)
	for _, c := range e.client.done {
		if c.Status.Failed() {
			e.t.Fatalf("a send completed with %v", c.Status)
		}
	}
	e.quietly()               // polls the receiver
	marked = e.markedAtLast() // behind it nothing of the flood arrives any more
	last := -1
	for _, c := range e.server.done {
		if c.Status&via.StatusErrorMask == partial {
			continue // there was no room for all of it
		}
		if c.Immediate >= marks {
			marksArrived++
			continue
		}
		if i := int(c.Immediate); c.Status.Failed() || i <= last || i >= count || int(c.Length) != size {
			e.t.Fatalf("after message %d: message %d of %d bytes, %v", last, i, c.Length, c.Status)
		}
		last = int(c.Immediate)
		e.same(dst[number[c.Descriptor]].b, pattern(size, 3), "message")
		arrived++
	}
	return arrived, marked, marksArrived
}

// markedAtLast sends messages of no bytes until one arrives, and returns how
// many: the fabric may still be full of what came before and drop the first.
// The next one follows when the last one seems to be lost, ever later.
func (e *env) markedAtLast() int {
	e.t.Helper()
	sent := 0
	for wait := firstMark; ; wait *= 2 {
		e.server.recv()
		e.marked++
		sent++
		mark := marks + e.marked
		e.ok(e.client, e.client.sendImmediate(mark))
		arrived, next := false, time.Now().Add(wait)
		e.until("a message behind the flood", func() bool {
			arrived = slices.ContainsFunc(e.server.done, func(c via.Completion) bool {
				return c.Recv && !c.Status.Failed() && c.Immediate == mark
			})
			return arrived || time.Now().After(next)
		})
		if arrived {
			return sent
		}
	}
}

func senderNeverWaits(e *env) {
	e.connect()
	if n, _, _ := e.flood(64, min(256<<10, int(maxTransfer(e)))); n == 64 {
		e.t.Logf("the fabric held all messages")
	}
	e.costs()
}

func lossesAreCounted(e *env) {
	e.connect()
	const count = 100
	arrived, marked, marksArrived := e.flood(count, min(64<<10, int(maxTransfer(e))))
	arrived += marksArrived
	mine, theirs := e.client.vi.Stats(), e.server.vi.Stats()
	if lost := mine.Dropped + theirs.Dropped; arrived+int(lost) != count+marked || theirs.Receives != uint64(arrived) {
		e.t.Errorf("%d messages: %d arrived, counters of the sender %+v, of the receiver %+v", count+marked, arrived, mine, theirs)
	}
}

func emptyQueueDrops(e *env) {
	e.connect()
	const count = 5
	for i := range count {
		e.ok(e.client, e.client.sendImmediate(uint32(i), e.client.buffer(8)))
	}
	e.until("the reports", func() bool { return e.server.count(via.AsyncRecvQueueEmpty) == count })
	r := e.server.recv(e.server.buffer(8))
	e.ok(e.client, e.client.sendImmediate(77, e.client.buffer(8)))
	if c := e.ok(e.server, r); c.Immediate != 77 {
		e.t.Errorf("the receive got message %d, which came before it", c.Immediate)
	}
	if n := len(e.server.errors()); n != count {
		e.t.Errorf("%d callbacks for %d messages", n, count)
	}
	if d := e.server.vi.Stats().Dropped; d != count {
		e.t.Errorf("%d messages are counted as dropped, want %d", d, count)
	}
}

func unreliableReadClaim(e *env) {
	for _, x := range []*end{e.client, e.server} {
		if x.nic.Limits().RdmaReadLevels&via.UnreliableDelivery != 0 {
			e.t.Errorf("%s claims RDMA Read at unreliable delivery", x.name)
		}
	}
}
