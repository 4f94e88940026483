package simulation

import (
	"bytes"
	"fmt"
	"time"

	"github.com/viablk/viablk/via"
)

// message is what arrives at a link: a Send, or the immediate of an RDMA Write.
type message struct {
	body      []byte
	immediate uint32
	has       bool // an immediate
	write     bool // of an RDMA Write of this length
	held      bool // a cut has held it back
	length    uint32
}

// transfer is an RDMA operation in progress: half of its bytes are moved when
// it begins and the other half when it ends.
type transfer struct {
	work    *via.Work
	memory  *via.Memory // the peer's
	remote  []byte
	running bool   // it will move the other half
	left    []byte // the other half, when a Close said that the copy goes on
	timer   *timer
}

// pump carries out what waits, in order, up to an RDMA operation that takes
// time.
func (l *link) pump() {
	for len(l.outgoing) > 0 && l.active == nil && l.started && !l.broken && !l.closed {
		w := l.outgoing[0]
		copy(l.outgoing, l.outgoing[1:])
		l.outgoing[len(l.outgoing)-1] = nil
		l.outgoing = l.outgoing[:len(l.outgoing)-1]
		if w.Op == via.OpSend {
			l.sendMessage(w)
		} else {
			l.begin(w)
		}
	}
}

// sendMessage sends a message. It is done when it is on its way.
func (l *link) sendMessage(w *via.Work) {
	n := l.adapter.network
	body := n.scheduler.runner.memory.get(int(w.Length))
	at := 0
	for _, s := range w.Segments {
		at += copy(body[at:], s.Bytes)
	}
	if len(w.Segments) > 1 { // a header, and payload
		n.flip(body[len(w.Segments[0].Bytes):])
	}
	l.stats.Sends++
	l.stats.Records++
	l.post(message{body: body, immediate: w.Immediate, has: w.HasImmediate, length: w.Length})
	l.done(l.send, w, 0, w.Length)
}

// post puts a message on its way. It does not overtake those before it.
func (l *link) post(m message) {
	n := l.adapter.network
	at := max(l.arrival+1, n.scheduler.now+n.latency()) // timers of one time have no order
	l.arrival = at
	r := n.scheduler.runner
	var d *delivery
	if k := len(r.deliveries); k > 0 {
		d, r.deliveries = r.deliveries[k-1], r.deliveries[:k-1]
	} else {
		d = new(delivery)
		d.timer.call = d.arrive
	}
	d.link, d.message = l, m
	n.scheduler.timers.set(&d.timer, at, n.scheduler.random.Uint32())
}

// delivery is a message on its way.
type delivery struct {
	timer   timer
	link    *link
	message message
}

func (d *delivery) arrive() {
	l, m := d.link, d.message
	d.link, d.message = nil, message{}
	r := l.adapter.network.scheduler.runner
	r.deliveries = append(r.deliveries, d)
	l.deliver(m)
}

// deliver lets a message arrive, or lets it wait while the path is cut.
func (l *link) deliver(m message) {
	if l.path.cut {
		if !l.broken && !l.closed {
			l.waits()
		}
		l.path.hold(func() {
			if (l.broken || l.closed) && !l.adapter.network.Late {
				l.peer.lose(errCut) // it is lost
				return
			}
			m.held = true
			l.deliver(m)
		})
		return
	}
	l.peer.arrive(m)
}

// arrive takes a message.
func (l *link) arrive(m message) {
	n := l.adapter.network
	n.scheduler.trace.add(uint64(m.length), uint64(n.scheduler.now))
	switch {
	case l.closed || l.broken:
		if m.held {
			n.counts.LatePackets++
		}
		if m.held && n.Late && !m.write && !l.strayed {
			l.strayed = true
			l.wander(m, wanderFirst)
			return
		}
		n.discard(m)
		return
	case !l.started:
		l.inbox = append(l.inbox, m)
		return
	case len(l.receives) == 0 && l.haunted:
		n.discard(m)
		l.lose(errCut) // a late message has its receive
		return
	case len(l.receives) == 0:
		n.scheduler.fail("%s: a message of %d bytes meets no receive: a credit is wrong", l.adapter.process.name, m.length)
		return
	}
	w := l.receives[0]
	copy(l.receives, l.receives[1:])
	l.receives[len(l.receives)-1] = nil
	l.receives = l.receives[:len(l.receives)-1]
	var status via.Status
	if m.write {
		status = via.StatusOpRemoteWrite
	}
	if m.has {
		status, w.Immediate = status|via.StatusImmediate, m.immediate
	}
	if !m.write && w.Length < m.length {
		n.scheduler.fail("%s: a message of %d bytes meets a receive of %d", l.adapter.process.name, m.length, w.Length)
		return
	}
	b := m.body
	for _, s := range w.Segments {
		b = b[copy(s.Bytes, b):]
	}
	l.stats.Receives++
	l.done(l.recv, w, status, m.length)
	n.discard(m)
}

// A late message waits in the network for the next connection of its VI: the
// pause between two attempts doubles.
const (
	wanderFirst = 5 * time.Millisecond
	wanderMost  = 3 * time.Second
)

// wander lets a message that is late arrive at the next connection of the VI.
func (l *link) wander(m message, pause time.Duration) {
	n := l.adapter.network
	next := l.next()
	switch {
	case next != nil:
		next.haunted = true
		n.counts.Misrouted++
		next.arrive(m)
	case l.adapter.process.dead || pause > wanderMost:
		n.discard(m)
	default:
		n.scheduler.After(pause, func() { l.wander(m, 2*pause) })
	}
}

