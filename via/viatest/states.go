package viatest

import (
	"context"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
)

var stateCases = []kitCase{
	{"StateTransitions", Functional, "each event leads from each state to the one that VIA says, with the receives that wait as VIA says", anyLevel, 0, stateTransitions},
	{"StatePosting", EarlyAdopter, "each state takes posts as VIA says", anyLevel, 0, statePosting},
	{"DisconnectCancelsConnect", Functional, "Disconnect ends an attempt to connect or to accept that another goroutine waits for", anyLevel, 0, disconnectCancelsConnect},
	{"FabricFailsWhilePending", Functional, "a failure of the fabric while a VI is pending breaks it, and Disconnect mends it", anyLevel, 0, fabricFailsWhilePending},
}

// The result of a receive that was posted before.
type outcome int

const (
	waits outcome = iota // for a message, or for the next connection
	flushes
)

// transition is a row of the table of states: an event in a state.
type transition struct {
	from  via.State
	event string
	do    func(e *env) error // of the client's VI
	code  error              // what it returns
	to    via.State
	recv  outcome
}

// transitions is the table of VIA 1.0 §2.2, for the client's VI.
func transitions(level via.ReliabilityLevel) []transition {
	const (
		idle      = via.StateIdle
		pending   = via.StatePending
		connected = via.StateConnected
		broken    = via.StateError
	)
	afterError, receives := broken, flushes
	if level == via.UnreliableDelivery {
		afterError, receives = connected, waits
	}
	return []transition{
		{idle, "request accepted", asks((*env).accepted), nil, connected, waits},
		{idle, "request rejected", asks((*env).rejected), via.ErrReject, idle, waits},
		{idle, "request unanswered", unanswered, via.ErrTimeout, idle, waits},
		{idle, "no listener", noListener, via.ErrNoMatch, idle, waits},
		{idle, "answer does not fit", misfit, via.ErrReject, idle, waits},
		{idle, "request of a peer accepted", accepts, nil, connected, waits},
		{idle, "peer request", peerRequested, nil, pending, waits},
		{idle, "disconnect", disconnects, nil, idle, flushes},
		{idle, "destroy", destroys, via.ErrResource, idle, waits},
		{idle, "error", mispost, via.ErrInvalidParameter, idle, waits},
		{pending, "peer comes", peerComes, nil, connected, waits},
		{pending, "peer does not fit", peerMisfits, via.ErrInvalidQoS, idle, waits},
		{pending, "disconnect", disconnects, nil, idle, flushes},
		{pending, "connect", connects, via.ErrInvalidState, pending, waits},
		{pending, "peer request", peerRequested, via.ErrInvalidState, pending, waits},
		{pending, "destroy", destroys, via.ErrResource, pending, waits},
		{connected, "disconnect", disconnects, nil, idle, flushes},
		{connected, "peer disconnects", peerDisconnected, nil, broken, flushes},
		{connected, "error", mispost, via.ErrInvalidParameter, afterError, receives},
		{connected, "connect", connects, via.ErrInvalidState, connected, waits},
		{connected, "peer request", peerRequested, via.ErrInvalidState, connected, waits},
		{connected, "destroy", destroys, via.ErrResource, connected, waits},
		{broken, "disconnect", disconnects, nil, idle, flushes},
		{broken, "connect", connects, via.ErrInvalidState, broken, flushes},
		{broken, "peer request", peerRequested, via.ErrInvalidState, broken, flushes},
		{broken, "destroy", destroys, via.ErrResource, broken, flushes},
		{broken, "error", mispost, via.ErrInvalidParameter, broken, flushes},
	}
}

// reach leads a fresh VI of the client to a state.
func (e *env) reach(s via.State) {
	e.t.Helper()
	e.idle()
	switch s {
	case via.StatePending:
		e.check(e.client.vi.PeerRequest(e.peerAddresses()[0], e.peerAddresses()[1], caseTimeout), "request a peer")
	case via.StateConnected, via.StateError:
		e.join(e.client.vi, e.server.vi)
		if s == via.StateError {
			e.check(e.server.vi.Disconnect(), "disconnect")
			e.breaks(e.client)
		}
	}
	e.state(e.client, s)
}

