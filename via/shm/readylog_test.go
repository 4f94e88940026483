package shm

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
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
	c := &crowd{near: newStation(t, testTimeouts), far: newStation(t, testTimeouts)}
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
	c.near.disconnect(c.a[i])
	c.far.disconnect(c.b[i])
	c.a, c.b = append(c.a[:i], c.a[i+1:]...), append(c.b[:i], c.b[i+1:]...)
}

// queue returns the provider's half of a station's completion queue.
func (s *station) queue() *cq {
	s.adapter.mu.Lock()
	defer s.adapter.mu.Unlock()
	for l := range s.adapter.links {
		return l.receiver.cq
	}
	return nil
}

// awaitLogs polls until all ready logs have arrived and no link is watched.
func (c *crowd) awaitLogs(t *testing.T) {
	t.Helper()
	until(t, "ready logs", func() bool {
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

// TestManyLinks: a queue with many links receives by ready logs, while links
// connect and disconnect.
func TestManyLinks(t *testing.T) {
	c := newCrowd(t, manyLinks)
	c.exchange(t, c.each()...)
	q := c.near.queue()
	if len(q.watched) != manyLinks || len(q.followed) != 0 {
		t.Fatalf("%d links are watched, %d ready logs read", len(q.watched), len(q.followed))
	}
	for range 12 {
		c.join(t)
	}
	c.exchange(t, c.each()...) // whether the ready logs have come or not
	c.awaitLogs(t)
	if len(q.followed) != 1 || len(q.localLogs) != 1 || len(q.peerLogs) != 1 {
		t.Fatalf("%d ready logs are followed, %d mapped, %d kept between two queues", len(q.followed), len(q.peerLogs), len(q.localLogs))
	}
	for range 3 {
		c.exchange(t, c.each()...)
		c.exchange(t, 7)
		c.part(3)
		c.join(t) // in the entry of the former
		c.exchange(t, c.each()...)
		c.awaitLogs(t)
	}
	for len(c.a) > 1 {
		c.part(0)
		c.exchange(t, len(c.a)-1)
	}
	c.part(0)
	if len(q.followed)+len(q.localLogs)+len(q.peerLogs) != 0 {
		t.Errorf("%d ready logs are followed, %d mapped, %d kept for no links", len(q.followed), len(q.peerLogs), len(q.localLogs))
	}
}

// TestManyLinksSleep: a queue that learns from ready logs is woken as any
// other.
func TestManyLinksSleep(t *testing.T) {
	c := newCrowd(t, 2*manyLinks)
	c.awaitLogs(t)
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

// TestReadyLogLapped: a reader that fell behind by more than a ready log holds
// loads the tails instead.
func TestReadyLogLapped(t *testing.T) {
	c := newCrowd(t, 2*manyLinks)
	c.awaitLogs(t)
	read := c.near.queue().followed[0]
	var kept *readyLog
	for _, kept = range c.far.queue().localLogs {
	}
	c.exchange(t, c.each()...)
	for _, more := range []int{1, positionStep, logEntries - 1, logEntries, logEntries + 1, 3 * logEntries} {
		var l *link
		for l = range c.far.adapter.links {
		}
		for range more { // nothing new, again and again
			l.sender.log.Load().append(l.sender.out.word())
		}
		c.exchange(t, c.each()...)
		until(t, "the end of the ready log", func() bool { return read.position == kept.position }, c.near)
	}
}

// TestHostileReadyLog writes a ready log as its hostile writer can. Links that
// are watched or have other ready logs are not affected, and the victim sleeps.
func TestHostileReadyLog(t *testing.T) {
	for name, act := range map[string]func(p *rawPeer, mem []byte, name uint64){
		"mentions others": func(_ *rawPeer, mem []byte, name uint64) {
			for i := range uint64(logEntries) {
				forge(mem, i, name&^(maxNamed-1)|i%64, recordAlign*i)
			}
		},
		"mentions names never given": func(_ *rawPeer, mem []byte, _ uint64) {
			for i := range uint64(logEntries) {
				forge(mem, i, 1<<40|i*0x10001, 1<<40)
			}
		},
		"position runs": func(_ *rawPeer, mem []byte, name uint64) {
			storeWord(mem, offPosition, 1<<60)
			forge(mem, 7*logEntries, name, 0)
		},
		"always behind": func(_ *rawPeer, mem []byte, name uint64) { forge(mem, 7*logEntries, name, 0) },
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
			mem, link := p.passLog(t)
			q := c.near.queue()
			until(t, "ready logs", func() bool { return len(q.watched) == 0 && len(q.followed) == 2 }, c.near, c.far)
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
	at := offEntries + int(i%logEntries)*logEntry
	storeWord(mem, at+offEntryName, lapOf(i)<<lapShift|name)
	storeWord(mem, at+offEntryTail, tail)
}

// passLog passes a forged ready log to a victim that asked for one, and returns
// it with the name of the link.
func (p *rawPeer) passLog(t *testing.T) (mem []byte, name uint64) {
	t.Helper()
	mem, fd, err := memfd.Create("raw", logSize, 0)
	check(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	for {
		m, err := receiveControl(p.conn)
		check(t, err)
		closeAll(m.fds...)
		if m.kind == controlRequestLog {
			check(t, sendControl(p.conn, control{kind: controlPassLog, fds: []int{fd}}))
			check(t, unix.Close(fd))
			return mem, m.size
		}
	}
}

// TestReadyLogOrderIsPredicted: a reader predicts that links follow each other
// as they did the last time, and predicts no closed link.
func TestReadyLogOrderIsPredicted(t *testing.T) {
	c := newCrowd(t, 2*manyLinks)
	c.exchange(t, c.each()...)
	c.awaitLogs(t)
	for range 2 {
		c.exchange(t, c.each()...)
	}
	q := c.near.queue()
	entries := make([]int, len(c.a))
	for i, vi := range c.a {
		entries[i] = slices.IndexFunc(q.entries, func(s entry) bool { return s.link != nil && s.link.receiver.events.owner == vi })
	}
	j := q.followed[0]
	for i, entry := range entries {
		next := (i + 1) % len(entries)
		if l := q.predictNext(j, entry); l == nil || l.receiver.events.owner != c.a[next] {
			t.Errorf("connection %d is not predicted after %d", next, i)
		}
	}
	c.part(3)
	if l := q.predictNext(j, entries[2]); l != nil {
		t.Errorf("a connection that has ended is predicted")
	}
	if l := q.predictNext(j, entries[3]); l != nil {
		t.Errorf("a connection is predicted after one that has ended")
	}
	c.exchange(t, c.each()...)
}
