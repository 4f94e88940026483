//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via"
)

// cmConn is a connection of the connection manager (rdma_cm_id), from its
// request to its end. adapter.mu guards its fields.
type cmConn struct {
	id       *C.struct_rdma_cm_id
	events   chan event // of the handshake
	link     *link      // nil before its creation and after Close
	released bool       // by this end; destroyed once it is over
	over     bool       // the peer disconnected
}

// event is an event of the connection manager about a cmConn.
type event struct {
	kind, status int
	private      []byte
	terms        terms
}

// terms are the RDMA Reads that an end serves and requests concurrently: its
// responder resources and initiator depth.
type terms struct{ served, asked int }

// handshakeEvents bounds the events of one handshake.
const handshakeEvents = 8

// disconnectTimeout bounds how long Close waits for peers to confirm that their
// connections are over.
const disconnectTimeout = 500 * time.Millisecond

// errSilent suggests why a peer does not answer.
var errSilent = errors.New("no answer: is the peer's RDMA device up, and its connection manager loaded?")

// Causes of a broken link.
var (
	errPeerClosed  = errors.New("the peer disconnected")
	errDeviceGone  = errors.New("the RDMA device was removed")
	errPortDown    = errors.New("the port of the RDMA device went down")
	errQueueBroken = errors.New("the completion queue is broken")
	errRefused     = errors.New("the device refused an operation of the peer")
)

// newCMConn creates and registers the cmConn of an ID.
func (a *adapter) newCMConn(id *C.struct_rdma_cm_id) *cmConn {
	c := &cmConn{id: id, events: make(chan event, handshakeEvents)}
	a.mu.Lock()
	a.conns[id] = c
	a.mu.Unlock()
	return c
}

// disconnect releases a connection. An established one is disconnected first
// and forgotten when the peer confirms it: routineEvents, which may learn of
// the peer's end meanwhile, destroys no ID before rdma_disconnect is through
// with it.
func (a *adapter) disconnect(c *cmConn, connected bool) {
	a.mu.Lock()
	c.link = nil
	over := c.over || !connected
	a.mu.Unlock()
	if !over {
		over = C.rdma_disconnect(c.id) != 0
	}
	a.mu.Lock()
	c.released = true
	over = over || c.over
	a.mu.Unlock()
	if over {
		a.forget(c)
	}
}

// forget destroys the connection's ID, once.
func (a *adapter) forget(c *cmConn) {
	a.mu.Lock()
	known := a.conns[c.id] == c
	delete(a.conns, c.id)
	a.mu.Unlock()
	if known {
		C.rdma_destroy_id(c.id)
		eventfd.Ring(a.wake)
	}
}

// routineEvents handles events of connections and of the device until the
// adapter is closed and its peers have confirmed.
func (a *adapter) routineEvents() {
	defer close(a.ended)
	fds := []unix.PollFd{
		{Fd: int32(a.channel.fd), Events: unix.POLLIN},
		{Fd: int32(a.device.context.async_fd), Events: unix.POLLIN},
		{Fd: int32(a.wake), Events: unix.POLLIN},
	}
	e := new(C.struct_shim_event)
	var deadline time.Time
	for {
		open, closing := a.openConns()
		if closing {
			if deadline.IsZero() {
				deadline = time.Now().Add(disconnectTimeout)
			}
			if len(open) == 0 || time.Now().After(deadline) {
				for _, c := range open {
					a.forget(c)
				}
				return
			}
		}
		timeout := -1
		if closing {
			timeout = int(max(0, time.Until(deadline).Milliseconds())) + 1
		}
		if _, err := unix.Poll(fds, timeout); err != nil && !errors.Is(err, unix.EINTR) {
			return // unreachable: the arguments are valid
		}
		if fds[2].Revents != 0 {
			eventfd.Drain(a.wake)
		}
		for C.shim_event(a.channel, e) == 1 {
			a.handleCMEvent(e)
		}
		if fds[1].Revents != 0 {
			a.handleDeviceEvents()
		}
	}
}

// openConns returns the connections that are not over, if the adapter is
// closing.
func (a *adapter) openConns() (list []*cmConn, closing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		for _, c := range a.conns {
			list = append(list, c)
		}
	}
	return list, a.closing
}

