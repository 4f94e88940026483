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

// Connect requests a connection from a listener at a host.
func (a *adapter) Connect(ctx context.Context, to string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	h, err := parseHost(to, a.provider.options.Port)
	if err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("connect: %w: %w", via.ErrTimeout, context.Cause(ctx))
	}
	if err := h.resolve(ctx); err != nil {
		return nil, nil, err
	}
	e, err := a.from(h.addr)
	if err != nil {
		return nil, nil, err
	}
	defer e.release()
	mtu, err := e.mtuTo(h.addr)
	for err == nil {
		var l *link
		var reply []byte
		var narrow *narrowPath
		l, reply, err = a.ask(ctx, e, &h, mtu, hello, cfg)
		if err == nil {
			return l, reply, nil
		}
		if errors.As(err, &narrow) && narrow.mtu < mtu {
			mtu, err = narrow.mtu, nil
		}
	}
	return nil, nil, err
}

// narrowPath is a refusal by a peer whose packets are shorter, or by a router on
// the way to it.
type narrowPath struct{ mtu wire.MTU }

// Error tells the path MTU that would do.
func (n *narrowPath) Error() string {
	return fmt.Sprintf("the path takes no more than %d bytes in a packet", n.mtu.Bytes())
}

// from returns the endpoint that connections to an address come from, for one
// user more.
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

// mtuTo returns the path MTU to an address, as far as this end can tell.
func (e *endpoint) mtuTo(to netip.Addr) (wire.MTU, error) {
	link, err := e.port.LinkMTU(to)
	if err != nil {
		return 0, fmt.Errorf("path to %v: %w: %w", to, via.ErrNotReachable, err)
	}
	return e.provider.mtu(link)
}

// ask asks a peer, and waits for the answer.
func (a *adapter) ask(ctx context.Context, e *endpoint, h *host, mtu wire.MTU, hello []byte, cfg via.LinkConfig) (*link, []byte, error) {
	l, err := newLink(a, e, cfg)
	if err != nil {
		return nil, nil, err
	}
	o := &a.provider.options
	request := &cm.Request{
		Remote: netip.AddrPortFrom(h.addr, h.port), Service: h.service, End: l.ours(), MTU: mtu,
		Unreliable: cfg.Reliability == via.UnreliableDelivery,
		Retries:    uint8(min(o.Retries, 7)), AckTimeout: wire.TimeoutFor(o.Timeout), Private: hello,
	}
	var c *conversation
	e.consult(func(m *cm.Manager, now time.Duration) {
		var id cm.ID
		if id, err = m.Connect(request, now); err == nil {
			c = e.converse(id, l)
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
	reply, err := l.await(ctx, c, mtu)
	if err != nil {
		_ = l.Close()
		return nil, nil, fmt.Errorf("connect to %v: %w", request.Remote, err)
	}
	return l, reply, nil
}

// await waits until the peer has granted the connection, and establishes it.
func (l *link) await(ctx context.Context, c *conversation, mtu wire.MTU) ([]byte, error) {
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
	if err := l.enter(terms{from: ev.From, own: ev.Own, peer: ev.Peer, mtu: mtu}); err != nil {
		return nil, &via.FabricError{Cause: err}
	}
	l.endpoint.consult(func(m *cm.Manager, now time.Duration) {
		if err = m.Establish(c.id, now); err == nil {
			c.works = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%w: the peer has gone: %w", via.ErrNotReachable, err)
	}
	return ev.Private, nil
}

// next waits for the next event of a handshake.
func (c *conversation) next(ctx context.Context) (cm.Event, error) {
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

// refusal is the error that a handshake ended with.
func refusal(ev *cm.Event) error {
	switch {
	case ev.Kind == cm.TimedOut:
		return fmt.Errorf("nobody answers: %w", via.ErrNotReachable)
	case ev.Kind == cm.Unreachable:
		return fmt.Errorf("nobody is there: %w", via.ErrNotReachable)
	case ev.Kind != cm.Rejected:
		return fmt.Errorf("the peer has gone: %w", via.ErrNotReachable)
	case ev.Reason == wire.RejectConsumer:
		return &via.Refused{Reply: ev.Private}
	case ev.Reason == wire.RejectInvalidServiceID:
		return fmt.Errorf("nobody listens there: %w", via.ErrNotReachable)
	case ev.Reason == wire.RejectInvalidMTU && ev.MTU.IsValid():
		return fmt.Errorf("%w: %w", via.ErrNotReachable, &narrowPath{ev.MTU})
	case ev.Reason == wire.RejectNoQP, ev.Reason == wire.RejectNoResources:
		return fmt.Errorf("the peer: %v: %w", ev.Reason, via.ErrResource)
	default:
		return fmt.Errorf("the peer: %v: %w", ev.Reason, via.ErrNotReachable)
	}
}
