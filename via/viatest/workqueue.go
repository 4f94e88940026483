package viatest

import (
	"time"

	"github.com/viablk/viablk/via"
)

var workQueueCases = []kitCase{
	{"SendDoneTakesTheHead", EarlyAdopter, "SendDone takes the oldest Send once it is complete, and says when there is none", anyLevel, 0, sendDoneTakesHead},
	{"RecvDoneTakesTheHead", EarlyAdopter, "RecvDone takes the oldest receive once it is complete, and says when there is none", anyLevel, 0, recvDoneTakesHead},
	{"DoneTellsErrors", EarlyAdopter, "what completed in error is taken with its descriptor and an error", anyLevel, 0, doneTellsErrors},
	{"WaitTimesOut", EarlyAdopter, "a wait without a completion ends with its timeout and takes nothing", anyLevel, 0, waitTimesOut},
	{"WaitSleepsUntilDone", EarlyAdopter, "a wait without a timeout ends with the completion", anyLevel, 0, waitSleepsUntilDone},
	{"WaitEndsWithTheConnection", Functional, "a wait ends when the connection does", anyLevel, 0, waitEndsWithConnection},
	{"WaitNeedsPrivateQueue", EarlyAdopter, "a work queue that has a completion queue is waited for there", anyLevel, 0, waitNeedsPrivateQueue},
	{"OneQueueAnnounced", EarlyAdopter, "of a VI's queues, one may have a completion queue and the other none", anyLevel, 0, oneQueueAnnounced},
	{"DestroyUntakenQueue", EarlyAdopter, "a VI whose own queues hold completions is not empty", anyLevel, 0, destroyUntakenQueue},
}

// connectBare connects a VI of the client without completion queues to one of
// the server with: the kit polls the server alone.
func (e *env) connectBare() {
	e.t.Helper()
	e.client.vi = e.client.newViOn(e.client.attributes(), via.ViConfig{SendDepth: queueDepth, RecvDepth: queueDepth})
	e.server.vi = e.server.newVI(e.server.attributes())
	e.join(e.client.vi, e.server.vi)
}

// post is what a bare queue holds: the kit books no completion of it.
func (e *env) post(d *via.Descriptor, recv bool) *via.Descriptor {
	e.t.Helper()
	if recv {
		e.check(e.client.vi.PostRecv(d), "post receive")
	} else {
		e.check(e.client.vi.PostSend(d), "post send")
	}
	return d
}

// bareSend and bareRecv post empty operations.
func (e *env) bareSend(number uint32) *via.Descriptor {
	e.t.Helper()
	d := build(e.client.desc(0), via.OpSend, nil, nil)
	d.SetImmediate(number)
	return e.post(d, false)
}

func (e *env) bareRecv() *via.Descriptor {
	e.t.Helper()
	return e.post(build(e.client.desc(0), via.OpRecv, nil, nil), true)
}

// takes waits until a Done call takes something, and checks what.
func (e *env) takes(done func() (*via.Descriptor, error), want *via.Descriptor, code error) {
	e.t.Helper()
	var got *via.Descriptor
	err := error(via.ErrNotDone)
	e.untilBy("a descriptor to take", func() bool {
		got, err = done()
		return err != via.ErrNotDone
	}, e.server)
	if got != want || err != code {
		e.t.Fatalf("took %p with %v, want %p with %v", got, err, want, code)
	}
}

// empty checks that a Done call finds nothing posted.
func (e *env) empty(done func() (*via.Descriptor, error)) {
	e.t.Helper()
	if d, err := done(); d != nil || err != via.ErrDescriptor {
		e.t.Fatalf("an empty queue gives %p with %v, want none with %v", d, err, via.ErrDescriptor)
	}
}

