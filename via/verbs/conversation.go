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

// conversation is a connection as the connection manager has it, from its request to
// its end. Its fields are guarded by adapter.mu.
type conversation struct {
	id     *C.struct_rdma_cm_id
	events chan event // of the handshake
	link   *link      // once there is one, until it is closed
	left   bool       // nobody here wants anything of it any more
	over   bool       // the peer has gone
}

// event is what the connection manager tells of a conversation.
type event struct {
	kind, status int
	private      []byte
	terms        terms
}

// terms are what an end knows of the other's resources.
type terms struct{ served, asked int }

// handshakeEvents is how many events a handshake has at most, and more.
const handshakeEvents = 8

// linger bounds how long Close waits for peers that have not confirmed yet that
// their connections are over.
const linger = 500 * time.Millisecond

// errSilent is what may be wrong with a peer that does not answer.
var errSilent = errors.New("nobody answers: is the peer's RDMA device up, and its connection manager there?")

// Why a link is broken.
var (
	errPeerClosed  = errors.New("the peer disconnected")
	errDeviceGone  = errors.New("the RDMA device was removed")
	errPortDown    = errors.New("the port of the RDMA device went down")
	errQueueBroken = errors.New("the completion queue is broken")
	errRefused     = errors.New("the device refused what the peer asked for")
)

// converse begins to listen to what becomes of a connection.
func (a *adapter) converse(id *C.struct_rdma_cm_id) *conversation {
	c := &conversation{id: id, events: make(chan event, handshakeEvents)}
	a.mu.Lock()
	a.conversations[id] = c
	a.mu.Unlock()
	return c
}

// part ends a conversation that nobody here wants any more. A connection that
// exists is disconnected first, and forgotten when the peer has confirmed that.
func (a *adapter) part(c *conversation, connected bool) {
	a.mu.Lock()
	c.link, c.left = nil, true
	over := c.over || !connected
	a.mu.Unlock()
	if over || C.rdma_disconnect(c.id) != 0 {
		a.forget(c)
	}
}

// forget destroys what the connection manager has of a conversation, once.
func (a *adapter) forget(c *conversation) {
	a.mu.Lock()
	known := a.conversations[c.id] == c
	delete(a.conversations, c.id)
	a.mu.Unlock()
	if known {
		C.rdma_destroy_id(c.id)
		eventfd.Ring(a.wake)
	}
}

