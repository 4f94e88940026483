package shm

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/via"
)

// signals are what the control agent tells the data path.
type signals struct {
	gone    atomic.Bool // the peer closed the connection or died
	severed atomic.Bool // the peer broke a rule outside the data path
	shares  atomic.Bool // the peer goes by the sleep flags of this process
}

// controlAgent reads the control socket of a link on a goroutine, serve. Of the
// data path it can change only what it has references to; it alerts the queues
// after a change. Holders of adapter.mu post messages about arenas and ready
// logs; messages about sleep flags need no order.
type controlAgent struct {
	adapter        *adapter
	conn           *net.UnixConn
	recvAt, sendAt *member
	signals        *signals
	arenas         *peerArenas               // of the sender
	log            *atomic.Pointer[logRef]   // of the sender
	reception      bool                      // the sender waits for acknowledgements
	passedLog      atomic.Pointer[peerLog]   // ready log that the peer passed; the receive queue reads it
	peerShares     bool                      // the peer knows sleep flags
	flags          atomic.Pointer[peerFlags] // of the peer; the bells read it
	severCause     atomic.Pointer[error]
	done           chan struct{} // closed when the goroutine has ended
}

// serve is the agent's goroutine: it maps the arenas that the peer passes,
// until the peer or Close ends the connection. It severs a peer that breaks the
// rules but does not mark it gone: the peer may be inside a copy.
func (a *controlAgent) serve() {
	defer close(a.done)
	for a.serveMessage() {
	}
	a.signals.gone.Store(true)
	a.recvAt.alert()
	if a.sendAt != a.recvAt && a.reception {
		a.sendAt.alert() // no more acknowledgements will come
	}
}

// serveMessage waits for a message and handles it. It returns false at the end
// of the connection. A panic severs the link, and no later message is looked
// at.
func (a *controlAgent) serveMessage() (more bool) {
	defer func() {
		if value := recover(); value != nil {
			p := contain.Caught(value)
			p.Log(nil, "panic: a connection ends", "peer", processOf(a.conn))
			a.sever(p)
			a.awaitEnd()
		}
	}()
	m, err := receiveControl(a.conn)
	if err != nil && !errors.Is(err, errMalformed) {
		return false
	}
	if err == nil {
		err = a.handle(m)
	}
	if err != nil {
		a.sever(err)
	} else if m.kind == controlArena || m.kind == controlDrop {
		a.sendAt.alert()
	}
	return true
}

// awaitEnd waits for the end of the connection. The kernel closes file
// descriptors that nothing asks for.
func (a *controlAgent) awaitEnd() {
	var b [1]byte
	for {
		if _, err := a.conn.Read(b[:]); err != nil {
			return
		}
	}
}

// handle handles a message of a live connection. It owns the file descriptors.
func (a *controlAgent) handle(m control) error {
	switch {
	case a.signals.severed.Load():
		closeAll(m.fds...)
		return nil
	case m.kind == controlArena:
		return a.arenas.add(m)
	case m.kind == controlDrop:
		return a.arenas.discard(m.value)
	case m.kind == controlRequestLog:
		return a.startLog(m.value, m.size)
	case m.kind == controlPassLog:
		return a.acceptLog(m.fds[0])
	case m.kind == controlPassFlags:
		return a.acceptFlags(m.fds)
	case m.kind == controlMappedFlags:
		return a.shareFlags()
	default:
		closeAll(m.fds...)
		return fmt.Errorf("unexpected control message %d", m.kind)
	}
}

// startLog makes the link append to the ready log for a queue of its peer, then
// passes that ready log.
func (a *controlAgent) startLog(token, name uint64) error {
	if a.log.Load() != nil || name > nameMask {
		return fmt.Errorf("%w: a ready log is requested twice, or under the name %#x", errMalformed, name)
	}
	j, err := a.sendAt.cq.openLog(token)
	if err != nil {
		return nil // the peer keeps loading the link's tail
	}
	a.log.Store(&logRef{j, name})
	// The peer loads the tail once it has the ready log: that shows it all
	// records published before.
	a.adapter.mu.Lock()
	defer a.adapter.mu.Unlock()
	a.post(control{kind: controlPassLog, fds: []int{j.fd}})
	return nil
}

// acceptLog maps a ready log that the peer passed.
func (a *controlAgent) acceptLog(fd int) error {
	if a.passedLog.Load() != nil {
		closeAll(fd)
		return fmt.Errorf("%w: a second ready log", errMalformed)
	}
	j, err := a.recvAt.cq.mapPeerLog(fd)
	if err != nil {
		return err
	}
	a.passedLog.Store(j)
	a.recvAt.alert()
	return nil
}

// sever makes the data path break the connection. The queues exist: either the
// agent's goroutine calls it, or the caller holds adapter.mu and the link is in
// adapter.links.
func (a *controlAgent) sever(cause error) {
	if a.severCause.CompareAndSwap(nil, &cause) {
		a.signals.severed.Store(true)
		a.recvAt.alert()
	}
}

// cause returns why the link is severed.
func (a *controlAgent) cause() error { return *a.severCause.Load() }

// post sends a control message without blocking. A peer whose socket is full of
// unread messages, more than it may have arenas, loses its connection.
//
// +checklocks:a.adapter.mu
func (a *controlAgent) post(m control) {
	err := postControl(a.conn, m)
	if err != nil && !a.signals.severed.Load() && !a.signals.gone.Load() {
		a.sever(err)
	}
}

// hangUp tells the peer that this end sends nothing more.
func (a *controlAgent) hangUp() { _ = a.conn.CloseWrite() }

// close ends the connection and the goroutine. Unless the peer has left all
// regions, a lingering link keeps the socket, to notice the peer's exit.
func (a *controlAgent) close(left bool) error {
	var err error
	if left {
		err = a.conn.Close()
	} else {
		err = fmt.Errorf("%s: %w", processOf(a.conn), via.ErrStillAccessed)
		a.hangUp()
		_ = a.conn.SetReadDeadline(time.Unix(1, 0))
	}
	<-a.done
	return err
}
