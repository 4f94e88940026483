package shm

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

const (
	ud = via.UnreliableDelivery
	rd = via.ReliableDelivery
	rr = via.ReliableReception
)

var allLevels = []via.ReliabilityLevel{ud, rd, rr}

// script makes the n-th operation of a link suffer the n-th fault.
type script []via.Fault

func (s *script) Next(*via.Work) via.Fault {
	if len(*s) == 0 {
		return via.FaultNone
	}
	f := (*s)[0]
	*s = (*s)[1:]
	return f
}

// couple is a connected pair at a level, driven by one goroutine: a is the end
// that sends in a test.
type couple struct {
	a, b   *station
	va, vb *via.VI
}

func newCouple(t *testing.T, level via.ReliabilityLevel, faults ...via.Fault) *couple {
	t.Helper()
	p := testTimeouts
	p.room = 50 * time.Millisecond
	c := &couple{a: newStation(t, p), b: newStation(t, p)}
	c.a.level, c.b.level = level, level
	if len(faults) > 0 {
		s := script(faults)
		c.a.adapter.faults = &s
	}
	c.connect(t)
	return c
}

// connect connects new VIs and waits until the sender has its peer's arena: no
// operation waits for it.
func (c *couple) connect(t *testing.T) {
	t.Helper()
	c.va, c.vb = c.a.newVI(), c.b.newVI()
	join(t, c.va, c.b.listen(), c.vb)
	until(t, "the arena", func() bool { return c.a.onlyLink().sender.remote.arenas.head.Load() != nil })
}

const (
	coupleFrom = 1 << 20 // what a sends
	coupleTo   = 4 << 20 // what b receives into, or a writes to
)

// recv posts a receive of n bytes.
func (c *couple) recv(i, n int) *via.Descriptor {
	d := c.b.descriptor(i, via.OpRecv, coupleTo, n)
	check(c.b.tb, c.vb.PostRecv(d))
	return d
}

// send posts a Send of n bytes.
func (c *couple) send(i, n int) *via.Descriptor {
	d := c.a.descriptor(i, via.OpSend, coupleFrom, n)
	check(c.a.tb, c.va.PostSend(d))
	return d
}

// rdma posts an RDMA operation on n bytes of a region of b.
func (c *couple) rdma(i int, op via.Opcode, n int, to *via.Memory, immediate bool) *via.Descriptor {
	d := c.a.remote(i, op, coupleFrom, n, c.b.mem.Addr()+coupleTo, to.Handle())
	if immediate {
		d.SetImmediate(9)
	}
	check(c.a.tb, c.va.PostSend(d))
	return d
}

// drainBoth polls both ends until both connections broke, or a good message
// arrives.
func (c *couple) drainBoth(t *testing.T, broken bool) {
	t.Helper()
	if broken {
		until(t, "the end of the connection", func() bool {
			return c.va.State() == via.StateError && c.vb.State() == via.StateError
		}, c.a, c.b)
		return
	}
	from, to := c.a.onlyLink(), c.b.onlyLink()
	until(t, "the works in flight", func() bool { return from.sender.sq.Empty() && to.receiver.in.head == from.sender.out.tail }, c.a, c.b)
	c.a.mem.Bytes()[7<<20]++
	r := c.b.descriptor(30, via.OpRecv, 7<<20, 64)
	check(t, c.vb.PostRecv(r))
	s := c.a.descriptor(30, via.OpSend, 7<<20, 64)
	check(t, c.va.PostSend(s))
	until(t, "a good message", func() bool {
		return r.Status()&via.StatusDone != 0 && s.Status()&via.StatusDone != 0
	}, c.a, c.b)
	if r.Status().Failed() || s.Status().Failed() || c.b.mem.Bytes()[7<<20] != c.a.mem.Bytes()[7<<20] {
		t.Errorf("a good message: send %v, receive %v", s.Status(), r.Status())
	}
}

func (s *station) codes() []via.AsyncCode {
	var out []via.AsyncCode
	for _, e := range s.async {
		out = append(out, e.Code)
	}
	return out
}

// effect is the effect of an error at a level.
type effect struct {
	send, recv via.Status      // error bits of the descriptors concerned
	near, far  []via.AsyncCode // callbacks at the sender and at its peer
	broken     bool            // else both survive
	dropped    [2]uint64       // as each end counts
}

type effects map[via.ReliabilityLevel]effect

const (
	lost      = via.AsyncConnectionLost
	flushed   = via.StatusFlushed
	transport = via.StatusTransportError
	partial   = via.StatusPartialError
	remote    = via.StatusRemoteDescError
	rdmaProt  = via.StatusRdmaProtError
)

