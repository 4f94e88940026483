package shm

import (
	"github.com/viablk/viablk/internal/ring"
	"github.com/viablk/viablk/via"
)

// Poll serves a queue:
//
//  1. dequeue returns the waiting completions; if they fill dst, Poll ends, but
//     not each time: posting completes works too, and a VI that posts as many
//     as the consumer polls would keep the other ones from running
//  2. progress runs the links with work to send (sending), the links whose
//     tails the queue loads itself (watched), and the links that a ready log
//     names (arriving); the provider owns works and receives until it pushes
//     them
//  3. dequeue returns the new completions, report returns the ends of links
//  4. drainBells consumes wake-ups if the poll found nothing
//
// Each link has a quantum per pass: a link that uses it up waits for the
// others.
const (
	sendQuantum = 1 << 20 // bytes of Sends and RDMA per pass
	recvQuantum = 64      // records per pass; their bytes fit the ring

	maxFullPolls = 4 // in a row that run no link
)

// Poll runs the links and returns completions.
func (c *cq) Poll(dst []via.Done) int {
	if c.armed {
		c.disarm()
	}
	n := c.dequeue(dst)
	if c.fullPolls++; n < len(dst) || c.fullPolls > maxFullPolls {
		c.fullPolls = 0
		c.progress(uint32(len(dst) - n))
		n += c.dequeue(dst[n:])
		if c.unreported > 0 {
			n += c.report(dst[n:])
		}
	}
	c.wakeReporter()
	if n == 0 {
		c.drainBells()
	}
	return n
}

// progress runs each ready link for one quantum, until want completions wait.
func (c *cq) progress(want uint32) {
	if c.alerts.some.Load() {
		c.handleAlerts()
	}
	for k := c.sending.Len(); k > 0; k-- {
		c.sending.Pop().runSend()
	}
	for range c.watched {
		if c.next >= len(c.watched) {
			c.next = 0
		}
		l := c.watched[c.next]
		c.next++
		if !l.broken && l.arrives() {
			l.progressRecv()
		}
		if c.tail-c.head >= want {
			break
		}
	}
	for _, j := range c.followed {
		c.readLog(j)
	}
	if c.arriving.Len() > 1 {
		c.warmCaches()
	}
	for k := c.arriving.Len(); k > 0; k-- {
		c.arriving.Pop().runReceive()
		if c.tail-c.head >= want {
			return
		}
	}
}

// warmCaches loads the cache lines that receiving will touch, of all arriving
// links, so that their cache misses overlap.
func (c *cq) warmCaches() {
	q, sum := &c.arriving, uint64(0)
	for i := range q.Len() {
		l := *q.At(i)
		sum += l.receiver.in.peek() + uint64(l.receiver.rq.Popped())
	}
	for i := range q.Len() {
		if w := *(*q.At(i)).receiver.rq.First(); w != nil {
			sum += uint64(w.Length) + uint64(w.Status)
		}
	}
	c.warmed = sum
}

// runSend sends for one quantum.
func (l *link) runSend() {
	l.sender.sending = false
	if l.broken {
		return
	}
	l.progressSend()
	l.Doorbell()
	l.scheduleSend()
}

// scheduleSend puts the link into cq.sending while it has work to send.
func (l *link) scheduleSend() {
	if s := &l.sender; !s.sq.Empty() && !l.broken && !s.sending {
		s.sending = true
		s.cq.sending.Push(l)
	}
}

// runReceive receives records of a link that a ready log named.
func (l *link) runReceive() {
	r := &l.receiver
	r.arriving = false
	if l.broken {
		return
	}
	l.progressRecv()
	if r.in.head != r.in.tail {
		l.scheduleReceive()
	}
}

// scheduleReceive puts the link into cq.arriving. A watched link runs in every
// pass.
func (l *link) scheduleReceive() {
	if r := &l.receiver; !l.broken && r.peerLog != nil && !r.arriving {
		r.arriving = true
		r.cq.arriving.Push(l)
	}
}

// checkTail loads the tail of a link that its ready log may not have named.
func (l *link) checkTail() {
	if l.receiver.peerLog == nil || l.broken {
		return
	}
	if err := l.receiver.loadTail(); err != nil {
		l.fail(err)
	}
	l.scheduleReceive()
}

// report stores the ends of links in dst, each after the link's completions.
func (c *cq) report(dst []via.Done) int {
	n := 0
	for i := range c.entries {
		if n == len(dst) || !c.empty() {
			break
		}
		if l := c.entries[i].link; l != nil && l.reportable(c) {
			l.markReported()
			dst[n] = via.Done{Event: l.receiver.events.broken()}
			n++
		}
	}
	return n
}

// wakeReporter wakes the receive queues that report the ends of links. They
// wait until c, which holds the links' sends, is empty.
func (c *cq) wakeReporter() {
	if c.unreported == 0 || !c.empty() {
		return
	}
	for i := range c.entries {
		if l := c.entries[i].link; l != nil && l.receiver.cq != c && l.reportable(l.receiver.cq) {
			l.receiver.cq.signal()
		}
	}
}

// handleAlerts applies what the control agents of links have changed.
func (c *cq) handleAlerts() {
	for range c.links {
		l := c.alerts.pop()
		if l == nil {
			return
		}
		if l.broken {
			continue
		}
		if l.sender.cq == c {
			l.sender.remote.sweep()
		}
		if l.receiver.cq == c {
			if j := l.agent.passedLog.Load(); j != nil && l.receiver.peerLog == nil {
				c.switchToLog(l, j)
			}
			l.scheduleReceive()
		}
	}
}

// removeLink removes l, which is in the queue at most once.
func removeLink(q *ring.Ring[*link], l *link) {
	for k := q.Len(); k > 0; k-- {
		if o := q.Pop(); o != l {
			q.Push(o)
		}
	}
}
