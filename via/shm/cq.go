package shm

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/internal/ring"
	"github.com/viablk/viablk/via"
)

// cq is a completion queue: the links bound to it and their completed works.
// Its driver, one goroutine at a time, owns what no mutex guards. A completion
// travels:
//
//  1. bind adds a link and watches its bell
//  2. Poll runs the links (progress.go), which push completed works
//  3. dequeue returns them to the consumer
//  4. Arm publishes the wants of all links, then checks each for work that came
//     before the peer saw them; the driver sleeps on FD only if there is none
//  5. a bell of a peer, or wake, ends the sleep; Poll disarms
//
// FD is an epoll file descriptor that watches the bells of the links and an
// eventfd for wake-ups from inside the process. The watches are edge-triggered:
// a bell that a peer leaves ringing wakes once.
type cq struct {
	fd      int        // epoll
	wake    int        // eventfd, never passed to a peer
	binding sync.Mutex // two VIs of the queue may connect to each other
	entries []entry    // a ready log and a bell name a link by its index
	links   int        // bound
	// +checklocks:binding
	named      uint64 // links that were given a name
	token      uint64 // names the queue to the peers that keep its ready logs
	unreported int    // links whose end neither of their queues has reported
	armed      bool
	edges      bool   // the consumer watches fd for edges
	sleeps     uint32 // begun, with those that arm ended at once
	drainedAt  uint32 // sleeps when the events were consumed last
	signaled   bool   // wake was written in this sleep
	fullPolls  int    // in a row that ran no link
	rung       bool   // epoll still has the events that ended the last sleep
	events     [16]unix.EpollEvent

	// Links to run in a pass.
	watched  []*link          // every pass loads their tails
	next     int              // watched[next] is the first of the next pass
	followed []*peerLog       // ready logs that name the arriving links
	arriving ring.Ring[*link] // links that a ready log named
	sending  ring.Ring[*link] // links with sends in flight
	alerts   alerts
	warmed   uint64

	// +checklocks:binding
	localLogs map[uint64]*readyLog // for queues of peers, by token
	// +checklocks:binding
	peerLogs map[logID]*peerLog // mapped here

	ring       []completion
	head, tail uint32
}

// entry is the place of a link in a queue.
type entry struct {
	link    *link
	drained uint64 // sleep.epoch of the link when its bell was drained last
}

// completion is a completed work of a link or, without a work, an event that
// the link keeps.
type completion struct {
	work   *via.Work
	events *events // of the link
}

