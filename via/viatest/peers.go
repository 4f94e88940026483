package viatest

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

var peerCases = []kitCase{
	{"PeersMeet", Functional, "two ends that ask for each other are connected, whichever has the greater address", anyLevel, 0, peersMeet},
	{"PeerComesLate", Functional, "a request waits, pending, for a peer that comes later", anyLevel, 0, peerComesLate},
	{"PeerOutlivesListener", Functional, "a refusal without a reason, of a listener that closes, does not end a request", anyLevel, 0, peerOutlivesListener},
	{"PeerTimesOut", Functional, "a request that no peer answers times out, and may be made again", anyLevel, 0, peerTimesOut},
	{"PeerMismatch", Functional, "peers whose attributes differ both fail, and say which", anyLevel, 0, peerMismatch},
	{"PeerAddressesCross", Functional, "peers meet only if each names the other", anyLevel, 0, peerAddressesCross},
	{"DisconnectCancelsPeer", Functional, "Disconnect ends a request, and the VI is idle", anyLevel, 0, disconnectCancelsPeer},
	{"CrossingRequests", Functional, "requests that cross yield just one connection, every time", anyLevel, 0, crossingRequests},
	{"PeerReceivesWhilePending", Functional, "receives posted while a peer is awaited get its first messages", anyLevel, 0, peerReceivesWhilePending},
	{"PeerRefusals", Functional, "a request needs an idle VI, two addresses and time; a result needs a request", anyLevel, 0, peerRefusals},
}

// pair returns two addresses, the first less than the second.
func (e *env) pair() (less, greater via.Address) {
	a, b := e.service(), e.service()
	if a.Host > b.Host || a.Host == b.Host && a.Discriminator > b.Discriminator {
		a, b = b, a
	}
	return a, b
}

// peerResult waits for the result of a request without blocking.
func (e *env) peerResult(x *end) (via.ViAttributes, error) {
	e.t.Helper()
	var attrs via.ViAttributes
	err := error(via.ErrNotDone)
	for deadline := time.Now().Add(caseTimeout); err == via.ErrNotDone; pause() {
		if attrs, err = x.vi.PeerDone(); err == via.ErrNotDone && time.Now().After(deadline) {
			e.t.Fatalf("timed out waiting for the peer of %v", x)
		}
	}
	return attrs, err
}

// meet connects both default VIs as peers.
func (e *env) meet(client, server via.Address) {
	e.t.Helper()
	e.check(e.client.vi.PeerRequest(client, server, caseTimeout), "request the server")
	e.check(e.server.vi.PeerRequest(server, client, caseTimeout), "request the client")
	_, err := e.peerResult(e.client)
	e.check(err, "meet the server")
	_, err = e.server.vi.PeerWait()
	e.check(err, "meet the client")
	e.state(e.client, via.StateConnected)
	e.state(e.server, via.StateConnected)
}

func peersMeet(e *env) {
	less, greater := e.pair()
	for _, addrs := range [][2]via.Address{{less, greater}, {greater, less}} {
		e.client.vi = e.client.newVI(e.client.attributes())
		attrs := e.server.attributes()
		attrs.EnableRdmaWrite = false
		e.server.vi = e.server.newVI(attrs)
		e.check(e.client.vi.PeerRequest(addrs[0], addrs[1], caseTimeout), "request the server")
		e.state(e.client, via.StatePending)
		e.check(e.server.vi.PeerRequest(addrs[1], addrs[0], caseTimeout), "request the client")
		mine, err := e.peerResult(e.client)
		e.check(err, "meet the server")
		theirs, err := e.peerResult(e.server)
		e.check(err, "meet the client")
		if mine.EnableRdmaWrite || !theirs.EnableRdmaWrite || mine.MaxTransferSize != attrs.MaxTransferSize || theirs.Reliability != e.level {
			e.t.Errorf("the client hears of %+v, the server of %+v", mine, theirs)
		}
		e.passes(e.client, e.server)
		e.passes(e.server, e.client)
		_, err = e.client.vi.PeerDone()
		e.wants(err, via.ErrInvalidState, "ask for the result again")
	}
}