func codes(c ...via.AsyncCode) []via.AsyncCode { return c }

// attempt posts something at both ends and returns the descriptors concerned,
// nil where there is none.
type attempt func(t *testing.T, c *couple) (send, recv *via.Descriptor)

func (o effect) check(t *testing.T, c *couple, try attempt) {
	t.Helper()
	send, recv := try(t, c)
	c.drainBoth(t, o.broken)
	for what, d := range map[string]*via.Descriptor{"send": send, "receive": recv} {
		if d == nil {
			continue
		}
		want := o.send
		if what == "receive" {
			want = o.recv
		}
		until(t, what, func() bool { return d.Status()&via.StatusDone != 0 }, c.a, c.b)
		if got := d.Status() & via.StatusErrorMask; got != want {
			t.Errorf("the %s says %v, want %v", what, got|via.StatusDone, want|via.StatusDone)
		}
	}
	if got := c.a.codes(); !slices.Equal(got, o.near) {
		t.Errorf("the sender hears %v, want %v", got, o.near)
	}
	if got := c.b.codes(); !slices.Equal(got, o.far) {
		t.Errorf("the receiver hears %v, want %v", got, o.far)
	}
	if got := [2]uint64{c.va.Stats().Dropped, c.vb.Stats().Dropped}; got != o.dropped {
		t.Errorf("dropped are %v, want %v", got, o.dropped)
	}
}

