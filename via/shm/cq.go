package shm

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via"
)

// cq is a completion queue: the links bound to it and what is done. One goroutine
// drives it. Its owner sleeps on an epoll file descriptor that watches the bells
// of the links and an eventfd for wake-ups from inside the process. The watches
// are edge-triggered: a bell that a peer leaves ringing wakes once.
type cq struct {
	fd       int        // epoll
	wake     int        // eventfd, never passed to a peer
	binding  sync.Mutex // two VIs of the queue may be connecting, to each other
	slots    []slot     // of the links; a journal and a bell name a link by its slot
	links    int        // in slots
	named    uint64     // names given to links so far
	token    uint64     // names the queue to those who keep its journals
	failing  int        // links with an end that is to be reported, here or by the other queue
	armed    bool
	signaled bool // wake was written in this sleep
	rung     bool // what ended the last sleep is not taken yet
	events   [16]unix.EpollEvent

	// Whose turn it is.
	watched  []*link        // arrivals are looked for in each turn
	next     int            // watched[next] is the first to get one
	journals []*peerJournal // these say which others have arrivals
	arriving linkQueue      // of these others
	sending  linkQueue      // links with sends under way
	alerts   alerts
	touched  uint64

	// Journals by what they are; guarded by binding.
	kept map[uint64]*journal        // for queues of peers, by token
	read map[journalID]*peerJournal // mapped here

	ring       []entry
	head, tail uint32
}

// slot is the place of a link in a queue.
type slot struct {
	link  *link
	rings int // events of its bell since that was drained
}

// entry is a work that is done, and whose. Without a work it is an event that the
// link keeps.
type entry struct {
	work *via.Work
	link *link
}