// handleCMEvent handles an event of the connection manager.
func (a *adapter) handleCMEvent(e *C.struct_shim_event) {
	ev := event{kind: int(e.kind), status: int(e.status), terms: terms{int(e.reads_served), int(e.reads_asked)}}
	if e.private_size > 0 {
		ev.private = C.GoBytes(unsafe.Pointer(&e.private_data[0]), e.private_size) // Safety: copies private_size bytes of the event
	}
	if e.kind == C.RDMA_CM_EVENT_CONNECT_REQUEST {
		a.requested(e.listener, e.id, ev)
		C.rdma_ack_cm_event(e.event)
		return
	}
	a.mu.Lock()
	c := a.conns[e.id]
	var gone *link
	forget := false
	if c != nil {
		switch e.kind {
		case C.RDMA_CM_EVENT_DISCONNECTED, C.RDMA_CM_EVENT_DEVICE_REMOVAL, C.RDMA_CM_EVENT_TIMEWAIT_EXIT:
			c.over = true
			gone, forget = c.link, c.released
		}
		select {
		case c.events <- ev:
		default: // no handshake waits for it
		}
	}
	a.mu.Unlock()
	if e.kind == C.RDMA_CM_EVENT_DISCONNECTED {
		C.rdma_disconnect(e.id) // confirms; no effect if this end disconnected first
	}
	kind := e.kind
	C.rdma_ack_cm_event(e.event) // the ID may be destroyed from here on
	if kind == C.RDMA_CM_EVENT_DEVICE_REMOVAL {
		a.fail()
	} else if gone != nil {
		gone.lose(errPeerClosed)
	}
	if forget {
		a.forget(c)
	}
}

// handleDeviceEvents handles the asynchronous events of the device.
func (a *adapter) handleDeviceEvents() {
	var e C.struct_shim_async
	for C.shim_async(a.device.context, &e) == 1 {
		switch e.kind {
		case C.IBV_EVENT_DEVICE_FATAL:
			a.fail()
		case C.IBV_EVENT_CQ_ERR:
			a.reportAsync(via.AsyncCatastrophic, errQueueBroken)
		case C.IBV_EVENT_PORT_ERR:
			if e.element == C.uint64_t(a.device.limits.port) {
				a.reportAsync(via.AsyncRdmaTransport, errPortDown)
			}
		}
	}
}

// fail marks the device as removed. The kernel waits until the process has
// freed all resources of the device.
func (a *adapter) fail() {
	if !a.failed.Swap(true) {
		a.reportAsync(via.AsyncCatastrophic, errDeviceGone)
	}
}

// reportAsync reports an event of the device on each link.
func (a *adapter) reportAsync(code via.AsyncCode, cause error) {
	a.mu.Lock()
	var links []*link
	for l := range a.links {
		links = append(links, l)
	}
	a.mu.Unlock()
	for _, l := range links {
		l.reportAsync(code, fmt.Errorf("%s: %w", a.device.name, cause))
	}
}

// await waits for the next event of a handshake and checks its kind.
func (c *cmConn) await(ctx context.Context, kind int) (event, error) {
	for {
		select {
		case ev := <-c.events:
			if ev.kind == kind {
				return ev, nil
			}
			return ev, refusal(ev)
		case <-ctx.Done():
			return event{}, fmt.Errorf("%w: %w", via.ErrTimeout, context.Cause(ctx))
		}
	}
}

// Reasons of a rejection (InfiniBand specification, volume 1, §12.6.7.2).
const (
	rejectedNoResources = 3
	rejectedNoListener  = 8
	rejectedByConsumer  = 28
)

// noRoomError is a rejection for lack of resources, whose private data may be
// a cookie.
type noRoomError struct{ private []byte }

// Error says what the peer lacks.
func (*noRoomError) Error() string { return "the peer has no resources left" }

// Unwrap makes the rejection an ErrResource.
func (*noRoomError) Unwrap() error { return via.ErrResource }

// refusal returns the error of an event that ends the handshake.
func refusal(ev event) error {
	switch ev.kind {
	case C.RDMA_CM_EVENT_REJECTED:
		switch ev.status {
		case rejectedByConsumer:
			return &via.Refused{Reply: ev.private}
		case rejectedNoListener:
			return fmt.Errorf("no listener there: %w", via.ErrNotReachable)
		case rejectedNoResources:
			return &noRoomError{ev.private}
		case 1, 2:
			return fmt.Errorf("the peer has no resources left: %w", via.ErrResource)
		}
		return fmt.Errorf("the peer's connection manager refuses, for reason %d: %w", ev.status, via.ErrNotReachable)
	case C.RDMA_CM_EVENT_ADDR_ERROR, C.RDMA_CM_EVENT_ROUTE_ERROR:
		return fmt.Errorf("no RDMA device has a route there: %w: %w", via.ErrNotReachable, unix.Errno(-ev.status))
	case C.RDMA_CM_EVENT_UNREACHABLE:
		return fmt.Errorf("%w: %w", errSilent, via.ErrNotReachable)
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		return &via.FabricError{Cause: errDeviceGone}
	}
	return fmt.Errorf("the peer disconnected: %w", via.ErrNotReachable)
}
