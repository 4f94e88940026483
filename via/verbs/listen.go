//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"github.com/viablk/viablk/via"
)

// listening accepts requests at an address.
type listening struct {
	adapter  *adapter
	id       *C.struct_rdma_cm_id
	incoming func(via.Incoming)
	calls    sync.WaitGroup // of incoming

	mu      sync.Mutex
	closed  bool
	pending map[*request]struct{} // not yet answered
}

// backlog bounds the requests that wait for an answer.
const backlog = 128

// Listen listens at a host; a wildcard is each address of this one.
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
	s := &listening{adapter: a, id: id, incoming: incoming, pending: make(map[*request]struct{})}
	addr := sockaddr(at)
	// Safety: sockaddr made room for the longest address; the library copies it.
	failed, err := C.rdma_bind_addr(id, (*C.struct_sockaddr)(unsafe.Pointer(&addr[0])))
	if failed == 0 {
		a.mu.Lock()
		a.listenings[id] = s
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

// Close stops listening, refuses what is not answered, and waits for the calls of
// incoming.
func (s *listening) Close() error {
	s.mu.Lock()
	s.closed = true
	pending := s.pending
	s.pending = nil
	s.mu.Unlock()
	C.rdma_destroy_id(s.id)
	s.adapter.mu.Lock()
	delete(s.adapter.listenings, s.id)
	s.adapter.mu.Unlock()
	for r := range pending {
		_ = r.Refuse(nil) // it may be answered meanwhile
	}
	s.calls.Wait()
	return nil
}

// request is a peer's request to connect.
type request struct {
	adapter   *adapter
	listening *listening
	talk      *conversation
	event     event
	from      string
}

// requested hands a request to the consumer, on a goroutine of its own.
func (a *adapter) requested(listener, id *C.struct_rdma_cm_id, ev event) {
	a.mu.Lock()
	s := a.listenings[listener]
	a.mu.Unlock()
	var from [sockaddrSize]byte
	// Safety: the shim writes as many bytes as a sockaddr_in6 has.
	C.shim_address(id, unsafe.Pointer(&from[0]))
	r := &request{adapter: a, listening: s, talk: a.converse(id), event: ev, from: addrPort(from[:]).String()}
	if s == nil || deviceOf(id) != a.device.name || !s.enter(r) {
		go func() { _ = r.reject(nil) }() // not before the event is given back
		return
	}
	go func() {
		defer s.calls.Done()
		s.incoming(r)
	}()
}

// enter takes a request in, unless the listener is closed.
func (s *listening) enter(r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.pending[r] = struct{}{}
	s.calls.Add(1)
	return true
}

// Hello returns the requester's connect message, with the zeros that fill its field.
func (r *request) Hello() []byte { return r.event.private }

// RemoteHost returns the requester's address.
func (r *request) RemoteHost() string { return r.from }

// claim takes the request off those that the listener refuses when it closes.
func (r *request) claim() {
	r.listening.mu.Lock()
	delete(r.listening.pending, r)
	r.listening.mu.Unlock()
}

// Refuse answers no.
func (r *request) Refuse(reply []byte) error {
	r.claim()
	return r.reject(reply)
}

func (r *request) reject(reply []byte) error {
	// Safety: the library copies the reply.
	failed, err := C.rdma_reject(r.talk.id, unsafe.Pointer(unsafe.SliceData(reply)), C.uint8_t(len(reply)))
	r.adapter.part(r.talk, false)
	if failed != 0 {
		return fmt.Errorf("refuse %s: %w: %w", r.from, via.ErrInvalidParameter, err)
	}
	return nil
}

// Accept answers yes, and waits until the requester knows.
func (r *request) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	r.claim()
	a, c := r.listening.adapter, r.talk
	l, err := a.newLink(cfg)
	if err != nil {
		_ = r.reject(nil)
		return nil, err
	}
	if err = l.grant(ctx, r, reply); err != nil {
		l.talk = nil
		a.part(c, false)
		_ = l.Close()
		return nil, fmt.Errorf("accept %s: %w", r.from, err)
	}
	return l, nil
}

// grant tells the requester, and waits until it has heard.
func (l *link) grant(ctx context.Context, r *request, reply []byte) error {
	c, t := r.talk, r.event.terms.within(l.adapter.reads())
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
