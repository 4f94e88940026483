package via

import (
	"context"
	"fmt"
	"sync"
)

// service names what waits at a host: a listener's discriminator, or the digest
// of a peer-to-peer request.
type service struct {
	name string
	peer bool
}

// waiter is what waits there. offer is called under agent.mu and does not
// block.
type waiter interface {
	// offer takes a request, or returns why not.
	offer(r *ConnRequest) byte
}

// hostListener is a provider's listener at one host address and what waits
// there.
type hostListener struct {
	host      string
	waiters   map[service]waiter // empty while it closes; guarded by agent.mu
	gone      chan struct{}      // closed when the host may be listened at again
	ready     chan struct{}      // closed when listening or err is set
	listening Listening
	err       error
}

// addWaiter makes a waiter known at a host; the first one there opens it.
func (g *agent) addWaiter(n *NIC, host string, s service, w waiter) (*hostListener, error) {
	h, opens, err := g.join(host, s, w)
	if err != nil {
		return nil, err
	}
	if !opens {
		<-h.ready // another call opens the host
		return h, h.err
	}
	g.stats.Listens.Add(1)
	h.listening, h.err = g.adapter.Listen(host, func(in Incoming) { g.dispatch(n, h, in) })
	h.err = withCode(h.err, ErrResource)
	if h.err != nil {
		g.freeHost(h)
	}
	close(h.ready)
	g.noteFailure(h.err)
	return h, h.err
}

// join adds a waiter to a host, after a closing listener there has ended. For
// the first waiter opens is true: it opens the listener.
func (g *agent) join(host string, s service, w waiter) (h *hostListener, opens bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		if err := g.usableLocked(); err != nil {
			return nil, false, err
		}
		h = g.listeners[host]
		if h == nil || len(h.waiters) != 0 {
			break
		}
		g.mu.Unlock()
		<-h.gone
		g.mu.Lock()
	}
	if h == nil {
		h = &hostListener{
			host: host, waiters: make(map[service]waiter),
			ready: make(chan struct{}), gone: make(chan struct{}),
		}
		g.listeners[host], opens = h, true
	}
	if h.waiters[s] != nil {
		return nil, false, fmt.Errorf("address in use: %w", ErrResource)
	}
	h.waiters[s] = w
	return h, opens, nil
}

// freeHost makes a host free to be listened at.
func (g *agent) freeHost(h *hostListener) {
	g.mu.Lock()
	delete(g.listeners, h.host)
	g.mu.Unlock()
	close(h.gone)
}

// removeWaiter removes a waiter; with the last one the host is closed.
func (g *agent) removeWaiter(h *hostListener, s service) error {
	g.mu.Lock()
	delete(h.waiters, s)
	last := len(h.waiters) == 0
	g.mu.Unlock()
	if !last {
		return nil
	}
	defer g.freeHost(h)
	g.stats.Listens.Add(1)
	return withCode(h.listening.Close(), ErrResource)
}

// dispatch hands a request to the waiter of its service.
func (g *agent) dispatch(n *NIC, h *hostListener, in Incoming) {
	m, err := decodeHello(in.Hello())
	if err != nil {
		_ = g.refuse(in, refuseInvalid) // the requester may be gone
		return
	}
	r := &ConnRequest{nic: n, in: in, attrs: m.attrs}
	if reason := g.offer(h, service{m.discriminator, m.peer}, r); reason != 0 {
		_ = g.refuse(in, reason) // as above
	}
}

// offer gives a request to a waiter, or returns why not. The lock ensures
// that no waiter gets a request after its removal.
func (g *agent) offer(h *hostListener, s service, r *ConnRequest) byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := h.waiters[s]; w != nil {
		return w.offer(r)
	}
	return refuseNoMatch
}

// Listener receives the connection requests for one address.
type Listener struct {
	nic      *NIC
	addr     Address
	host     *hostListener
	requests chan *ConnRequest
	closed   chan struct{}
	once     sync.Once
}

// listenBacklog is how many connection requests wait for an answer; more are
// refused.
const listenBacklog = 64

// Listen starts to accept connection requests at an address (the waiting part
// of VipConnectWait). An address that is taken is ErrResource. The listener
// keeps up to 64 requests between calls of Wait and rejects more.
func (n *NIC) Listen(addr Address) (*Listener, error) {
	if !n.made() {
		return nil, noObject("listen")
	}
	if err := addr.check(); err != nil {
		return nil, fmt.Errorf("listen at %v: %w", addr, err)
	}
	l := &Listener{nic: n, addr: addr, requests: make(chan *ConnRequest, listenBacklog), closed: make(chan struct{})}
	var err error
	if l.host, err = n.agent.addWaiter(n, addr.Host, service{name: addr.Discriminator}, l); err != nil {
		return nil, fmt.Errorf("listen at %v: %w", addr, err)
	}
	return l, nil
}

// check refuses an address that no connect message can carry.
func (a Address) check() error {
	if len(a.Discriminator) > MaxDiscriminatorLen {
		return fmt.Errorf("discriminator of %d bytes (limit %d): %w", len(a.Discriminator), MaxDiscriminatorLen, ErrInvalidParameter)
	}
	return nil
}

func (l *Listener) offer(r *ConnRequest) byte {
	r.addr = l.addr
	select {
	case l.requests <- r:
		return 0
	default:
		return refuseReject
	}
}

// Addr returns the listener's address.
func (l *Listener) Addr() Address {
	if l == nil {
		return Address{}
	}
	return l.addr
}

// Wait returns the next connection request (VipConnectWait). It returns
// ErrTimeout when the context ends. A context that has ended polls once.
func (l *Listener) Wait(ctx context.Context) (*ConnRequest, error) {
	if l == nil || l.host == nil {
		return nil, noObject("wait for a connection")
	}
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.closed:
		return nil, fmt.Errorf("wait for a connection: listener is closed: %w", ErrInvalidParameter)
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a connection: %w: %w", ErrTimeout, context.Cause(ctx))
	}
}

// Close stops the listener and refuses the requests that wait.
func (l *Listener) Close() error {
	if l == nil || l.host == nil {
		return noObject("close listener")
	}
	var err error
	l.once.Do(func() {
		close(l.closed)
		err = l.nic.agent.removeWaiter(l.host, service{name: l.addr.Discriminator})
		for {
			select {
			case r := <-l.requests:
				_ = r.Reject()
				continue
			default:
			}
			return
		}
	})
	return err
}