// routineAttend hears of connections and of the device, until the adapter is closed
// and its peers know.
func (a *adapter) routineAttend() {
	defer close(a.ended)
	fds := []unix.PollFd{
		{Fd: int32(a.channel.fd), Events: unix.POLLIN},
		{Fd: int32(a.device.context.async_fd), Events: unix.POLLIN},
		{Fd: int32(a.wake), Events: unix.POLLIN},
	}
	e := new(C.struct_shim_event)
	var deadline time.Time
	for {
		left, closing := a.left()
		if closing {
			if deadline.IsZero() {
				deadline = time.Now().Add(linger)
			}
			if len(left) == 0 || time.Now().After(deadline) {
				for _, c := range left {
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
			return // it cannot fail
		}
		if fds[2].Revents != 0 {
			eventfd.Drain(a.wake)
		}
		for C.shim_event(a.channel, e) == 1 {
			a.hear(e)
		}
		if fds[1].Revents != 0 {
			a.hearDevice()
		}
	}
}

// left lists the conversations that are not over, if the adapter is closing.
func (a *adapter) left() (list []*conversation, closing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing {
		for _, c := range a.conversations {
			list = append(list, c)
		}
	}
	return list, a.closing
}

// hear deals with an event of the connection manager.
func (a *adapter) hear(e *C.struct_shim_event) {
	ev := event{kind: int(e.kind), status: int(e.status), terms: terms{int(e.reads_served), int(e.reads_asked)}}
	if e.private_size > 0 {
		ev.private = C.GoBytes(unsafe.Pointer(&e.private_data[0]), e.private_size) // Safety: it copies what the event holds
	}
	if e.kind == C.RDMA_CM_EVENT_CONNECT_REQUEST {
		a.requested(e.listener, e.id, ev)
		C.rdma_ack_cm_event(e.event)
		return
	}
	a.mu.Lock()
	c := a.conversations[e.id]
	var gone *link
	forget := false
	if c != nil {
		switch e.kind {
		case C.RDMA_CM_EVENT_DISCONNECTED, C.RDMA_CM_EVENT_DEVICE_REMOVAL, C.RDMA_CM_EVENT_TIMEWAIT_EXIT:
			c.over = true
			gone, forget = c.link, c.left
		}
		select {
		case c.events <- ev:
		default: // nobody waits for it
		}
	}
	a.mu.Unlock()
	if e.kind == C.RDMA_CM_EVENT_DISCONNECTED {
		C.rdma_disconnect(e.id) // confirms; of a connection that we ended, it is without effect
	}
	kind := e.kind
	C.rdma_ack_cm_event(e.event) // from here on the ID may be destroyed
	if kind == C.RDMA_CM_EVENT_DEVICE_REMOVAL {
		a.fail()
	} else if gone != nil {
		gone.lose(errPeerClosed)
	}
	if forget {
		a.forget(c)
	}
}

// hearDevice takes the events of the device.
func (a *adapter) hearDevice() {
	var e C.struct_shim_async
	for C.shim_async(a.device.context, &e) == 1 {
		switch e.kind {
		case C.IBV_EVENT_DEVICE_FATAL:
			a.fail()
		case C.IBV_EVENT_CQ_ERR:
			a.tell(via.AsyncCatastrophic, errQueueBroken)
		case C.IBV_EVENT_PORT_ERR:
			if e.element == C.uint64_t(a.device.limits.port) {
				a.tell(via.AsyncRdmaTransport, errPortDown)
			}
		}
	}
}

// fail is the news that the device is removed. The kernel waits until this process has
// given everything of it back.
func (a *adapter) fail() {
	if !a.failed.Swap(true) {
		a.tell(via.AsyncCatastrophic, errDeviceGone)
	}
}

// tell reports something of the device on each link.
func (a *adapter) tell(code via.AsyncCode, cause error) {
	a.mu.Lock()
	var links []*link
	for l := range a.links {
		links = append(links, l)
	}
	a.mu.Unlock()
	for _, l := range links {
		l.tell(code, fmt.Errorf("%s: %w", a.device.name, cause))
	}
}

// await waits for one of the events of a handshake.
func (c *conversation) await(ctx context.Context, kind int) (event, error) {
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

// refusal is the error that a handshake ended with.
func refusal(ev event) error {
	switch ev.kind {
	case C.RDMA_CM_EVENT_REJECTED:
		switch ev.status {
		case rejectedByConsumer:
			return &via.Refused{Reply: ev.private}
		case rejectedNoListener:
			return fmt.Errorf("nobody listens there: %w", via.ErrNotReachable)
		case 1, 2, rejectedNoResources:
			return fmt.Errorf("the peer has no resources left: %w", via.ErrResource)
		}
		return fmt.Errorf("the peer's connection manager refuses, for reason %d: %w", ev.status, via.ErrNotReachable)
	case C.RDMA_CM_EVENT_ADDR_ERROR, C.RDMA_CM_EVENT_ROUTE_ERROR:
		return fmt.Errorf("no RDMA device leads there: %w: %w", via.ErrNotReachable, unix.Errno(-ev.status))
	case C.RDMA_CM_EVENT_UNREACHABLE:
		return fmt.Errorf("%w: %w", errSilent, via.ErrNotReachable)
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		return &via.FabricError{Cause: errDeviceGone}
	}
	return fmt.Errorf("the peer has gone: %w", via.ErrNotReachable)
}