// TestErrors checks the effects of errors without a faulty fabric at each
// level.
func TestErrors(t *testing.T) {
	both := effect{near: codes(lost), far: codes(lost), broken: true}
	noReceive := effects{
		ud: {far: codes(via.AsyncRecvQueueEmpty), dropped: [2]uint64{0, 1}},
		rd: {near: codes(lost), far: codes(via.AsyncRecvQueueEmpty), broken: true},
		rr: {send: remote, near: codes(lost), far: codes(via.AsyncRecvQueueEmpty), broken: true},
	}
	badReceive := func(status via.Status) effects {
		d, r := both, both
		d.recv = status
		r.recv, r.send = status, remote
		return effects{ud: {recv: status}, rd: d, rr: r}
	}
	refusedWrite := effect{send: rdmaProt, near: codes(lost), far: codes(via.AsyncRdmaWriteProt), broken: true}
	refusedImmediate := effect{send: rdmaProt, recv: rdmaProt, near: codes(lost), far: codes(lost), broken: true}
	aborted := effect{send: rdmaProt, near: codes(lost), far: codes(via.AsyncRdmaWriteAbort), broken: true}
	abortedImmediate := effect{send: rdmaProt, recv: partial, near: codes(lost), far: codes(lost), broken: true}
	localWrite := effect{send: via.StatusProtectionError, near: codes(lost), far: codes(via.AsyncRdmaWriteAbort), broken: true}
	localSend := effect{send: via.StatusProtectionError, recv: partial, near: codes(lost), far: codes(lost), broken: true}
	refusedRead := effect{send: rdmaProt, near: codes(lost), far: codes(via.AsyncRdmaReadProt), broken: true}

	for name, row := range map[string]struct {
		try  attempt
		want effects
	}{
		"send without a receive": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			return c.send(0, 100), nil
		}, noReceive},
		"long send without a receive": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			return c.send(0, 200000), nil
		}, noReceive},
		"write with immediate without a receive": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			return c.rdma(0, via.OpRdmaWrite, 100, c.b.mem, true), nil
		}, noReceive},
		"longer than the receive": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			recv = c.recv(0, 99)
			return c.send(0, 100), recv
		}, badReceive(via.StatusLengthError)},
		"fragments longer than the receive": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			recv = c.recv(0, 150000)
			return c.send(0, 200000), recv
		}, badReceive(via.StatusLengthError)},
		"receive's memory gone": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			m := c.b.region()
			recv = c.b.descriptor(0, via.OpRecv, 0, 0)
			recv.Reset(via.OpRecv)
			recv.AddSegment(m.Addr(), m.Handle(), 200000)
			check(t, c.vb.PostRecv(recv))
			check(t, m.Deregister())
			return c.send(0, 200000), recv
		}, badReceive(via.StatusProtectionError)},
		"write refused": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			m := c.b.closed(t)
			return c.rdma(0, via.OpRdmaWrite, 100, m, false), nil
		}, effects{ud: {far: codes(via.AsyncRdmaWriteProt)}, rd: refusedWrite, rr: refusedWrite}},
		"write with immediate refused": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			m := c.b.closed(t)
			recv = c.recv(0, 100)
			return c.rdma(0, via.OpRdmaWrite, 100, m, true), recv
		}, effects{ud: {recv: rdmaProt}, rd: refusedImmediate, rr: refusedImmediate}},
		"write with immediate refused without a receive": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			m := c.b.closed(t)
			return c.rdma(0, via.OpRdmaWrite, 100, m, true), nil
		}, effects{
			ud: noReceive[ud],
			rd: {send: rdmaProt, near: codes(lost), far: codes(via.AsyncRecvQueueEmpty), broken: true},
			rr: {send: rdmaProt, near: codes(lost), far: codes(via.AsyncRecvQueueEmpty), broken: true},
		}},
		"write revoked half-way": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			m := c.b.sharedRegion(t)
			send = c.rdma(0, via.OpRdmaWrite, 2*sendQuantum, m, false)
			check(t, m.Deregister())
			return send, nil
		}, effects{ud: {far: codes(via.AsyncRdmaWriteAbort)}, rd: aborted, rr: aborted}},
		"write with immediate revoked half-way": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			m := c.b.sharedRegion(t)
			recv = c.recv(0, 100)
			send = c.rdma(0, via.OpRdmaWrite, 2*sendQuantum, m, true)
			check(t, m.Deregister())
			return send, recv
		}, effects{ud: {recv: partial}, rd: abortedImmediate, rr: abortedImmediate}},
		"write's memory gone half-way": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			m := c.a.sharedRegion(t)
			send = c.a.remote(0, via.OpRdmaWrite, 0, 0, c.b.mem.Addr()+coupleTo, c.b.mem.Handle())
			send.Reset(via.OpRdmaWrite)
			send.SetRemote(c.b.mem.Addr()+coupleTo, c.b.mem.Handle())
			send.AddSegment(m.Addr(), m.Handle(), 2*sendQuantum)
			check(t, c.va.PostSend(send))
			check(t, m.Deregister())
			return send, nil
		}, effects{ud: {send: via.StatusProtectionError, far: codes(via.AsyncRdmaWriteAbort)}, rd: localWrite, rr: localWrite}},
		"send's memory gone half-way": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			m := c.a.sharedRegion(t)
			recv = c.recv(0, 2*ringSize)
			send = c.a.descriptor(0, via.OpSend, 0, 0)
			send.Reset(via.OpSend)
			send.AddSegment(m.Addr(), m.Handle(), 2*ringSize)
			check(t, c.va.PostSend(send))
			check(t, m.Deregister())
			return send, recv
		}, effects{ud: {send: via.StatusProtectionError, recv: partial}, rd: localSend, rr: localSend}},
		"read refused": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			m := c.b.closed(t)
			return c.rdma(0, via.OpRdmaRead, 100, m, false), nil
		}, effects{ud: {send: via.StatusFormatError}, rd: refusedRead, rr: refusedRead}},
		"the peer leaves": {func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			recv = c.recv(0, 100)
			check(t, c.vb.Disconnect())
			until(t, "the loss", func() bool { return c.va.State() == via.StateError }, c.a)
			c.a.disconnect(c.va) // both connect again, for what is checked next
			c.b.disconnect(c.vb)
			c.connect(t)
			return nil, recv
		}, effects{
			ud: {recv: flushed, near: codes(lost)}, rd: {recv: flushed, near: codes(lost)}, rr: {recv: flushed, near: codes(lost)},
		}},
	} {
		for _, level := range allLevels {
			t.Run(name+"/"+level.String(), func(t *testing.T) {
				watchLeaks(t)
				row.want[level].check(t, newCouple(t, level), row.try)
			})
		}
	}
}

// closed registers memory at coupleTo that peers may not touch.
func (s *station) closed(t *testing.T) *via.Memory {
	t.Helper()
	m, err := s.nic.RegisterMem(s.mem.Bytes()[coupleTo:coupleTo+4096], via.MemAttributes{Ptag: s.tag})
	check(t, err)
	t.Cleanup(func() { check(t, m.Deregister()) })
	return m
}

// sharedRegion registers memory at coupleTo that peers may touch, for the test
// to deregister.
func (s *station) sharedRegion(t *testing.T) *via.Memory {
	t.Helper()
	m, err := s.nic.RegisterMem(s.mem.Bytes()[coupleTo:coupleTo+2*sendQuantum], s.open)
	check(t, err)
	return m
}