// peerAddresses are those of the client and of its peer, in a table's row.
func (e *env) peerAddresses() [2]via.Address {
	return [2]via.Address{e.f.Address("peer a"), e.f.Address("peer b")}
}

func stateTransitions(e *env) {
	for _, row := range transitions(e.level) {
		e.reach(row.from)
		e.client.forget()
		r := e.client.recv()
		err := row.do(e)
		name := row.from.String() + ", " + row.event
		if row.code == nil {
			e.check(err, name)
		} else {
			e.wants(err, row.code, name)
		}
		if got := e.client.vi.State(); got != row.to {
			e.t.Errorf("%s: the vi is %v, want %v", name, got, row.to)
		}
		e.quietly()
		switch c, done := e.client.seen[r]; {
		case row.recv == waits && done:
			e.t.Errorf("%s: the receive completed with %v", name, c.Status)
		case row.recv == flushes && (!done || c.Status&via.StatusErrorMask != via.StatusFlushed):
			e.t.Errorf("%s: the receive is done: %v, with %v; want it flushed", name, done, c.Status)
		}
		if row.to == via.StateConnected && row.recv == waits {
			e.ok(e.server, e.server.send())
			e.ok(e.client, r)
		}
		for _, x := range []*end{e.client, e.server} {
			e.check(x.vi.Disconnect(), name+", and then disconnect")
			e.state(x, via.StateIdle)
			e.quietly()
		}
	}
}

// asks connects to a listener that does something with the request.
func asks(answer func(e *env, r *via.ConnRequest) error) func(e *env) error {
	return func(e *env) error {
		l, err := e.server.nic.Listen(e.service())
		e.check(err, "listen")
		dial, r := e.asked(l)
		e.state(e.client, via.StatePending)
		e.check(answer(e, r), "answer")
		err = dial.wait()
		e.check(l.Close(), "close listener")
		return err
	}
}

func (e *env) accepted(r *via.ConnRequest) error { return r.Accept(e.timeout(), e.server.vi) }
func (e *env) rejected(r *via.ConnRequest) error { return r.Reject() }

// misfit has a request refused whose attributes match no VI of the server.
func misfit(e *env) error {
	return asks(func(e *env, r *via.ConnRequest) error {
		attrs := e.server.attributes()
		attrs.QoS = 9
		e.wants(r.Accept(e.timeout(), e.server.newVI(attrs)), via.ErrInvalidQoS, "accept with other attributes")
		return r.Reject()
	})(e)
}

func unanswered(e *env) error {
	l, err := e.server.nic.Listen(e.service())
	e.check(err, "listen")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	_, err = e.client.vi.Connect(ctx, l.Addr())
	e.check(l.Close(), "close listener")
	return err
}

func noListener(e *env) error {
	l, err := e.server.nic.Listen(e.service())
	e.check(err, "listen")
	_, err = e.client.vi.Connect(e.timeout(), e.service())
	e.check(l.Close(), "close listener")
	return err
}

// accepts answers a request of the server's VI with the client's.
func accepts(e *env) error {
	l, err := e.client.nic.Listen(e.service())
	e.check(err, "listen")
	dial := e.dial(e.timeout(), e.server.vi, l.Addr())
	r, err := l.Wait(e.timeout())
	e.check(err, "wait for a request")
	err = r.Accept(e.timeout(), e.client.vi)
	e.check(dial.wait(), "connect")
	e.check(l.Close(), "close listener")
	return err
}

func peerRequested(e *env) error {
	a := e.peerAddresses()
	return e.client.vi.PeerRequest(a[0], a[1], caseTimeout)
}

func peerComes(e *env) error {
	a := e.peerAddresses()
	e.check(e.server.vi.PeerRequest(a[1], a[0], caseTimeout), "request the client")
	_, err := e.server.vi.PeerWait()
	e.check(err, "meet the client")
	_, err = e.client.vi.PeerWait()
	return err
}

func peerMisfits(e *env) error {
	attrs := e.server.attributes()
	attrs.QoS = 9
	e.check(e.server.vi.SetAttributes(attrs), "set attributes")
	a := e.peerAddresses()
	e.check(e.server.vi.PeerRequest(a[1], a[0], caseTimeout), "request the client")
	_, err := e.server.vi.PeerWait()
	e.wants(err, via.ErrInvalidQoS, "meet the client")
	_, err = e.client.vi.PeerWait()
	return err
}

