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
)

// resolveTime is how long the kernel looks for an address or a route, milliseconds.
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
	reply, err := l.ask(ctx, sockaddr(to), hello)
	if err != nil {
		_ = l.Close()
		return nil, nil, fmt.Errorf("connect to %v: %w", to, err)
	}
	return l, reply, nil
}

// newID makes a name for a connection, or for a listener.
func (a *adapter) newID() (*C.struct_rdma_cm_id, error) {
	var id *C.struct_rdma_cm_id
	if failed, err := C.rdma_create_id(a.channel, &id, nil, C.RDMA_PS_TCP); failed != 0 {
		return nil, a.refused("create an ID of the connection manager", err)
	}
	return id, nil
}

// ask asks the peer, and connects when it has granted that.
func (l *link) ask(ctx context.Context, to, hello []byte) ([]byte, error) {
	a := l.adapter
	id, err := a.newID()
	if err != nil {
		return nil, err
	}
	c := a.converse(id)
	reply, err := l.handshake(ctx, c, to, hello)
	if errors.Is(err, via.ErrTimeout) {
		err = fmt.Errorf("%w: %w", errSilent, err)
	}
	if err != nil {
		a.part(c, false)
		return nil, err
	}
	return reply, nil
}

// handshake is what ask does with an ID.
func (l *link) handshake(ctx context.Context, c *conversation, to, hello []byte) ([]byte, error) {
	a := l.adapter
	// Safety: sockaddr made room for the longest address; the library copies it.
	if failed, err := C.rdma_resolve_addr(c.id, nil, (*C.struct_sockaddr)(unsafe.Pointer(&to[0])), resolveTime); failed != 0 {
		return nil, fmt.Errorf("resolve the address: %w: %w", via.ErrNotReachable, err)
	}
	if _, err := c.await(ctx, C.RDMA_CM_EVENT_ADDR_RESOLVED); err != nil {
		return nil, err
	}
	if name := deviceOf(c.id); name != a.device.name {
		return nil, fmt.Errorf("the way leads through RDMA device %s, not %s: %w", name, a.device.name, via.ErrNotReachable)
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
		l.talk = nil
		return nil, fmt.Errorf("establish: %w: %w", via.ErrNotReachable, err)
	}
	return ev.private, nil
}

// within returns terms that do not exceed what an end can.
func (t terms) within(most int) terms { return terms{min(t.served, most), min(t.asked, most)} }

// submit sends a request or grants one, with private data.
func (l *link) submit(id *C.struct_rdma_cm_id, accept bool, private []byte, t terms) error {
	o := &l.adapter.options
	// Safety: the library copies the private data, which has no pointers.
	return errno(C.shim_param(id, flag(accept), l.qp.qp_num, unsafe.Pointer(unsafe.SliceData(private)), C.int(len(private)),
		C.int(t.served), C.int(t.asked), C.int(o.Retries), rnrRetries))
}

// adopt makes the link hear of the end of a conversation, even if it has come before.
func (l *link) adopt(c *conversation) {
	l.adapter.mu.Lock()
	l.talk, c.link = c, l
	over := c.over
	l.adapter.mu.Unlock()
	if over {
		l.lose(errPeerClosed)
	}
}

// deviceOf returns the name of the device that a connection goes through.
func deviceOf(id *C.struct_rdma_cm_id) string {
	if id.verbs == nil {
		return ""
	}
	return C.GoString(C.ibv_get_device_name(id.verbs.device))
}