func sendDoneTakesHead(e *env) {
	e.connectBare()
	vi := e.client.vi
	e.empty(vi.SendDone)
	for round := range 3 {
		var posted []*via.Descriptor
		for i := range 10 {
			e.server.recv()
			posted = append(posted, e.bareSend(uint32(10*round+i)))
		}
		for _, d := range posted {
			e.takes(vi.SendDone, d, nil)
			if st := d.Status(); st != via.StatusDone|via.StatusOpSend {
				e.t.Errorf("a send that was taken says %v", st)
			}
		}
		e.empty(vi.SendDone)
	}
	e.until("the messages", func() bool { return len(e.server.done) == 30 })
}

func recvDoneTakesHead(e *env) {
	e.connectBare()
	vi := e.client.vi
	e.empty(vi.RecvDone)
	first, second := e.bareRecv(), e.bareRecv()
	if d, err := vi.RecvDone(); d != nil || err != via.ErrNotDone {
		e.t.Fatalf("a receive without a message gives %p with %v", d, err)
	}
	for i, want := range []*via.Descriptor{first, second} {
		s := e.server.sendImmediate(uint32(i))
		e.takes(vi.RecvDone, want, nil)
		if want.Immediate() != uint32(i) {
			e.t.Errorf("receive %d has message %d", i, want.Immediate())
		}
		e.served(s)
	}
	e.empty(vi.RecvDone)
}

// served waits until a descriptor of the server completes, while the bare
// client polls with Done calls that find nothing.
func (e *env) served(d *via.Descriptor) {
	e.t.Helper()
	e.untilBy("the server's send", func() bool {
		_, _ = e.client.vi.RecvDone() // progress: its queue is empty
		_, ok := e.server.seen[d]
		return ok
	}, e.server)
}

func doneTellsErrors(e *env) {
	e.connectBare()
	vi := e.client.vi
	receives := []*via.Descriptor{e.bareRecv(), e.bareRecv()}
	bad := build(e.client.desc(0), via.OpSend, nil, nil)
	bad.Bytes()[15] |= 0x80
	e.post(bad, false)
	e.takes(vi.SendDone, bad, via.ErrDescriptor)
	if st := bad.Status() & via.StatusErrorMask; st != via.StatusFormatError {
		e.t.Errorf("the descriptor says %v", st)
	}
	e.check(vi.Disconnect(), "disconnect")
	for _, d := range receives {
		e.takes(vi.RecvDone, d, via.ErrDescriptor)
		if st := d.Status() & via.StatusErrorMask; st != via.StatusFlushed {
			e.t.Errorf("a flushed receive says %v", st)
		}
	}
	e.empty(vi.RecvDone)
	e.takes(vi.SendDone, nil, via.ErrDescriptor)
	e.takes(vi.SendDone, nil, via.ErrDescriptor)
	d := e.bareSend(0) // idle: it completes at once
	e.takes(vi.SendDone, d, via.ErrDescriptor)
}

func waitTimesOut(e *env) {
	e.connectBare()
	vi := e.client.vi
	r := e.bareRecv()
	for _, timeout := range []time.Duration{0, time.Millisecond} {
		d, err := vi.RecvWait(timeout)
		e.wants(err, via.ErrTimeout, "wait for a message that is not sent")
		if d != nil {
			e.t.Errorf("a wait that timed out took a descriptor")
		}
	}
	s := e.server.send()
	e.takes(vi.RecvDone, r, nil)
	e.served(s)
	if d, err := vi.RecvWait(via.Infinite); d != nil || err != via.ErrDescriptor {
		e.t.Errorf("waiting for an empty queue gives %p with %v", d, err)
	}
}

// waiting runs a wait of the bare client on a goroutine of its own, while the
// caller drives the server until the wait ends.
func (e *env) waiting(wait func(time.Duration) (*via.Descriptor, error), meanwhile func()) (*via.Descriptor, error) {
	e.t.Helper()
	type result struct {
		d   *via.Descriptor
		err error
	}
	ended := make(chan result, 1)
	go func() {
		d, err := wait(via.Infinite)
		ended <- result{d, err}
	}()
	for range 20 {
		pause()
	}
	meanwhile()
	var got result
	e.untilBy("the wait to end", func() bool {
		select {
		case got = <-ended:
			return true
		default:
			return false
		}
	}, e.server)
	return got.d, got.err
}