// TestReceptionIsAcknowledged: at reliable reception a Send is done when its
// bytes are in the receive, and RDMA waits for the Sends before it.
func TestReceptionIsAcknowledged(t *testing.T) {
	for _, n := range []int{0, 64, 100000, 3 * ringSize} {
		c := newCouple(t, rr)
		for i := range n {
			c.a.mem.Bytes()[coupleFrom+i] = byte(i * 11)
		}
		r := c.recv(0, n)
		c.recv(1, 0)
		s := c.send(0, n)
		w := c.rdma(1, via.OpRdmaWrite, n, c.b.mem, true)
		for range 100 {
			c.a.poll()
		}
		if len(c.a.done) != 0 {
			t.Fatalf("%d bytes: %d works are done before the peer looked", n, len(c.a.done))
		}
		if n != 0 && c.b.mem.Bytes()[coupleTo+1] != 0 {
			t.Fatalf("%d bytes: the write did not wait", n)
		}
		until(t, "the send", func() bool { return s.Status()&via.StatusDone != 0 }, c.a, c.b)
		if c := c.b.await(r); c.Status.Failed() || int(c.Length) != n {
			t.Fatalf("%d bytes: the receive says %+v", n, c)
		}
		if !bytes.Equal(c.b.mem.Bytes()[coupleTo:coupleTo+n], c.a.mem.Bytes()[coupleFrom:coupleFrom+n]) {
			t.Fatalf("%d bytes: others are in the receive", n)
		}
		if got := c.a.await(w, c.b); got.Status.Failed() {
			t.Fatalf("the write says %v", got.Status)
		}
	}
}

// TestNothingAfterFailure: at reliable reception the Sends before one that
// fails are done, those after it flushed, and RDMA after it never happens.
func TestNothingAfterFailure(t *testing.T) {
	c := newCouple(t, rr)
	for i := range 3 {
		c.recv(i, 64)
	}
	sizes := []int{64, 10, 65, 20, 30} // the third is too long
	var sends []*via.Descriptor
	for i, n := range sizes {
		sends = append(sends, c.send(i, n))
	}
	c.a.mem.Bytes()[coupleFrom] = 0x77
	write := c.rdma(8, via.OpRdmaWrite, 64, c.b.mem, false)
	c.drainBoth(t, true)
	for i, want := range []via.Status{0, 0, remote, flushed, flushed} {
		if got := sends[i].Status() & via.StatusErrorMask; got != want {
			t.Errorf("send %d says %v", i, got|via.StatusDone)
		}
	}
	if write.Status()&via.StatusErrorMask != flushed || c.b.mem.Bytes()[coupleTo] == 0x77 {
		t.Errorf("a write behind a failure says %v", write.Status())
	}
	if n := c.vb.Stats().Receives; n != 2 {
		t.Errorf("%d messages were received", n)
	}
}

// TestAcknowledgementsBeforeTheEnd: works that the peer read before it closed
// complete without error and are not flushed.
func TestAcknowledgementsBeforeTheEnd(t *testing.T) {
	c := newCouple(t, rr)
	c.recv(0, 64)
	first, second := c.send(0, 64), (*via.Descriptor)(nil)
	until(t, "the message", func() bool { return len(c.b.done) == 1 }, c.b)
	second = c.send(1, 64)
	check(t, c.vb.Disconnect())
	until(t, "the loss", func() bool { return c.va.State() == via.StateError }, c.a)
	if first.Status().Failed() || second.Status()&via.StatusErrorMask != flushed {
		t.Errorf("the sends say %v and %v", first.Status(), second.Status())
	}
}

// TestAcknowledgementWakes: a sender that sleeps wakes when its Sends are
// acknowledged, or can not be any more, also on a queue for sends alone.
func TestAcknowledgementWakes(t *testing.T) {
	for name, fails := range map[string]bool{"received": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			watchLeaks(t)
			c := newCouple(t, rr)
			send, err := c.a.nic.CreateCQ(stationDepth)
			check(t, err)
			recv, err := c.a.nic.CreateCQ(stationDepth)
			check(t, err)
			va, vb := c.a.newViOn(send, recv), c.b.newVI()
			join(t, va, c.b.listen(), vb)
			if !fails {
				check(t, vb.PostRecv(c.b.descriptor(0, via.OpRecv, coupleTo, 64)))
			}
			arm(t, recv)
			arm(t, send)
			d := c.a.descriptor(0, via.OpSend, coupleFrom, 64)
			check(t, va.PostSend(d))
			for pollOne(send) > 0 || !send.Arm() {
			}
			for d.Status()&via.StatusDone == 0 {
				c.b.poll()
				wakes(t, send, "the acknowledgement")
				for pollOne(send) == 0 && !send.Arm() {
				}
			}
			if got := d.Status() & via.StatusErrorMask; fails != (got == remote) {
				t.Errorf("the send says %v", d.Status())
			}
			check(t, va.Disconnect())
			for pollOne(send) > 0 || pollOne(recv) > 0 {
			}
			c.a.disconnect(va)
			check(t, send.Destroy())
			check(t, recv.Destroy())
		})
	}
}

