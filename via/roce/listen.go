package roce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/rdmahost"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// listening accepts requests for a service at the endpoints of a host.
type listening struct {
	adapter   *adapter
	service   wire.ServiceID
	incoming  func(via.Incoming)
	endpoints []*endpoint
	requests  rdmahost.Requests[*request]

	// places are those of the requests that the consumer holds: until it
	// refuses, or the connection is established or times out. The bounds of the
	// connection manager do not replace these: it forgets requests that the
	// consumer still holds.
	places rdmahost.Places
}

// Listen listens at a host; a wildcard stands for all addresses of this host.
func (a *adapter) Listen(at string, incoming func(via.Incoming)) (via.Listening, error) {
	h, err := parseHost(at, a.provider.options.Port)
	if err != nil {
		return nil, err
	}
	if err := h.Resolve(context.Background()); err != nil {
		return nil, err
	}
	addrs, err := a.locals(&h)
	if err != nil {
		return nil, err
	}
	s := &listening{adapter: a, service: h.service, incoming: incoming}
	for _, addr := range addrs {
		if err := s.listenAt(netip.AddrPortFrom(addr, h.Port)); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// listenAt listens at one more endpoint.
func (s *listening) listenAt(local netip.AddrPort) error {
	e, err := s.adapter.openEndpoint(local)
	if err != nil {
		return err
	}
	s.adapter.use(e)
	free := false
	e.withManager(func(m *cm.Manager, _ time.Duration) {
		if free = m.Listen(s.service); free {
			e.services[s.service] = s
		}
	})
	e.start()
	if !free {
		e.release()
		return fmt.Errorf("listen at %v: the service has a listener: %w", local, via.ErrResource)
	}
	s.endpoints = append(s.endpoints, e)
	return nil
}

// Close stops listening, refuses the unanswered requests, and waits for the
// calls of incoming.
func (s *listening) Close() error {
	for _, e := range s.endpoints {
		e.withManager(func(m *cm.Manager, _ time.Duration) {
			m.Unlisten(s.service)
			delete(e.services, s.service)
		})
	}
	for _, r := range s.requests.Close() {
		_ = r.Refuse(nil) // it may have been answered
	}
	s.requests.Wait()
	for _, e := range s.endpoints {
		e.release()
	}
	s.endpoints = nil
	return nil
}

// request is a peer's request to connect.
type request struct {
	listening *listening
	endpoint  *endpoint
	conn      *cmConn
	event     cm.Event
	place     *rdmahost.Place
	link      *link // of a confirmed request, until Accept has it
}

// requested returns the request of a REQ, or rejects a REQ without a listener.
//
// +checklocks:e.mu
func (e *endpoint) requested(ev cm.Event) *request {
	s := e.services[ev.Service]
	if s == nil {
		_ = e.manager.Reject(ev.ID, &cm.Refusal{Reason: wire.RejectInvalidServiceID}, clock()) // fails only if the request has timed out
		return nil
	}
	return &request{listening: s, endpoint: e, conn: e.newConn(ev.ID, nil), event: ev}
}

// submit hands a request to the consumer, on a new goroutine. It drops a
// request beyond the bounds: the peer retransmits it.
func (s *listening) submit(r *request) {
	if r.place = s.places.Acquire(r.event.From.Addr()); r.place == nil {
		r.endpoint.withManager(func(m *cm.Manager, _ time.Duration) { m.Forget(r.event.ID) })
		return
	}
	if !r.validateMTU() {
		return
	}
	if !s.requests.Deliver(r, func(r *request) { s.incoming(r) }, func(r *request) { _ = r.Refuse(nil) }) {
		_ = r.refuse(&cm.Refusal{Reason: wire.RejectInvalidServiceID})
	}
}

// validateMTU refuses a request whose path MTU exceeds that of the path.
func (r *request) validateMTU() bool {
	mtu, err := r.endpoint.mtuTo(r.event.From.Addr())
	if err == nil && r.event.MTU <= mtu {
		return true
	}
	_ = r.refuse(&cm.Refusal{Reason: wire.RejectInvalidMTU, MTU: mtu}) // the peer may retry with this MTU
	return false
}

// Hello returns the requester's connect message, with the zeros that fill its
// field.
func (r *request) Hello() []byte { return r.event.Private }

// RemoteHost returns the requester's address.
func (r *request) RemoteHost() string { return r.event.From.String() }

// Refuse sends a REJ with the consumer's reply as private data, or ends the
// connection of a confirmed request.
func (r *request) Refuse(reply []byte) error {
	if r.link != nil {
		return r.link.Close()
	}
	return r.refuse(&cm.Refusal{Private: reply})
}

func (r *request) refuse(why *cm.Refusal) (err error) {
	r.listening.requests.Remove(r)
	defer r.place.Release()
	r.endpoint.withManager(func(m *cm.Manager, now time.Duration) {
		err = m.Reject(r.event.ID, why, now)
		r.conn.peerDone = true
	})
	if err != nil {
		return fmt.Errorf("refuse %v: %w: %w", r.event.From, via.ErrInvalidParameter, err)
	}
	return nil
}

// Confirm answers with a link that has nothing but its place in the table of a
// shard: neither queues nor a completion queue, for which there is a
// placeholder.
func (r *request) Confirm(ctx context.Context, reply []byte, level via.ReliabilityLevel) error {
	return r.answer(ctx, reply, via.LinkConfig{Reliability: level, RecvCQ: new(cq)})
}

// answer sends the REP, and waits for the RTU or a packet on the queue pair,
// which implies it.
func (r *request) answer(ctx context.Context, reply []byte, cfg via.LinkConfig) error {
	r.listening.requests.Remove(r)
	defer r.place.Release()
	if r.event.Unreliable != (cfg.Reliability == via.UnreliableDelivery) {
		_ = r.refuse(&cm.Refusal{Reason: wire.RejectInvalidTransport})
		return fmt.Errorf("accept %v: %w", r.event.From, via.ErrInvalidReliability)
	}
	l, err := newLink(r.listening.adapter, r.endpoint, cfg)
	if err != nil {
		return err
	}
	l.handshake.id = r.conn.id // early packets may establish the connection
	if err = l.insert(terms{from: r.event.From, sameKind: r.event.SameKind, peer: r.event.Peer, mtu: r.event.MTU}); err == nil {
		err = l.grant(ctx, r, reply)
	}
	if err != nil {
		_ = l.Close()
		return fmt.Errorf("accept %v: %w", r.event.From, err)
	}
	r.link = l
	return nil
}

// Accept equips the link of the request, which it confirms unless that is done.
func (r *request) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	if r.link == nil {
		if err := r.answer(ctx, reply, cfg); err != nil {
			return nil, err
		}
	}
	l := r.link
	r.link = nil
	if err := l.equip(cfg); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("accept %v: %w", r.event.From, err)
	}
	return l, nil
}

// grant sends the REP, and waits for the connection manager's Established.
func (l *link) grant(ctx context.Context, r *request, reply []byte) error {
	c, err := r.conn, errManagerFailed
	l.endpoint.withManager(func(m *cm.Manager, now time.Duration) {
		c.link, c.qpn = l, l.qpn
		err = m.Accept(c.id, &cm.Answer{End: l.localEnd(), Private: reply}, now)
	})
	if err != nil {
		return fmt.Errorf("the request has ended: %w: %w", via.ErrTimeout, err)
	}
	ev, err := c.next(ctx)
	if err != nil {
		return err
	}
	if ev.Kind != cm.Established {
		return refusal(&ev)
	}
	return nil
}