func peerComesLate(e *env) {
	less, greater := e.pair()
	for _, addrs := range [][2]via.Address{{less, greater}, {greater, less}} {
		e.idle()
		e.check(e.client.vi.PeerRequest(addrs[0], addrs[1], caseTimeout), "request the server")
		for range 50 {
			if _, err := e.client.vi.PeerDone(); err != via.ErrNotDone {
				e.t.Fatalf("a request without a peer ends with %v", err)
			}
			pause()
		}
		e.state(e.client, via.StatePending)
		e.check(e.server.vi.PeerRequest(addrs[1], addrs[0], caseTimeout), "request the client")
		_, err := e.server.vi.PeerWait()
		e.check(err, "meet the client")
		_, err = e.client.vi.PeerWait()
		e.check(err, "meet the server")
		e.passes(e.client, e.server)
		e.passes(e.server, e.client)
	}
}

func peerOutlivesListener(e *env) {
	closing := &closingProvider{}
	e = newEnv(e.t, e.open, func(p via.Provider) via.Provider {
		closing.Provider = p
		return closing
	}, e.level)
	e.idle()
	less, greater := e.pair()
	closing.refuses.Store(true)
	e.check(e.client.vi.PeerRequest(less, greater, caseTimeout), "request the server")
	e.check(e.server.vi.PeerRequest(greater, less, caseTimeout), "request the client")
	e.until("the client to ask again", func() bool {
		if _, err := e.client.vi.PeerDone(); err != via.ErrNotDone {
			e.t.Fatalf("a request ends with a refusal without a reason: %v", err)
		}
		return closing.refused.Load() > 2
	})
	closing.refuses.Store(false)
	_, err := e.peerResult(e.client)
	e.check(err, "meet the server")
	_, err = e.server.vi.PeerWait()
	e.check(err, "meet the client")
	e.passes(e.client, e.server)
	e.passes(e.server, e.client)
}

// closingProvider is a provider whose listeners, while refuses is set, refuse
// requests without a reason, as a listener does that closes.
type closingProvider struct {
	via.Provider
	refuses atomic.Bool
	refused atomic.Int64
}

// Open opens a device.
func (p *closingProvider) Open(device string) (via.Adapter, error) {
	a, err := p.Provider.Open(device)
	if err != nil {
		return nil, err
	}
	return &closingAdapter{a, p}, nil
}

// closingAdapter is a device of a closingProvider.
type closingAdapter struct {
	via.Adapter
	provider *closingProvider
}

// Listen listens.
func (a *closingAdapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	return a.Adapter.Listen(host, func(in via.Incoming) {
		p := a.provider
		if !p.refuses.Load() {
			incoming(in)
			return
		}
		_ = in.Refuse(nil) // the requester may be gone
		p.refused.Add(1)
	})
}

func peerTimesOut(e *env) {
	e.idle()
	less, greater := e.pair()
	pending := e.client.recv()
	for _, addrs := range [][2]via.Address{{less, greater}, {greater, less}} {
		for _, wait := range []func() (via.ViAttributes, error){
			e.client.vi.PeerWait,
			func() (via.ViAttributes, error) { return e.peerResult(e.client) },
		} {
			e.check(e.client.vi.PeerRequest(addrs[0], addrs[1], 5*time.Millisecond), "request the server")
			_, err := wait()
			e.wants(err, via.ErrTimeout, "peer request without a peer")
			e.state(e.client, via.StateIdle)
		}
	}
	e.quiet("the receive waits")
	e.meet(less, greater)
	e.ok(e.server, e.server.send())
	e.ok(e.client, pending)
}

