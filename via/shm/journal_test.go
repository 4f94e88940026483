package shm

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// crowd is two stations joined by more links than a queue watches.
type crowd struct {
	near, far *station
	a, b      []*via.VI // a[i] and b[i] are connected
	l         *via.Listener
}

func newCrowd(t *testing.T, n int) *crowd {
	t.Helper()
	watchLeaks(t)
	c := &crowd{near: newStation(t, testPatience), far: newStation(t, testPatience)}
	c.l = c.near.listen()
	for range n {
		c.join(t)
	}
	return c
}

// join adds a connection.
func (c *crowd) join(t *testing.T) {
	t.Helper()
	a, b := c.near.newVI(), c.far.newVI()
	join(t, b, c.l, a)
	c.a, c.b = append(c.a, a), append(c.b, b)
}

// part ends connection i.
func (c *crowd) part(i int) {
	c.near.drop(c.a[i])
	c.far.drop(c.b[i])
	c.a, c.b = append(c.a[:i], c.a[i+1:]...), append(c.b[:i], c.b[i+1:]...)
}

// queue returns the provider's half of a station's completion queue.
func (s *station) queue() *cq {
	s.adapter.mu.Lock()
	defer s.adapter.mu.Unlock()
	for l := range s.adapter.links {
		return l.recvCQ
	}
	return nil
}

// settle polls until the journals have come, and nothing is watched.
func (c *crowd) settle(t *testing.T) {
	t.Helper()
	until(t, "journals", func() bool {
		return len(c.near.queue().watched)+len(c.far.queue().watched) == 0
	}, c.near, c.far)
}

// exchange sends a message each way over each of some connections.
func (c *crowd) exchange(t *testing.T, which ...int) {
	t.Helper()
	const at, n = 1 << 20, 100
	var receives [2][]*via.Descriptor
	for k, i := range which {
		receives[0] = append(receives[0], c.near.descriptor(2*k, via.OpRecv, at+2*k*n, n))
		receives[1] = append(receives[1], c.far.descriptor(2*k, via.OpRecv, at+2*k*n, n))
		check(t, c.a[i].PostRecv(receives[0][k]))
		check(t, c.b[i].PostRecv(receives[1][k]))
	}
	for k, i := range which {
		for _, x := range []struct {
			s  *station
			vi *via.VI
		}{{c.near, c.a[i]}, {c.far, c.b[i]}} {
			copy(x.s.mem.Bytes()[at+(2*k+1)*n:], fmt.Sprintf("message %d", k))
			check(t, x.vi.PostSend(x.s.descriptor(2*k+1, via.OpSend, at+(2*k+1)*n, n)))
		}
	}
	for k, i := range which {
		for side, s := range []*station{c.near, c.far} {
			done := s.await(receives[side][k], c.near, c.far)
			vi := []*via.VI{c.a[i], c.b[i]}[side]
			want := fmt.Sprintf("message %d", k)
			if got := s.mem.Bytes()[at+2*k*n:][:len(want)]; done.Status.Failed() || done.VI != vi || string(got) != want {
				t.Fatalf("message %d ends with %+v and %q", k, done, got)
			}
		}
	}
	for _, s := range []*station{c.near, c.far} {
		for s.poll() > 0 {
		}
		s.done = s.done[:0]
	}
}

// each returns the numbers of all connections.
func (c *crowd) each() []int {
	all := make([]int, len(c.a))
	for i := range all {
		all[i] = i
	}
	return all
}

// TestManyLinks: a queue with many links learns from journals what arrives, while
// links come and go.
func TestManyLinks(t *testing.T) {
	c := newCrowd(t, manyLinks)
	c.exchange(t, c.each()...)
	q := c.near.queue()
	if len(q.watched) != manyLinks || len(q.journals) != 0 {
		t.Fatalf("%d links are watched, %d journals read", len(q.watched), len(q.journals))
	}
	for range 12 {
		c.join(t)
	}
	c.exchange(t, c.each()...) // whether the journals have come or not
	c.settle(t)
	if len(q.journals) != 1 || len(q.kept) != 1 || len(q.read) != 1 {
		t.Fatalf("%d journals are followed, %d mapped, %d kept between two queues", len(q.journals), len(q.read), len(q.kept))
	}
	for range 3 {
		c.exchange(t, c.each()...)
		c.exchange(t, 7)
		c.part(3)
		c.join(t) // in the slot of the former
		c.exchange(t, c.each()...)
		c.settle(t)
	}
	for len(c.a) > 1 {
		c.part(0)
		c.exchange(t, len(c.a)-1)
	}
	c.part(0)
	if len(q.journals)+len(q.kept)+len(q.read) != 0 {
		t.Errorf("%d journals are followed, %d mapped, %d kept for no links", len(q.journals), len(q.read), len(q.kept))
	}
}

// TestManyLinksSleep: a queue that learns from journals is woken as any other.
func TestManyLinksSleep(t *testing.T) {
	c := newCrowd(t, 2*manyLinks)
	c.settle(t)
	for i := range c.a {
		r := c.near.descriptor(0, via.OpRecv, 1<<20, 64)
		check(t, c.a[i].PostRecv(r))
		arm(t, c.near.cq)
		d := c.far.descriptor(1, via.OpSend, 1<<20, 64)
		check(t, c.b[i].PostSend(d))
		wakes(t, c.near.cq, "a message")
		c.near.await(r)
		c.far.await(d)
	}
	r := c.near.descriptor(0, via.OpRecv, 1<<20, 64)
	check(t, c.a[5].PostRecv(r))
	arm(t, c.near.cq)
	check(t, c.b[5].Disconnect())
	wakes(t, c.near.cq, "the end of a connection")
	until(t, "the end", func() bool { return c.a[5].State() == via.StateError }, c.near)
}