func newCQ(entries int) (*cq, error) {
	var token [8]byte
	_, _ = rand.Read(token[:])
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	wake, err := eventfd.New()
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	size := 1
	for size < entries {
		size <<= 1
	}
	c := &cq{
		fd: fd, wake: wake, token: binary.LittleEndian.Uint64(token[:]), ring: make([]completion, size),
		localLogs: make(map[uint64]*readyLog), peerLogs: make(map[logID]*peerLog),
	}
	if err := c.watch(wake, 0); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the queue.
func (c *cq) Close() error {
	_ = eventfd.Close(c.wake)
	return unix.Close(c.fd)
}

// Resize changes the capacity; queued completions stay.
func (c *cq) Resize(entries int) error {
	if entries < int(c.tail-c.head) {
		return fmt.Errorf("%d completions wait: %w", c.tail-c.head, via.ErrResource)
	}
	size := 1
	for size < entries {
		size <<= 1
	}
	ring := make([]completion, size)
	n := uint32(0)
	for ; c.head != c.tail; c.head++ {
		ring[n] = c.ring[c.head&c.mask()]
		n++
	}
	c.ring, c.head, c.tail = ring, 0, n
	return nil
}

// FD returns the epoll file descriptor.
func (c *cq) FD() int { return c.fd }

// bind adds a link and returns its index in entries. If the queue is
// armed, the link's peer does not know of the sleep: bind ends it.
//
// m.cq is c.
func (c *cq) bind(m *member) int {
	l := m.link
	c.binding.Lock()
	defer c.binding.Unlock()
	c.signal()
	if i := c.entryOf(l); i >= 0 {
		return i
	}
	i := c.entryOf(nil)
	if i < 0 {
		i = len(c.entries)
		c.entries = append(c.entries, entry{})
	}
	c.entries[i] = entry{link: l, drained: l.sleep.epoch}
	c.links++
	c.sending.Grow(c.links)
	c.arriving.Grow(c.links)
	if l.receiver.cq == c {
		if c.named++; i < maxNamed {
			l.receiver.name = c.named<<nameShift&nameMask | uint64(i)
		}
		m.watchedAt = len(c.watched)
		c.watched = append(c.watched, l)
	}
	c.alerts.add(m) // the control agent may have changed state before
	return i
}

func (c *cq) entryOf(l *link) int {
	return slices.IndexFunc(c.entries, func(s entry) bool { return s.link == l })
}

// unbind removes a link and its completions that were not polled.
func (c *cq) unbind(m *member) {
	l := m.link
	c.binding.Lock()
	defer c.binding.Unlock()
	if i := c.entryOf(l); i >= 0 {
		c.entries[i] = entry{}
		c.links--
	}
	if m.watchedAt >= 0 {
		c.unlist(m)
	}
	removeLink(&c.sending, l)
	removeLink(&c.arriving, l)
	c.alerts.remove(m)
	tail := c.head
	for i := c.head; i != c.tail; i++ {
		if d := c.ring[i&c.mask()]; d.events != &l.receiver.events {
			c.ring[tail&c.mask()] = d
			tail++
		}
	}
	for i := tail; i != c.tail; i++ {
		c.ring[i&c.mask()] = completion{}
	}
	c.tail = tail
	c.rung = true // by the link's agent, perhaps while the driver was awake
}

// unlist removes a link from watched.
func (c *cq) unlist(m *member) {
	last := len(c.watched) - 1
	moved := c.watched[last]
	c.watched[m.watchedAt] = moved
	moved.recvAt.watchedAt = m.watchedAt
	c.watched[last] = nil
	c.watched = c.watched[:last]
	m.watchedAt = -1
}

func (c *cq) mask() uint32 { return uint32(len(c.ring) - 1) }

func (c *cq) empty() bool { return c.head == c.tail }

// room reports whether another completion fits. Links make no progress while
// the queue is full.
func (c *cq) room() bool { return c.tail-c.head < uint32(len(c.ring)) }

// push queues a completion of a link, or with a nil work an event.
func (c *cq) push(of *events, w *via.Work) {
	c.ring[c.tail&c.mask()] = completion{w, of}
	c.tail++
	if c.armed {
		c.signal()
	}
}

func (c *cq) dequeue(dst []via.Done) int {
	n := 0
	for n < len(dst) && c.head != c.tail {
		e := &c.ring[c.head&c.mask()]
		dst[n] = via.Done{Work: e.work}
		if e.work == nil {
			dst[n].Event = e.events.next()
		}
		c.head++
		n++
	}
	if c.head == c.tail {
		c.head, c.tail = 0, 0 // keeps the ring within a few cache lines
	}
	return n
}

// signal ends the sleep of an armed queue. The driver calls it, when one of its
// calls after Arm left work or a completion.
func (c *cq) signal() {
	if c.armed && !c.signaled {
		c.signaled = true
		eventfd.Ring(c.wake)
	}
}

// Arm asks the peers for a doorbell.
func (c *cq) Arm() bool {
	c.edges = false
	return c.arm()
}

// ArmEdge implements [via.EdgeArmer]: it leaves what ended earlier sleeps in
// the epoll set. A bell that is rung again is an edge of the set all the same.
func (c *cq) ArmEdge() bool {
	c.edges = true
	return c.arm()
}

// arm checks the links again after the wants are visible, so that it does not
// miss a peer that published before it saw them.
func (c *cq) arm() bool {
	if !c.empty() {
		return false
	}
	c.drainBells() // before the check: a bell may announce new records
	if c.alerts.some.Load() {
		c.handleAlerts()
	}
	c.publishWants()
	for i := range c.entries {
		if l := c.entries[i].link; l != nil && l.hasWork(c) {
			l.checkTail() // its ready log may not name it yet
			c.withdraw()
			return false
		}
	}
	c.armed = true
	c.wakeReporter()
	return true
}

// publishWants begins a sleep: from now on peers ring.
func (c *cq) publishWants() {
	c.sleeps++
	for i := range c.entries {
		if l := c.entries[i].link; l != nil {
			l.setWants(c)
		}
	}
}

// Disarm ends a sleep whose driver another file descriptor woke.
func (c *cq) Disarm() {
	if c.armed {
		c.disarm()
	}
}

// disarm ends a sleep: it withdraws the wants. drainBells consumes the events
// later, off the path of the first completion.
func (c *cq) disarm() {
	c.armed, c.signaled = false, false
	c.withdraw()
	c.rung = true
}

// drainBells consumes the pending epoll events, so that FD is not readable any
// more, and drains the bells that many sleeps have rung. A bell without room
// has an event until then; with room, it reports each ring, drained or not. A
// consumer that watches for edges may have seen that event before, so its bells
// always have room: sleeps that arm ended at once count.
func (c *cq) drainBells() {
	if c.edges && c.sleeps-c.drainedAt < edgesUndrained || !c.edges && !c.rung {
		return
	}
	c.rung, c.drainedAt = false, c.sleeps
	for range 1 + len(c.entries)/len(c.events) {
		n := pollEvents(c.fd, &c.events)
		for i := range c.events[:n] {
			c.drain(&c.events[i])
		}
		if n < len(c.events) {
			break
		}
	}
}

// drain drains the bell of an event if many sleeps have rung it.
func (c *cq) drain(e *unix.EpollEvent) {
	if int(e.Fd) == c.wake || int(e.Pad) >= len(c.entries) {
		return
	}
	s := &c.entries[e.Pad]
	if l := s.link; l != nil && l.sleep.epoch-s.drained >= sleepsUndrained {
		s.drained = l.sleep.epoch
		drainBell(int(e.Fd))
	}
}

func (c *cq) withdraw() {
	for i := range c.entries {
		if l := c.entries[i].link; l != nil {
			l.clearWants(c)
		}
	}
}

// watch adds a file descriptor to FD, for the link at entries[place].
func (c *cq) watch(fd, place int) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd), Pad: int32(place)}
	if err := unix.EpollCtl(c.fd, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("watch doorbell: %w", err)
	}
	return nil
}

func (c *cq) unwatch(fd int) { _ = unix.EpollCtl(c.fd, unix.EPOLL_CTL_DEL, fd, nil) }