func newCQ(entries int) (*cq, error) {
	var token [8]byte
	_, _ = rand.Read(token[:])
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	size := 1
	for size < entries {
		size <<= 1
	}
	c := &cq{
		fd: fd, wake: wake, token: binary.LittleEndian.Uint64(token[:]), ring: make([]entry, size),
		kept: make(map[uint64]*journal), read: make(map[journalID]*peerJournal),
	}
	if err := c.watch(wake, 0); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the queue.
func (c *cq) Close() error {
	_ = unix.Close(c.wake)
	return unix.Close(c.fd)
}

// Resize changes the entries; what is in the queue stays.
func (c *cq) Resize(entries int) error {
	if entries < int(c.tail-c.head) {
		return fmt.Errorf("%d completions wait: %w", c.tail-c.head, via.ErrResource)
	}
	size := 1
	for size < entries {
		size <<= 1
	}
	ring := make([]entry, size)
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

// bind adds a link and returns its slot. An armed queue did not arm the link, so
// its owner wakes.
func (c *cq) bind(l *link) int {
	c.binding.Lock()
	defer c.binding.Unlock()
	c.signal()
	if i := c.slotOf(l); i >= 0 {
		return i
	}
	i := c.slotOf(nil)
	if i < 0 {
		i = len(c.slots)
		c.slots = append(c.slots, slot{})
	}
	c.slots[i] = slot{link: l}
	c.links++
	c.sending.grow(c.links)
	c.arriving.grow(c.links)
	if l.recvCQ == c {
		if c.named++; i < maxNamed {
			l.name = c.named<<nameShift&nameMask | uint64(i)
		}
		l.watchedAt = len(c.watched)
		c.watched = append(c.watched, l)
	}
	c.alerts.add(l, c) // the agent may have had something to say before
	return i
}

func (c *cq) slotOf(l *link) int {
	return slices.IndexFunc(c.slots, func(s slot) bool { return s.link == l })
}

// unbind removes a link and what it reported but nobody polled.
func (c *cq) unbind(l *link) {
	c.binding.Lock()
	defer c.binding.Unlock()
	if i := c.slotOf(l); i >= 0 {
		c.slots[i] = slot{}
		c.links--
	}
	if l.recvCQ == c && l.watchedAt >= 0 {
		c.unlist(l)
	}
	c.sending.remove(l)
	c.arriving.remove(l)
	c.alerts.remove(l)
	tail := c.head
	for i := c.head; i != c.tail; i++ {
		if d := c.ring[i&c.mask()]; d.link != l {
			c.ring[tail&c.mask()] = d
			tail++
		}
	}
	for i := tail; i != c.tail; i++ {
		c.ring[i&c.mask()] = entry{}
	}
	c.tail = tail
}

// unlist takes a link out of those that are watched.
func (c *cq) unlist(l *link) {
	last := len(c.watched) - 1
	c.watched[l.watchedAt] = c.watched[last]
	c.watched[l.watchedAt].watchedAt = l.watchedAt
	c.watched[last] = nil
	c.watched = c.watched[:last]
	l.watchedAt = -1
}

func (c *cq) mask() uint32 { return uint32(len(c.ring) - 1) }

func (c *cq) empty() bool { return c.head == c.tail }

// room reports whether another completion fits: a link stops making progress
// while its consumer does not poll.
func (c *cq) room() bool { return c.tail-c.head < uint32(len(c.ring)) }

// push stores a completion, or with a nil work an event.
func (c *cq) push(l *link, w *via.Work) {
	c.ring[c.tail&c.mask()] = entry{w, l}
	c.tail++
	if c.armed {
		c.signal()
	}
}

func (c *cq) take(dst []via.Done) int {
	n := 0
	for n < len(dst) && c.head != c.tail {
		e := &c.ring[c.head&c.mask()]
		dst[n] = via.Done{Work: e.work}
		if e.work == nil {
			dst[n].Event = e.link.nextEvent()
		}
		c.head++
		n++
	}
	if c.head == c.tail {
		c.head, c.tail = 0, 0 // a ring that keeps up stays within a few cache lines
	}
	return n
}

// signal wakes the owner if the queue is armed. Only the owner calls it: for
// what its own calls brought about after it armed the queue.
func (c *cq) signal() {
	if c.armed && !c.signaled {
		c.signaled = true
		eventfd.Ring(c.wake)
	}
}

// Arm asks the peers for a doorbell. The links are looked at again after the
// wish is visible: a peer that published before it saw the wish is not missed.
func (c *cq) Arm() bool {
	if !c.empty() {
		return false
	}
	c.hush() // before the links are looked at: what rang may be news
	if c.alerts.some.Load() {
		c.heed()
	}
	for i := range c.slots {
		if l := c.slots[i].link; l != nil {
			l.setWants(c)
		}
	}
	for i := range c.slots {
		if l := c.slots[i].link; l != nil && l.hasWork(c) {
			l.notice() // if its journal says nothing
			c.withdraw()
			return false
		}
	}
	c.armed = true
	c.passOn()
	return true
}

// disarm ends a sleep: it withdraws the wish. What rang is taken later: nobody is
// to wait for that.
func (c *cq) disarm() {
	c.armed, c.signaled = false, false
	c.withdraw()
	c.rung = true
}

// hush takes what rang, so that it wakes no more. A bell rings again whether or
// not it was drained; it is drained before its socket is full, which would silence
// it.
func (c *cq) hush() {
	if !c.rung {
		return
	}
	c.rung = false
	for _, e := range c.events[:takeEvents(c.fd, &c.events)] {
		if int(e.Fd) == c.wake || int(e.Pad) >= len(c.slots) {
			continue
		}
		s := &c.slots[e.Pad]
		if s.rings++; s.rings >= ringsUndrained {
			s.rings = 0
			drainBell(int(e.Fd))
		}
	}
}

func (c *cq) withdraw() {
	for i := range c.slots {
		if l := c.slots[i].link; l != nil {
			l.clearWants(c)
		}
	}
}

// watch makes a bell wake the queue's owner, for the link in a slot.
func (c *cq) watch(fd, slot int) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd), Pad: int32(slot)}
	if err := unix.EpollCtl(c.fd, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("watch doorbell: %w", err)
	}
	return nil
}

func (c *cq) unwatch(fd int) { _ = unix.EpollCtl(c.fd, unix.EPOLL_CTL_DEL, fd, nil) }