// TestUnreliableNeverWaits: messages without room are dropped, and the sent
// ones arrive in order.
func TestUnreliableNeverWaits(t *testing.T) {
	c := newCouple(t, ud)
	const n = 50000
	var posted []*via.Descriptor
	for i := range stationDepth {
		c.recv(i, n)
		d := c.a.descriptor(i, via.OpSend, coupleFrom, n)
		d.SetImmediate(uint32(i))
		check(t, c.va.PostSend(d))
		posted = append(posted, d)
	}
	until(t, "the sends", func() bool { return len(c.a.done) == stationDepth }, c.a)
	for i, d := range posted {
		if d.Status() != via.StatusDone|via.StatusOpSend {
			t.Errorf("send %d says %v", i, d.Status())
		}
	}
	dropped := c.va.Stats().Dropped
	if dropped == 0 || dropped >= stationDepth {
		t.Fatalf("%d of %d messages are dropped", dropped, stationDepth)
	}
	until(t, "the others", func() bool { return len(c.b.done) == stationDepth-int(dropped) }, c.b)
	for i, d := range c.b.done {
		if d.Status.Failed() || int(d.Immediate) != i {
			t.Errorf("receive %d is of message %d: %v", i, d.Immediate, d.Status)
		}
	}
	if got := c.b.codes(); len(got) != 0 || c.va.Stats().Stalls != 0 {
		t.Errorf("the receiver hears %v, %d stalls", got, c.va.Stats().Stalls)
	}
}

// TestUnreliableLongMessage: a message longer than the ring arrives if the
// receiver keeps up, and is aborted if it does not.
func TestUnreliableLongMessage(t *testing.T) {
	for _, n := range []int{ringSize - recordHeader, ringSize, 2 << 20} {
		c := newCouple(t, ud)
		for i := range n {
			c.a.mem.Bytes()[coupleFrom+i] = byte(i * 3)
		}
		r, s := c.recv(0, n), c.send(0, n)
		until(t, "the message", func() bool { return r.Status()&via.StatusDone != 0 }, c.a, c.b)
		if r.Status().Failed() || s.Status().Failed() || c.va.Stats().Dropped != 0 ||
			!bytes.Equal(c.b.mem.Bytes()[coupleTo:coupleTo+n], c.a.mem.Bytes()[coupleFrom:coupleFrom+n]) {
			t.Fatalf("%d bytes: send %v, receive %v", n, s.Status(), r.Status())
		}
	}
	effect{recv: partial, dropped: [2]uint64{1, 0}}.check(t, newCouple(t, ud),
		func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
			send, recv = c.send(0, 2<<20), c.recv(0, 2<<20)
			until(t, "the sender to give up", func() bool { return send.Status()&via.StatusDone != 0 }, c.a)
			return send, recv
		})
}

// TestEventsWithoutEnd: events that do not break a connection allocate nothing,
// however many there are, and come in order.
func TestEventsWithoutEnd(t *testing.T) {
	c := newCouple(t, ud)
	r := &c.b.onlyLink().receiver
	codes := codes(via.AsyncRecvQueueEmpty, via.AsyncRdmaWriteProt, via.AsyncRdmaWriteAbort)
	raise := func(n int) {
		for i := range n {
			r.raise(codes[i%len(codes)], nil)
		}
	}
	var done [7]via.Done
	next := 0
	receive := func() {
		for _, d := range done[:r.cq.dequeue(done[:])] {
			if d.Work != nil || d.Event.Code != codes[next%len(codes)] || d.Event.Broken {
				t.Fatalf("event %d is %+v", next, d)
			}
			next++
		}
	}
	raise(3)
	if n := testing.AllocsPerRun(1000, func() { raise(6); receive() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for !r.cq.empty() {
		receive()
	}
	if next != 3+6*1001 || cap(r.events.raised) > 64 {
		t.Errorf("%d events, room for %d", next, cap(r.events.raised))
	}
}
