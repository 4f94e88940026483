//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/rdmahost"
)

// listening accepts connection requests at an address.
type listening struct {
	adapter  *adapter
	id       *C.struct_rdma_cm_id
	incoming func(via.Incoming)
	requests rdmahost.Requests[*request]
	places   rdmahost.Places
}

// backlog bounds the requests that wait for an answer.
const backlog = 128

// Listen listens at a host; a wildcard listens at all addresses.
func (a *adapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	if err := a.usable(); err != nil {
		return nil, err
	}
	at, err := resolve(context.Background(), host)
	if err != nil {
		return nil, err
	}
	id, err := a.newID()
	if err != nil {
		return nil, err
	}
	s := &listening{adapter: a, id: id, incoming: incoming}
	addr := sockaddr(at)
	// Safety: sockaddr made room for the longest address; the library copies
	// it.
	failed, err := C.rdma_bind_addr(id, (*C.struct_sockaddr)(unsafe.Pointer(&addr[0])))
	if failed == 0 {
		a.mu.Lock()
		a.listeners[id] = s
		a.mu.Unlock()
		failed, err = C.rdma_listen(id, backlog)
	}
	if failed != 0 {
		_ = s.Close()
		code := via.ErrInvalidParameter
		if errors.Is(err, syscall.EADDRINUSE) {
			code = via.ErrResource
		}
		return nil, fmt.Errorf("listen at %v: %w: %w", at, code, err)
	}
	return s, nil
}

// Close stops listening, refuses pending requests, and waits until the calls of
// incoming return.
func (s *listening) Close() error {
	pending := s.requests.Close()
	C.rdma_destroy_id(s.id)
	s.adapter.mu.Lock()
	delete(s.adapter.listeners, s.id)
	s.adapter.mu.Unlock()
	for _, r := range pending {
		_ = r.Refuse(nil) // fails if it was answered meanwhile
	}
	s.requests.Wait()
	return nil
}

// request is a peer's request to connect.
type request struct {
	adapter   *adapter
	listening *listening
	conn      *cmConn
	event     event
	from      string
	place     *rdmahost.Place
}

// requested delivers a request to the consumer, on a new goroutine.
func (a *adapter) requested(listener, id *C.struct_rdma_cm_id, ev event) {
	a.mu.Lock()
	s := a.listeners[listener]
	a.mu.Unlock()
	var from [sockaddrSize]byte
	// Safety: the shim writes as many bytes as a sockaddr_in6 has.
	C.shim_address(id, unsafe.Pointer(&from[0]))
	at := addrPort(from[:])
	r := &request{adapter: a, listening: s, conn: a.newCMConn(id), event: ev, from: at.String()}
	if s != nil && deviceOf(id) == a.device.name {
		r.place = s.places.Acquire(at.Addr())
	}
	if r.place == nil || !s.requests.Deliver(r, func(r *request) { s.incoming(r) }, func(r *request) { _ = r.Refuse(nil) }) {
		go func() { _ = r.reject(nil) }() // after the event is acknowledged
	}
}

// Hello returns the requester's connect message, with the zeros that pad its
// field.
func (r *request) Hello() []byte { return r.event.private }

// RemoteHost returns the requester's address.
func (r *request) RemoteHost() string { return r.from }

// Refuse rejects the request.
func (r *request) Refuse(reply []byte) error {
	r.listening.requests.Remove(r)
	return r.reject(reply)
}

func (r *request) reject(reply []byte) error {
	defer r.place.Release()
	// Safety: the library copies the reply.
	failed, err := C.rdma_reject(r.conn.id, unsafe.Pointer(unsafe.SliceData(reply)), C.uint8_t(len(reply)))
	r.adapter.disconnect(r.conn, false)
	if failed != 0 {
		return fmt.Errorf("refuse %s: %w: %w", r.from, via.ErrInvalidParameter, err)
	}
	return nil
}

// Accept accepts the request and waits until the connection is established.
func (r *request) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	r.listening.requests.Remove(r)
	defer r.place.Release()
	a, c := r.listening.adapter, r.conn
	l, err := a.newLink(cfg)
	if err != nil {
		_ = r.reject(nil)
		return nil, err
	}
	if err = l.grant(ctx, r, reply); err != nil {
		l.conn = nil
		a.disconnect(c, false)
		_ = l.Close()
		return nil, fmt.Errorf("accept %s: %w", r.from, err)
	}
	return l, nil
}

// grant sends the reply and waits until the connection is established.
func (l *link) grant(ctx context.Context, r *request, reply []byte) error {
	c, t := r.conn, r.event.terms.within(l.adapter.reads())
	err := l.connect(c.id, t)
	if err == nil {
		err = l.submit(c.id, true, reply, t)
	}
	if err != nil {
		return fmt.Errorf("the requester has gone: %w: %w", via.ErrTimeout, err)
	}
	if _, err := c.await(ctx, C.RDMA_CM_EVENT_ESTABLISHED); err != nil {
		return err
	}
	l.adopt(c)
	return nil
}
