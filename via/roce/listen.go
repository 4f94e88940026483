package roce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// listening accepts requests for a service at the endpoints of a host.
type listening struct {
	adapter   *adapter
	service   wire.ServiceID
	incoming  func(via.Incoming)
	endpoints []*endpoint
	calls     sync.WaitGroup // of incoming

	mu      sync.Mutex // before endpoint.mu
	closed  bool
	pending map[*request]struct{} // not yet answered
	crowd   map[netip.Addr]int    // requests that the consumer has, by source
	crowded int                   // all of them
}

// Bounds of the requests that a consumer has at once: it sets a connection up for
// each, whether there is a peer or not. One ends with its refusal, or when the
// requester knows or is given up. The connection manager's own bounds are no help:
// it forgets requests that the consumer still has.
const (
	mostRequests        = 128
	mostRequestsPerAddr = 16
)

// Listen listens at a host; a wildcard is each address of this one.
func (a *adapter) Listen(at string, incoming func(via.Incoming)) (via.Listening, error) {
	h, err := parseHost(at, a.provider.options.Port)
	if err != nil {
		return nil, err
	}
	if err := h.resolve(context.Background()); err != nil {
		return nil, err
	}
	addrs, err := a.locals(&h)
	if err != nil {
		return nil, err
	}
	s := &listening{adapter: a, service: h.service, incoming: incoming, pending: make(map[*request]struct{}), crowd: make(map[netip.Addr]int)}
	for _, addr := range addrs {
		if err := s.listenAt(netip.AddrPortFrom(addr, h.port)); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// listenAt listens at one more endpoint.
func (s *listening) listenAt(local netip.AddrPort) error {
	e, err := s.adapter.endpoint(local)
	if err != nil {
		return err
	}
	s.adapter.use(e)
	free := false
	e.consult(func(m *cm.Manager, _ time.Duration) {
		if free = m.Listen(s.service); free {
			e.services[s.service] = s
		}
	})
	if !free {
		e.release()
		return fmt.Errorf("listen at %v: somebody does: %w", local, via.ErrResource)
	}
	s.endpoints = append(s.endpoints, e)
	return nil
}

// Close stops listening, refuses what is not answered, and waits for the calls of
// incoming.
func (s *listening) Close() error {
	for _, e := range s.endpoints {
		e.consult(func(m *cm.Manager, _ time.Duration) {
			m.Unlisten(s.service)
			delete(e.services, s.service)
		})
	}
	s.mu.Lock()
	s.closed = true
	pending := s.pending
	s.pending = nil
	s.mu.Unlock()
	for r := range pending {
		_ = r.Refuse(nil) // it may be answered meanwhile
	}
	s.calls.Wait()
	for _, e := range s.endpoints {
		e.release()
	}
	s.endpoints = nil
	return nil
}

// request is a peer's request to connect.
type request struct {
	listening    *listening
	endpoint     *endpoint
	conversation *conversation
	event        cm.Event
	left         atomic.Bool // the crowd
}

// requested makes a request of an event, or refuses it.
//
// +checklocks:e.mu
func (e *endpoint) requested(ev cm.Event) *request {
	s := e.services[ev.Service]
	if s == nil {
		_ = e.manager.Reject(ev.ID, &cm.Refusal{Reason: wire.RejectInvalidServiceID}, clock()) // nobody is to know
		return nil
	}
	return &request{listening: s, endpoint: e, conversation: e.converse(ev.ID, nil), event: ev}
}

// submit hands a request to the consumer, on a goroutine of its own. One that finds
// no room is dropped: its peer asks again.
func (s *listening) submit(r *request) {
	if !s.enter(r) {
		r.endpoint.consult(func(m *cm.Manager, _ time.Duration) { m.Forget(r.event.ID) })
		return
	}
	if !r.judge() {
		return
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = r.refuse(&cm.Refusal{Reason: wire.RejectInvalidServiceID})
		return
	}
	s.pending[r] = struct{}{}
	s.calls.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.calls.Done()
		s.incoming(r)
	}()
}

// enter takes a request in, if there is room.
func (s *listening) enter(r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := r.event.From.Addr()
	if s.crowded >= mostRequests || s.crowd[from] >= mostRequestsPerAddr {
		return false
	}
	s.crowd[from]++
	s.crowded++
	return true
}

// done says that the consumer has nothing to do with a request any more. It is
// called once, or more often.
func (r *request) done() {
	if r.left.Swap(true) {
		return
	}
	s, from := r.listening, r.event.From.Addr()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crowded--
	if s.crowd[from]--; s.crowd[from] == 0 {
		delete(s.crowd, from)
	}
}

// judge refuses a request whose packets the path does not carry.
func (r *request) judge() bool {
	mtu, err := r.endpoint.mtuTo(r.event.From.Addr())
	if err == nil && r.event.MTU <= mtu {
		return true
	}
	_ = r.refuse(&cm.Refusal{Reason: wire.RejectInvalidMTU, MTU: mtu}) // the peer asks again, or not
	return false
}

// Hello returns the requester's connect message, with the zeros that fill its
// field.
func (r *request) Hello() []byte { return r.event.Private }

// RemoteHost returns the requester's address.
func (r *request) RemoteHost() string { return r.event.From.String() }

// claim takes the request off those that the listener refuses when it closes.
func (r *request) claim() {
	r.listening.mu.Lock()
	delete(r.listening.pending, r)
	r.listening.mu.Unlock()
}

// Refuse answers no.
func (r *request) Refuse(reply []byte) error {
	return r.refuse(&cm.Refusal{Private: reply})
}

func (r *request) refuse(why *cm.Refusal) (err error) {
	r.claim()
	defer r.done()
	r.endpoint.consult(func(m *cm.Manager, now time.Duration) {
		err = m.Reject(r.event.ID, why, now)
		r.conversation.over = true
	})
	if err != nil {
		return fmt.Errorf("refuse %v: %w: %w", r.event.From, via.ErrInvalidParameter, err)
	}
	return nil
}

// Accept answers yes, and waits until the requester knows.
func (r *request) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	r.claim()
	defer r.done()
	e := r.endpoint
	if r.event.Unreliable != (cfg.Reliability == via.UnreliableDelivery) {
		_ = r.refuse(&cm.Refusal{Reason: wire.RejectInvalidTransport})
		return nil, fmt.Errorf("accept %v: %w", r.event.From, via.ErrInvalidReliability)
	}
	l, err := newLink(r.listening.adapter, e, cfg)
	if err != nil {
		return nil, err
	}
	l.id = r.conversation.id // before packets arrive, which may establish the connection
	if err = l.enter(terms{from: r.event.From, own: r.event.Own, peer: r.event.Peer, mtu: r.event.MTU}); err == nil {
		err = l.grant(ctx, r, reply)
	}
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("accept %v: %w", r.event.From, err)
	}
	return l, nil
}

// grant tells the requester, and waits until it has heard.
func (l *link) grant(ctx context.Context, r *request, reply []byte) (err error) {
	c := r.conversation
	l.endpoint.consult(func(m *cm.Manager, now time.Duration) {
		c.link, c.qpn = l, l.qpn
		err = m.Accept(c.id, &cm.Answer{End: l.ours(), Private: reply}, now)
	})
	if err != nil {
		return fmt.Errorf("the requester has gone: %w: %w", via.ErrTimeout, err)
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