func disconnects(e *env) error { return e.client.vi.Disconnect() }
func destroys(e *env) error    { return e.client.vi.Destroy() }

func connects(e *env) error {
	_, err := e.client.vi.Connect(e.timeout(), e.service())
	return err
}

func peerDisconnected(e *env) error {
	err := e.server.vi.Disconnect()
	e.breaks(e.client)
	return err
}

// mispost meets an error that belongs to no descriptor of a queue.
func mispost(e *env) error {
	d, err := e.client.descs.NewDescriptor(e.client.dused+8, 64)
	e.check(err, "make descriptor")
	e.client.dused += 128
	return e.client.vi.PostRecv(build(d, via.OpRecv, nil, nil))
}

func statePosting(e *env) {
	for _, row := range []struct {
		in         via.State
		recv, send outcome
	}{
		{via.StateIdle, waits, flushes},
		{via.StatePending, waits, flushes},
		{via.StateConnected, waits, waits},
		{via.StateError, flushes, flushes},
	} {
		e.reach(row.in)
		if row.in == via.StateConnected {
			e.server.recv()
		}
		r, s := e.client.recv(), e.client.send()
		for d, want := range map[*via.Descriptor]outcome{r: row.recv, s: row.send} {
			// Flushed at once: before anything is polled.
			if flushed := d.Status()&via.StatusErrorMask == via.StatusFlushed; flushed != (want == flushes) {
				e.t.Errorf("%v: a descriptor (receive %v) says %v right after its post", row.in, d == r, d.Status())
			}
		}
		if row.in == via.StateConnected {
			e.ok(e.client, s)
			e.ok(e.server, e.server.send())
			e.ok(e.client, r)
		}
		e.state(e.client, row.in)
		for _, x := range []*end{e.client, e.server} {
			e.check(x.vi.Disconnect(), "disconnect")
		}
		e.quietly()
	}
}

func disconnectCancelsConnect(e *env) {
	e.idle()
	l := e.listen(e.service())
	for range 20 {
		pending := e.client.recv()
		dial, r := e.asked(l)
		e.check(e.client.vi.Disconnect(), "disconnect")
		e.wants(dial.wait(), via.ErrTimeout, "connect")
		e.state(e.client, via.StateIdle)
		e.flushed(e.client, pending)
		if err := r.Accept(e.timeout(), e.server.vi); err == nil { // the server may not know yet
			e.breaks(e.server)
			e.check(e.server.vi.Disconnect(), "disconnect")
		}
		e.state(e.server, via.StateIdle)
	}
	e.join(e.client.vi, e.server.vi)
	e.passes(e.client, e.server)
}

func fabricFailsWhilePending(e *env) {
	e.under("connect", hook.Plan{FabricFailsConnects: 1}, func(e *env, _ *hook.FaultProvider) {
		e.idle()
		r := e.client.recv()
		_, err := e.client.vi.Connect(e.timeout(), e.service())
		e.wants(err, via.ErrNotReachable, "connect while the fabric fails")
		e.state(e.client, via.StateError)
		_, err = e.client.vi.Connect(e.timeout(), e.service())
		e.wants(err, via.ErrInvalidState, "connect a broken vi")
		e.flushed(e.client, e.client.send())
		e.check(e.client.vi.Disconnect(), "disconnect")
		e.flushed(e.client, r)
		e.join(e.client.vi, e.server.vi)
		e.passes(e.client, e.server)
	})
	e.under("peer", hook.Plan{FabricFailsConnects: 1}, func(e *env, _ *hook.FaultProvider) {
		e.idle()
		a := e.peerAddresses()
		e.check(e.client.vi.PeerRequest(a[0], a[1], caseTimeout), "request a peer")
		_, err := e.client.vi.PeerWait()
		e.wants(err, via.ErrNotReachable, "meet a peer while the fabric fails")
		e.state(e.client, via.StateError)
		e.check(e.client.vi.Disconnect(), "disconnect")
		e.state(e.client, via.StateIdle)
	})
}
