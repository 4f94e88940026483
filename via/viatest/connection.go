package viatest

import (
	"context"
	"errors"
	"time"

	"github.com/viablk/viablk/via"
)

var connectionCases = []kitCase{
	{"StatesOfAConnection", EarlyAdopter, "a VI goes idle, pending, connected and back to idle", anyLevel, 0, statesOfAConnection},
	{"ReceivesBeforeConnect", EarlyAdopter, "receives posted while idle get the first messages", anyLevel, 0, receivesBeforeConnect},
	{"RejectForReason", EarlyAdopter, "a rejection tells the reason that the listener's consumer gave, and none without", anyLevel, 0, rejectForReason},
	{"Reject", EarlyAdopter, "a rejected request fails as rejected and leaves the VI idle with its receives", anyLevel, 0, reject},
	{"NoMatch", EarlyAdopter, "a request to a discriminator without a listener finds no match", anyLevel, 0, noMatch},
	{"Timeout", EarlyAdopter, "a request without an answer times out and can be made again", anyLevel, 0, timeout},
	{"ExpiredContext", EarlyAdopter, "a request without time left fails at once", anyLevel, 0, expiredContext},
	{"AttributeMismatch", EarlyAdopter, "a mismatch is the acceptor's error alone; it may accept again with a VI that fits", anyLevel, 0, attributeMismatch},
	{"ConnectNeedsIdle", EarlyAdopter, "connect and accept are refused unless the VI is idle", anyLevel, 0, connectNeedsIdle},
	{"RequestIsAnsweredOnce", EarlyAdopter, "the second answer to a request is an error", anyLevel, 0, requestAnsweredOnce},
	{"AcceptAfterTimeout", EarlyAdopter, "accepting a request whose requester has gone fails and leaves the VI idle", anyLevel, 0, acceptAfterTimeout},
	{"Confirm", EarlyAdopter, "a request is confirmed before there is a VI, then accepted with one of the same attributes, or rejected", anyLevel, 0, confirmed},
	{"TwoAtOnce", EarlyAdopter, "requests to different discriminators do not disturb each other", anyLevel, 0, twoAtOnce},
	{"AddressInUse", EarlyAdopter, "an address has one listener at a time", anyLevel, 0, addressInUse},
	{"ListenerClose", EarlyAdopter, "a closed listener ends its waiters and refuses the requests that wait", anyLevel, 0, listenerClose},
	{"WaitTimeout", EarlyAdopter, "waiting for a request ends with its context", anyLevel, 0, waitTimeout},
	{"QuietKeepalives", Functional, "a keepalive without a message, where the fabric has it, shows the peer that this end is alive, and does not wake it", anyLevel, 0, quietKeepalives},
	{"LongDiscriminator", EarlyAdopter, "discriminators are compared whole, up to the limit", anyLevel, 0, longDiscriminator},
}

// idle gives both ends an unconnected VI.
func (e *env) idle() {
	e.t.Helper()
	e.client.vi = e.client.newVI(e.client.attributes())
	e.server.vi = e.server.newVI(e.server.attributes())
}

func (e *env) state(x *end, want via.State) {
	e.t.Helper()
	if got := x.vi.State(); got != want {
		e.t.Fatalf("%s is %v, want %v", x.name, got, want)
	}
}

// listen opens a listener that is closed with the case.
func (e *env) listen(addr via.Address) *via.Listener {
	e.t.Helper()
	l, err := e.server.nic.Listen(addr)
	e.check(err, "listen")
	e.t.Cleanup(func() { e.check(l.Close(), "close listener") })
	return l
}

// asked starts a connect of the client's VI and returns the request at the
// server.
func (e *env) asked(l *via.Listener) (*request, *via.ConnRequest) {
	e.t.Helper()
	dial := e.dial(e.timeout(), e.client.vi, l.Addr())
	r, err := l.Wait(e.timeout())
	e.check(err, "wait for a request")
	return dial, r
}