func peerMismatch(e *env) {
	less, greater := e.pair()
	size, qos := e.server.attributes(), e.server.attributes()
	size.MaxTransferSize--
	qos.QoS = 7
	misfits := map[via.Error]via.ViAttributes{via.ErrInvalidMTU: size, via.ErrInvalidQoS: qos}
	for _, l := range levels {
		if other := e.server.attributes(); l != e.level && e.server.nic.Limits().ReliabilityLevels&l != 0 {
			other.Reliability, other.EnableRdmaRead = l, false
			misfits[via.ErrInvalidReliability] = other
		}
	}
	for code, attrs := range misfits {
		for _, addrs := range [][2]via.Address{{less, greater}, {greater, less}} {
			e.client.vi, e.server.vi = e.client.newVI(e.client.attributes()), e.server.newVI(attrs)
			e.check(e.client.vi.PeerRequest(addrs[0], addrs[1], caseTimeout), "request the server")
			e.check(e.server.vi.PeerRequest(addrs[1], addrs[0], caseTimeout), "request the client")
			for _, x := range []*end{e.client, e.server} {
				_, err := e.peerResult(x)
				e.wants(err, code, x.name+": meet a peer with other attributes")
				e.state(x, via.StateIdle)
			}
		}
	}
}

func peerAddressesCross(e *env) {
	e.idle()
	first, last := e.pair()
	middle := e.service() // they share a host, where one of them at most may listen
	if middle.Discriminator > last.Discriminator {
		middle, last = last, middle
	}
	const short = 30 * time.Millisecond
	for _, addrs := range [][4]via.Address{
		{first, last, middle, first}, // the server has another address
		{first, last, last, middle},  // and asks for another address
		{middle, last, last, first},  // the server asks for another address
		{last, middle, first, last},  // the server has another address
		{first, last, first, last},   // both ask for the same
	} {
		e.check(e.client.vi.PeerRequest(addrs[0], addrs[1], short), "request")
		e.check(e.server.vi.PeerRequest(addrs[2], addrs[3], short), "request")
		for _, x := range []*end{e.client, e.server} {
			_, err := x.vi.PeerWait()
			e.wants(err, via.ErrTimeout, fmt.Sprintf("%s: meet by the addresses %v", x.name, addrs))
			e.state(x, via.StateIdle)
		}
	}
}

func disconnectCancelsPeer(e *env) {
	e.idle()
	less, greater := e.pair()
	for _, addrs := range [][2]via.Address{{less, greater}, {greater, less}} {
		r := e.client.recv()
		e.check(e.client.vi.PeerRequest(addrs[0], addrs[1], via.Infinite), "request the server")
		e.check(e.client.vi.Disconnect(), "disconnect")
		e.state(e.client, via.StateIdle)
		e.flushed(e.client, r)
		_, err := e.client.vi.PeerDone()
		e.wants(err, via.ErrInvalidState, "ask for the result of a request that is cancelled")
		_, err = e.client.vi.PeerWait()
		e.wants(err, via.ErrInvalidState, "wait for the result of a request that is cancelled")
		e.meet(addrs[0], addrs[1])
		e.passes(e.client, e.server)
		for _, x := range []*end{e.client, e.server} {
			e.check(x.vi.Disconnect(), "disconnect")
		}
	}
}

func crossingRequests(e *env) {
	e.idle()
	less, greater := e.pair()
	for i := range 50 {
		addrs := [2]via.Address{less, greater}
		if i%2 == 1 {
			addrs = [2]via.Address{greater, less}
		}
		ended := make(chan error, 1)
		go func() {
			err := e.server.vi.PeerRequest(addrs[1], addrs[0], caseTimeout)
			if err == nil {
				_, err = e.server.vi.PeerWait()
			}
			ended <- err
		}()
		e.check(e.client.vi.PeerRequest(addrs[0], addrs[1], caseTimeout), "request the server")
		_, err := e.client.vi.PeerWait()
		e.check(errors.Join(err, <-ended), "meet")
		e.state(e.client, via.StateConnected)
		e.state(e.server, via.StateConnected)
		r := e.server.recv()
		e.ok(e.client, e.client.sendImmediate(uint32(i)))
		if c := e.ok(e.server, r); c.Immediate != uint32(i) {
			e.t.Fatalf("connection %d got the message of another", i)
		}
		if s := e.client.vi.Stats(); s.Sends != 1 {
			e.t.Fatalf("connection %d has sent %d messages", i, s.Sends)
		}
		for _, x := range []*end{e.client, e.server} {
			e.check(x.vi.Disconnect(), "disconnect")
		}
	}
	e.quiet("after the last connection")
}