// TestJournalLapped: a reader that fell behind by more than a journal holds looks
// at the tails themselves.
func TestJournalLapped(t *testing.T) {
	c := newCrowd(t, 2*manyLinks)
	c.settle(t)
	read := c.near.queue().journals[0]
	var kept *journal
	for _, kept = range c.far.queue().kept {
	}
	c.exchange(t, c.each()...)
	for _, more := range []int{1, positionStep, journalEntries - 1, journalEntries, journalEntries + 1, 3 * journalEntries} {
		var l *link
		for l = range c.far.adapter.links {
		}
		for range more { // nothing new, again and again
			l.mention.Load().enter(l.out.word())
		}
		c.exchange(t, c.each()...)
		until(t, "the end of the journal", func() bool { return read.position == kept.position }, c.near)
	}
}

// TestHostileJournal does with a journal what its keeper can do. Those that are
// watched or have other journals go on, and the victim sleeps.
func TestHostileJournal(t *testing.T) {
	for name, act := range map[string]func(p *rawPeer, mem []byte, name uint64){
		"mentions others": func(_ *rawPeer, mem []byte, name uint64) {
			for i := range uint64(journalEntries) {
				forge(mem, i, name&^(maxNamed-1)|i%64, recordAlign*i)
			}
		},
		"mentions names never given": func(_ *rawPeer, mem []byte, _ uint64) {
			for i := range uint64(journalEntries) {
				forge(mem, i, 1<<40|i*0x10001, 1<<40)
			}
		},
		"position runs": func(_ *rawPeer, mem []byte, name uint64) {
			storeWord(mem, offPosition, 1<<60)
			forge(mem, 7*journalEntries, name, 0)
		},
		"always behind": func(_ *rawPeer, mem []byte, name uint64) { forge(mem, 7*journalEntries, name, 0) },
		"tail out of bounds": func(_ *rawPeer, mem []byte, name uint64) {
			forge(mem, 0, name, 2*ringSize)
			forge(mem, 1, name, 7)
			forge(mem, 2, name, 1<<63)
		},
		"silent": func(p *rawPeer, _ []byte, _ uint64) {
			p.record(record{tag: tag{kind: recordMessage, flags: flagFirst | flagLast}}, nil)
			p.publish()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, manyLinks)
			vi := c.near.newVI()
			check(t, vi.PostRecv(c.near.descriptor(200, via.OpRecv, 1<<20, 64)))
			p := attach(t, c.near, c.l, vi)
			mem, link := p.journal(t)
			q := c.near.queue()
			until(t, "journals", func() bool { return len(q.watched) == 0 && len(q.journals) == 2 }, c.near, c.far)
			act(p, mem, link)
			c.exchange(t, c.each()...)
			arm(t, c.near.cq)
			c.exchange(t, c.each()...)
			if name == "silent" { // what it published arrives at the latest with a sleep
				if n := vi.Stats().Receives; n != 1 {
					t.Errorf("%d messages arrived", n)
				}
			}
		})
	}
}

func forge(mem []byte, i, name, tail uint64) {
	at := offEntries + int(i%journalEntries)*journalEntry
	storeWord(mem, at+offEntryName, lapOf(i)<<lapShift|name)
	storeWord(mem, at+offEntryTail, tail)
}

// journal passes a forged journal to a victim that asked for one, and returns it
// with the name of the link.
func (p *rawPeer) journal(t *testing.T) (mem []byte, name uint64) {
	t.Helper()
	mem, fd, err := mapMemfd("raw", journalSize, 0)
	check(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	for {
		m, err := receiveControl(p.conn)
		check(t, err)
		closeAll(m.fds...)
		if m.kind == controlAsk {
			check(t, sendControl(p.conn, control{kind: controlJournal, fds: []int{fd}}))
			check(t, unix.Close(fd))
			return mem, m.size
		}
	}
}

// TestJournalOrderIsGuessed: a reader guesses that links follow each other as they
// did the last time, and guesses none that has gone.
func TestJournalOrderIsGuessed(t *testing.T) {
	c := newCrowd(t, 2*manyLinks)
	c.exchange(t, c.each()...)
	c.settle(t)
	for range 2 {
		c.exchange(t, c.each()...)
	}
	q := c.near.queue()
	slots := make([]int, len(c.a))
	for i, vi := range c.a {
		slots[i] = slices.IndexFunc(q.slots, func(s slot) bool { return s.link != nil && s.link.cfg.Owner == vi })
	}
	j := q.journals[0]
	for i, slot := range slots {
		next := (i + 1) % len(slots)
		if l := q.following(j, slot); l == nil || l.cfg.Owner != c.a[next] {
			t.Errorf("connection %d is not guessed after %d", next, i)
		}
	}
	c.part(3)
	if l := q.following(j, slots[2]); l != nil {
		t.Errorf("a connection that has ended is guessed")
	}
	if l := q.following(j, slots[3]); l != nil {
		t.Errorf("a connection is guessed after one that has ended")
	}
	c.exchange(t, c.each()...)
}