// next returns the connection of the VI after this one, if it takes a message.
func (l *link) next() *link {
	for _, other := range l.adapter.links {
		if other.cfg.Owner == l.cfg.Owner && other.started && !other.broken && len(other.receives) > 0 {
			return other
		}
	}
	return nil
}

func (n *network) discard(m message) { n.scheduler.runner.memory.put(m.body) }

// begin starts an RDMA operation.
func (l *link) begin(w *via.Work) {
	t := &transfer{work: w}
	l.active = t
	if l.path.cut {
		l.waits()
		l.path.hold(func() { l.retry(t) })
		return
	}
	l.proceed(t)
}

// retry begins an operation that a cut has held up.
func (l *link) retry(t *transfer) {
	switch {
	case l.active != t:
	case l.path.cut:
		l.path.hold(func() { l.retry(t) })
	default:
		l.proceed(t)
	}
}

// proceed moves the first half of the bytes.
func (l *link) proceed(t *transfer) {
	n := l.adapter.network
	w := t.work
	if l.peer.closed || l.peer.broken {
		return // the loss is on its way
	}
	if w.Length > 0 {
		var err error
		if t.memory, t.remote, err = l.peer.expose(w); err != nil {
			n.scheduler.fail("%s: %v", l.adapter.process.name, err)
			return
		}
	}
	t.running = true
	n.copies++
	t.move(0, len(t.remote)/2)
	if n.catch == l.adapter.process && len(t.remote) > 0 {
		n.catch = nil
		n.caught()
	}
	pages := time.Duration(1 + w.Length/page)
	lasts := time.Duration(n.random.Uint64N(uint64(n.Copy*pages) + 1))
	if !n.Shared {
		lasts += n.latency()
	}
	t.timer = n.scheduler.After(lasts, func() { l.finish(t) })
}

// finish moves the other half, unless the process that moves it is stopped.
func (l *link) finish(t *transfer) {
	n := l.adapter.network
	mover := l.adapter.process
	if !n.Shared && l.peer.adapter.process.stopped {
		mover = l.peer.adapter.process
	}
	switch {
	case !t.running:
		return
	case mover.stopped:
		mover.onResume = append(mover.onResume, func() { l.finish(t) })
		return
	case !n.Shared && l.path.cut:
		l.waits()
		l.path.hold(func() { l.finish(t) })
		return
	}
	w := t.work
	if t.left != nil && !bytes.Equal(t.left, t.remote[len(t.remote)/2:]) && !l.peer.adapter.process.dead {
		n.scheduler.fail("%s reused memory while %s was inside a copy", l.peer.adapter.process.name, l.adapter.process.name)
	}
	t.move(len(t.remote)/2, len(t.remote))
	arrived := t.remote
	if w.Op == via.OpRdmaRead && w.Length > 0 {
		arrived = w.Segments[0].Bytes
	}
	n.flip(arrived)
	n.scheduler.trace.add(uint64(w.Length)<<8|uint64(w.Op), uint64(n.scheduler.now))
	l.complete(t)
	if l.closed || l.broken {
		return
	}
	if w.Op == via.OpRdmaRead {
		l.stats.RdmaReads++
	} else {
		l.stats.RdmaWrites++
	}
	if w.HasImmediate {
		l.post(message{immediate: w.Immediate, has: true, write: true, length: w.Length})
	}
	l.done(l.send, w, 0, w.Length)
	l.pump()
}

// complete ends the access of an operation.
func (l *link) complete(t *transfer) {
	n := l.adapter.network
	if t.running {
		t.running = false
		n.copies--
		n.passRetired()
	}
	if l.active == t {
		l.active = nil
	}
	l.outside.wake(n.scheduler)
}

// abort ends the operation in progress where it is, unless its process is
// stopped inside the copy: that one goes on when it continues.
func (l *link) abort() {
	t := l.active
	if t == nil {
		return
	}
	n := l.adapter.network
	if t.running && n.Shared && l.adapter.process.stopped && !l.adapter.process.dead {
		return
	}
	n.scheduler.timers.unset(t.timer)
	l.complete(t)
}

// move copies bytes of the operation.
func (t *transfer) move(from, to int) {
	at := 0
	for _, s := range t.work.Segments {
		low, high := max(from, at), min(to, at+len(s.Bytes))
		if low < high {
			local, remote := s.Bytes[low-at:high-at], t.remote[low:high]
			if t.work.Op == via.OpRdmaRead {
				copy(local, remote)
			} else {
				copy(remote, local)
			}
		}
		at += len(s.Bytes)
	}
}

// expose returns the memory that an incoming operation names.
func (l *link) expose(w *via.Work) (*via.Memory, []byte, error) {
	m := l.adapter.regions[w.RemoteHandle]
	write := w.Op == via.OpRdmaWrite
	switch {
	case m == nil || !m.Live() || m.Tag() != l.cfg.Tag:
		return nil, nil, fmt.Errorf("access to %d bytes of region %#x, which is not exposed", w.Length, w.RemoteHandle)
	case write && !(l.cfg.RdmaWrite && m.RemoteWrite()), !write && !(l.cfg.RdmaRead && m.RemoteRead()):
		return nil, nil, fmt.Errorf("access to region %#x, which does not allow it", w.RemoteHandle)
	}
	at, size := w.RemoteAddr-m.Addr(), uint64(len(m.Bytes()))
	if w.RemoteAddr < m.Addr() || at > size || uint64(w.Length) > size-at {
		return nil, nil, fmt.Errorf("access to %d bytes outside of region %#x", w.Length, w.RemoteHandle)
	}
	return m, m.Bytes()[at:][:w.Length], nil
}