func peerReceivesWhilePending(e *env) {
	e.idle()
	less, greater := e.pair()
	for _, addrs := range [][2]via.Address{{less, greater}, {greater, less}} {
		early := e.client.recv()
		e.check(e.client.vi.PeerRequest(addrs[0], addrs[1], caseTimeout), "request the server")
		late := e.client.recv()
		e.flushed(e.client, e.client.send())
		e.check(e.server.vi.PeerRequest(addrs[1], addrs[0], caseTimeout), "request the client")
		_, err := e.server.vi.PeerWait()
		e.check(err, "meet the client")
		// Its messages now wait until the client knows.
		e.server.sendImmediate(1)
		e.server.sendImmediate(2)
		_, err = e.client.vi.PeerWait()
		e.check(err, "meet the server")
		for i, r := range []*via.Descriptor{early, late} {
			if c := e.ok(e.client, r); c.Immediate != uint32(i+1) {
				e.t.Errorf("receive %d got message %d", i+1, c.Immediate)
			}
		}
		for _, x := range []*end{e.client, e.server} {
			e.check(x.vi.Disconnect(), "disconnect")
		}
		e.quietly()
	}
}

func peerRefusals(e *env) {
	e.idle()
	a, b := e.pair()
	vi := e.client.vi
	long := a
	long.Discriminator = strings.Repeat("x", via.MaxDiscriminatorLen+1)
	refused := func(local, remote via.Address, timeout time.Duration, code error, doing string) {
		e.t.Helper()
		e.wants(vi.PeerRequest(local, remote, timeout), code, doing)
	}
	refused(a, b, 0, via.ErrInvalidParameter, "request without time")
	refused(a, a, caseTimeout, via.ErrInvalidParameter, "request oneself")
	refused(long, b, caseTimeout, via.ErrInvalidParameter, "request from an address that is too long")
	refused(a, long, caseTimeout, via.ErrInvalidParameter, "request an address that is too long")
	e.state(e.client, via.StateIdle)
	for _, result := range []func() (via.ViAttributes, error){vi.PeerDone, vi.PeerWait} {
		_, err := result()
		e.wants(err, via.ErrInvalidState, "ask for the result of no request")
	}
	e.check(vi.PeerRequest(a, b, via.Infinite), "request")
	refused(a, b, caseTimeout, via.ErrInvalidState, "request twice")
	_, err := vi.Connect(e.timeout(), e.service())
	e.wants(err, via.ErrInvalidState, "connect while a peer is awaited")
	e.wants(vi.Destroy(), via.ErrResource, "destroy a vi whose peer is awaited")
	e.check(vi.Disconnect(), "disconnect")
	e.join(e.client.vi, e.server.vi)
	refused(a, b, caseTimeout, via.ErrInvalidState, "request while connected")
	e.check(e.server.vi.Disconnect(), "disconnect")
	e.breaks(e.client)
	refused(a, b, caseTimeout, via.ErrInvalidState, "request while broken")
	gone, err := e.client.nic.CreateVi(e.client.attributes(), via.ViConfig{SendDepth: 1, RecvDepth: 1})
	e.check(err, "create vi")
	e.check(gone.Destroy(), "destroy vi")
	e.wants(gone.PeerRequest(a, b, caseTimeout), via.ErrInvalidParameter, "request with a destroyed vi")
}