func waitSleepsUntilDone(e *env) {
	e.connectBare()
	for i := range 20 {
		r := e.bareRecv()
		var s *via.Descriptor
		if d, err := e.waiting(e.client.vi.RecvWait, func() { s = e.server.sendImmediate(uint32(i)) }); d != r || err != nil {
			e.t.Fatalf("the wait took %p with %v, want the receive", d, err)
		}
		e.served(s)
		e.server.recv()
		out := e.bareSend(uint32(i))
		if d, err := e.waiting(e.client.vi.SendWait, func() {}); d != out || err != nil {
			e.t.Fatalf("the wait took %p with %v, want the send", d, err)
		}
	}
}

func waitEndsWithConnection(e *env) {
	e.connectBare()
	r := e.bareRecv()
	d, err := e.waiting(e.client.vi.RecvWait, func() { e.check(e.server.vi.Disconnect(), "disconnect") })
	if d != r || err != via.ErrDescriptor {
		e.t.Fatalf("the wait took %p with %v, want the flushed receive", d, err)
	}
	if e.client.vi.State() != via.StateError {
		e.t.Errorf("the vi is %v", e.client.vi.State())
	}
}

func waitNeedsPrivateQueue(e *env) {
	e.connect()
	vi := e.client.vi
	_, err := vi.SendWait(0)
	e.wants(err, via.ErrInvalidParameter, "wait for a send queue with a completion queue")
	_, err = vi.RecvWait(via.Infinite)
	e.wants(err, via.ErrInvalidParameter, "wait for a receive queue with a completion queue")
	e.passes(e.client, e.server)
}

func oneQueueAnnounced(e *env) {
	for _, announced := range []string{"send", "receive"} {
		cfg := via.ViConfig{SendDepth: queueDepth, RecvDepth: queueDepth}
		if announced == "send" {
			cfg.SendCQ = e.client.cq
		} else {
			cfg.RecvCQ = e.client.cq
		}
		e.client.vi = e.client.newViOn(e.client.attributes(), cfg)
		vi := e.client.vi
		e.server.vi = e.server.newVI(e.server.attributes())
		e.join(e.client.vi, e.server.vi)
		if announced == "send" {
			r := e.bareRecv()
			e.server.recv()
			e.ok(e.client, e.client.send())
			s := e.server.send()
			e.takes(vi.RecvDone, r, nil)
			e.served(s)
			_, err := vi.SendWait(0)
			e.wants(err, via.ErrInvalidParameter, "wait for the announced queue")
		} else {
			r := e.client.recv()
			e.server.recv()
			s := e.bareSend(0)
			e.takes(vi.SendDone, s, nil)
			e.ok(e.server, e.server.send())
			e.ok(e.client, r)
			_, err := vi.RecvWait(0)
			e.wants(err, via.ErrInvalidParameter, "wait for the announced queue")
		}
		e.quiet("nothing else is announced")
	}
}

func destroyUntakenQueue(e *env) {
	x := e.client
	vi, err := x.nic.CreateVi(x.attributes(), via.ViConfig{SendDepth: 4, RecvDepth: 4})
	e.check(err, "create vi")
	e.client.vi = vi
	r := e.bareRecv()
	e.wants(vi.Destroy(), via.ErrResource, "destroy a vi with a posted receive")
	e.check(vi.Disconnect(), "disconnect")
	e.wants(vi.Destroy(), via.ErrResource, "destroy a vi with a completion to take")
	e.takes(vi.RecvDone, r, via.ErrDescriptor)
	s := e.bareSend(0)
	e.wants(vi.Destroy(), via.ErrResource, "destroy a vi with a flushed send to take")
	e.takes(vi.SendDone, s, via.ErrDescriptor)
	e.check(vi.Destroy(), "destroy")
	for _, done := range []func() (*via.Descriptor, error){vi.SendDone, vi.RecvDone} {
		_, err = done()
		e.wants(err, via.ErrInvalidParameter, "take from a destroyed vi")
	}
}
