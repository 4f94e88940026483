package roce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// Connect connects to a listener at a host: it sends a REQ, and an RTU after
// the REP. If the path takes only a smaller MTU, it starts again with that.
func (a *adapter) Connect(ctx context.Context, to string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	h, err := parseHost(to, a.provider.options.Port)
	if err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("connect: %w: %w", via.ErrTimeout, context.Cause(ctx))
	}
	if err := h.Resolve(ctx); err != nil {
		return nil, nil, err
	}
	e, err := a.from(h.Addr)
	if err != nil {
		return nil, nil, err
	}
	defer e.release()
	mtu, err := e.mtuTo(h.Addr)
	for err == nil {
		var l *link
		var reply []byte
		var narrow *narrowPath
		l, reply, err = a.handshake(ctx, e, &h, mtu, hello, cfg)
		if err == nil {
			return l, reply, nil
		}
		if errors.As(err, &narrow) && narrow.mtu < mtu {
			mtu, err = narrow.mtu, nil
		}
	}
	return nil, nil, err
}

// narrowPath is the error of a path with a smaller MTU, known by a REJ for
// "invalid path MTU" or by ICMP.
type narrowPath struct{ mtu wire.MTU }

// Error names the path MTU that the path carries.
func (n *narrowPath) Error() string {
	return fmt.Sprintf("the path takes no more than %d bytes in a packet", n.mtu.Bytes())
}

// from returns the source endpoint of connections to an address and counts one
// more user.
func (a *adapter) from(to netip.Addr) (*endpoint, error) {
	local := a.local.Addr()
	if !local.IsValid() {
		var err error
		if local, err = sourceFor(to); err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.outgoing == nil {
		return nil, fmt.Errorf("device is closed: %w", via.ErrInvalidParameter)
	}
	e := a.outgoing[local]
	if e == nil {
		var err error
		if e, err = a.endpoint(netip.AddrPortFrom(local, a.local.Port())); err != nil {
			return nil, err
		}
		a.outgoing[local] = e
		a.used[e] = struct{}{}
	}
	return a.endpoint(e.local)
}

// mtuTo returns the path MTU to an address, by the kernel's path MTU discovery.
func (e *endpoint) mtuTo(to netip.Addr) (wire.MTU, error) {
	link, err := e.port.LinkMTU(to)
	if err != nil {
		return 0, fmt.Errorf("path to %v: %w: %w", to, via.ErrNotReachable, err)
	}
	return e.provider.mtu(link)
}

// handshake sends a REQ to a peer and waits for the REP.
func (a *adapter) handshake(ctx context.Context, e *endpoint, h *host, mtu wire.MTU, hello []byte, cfg via.LinkConfig) (*link, []byte, error) {
	l, err := newLink(a, e, cfg)
	if err != nil {
		return nil, nil, err
	}
	o := &a.provider.options
	request := &cm.Request{
		Remote: h.AddrPort(), Service: h.service, End: l.localEnd(), MTU: mtu,
		Unreliable: cfg.Reliability == via.UnreliableDelivery,
		Retries:    uint8(min(o.Retries, 7)), AckTimeout: wire.TimeoutFor(o.Timeout), Private: hello,
	}
	var c *cmConn
	err = errManagerFailed
	e.withManager(func(m *cm.Manager, now time.Duration) {
		var id cm.ID
		if id, err = m.Connect(request, now); err == nil {
			c = e.newConn(id, l) // +checklocksfail
		}
	})
	if err != nil {
		_ = l.Close()
		return nil, nil, fmt.Errorf("connect to %v: %w: %w", request.Remote, via.ErrInvalidParameter, err)
	}
	if e.kernel {
		p := startProbe(e, request.Remote, mtu)
		defer p.stop()
	}
	reply, err := l.awaitGrant(ctx, c, mtu)
	if err != nil {
		_ = l.Close()
		return nil, nil, fmt.Errorf("connect to %v: %w", request.Remote, err)
	}
	return l, reply, nil
}

// awaitGrant waits for the peer's REP, creates the queue pair, and sends the
// RTU.
func (l *link) awaitGrant(ctx context.Context, c *cmConn, mtu wire.MTU) ([]byte, error) {
	ev, err := c.next(ctx)
	if err != nil {
		return nil, err
	}
	if ev.Kind != cm.Granted {
		return nil, refusal(&ev)
	}
	if now, err := l.endpoint.mtuTo(ev.From.Addr()); err == nil && now < mtu {
		return nil, fmt.Errorf("%w: %w", via.ErrNotReachable, &narrowPath{now})
	}
	if err := l.createQP(terms{from: ev.From, sameKind: ev.SameKind, peer: ev.Peer, mtu: mtu}); err != nil {
		return nil, &via.FabricError{Cause: err}
	}
	err = errManagerFailed
	l.endpoint.withManager(func(m *cm.Manager, now time.Duration) {
		if err = m.Establish(c.id, now); err == nil {
			c.established = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%w: the peer disconnected: %w", via.ErrNotReachable, err)
	}
	return ev.Private, nil
}

// next waits for the next event of a handshake.
func (c *cmConn) next(ctx context.Context) (cm.Event, error) {
	select {
	case ev := <-c.events:
		return ev, nil
	default:
	}
	select {
	case ev := <-c.events:
		return ev, nil
	case <-ctx.Done():
		return cm.Event{}, fmt.Errorf("%w: %w", via.ErrTimeout, context.Cause(ctx))
	}
}

// refusal returns the error of a failed handshake.
func refusal(ev *cm.Event) error {
	switch {
	case ev.Kind == cm.TimedOut:
		return fmt.Errorf("no answer: is its UDP port open between the hosts?: %w", via.ErrNotReachable)
	case ev.Kind == cm.Unreachable:
		return fmt.Errorf("host or port unreachable: %w", via.ErrNotReachable)
	case ev.Kind != cm.Rejected:
		return fmt.Errorf("the peer disconnected: %w", via.ErrNotReachable)
	case ev.Reason == wire.RejectConsumer:
		return &via.Refused{Reply: ev.Private}
	case ev.Reason == wire.RejectInvalidServiceID:
		return fmt.Errorf("no listener for the service: %w", via.ErrNotReachable)
	case ev.Reason == wire.RejectInvalidMTU && ev.MTU.IsValid():
		return fmt.Errorf("%w: %w", via.ErrNotReachable, &narrowPath{ev.MTU})
	case ev.Reason == wire.RejectNoQP, ev.Reason == wire.RejectNoResources:
		return fmt.Errorf("the peer: %v: %w", ev.Reason, via.ErrResource)
	default:
		return fmt.Errorf("the peer: %v: %w", ev.Reason, via.ErrNotReachable)
	}
}
