package shm

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via"
)

// A poll gives turns to the links that may have something to do, not to all: to
// those with sends under way, to those whose tails it watches, and to those that
// a journal names. A turn is bounded, and a link that is not done with its own
// waits for the others': a greedy link keeps nobody from his.
const (
	sendTurn = 1 << 20 // bytes that a turn moves by Sends and RDMA
	recvTurn = 64      // records that a turn takes; their bytes fit the ring
)

// Poll makes progress on the links and takes what is done.
func (c *cq) Poll(dst []via.Done) int {
	if c.armed {
		c.disarm()
	}
	n := c.take(dst)
	if n < len(dst) {
		c.turns(uint32(len(dst) - n))
		n += c.take(dst[n:])
		if c.failing > 0 {
			n += c.report(dst[n:])
		}
	}
	c.passOn()
	if n == 0 {
		c.hush()
	}
	return n
}

// turns gives the links their turns, until want completions wait.
func (c *cq) turns(want uint32) {
	if c.alerts.some.Load() {
		c.heed()
	}
	for k := c.sending.len(); k > 0; k-- {
		c.sending.pop().sendTurn()
	}
	for range c.watched {
		if c.next >= len(c.watched) {
			c.next = 0
		}
		l := c.watched[c.next]
		c.next++
		if !l.broken {
			l.progressRecv()
		}
		if c.tail-c.head >= want {
			break
		}
	}
	for _, j := range c.journals {
		c.follow(j)
	}
	if c.arriving.len() > 1 {
		c.touch()
	}
	for k := c.arriving.len(); k > 0; k-- {
		c.arriving.pop().arrivalTurn()
		if c.tail-c.head >= want {
			return
		}
	}
}

// touch looks at what the turns of links with arrivals will need, so that the
// processor fetches for all at once what would be waited for in turn: with many
// links, little of it is in the cache.
func (c *cq) touch() {
	q, sum := &c.arriving, uint64(0)
	for i := q.head; i != q.tail; i++ {
		l := *q.at(i)
		sum += l.in.peek() + uint64(l.rq.head)
	}
	for i := q.head; i != q.tail; i++ {
		if w := (*q.at(i)).rq.first(); w != nil {
			sum += uint64(w.Length) + uint64(w.Status)
		}
	}
	c.touched = sum
}

// sendTurn moves what the link has to send.
func (l *link) sendTurn() {
	l.queued &^= queuedSend
	if l.broken {
		return
	}
	l.progressSend()
	l.Doorbell()
	l.sends()
}

// sends gives the link turns while it has something to send.
func (l *link) sends() {
	if !l.sq.empty() && !l.broken && l.queued&queuedSend == 0 {
		l.queued |= queuedSend
		l.sendCQ.sending.push(l)
	}
}

// arrivalTurn takes what has arrived at a link that a journal speaks of.
func (l *link) arrivalTurn() {
	l.queued &^= queuedRecv
	if l.broken {
		return
	}
	l.progressRecv()
	if l.in.head != l.in.tail {
		l.arrives()
	}
}

// arrives gives the link a turn for what has arrived. A watched link has one.
func (l *link) arrives() {
	if !l.broken && l.journal != nil && l.queued&queuedRecv == 0 {
		l.queued |= queuedRecv
		l.recvCQ.arriving.push(l)
	}
}

// notice makes a turn look at the link's tail, whatever its journal says.
func (l *link) notice() {
	if l.journal != nil && !l.broken {
		l.see()
		l.arrives()
	}
}

// report stores the ends of links. A link's end comes after its completions.
func (c *cq) report(dst []via.Done) int {
	n := 0
	for i := range c.slots {
		if n == len(dst) || !c.empty() {
			break
		}
		if l := c.slots[i].link; l != nil && l.reportable(c) {
			l.told()
			dst[n] = via.Done{Event: &via.Event{Owner: l.cfg.Owner, Code: l.event, Broken: true, Cause: l.cause}}
			n++
		}
	}
	return n
}

// passOn wakes the queue that reports the end of a link once this one, which
// holds the link's sends, is empty.
func (c *cq) passOn() {
	if c.failing == 0 || !c.empty() {
		return
	}
	for i := range c.slots {
		if l := c.slots[i].link; l != nil && l.recvCQ != c && l.reportable(l.recvCQ) {
			l.recvCQ.signal()
		}
	}
}

// heed does what the agent asks for.
func (c *cq) heed() {
	for range c.links {
		l := c.alerts.take(c)
		if l == nil {
			return
		}
		if l.broken {
			continue
		}
		if l.sendCQ == c && l.arenas.stale.Load() {
			l.arenas.sweep()
			l.cache = [len(l.cache)]mapping{}
		}
		if l.recvCQ == c {
			if j := l.offered.Load(); j != nil && l.journal == nil {
				c.adopt(l, j)
			}
			l.arrives()
		}
	}
}

// alerts are links that the data path is to look at, because their agents have
// something to say. Any goroutine adds.
type alerts struct {
	some  atomic.Bool
	mu    sync.Mutex
	links []*link // each once
}

// add adds a link that is or will be bound to c.
func (a *alerts) add(l *link, c *cq) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if flag := l.alertedBy(c); !*flag {
		*flag = true
		a.links = append(a.links, l)
		a.some.Store(true)
	}
}

// take returns a link, or nil.
func (a *alerts) take(c *cq) *link {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.links) == 0 {
		a.some.Store(false)
		return nil
	}
	l := a.links[len(a.links)-1]
	a.links[len(a.links)-1] = nil
	a.links = a.links[:len(a.links)-1]
	*l.alertedBy(c) = false
	return l
}

func (a *alerts) remove(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.links = slices.DeleteFunc(a.links, func(o *link) bool { return o == l })
}

// alertedBy returns the mark that says whether a queue's alerts have the link.
// The alerts' lock guards it.
func (l *link) alertedBy(c *cq) *bool {
	if l.sendCQ == c {
		return &l.alertedSend
	}
	return &l.alertedRecv
}

// alert makes the queue's owner look at a link. Any goroutine calls it.
func (c *cq) alert(l *link) {
	c.alerts.add(l, c)
	eventfd.Ring(c.wake)
}

// linkQueue is a FIFO of links, each of which is in it at most once.
type linkQueue struct {
	ring       []*link
	head, tail uint32
}

func (q *linkQueue) len() uint32 { return q.tail - q.head }
func (q *linkQueue) at(i uint32) **link {
	return &q.ring[i&uint32(len(q.ring)-1)]
}

func (q *linkQueue) push(l *link) {
	*q.at(q.tail) = l
	q.tail++
}

func (q *linkQueue) pop() *link {
	l := *q.at(q.head)
	q.head++
	return l
}

// grow makes room for n links.
func (q *linkQueue) grow(n int) {
	if n <= len(q.ring) {
		return
	}
	grown := linkQueue{ring: make([]*link, max(8, 2*len(q.ring)))}
	for q.head != q.tail {
		grown.push(q.pop())
	}
	*q = grown
}

func (q *linkQueue) remove(l *link) {
	for k := q.len(); k > 0; k-- {
		if o := q.pop(); o != l {
			q.push(o)
		}
	}
}
