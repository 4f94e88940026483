//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/wire"
)

// resolveTime bounds the resolution of an address or a route, milliseconds.
const resolveTime = 4000

// Connect requests a connection from a listener at a host.
func (a *adapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	to, err := resolve(ctx, host)
	if err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("connect: %w: %w", via.ErrTimeout, context.Cause(ctx))
	}
	l, err := a.newLink(cfg)
	if err != nil {
		return nil, nil, err
	}
	reply, err := l.dial(ctx, sockaddr(to), hello)
	if err != nil {
		_ = l.Close()
		return nil, nil, fmt.Errorf("connect to %v: %w", to, err)
	}
	return l, reply, nil
}

// newID creates the ID of a connection or listener.
func (a *adapter) newID() (*C.struct_rdma_cm_id, error) {
	var id *C.struct_rdma_cm_id
	if failed, err := C.rdma_create_id(a.channel, &id, nil, C.RDMA_PS_TCP); failed != 0 {
		return nil, a.refused("create an ID of the connection manager", err)
	}
	return id, nil
}

// maxChallenges bounds the cookies that one Connect returns.
const maxChallenges = 8

// dial requests the connection and sets it up when the peer accepts. A full
// listener of via/roce wants a cookie, which the next request returns.
func (l *link) dial(ctx context.Context, to, hello []byte) (reply []byte, err error) {
	for range maxChallenges {
		var full *noRoomError
		if reply, err = l.request(ctx, to, hello); !errors.As(err, &full) {
			break
		}
		filled := wire.Challenge(full.private, hello, wire.UserSize)
		if filled == nil {
			break
		}
		hello = filled
	}
	return reply, err
}

// request is one attempt of dial: an ID of rdma_cm makes one.
func (l *link) request(ctx context.Context, to, hello []byte) ([]byte, error) {
	a := l.adapter
	id, err := a.newID()
	if err != nil {
		return nil, err
	}
	c := a.newCMConn(id)
	reply, err := l.handshake(ctx, c, to, hello)
	if errors.Is(err, via.ErrTimeout) {
		err = fmt.Errorf("%w: %w", errSilent, err)
	}
	if err != nil {
		a.disconnect(c, false)
		return nil, err
	}
	return reply, nil
}

// handshake resolves the peer and exchanges the messages of the connection
// manager.
func (l *link) handshake(ctx context.Context, c *cmConn, to, hello []byte) ([]byte, error) {
	a := l.adapter
	// Safety: sockaddr made room for the longest address; the library copies
	// it.
	if failed, err := C.rdma_resolve_addr(c.id, nil, (*C.struct_sockaddr)(unsafe.Pointer(&to[0])), resolveTime); failed != 0 {
		return nil, fmt.Errorf("resolve the address: %w: %w", via.ErrNotReachable, err)
	}
	if _, err := c.await(ctx, C.RDMA_CM_EVENT_ADDR_RESOLVED); err != nil {
		return nil, err
	}
	if name := deviceOf(c.id); name != a.device.name {
		return nil, fmt.Errorf("the route goes through RDMA device %s, not %s: %w", name, a.device.name, via.ErrNotReachable)
	}
	if failed, err := C.rdma_resolve_route(c.id, resolveTime); failed != 0 {
		return nil, fmt.Errorf("resolve the route: %w: %w", via.ErrNotReachable, err)
	}
	if _, err := c.await(ctx, C.RDMA_CM_EVENT_ROUTE_RESOLVED); err != nil {
		return nil, err
	}
	if err := l.submit(c.id, false, hello, terms{a.reads(), a.reads()}); err != nil {
		return nil, fmt.Errorf("ask: %w: %w", via.ErrNotReachable, err)
	}
	ev, err := c.await(ctx, C.RDMA_CM_EVENT_CONNECT_RESPONSE)
	if err != nil {
		return nil, err
	}
	if err := l.connect(c.id, ev.terms.within(a.reads())); err != nil {
		return nil, fmt.Errorf("%w: %w", via.ErrNotReachable, err)
	}
	l.adopt(c)
	if failed, err := C.rdma_establish(c.id); failed != 0 {
		l.conn = nil
		return nil, fmt.Errorf("establish: %w: %w", via.ErrNotReachable, err)
	}
	return ev.private, nil
}

// within returns the terms, limited to what this end supports.
func (t terms) within(most int) terms { return terms{min(t.served, most), min(t.asked, most)} }

// submit sends or accepts a connection request, with private data.
func (l *link) submit(id *C.struct_rdma_cm_id, accept bool, private []byte, t terms) error {
	o := &l.adapter.options
	// Safety: the library copies the private data, which has no pointers.
	return errno(C.shim_param(id, flag(accept), l.qp.qp_num, unsafe.Pointer(unsafe.SliceData(private)), C.int(len(private)),
		C.int(t.served), C.int(t.asked), C.int(o.Retries), rnrRetries))
}

// adopt binds the connection to the link, and breaks the link if the connection
// is over already.
func (l *link) adopt(c *cmConn) {
	l.adapter.mu.Lock()
	l.conn, c.link = c, l
	over := c.over
	l.adapter.mu.Unlock()
	if over {
		l.lose(errPeerClosed)
	}
}

// deviceOf returns the name of the device that a connection uses.
func deviceOf(id *C.struct_rdma_cm_id) string {
	if id.verbs == nil {
		return ""
	}
	return C.GoString(C.ibv_get_device_name(id.verbs.device))
}