func statesOfAConnection(e *env) {
	e.idle()
	e.state(e.client, via.StateIdle)
	dial, r := e.asked(e.listen(e.service()))
	e.state(e.client, via.StatePending)
	e.state(e.server, via.StateIdle)
	if r.RemoteHost() == "" {
		e.t.Errorf("the request does not name its host")
	}
	e.check(r.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
	e.state(e.client, via.StateConnected)
	e.state(e.server, via.StateConnected)
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.state(e.client, via.StateIdle)
	e.breaks(e.server)
	e.check(e.server.vi.Disconnect(), "disconnect")
	e.state(e.server, via.StateIdle)
}

func receivesBeforeConnect(e *env) {
	e.idle()
	var got []*via.Descriptor
	for range 10 {
		got = append(got, e.server.recv(e.server.buffer(8)))
	}
	e.quiet("receives wait while idle")
	e.join(e.client.vi, e.server.vi)
	for i := range got {
		e.ok(e.client, e.client.sendImmediate(uint32(i)))
	}
	for i, d := range got {
		if c := e.ok(e.server, d); c.Immediate != uint32(i) {
			e.t.Errorf("receive %d got message %d", i, c.Immediate)
		}
	}
}

func reject(e *env) {
	e.idle()
	pending := e.client.recv(e.client.buffer(8))
	l := e.listen(e.service())
	dial, r := e.asked(l)
	e.check(r.Reject(), "reject")
	e.wants(dial.wait(), via.ErrReject, "connect")
	e.state(e.client, via.StateIdle)
	e.quiet("after a reject")
	dial, r = e.asked(l)
	e.check(r.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
	e.ok(e.server, e.server.send(e.server.buffer(8)))
	e.ok(e.client, pending)
}

func rejectForReason(e *env) {
	e.idle()
	l := e.listen(e.service())
	for _, want := range []byte{0, 1, 255} {
		dial, r := e.asked(l)
		e.check(r.RejectFor(want), "reject")
		err := dial.wait()
		e.wants(err, via.ErrReject, "connect")
		got := new(via.RejectError)
		if found := errors.As(err, &got); found != (want != 0) || got.Reason != want {
			e.t.Errorf("reason %d arrives as %v, %d", want, found, got.Reason)
		}
	}
}

func noMatch(e *env) {
	e.idle()
	e.listen(e.service())
	_, err := e.client.vi.Connect(e.timeout(), e.service())
	e.wants(err, via.ErrNoMatch, "connect")
	e.state(e.client, via.StateIdle)
	e.join(e.client.vi, e.server.vi)
}

func timeout(e *env) {
	e.idle()
	pending := e.client.recv(e.client.buffer(8))
	l := e.listen(e.service())
	var stale *via.ConnRequest
	for limit := 300 * time.Millisecond; stale == nil; limit *= 2 { // until the request leaves in time
		stale = e.expires(l, limit)
	}
	dial, r := e.asked(l)
	_ = stale.Reject() // its requester is gone: the answer goes nowhere
	e.check(r.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
	e.ok(e.server, e.server.send(e.server.buffer(8)))
	e.ok(e.client, pending)
}

// expires connects to a listener that does not answer within a limit, and
// returns the request if it has arrived.
func (e *env) expires(l *via.Listener, limit time.Duration) *via.ConnRequest {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err := e.client.vi.Connect(ctx, l.Addr())
	e.wants(err, via.ErrTimeout, "connect")
	e.state(e.client, via.StateIdle)
	ctx, cancel = context.WithTimeout(context.Background(), limit)
	defer cancel()
	r, err := l.Wait(ctx)
	if limit < caseTimeout && errors.Is(err, via.ErrTimeout) {
		return nil
	}
	e.check(err, "wait for the stale request")
	return r
}

func expiredContext(e *env) {
	e.idle()
	l := e.listen(e.service())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := e.client.vi.Connect(ctx, l.Addr())
	e.wants(err, via.ErrTimeout, "connect")
	e.state(e.client, via.StateIdle)
}

func attributeMismatch(e *env) {
	e.idle()
	l := e.listen(e.service())
	dial, r := e.asked(l)
	size, qos := e.server.attributes(), e.server.attributes()
	size.MaxTransferSize--
	qos.QoS = 7
	type misfit struct {
		attrs via.ViAttributes
		code  error
	}
	misfits := []misfit{{size, via.ErrInvalidMTU}, {qos, via.ErrInvalidQoS}}
	for _, l := range levels {
		if other := e.server.attributes(); l != e.level && e.server.nic.Limits().ReliabilityLevels&l != 0 {
			other.Reliability, other.EnableRdmaRead = l, false
			misfits = append(misfits, misfit{other, via.ErrInvalidReliability})
		}
	}
	for _, m := range misfits {
		vi := e.server.newVI(m.attrs)
		e.wants(r.Accept(e.timeout(), vi), m.code, "accept with a vi that does not fit")
		if vi.State() != via.StateIdle {
			e.t.Errorf("the vi that does not fit is %v", vi.State())
		}
	}
	e.state(e.client, via.StatePending)
	e.check(r.Accept(e.timeout(), e.server.vi), "accept with one that fits")
	e.check(dial.wait(), "connect")
	rd := e.server.recv()
	e.ok(e.client, e.client.send())
	e.ok(e.server, rd)
}

func connectNeedsIdle(e *env) {
	e.connect()
	broken := e.server.vi
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.breaks(e.server)
	e.connect()
	connected := e.server.vi
	_, err := e.client.vi.Connect(e.timeout(), e.service())
	e.wants(err, via.ErrInvalidState, "connect a connected vi")
	e.state(e.client, via.StateConnected)
	e.idle()
	l := e.listen(e.service())
	dial, r := e.asked(l)
	e.wants(r.Accept(e.timeout(), connected), via.ErrInvalidState, "accept with a connected vi")
	foreign := e.client.newVI(e.client.attributes())
	e.wants(r.Accept(e.timeout(), foreign), via.ErrInvalidParameter, "accept with a vi of another nic")
	e.wants(r.Accept(e.timeout(), broken), via.ErrInvalidState, "accept with a broken vi")
	e.check(r.Accept(e.timeout(), e.server.vi), "accept with an idle vi")
	e.check(dial.wait(), "connect")
}

func requestAnsweredOnce(e *env) {
	e.idle()
	l := e.listen(e.service())
	dial, r := e.asked(l)
	e.check(r.Reject(), "reject")
	e.wants(dial.wait(), via.ErrReject, "connect")
	e.wants(r.Reject(), via.ErrInvalidParameter, "reject again")
	e.wants(r.Accept(e.timeout(), e.server.vi), via.ErrInvalidParameter, "accept what was rejected")
	e.state(e.server, via.StateIdle)
	dial, r = e.asked(l)
	e.check(r.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
	e.wants(r.Reject(), via.ErrInvalidParameter, "reject what was accepted")
	rd := e.server.recv()
	e.ok(e.client, e.client.send())
	e.ok(e.server, rd)
}

func acceptAfterTimeout(e *env) {
	e.idle()
	l := e.listen(e.service())
	ctx, cancel := context.WithCancel(context.Background())
	dial := e.dial(ctx, e.client.vi, l.Addr())
	r, err := l.Wait(e.timeout())
	e.check(err, "wait for a request")
	cancel()
	e.wants(dial.wait(), via.ErrTimeout, "connect")
	// The server may learn of it now or, over a network, from the connection.
	if err := r.Accept(e.timeout(), e.server.vi); err == nil {
		e.breaks(e.server)
		e.check(e.server.vi.Disconnect(), "disconnect")
	}
	e.state(e.server, via.StateIdle)
	dial, r = e.asked(l)
	e.check(r.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
}

func confirmed(e *env) {
	e.idle()
	l := e.listen(e.service())
	dial, r := e.asked(l)
	size, qos, rdma := e.server.attributes(), e.server.attributes(), e.server.attributes()
	size.MaxTransferSize--
	qos.QoS = 7
	rdma.EnableRdmaWrite = !rdma.EnableRdmaWrite
	e.wants(r.Confirm(e.timeout(), size), via.ErrInvalidMTU, "confirm another transfer size")
	e.wants(r.Confirm(e.timeout(), qos), via.ErrInvalidQoS, "confirm another quality of service")
	e.check(r.Confirm(e.timeout(), e.server.attributes()), "confirm")
	e.wants(r.Confirm(e.timeout(), e.server.attributes()), via.ErrInvalidParameter, "confirm again")
	e.wants(r.Accept(e.timeout(), e.server.newVI(rdma)), via.ErrInvalidParameter, "accept with a vi of other attributes")
	e.state(e.server, via.StateIdle)
	first := e.server.recv(e.server.buffer(8))
	e.check(r.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
	if dial.attrs.EnableRdmaWrite == rdma.EnableRdmaWrite {
		e.t.Errorf("the client learns %+v", dial.attrs)
	}
	e.ok(e.client, e.client.send(e.client.buffer(8)))
	e.ok(e.server, first)
	e.wants(r.Reject(), via.ErrInvalidParameter, "reject what was accepted")
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.breaks(e.server)
	e.check(e.server.vi.Disconnect(), "disconnect")

	e.idle()
	dial, r = e.asked(l)
	e.check(r.Confirm(e.timeout(), e.server.attributes()), "confirm")
	e.check(r.Reject(), "reject")
	if err := dial.wait(); err == nil {
		e.breaks(e.client) // the confirmation was the answer
	} else {
		e.wants(err, via.ErrReject, "connect")
	}
	e.wants(r.Accept(e.timeout(), e.server.vi), via.ErrInvalidParameter, "accept what was rejected")

	e.idle()
	ctx, cancel := context.WithCancel(context.Background())
	dial = e.dial(ctx, e.client.vi, l.Addr())
	r, err := l.Wait(e.timeout())
	e.check(err, "wait for a request")
	cancel()
	e.wants(dial.wait(), via.ErrTimeout, "connect")
	// The server may learn of it at once, later, or from the connection.
	if err = r.Confirm(e.timeout(), e.server.attributes()); err == nil {
		err = r.Accept(e.timeout(), e.server.vi)
	}
	if err == nil {
		e.breaks(e.server)
	}
}

func twoAtOnce(e *env) {
	e.idle()
	// Two goroutines connect: each VI has a completion queue of its own.
	cq := e.client.newCQ(2 * queueDepth)
	other := e.client.newViOn(e.client.attributes(), via.ViConfig{
		SendCQ: cq, RecvCQ: cq, SendDepth: queueDepth, RecvDepth: queueDepth,
	})
	l1, l2 := e.listen(e.service()), e.listen(e.service())
	d1, r1 := e.asked(l1)
	d2 := e.dial(e.timeout(), other, l2.Addr())
	r2, err := l2.Wait(e.timeout())
	e.check(err, "wait for the second request")
	theirs := e.server.newVI(e.server.attributes())
	e.check(r2.Accept(e.timeout(), theirs), "accept the second")
	e.check(d2.wait(), "connect the second")
	e.check(r1.Accept(e.timeout(), e.server.vi), "accept the first")
	e.check(d1.wait(), "connect the first")
	for i, p := range [][2]*via.VI{{e.client.vi, e.server.vi}, {other, theirs}} {
		rd := e.server.postRecv(p[1], build(e.server.desc(0), via.OpRecv, nil, nil))
		s := build(e.client.desc(0), via.OpSend, nil, nil)
		s.SetImmediate(uint32(i))
		e.ok(e.client, e.client.postSend(p[0], s))
		if c := e.ok(e.server, rd); c.VI != p[1] || c.Immediate != uint32(i) {
			e.t.Errorf("message %d arrived elsewhere", i)
		}
	}
}

func addressInUse(e *env) {
	l := e.listen(e.service())
	_, err := e.server.nic.Listen(l.Addr())
	e.wants(err, via.ErrResource, "listen twice")
	e.check(l.Close(), "close listener")
	e.check(l.Close(), "close listener again")
	again, err := e.server.nic.Listen(l.Addr())
	e.check(err, "listen again")
	e.check(again.Close(), "close listener")
}

func listenerClose(e *env) {
	e.idle()
	for i := range 40 {
		if i == 20 { // from here another discriminator keeps the host open
			e.listen(e.service())
		}
		l, err := e.server.nic.Listen(e.service())
		e.check(err, "listen")
		dial := e.dial(e.timeout(), e.client.vi, l.Addr())
		for range i % 20 * 50 {
			pause()
		}
		e.check(l.Close(), "close listener")
		err = dial.wait()
		if !errors.Is(err, via.ErrReject) && !errors.Is(err, via.ErrNoMatch) && !errors.Is(err, via.ErrNotReachable) {
			e.t.Fatalf("connect while the listener closes: %v", err)
		}
		_, err = l.Wait(e.timeout())
		e.wants(err, via.ErrInvalidParameter, "wait at a closed listener")
	}
	l, err := e.server.nic.Listen(e.service())
	e.check(err, "listen")
	waiting := make(chan error, 1)
	ctx := e.timeout()
	go func() { _, err := l.Wait(ctx); waiting <- err }()
	e.check(l.Close(), "close listener")
	e.wants(<-waiting, via.ErrInvalidParameter, "wait at a listener that closes")
}

func waitTimeout(e *env) {
	l := e.listen(e.service())
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := l.Wait(ctx)
	e.wants(err, via.ErrTimeout, "wait for a request")
}

func longDiscriminator(e *env) {
	e.idle()
	limit := e.server.nic.Limits().MaxDiscriminatorLen
	name := make([]byte, limit)
	for i := range name {
		name[i] = byte(i) // any bytes, zero too
	}
	l := e.listen(e.f.Address(string(name)))
	for _, wrong := range []string{string(name[:limit-1]), "", string(name[:limit-1]) + "x"} {
		_, err := e.client.vi.Connect(e.timeout(), e.f.Address(wrong))
		e.wants(err, via.ErrNoMatch, "connect to another discriminator")
	}
	dial, r := e.asked(l)
	e.check(r.Accept(e.timeout(), e.server.vi), "accept")
	e.check(dial.wait(), "connect")
	long := e.f.Address(string(name) + "x")
	_, err := e.server.nic.Listen(long)
	e.wants(err, via.ErrInvalidParameter, "listen at a discriminator that is too long")
	_, err = e.client.newVI(e.client.attributes()).Connect(e.timeout(), long)
	e.wants(err, via.ErrInvalidParameter, "connect to a discriminator that is too long")
}
