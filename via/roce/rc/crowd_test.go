package rc_test

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// A crowd is initiators of one host and their target at another one, in virtual
// time. All their packets share a cable. An initiator has two connections: one
// carries commands, which the target answers after a transfer, the other one
// keepalives.
type crowd struct {
	*world
	cables  [2]cable // to the target, to the initiators
	ports   []*crowdPort
	members []*member
	op      rc.Op // of the transfers
}

// cable is one direction of a cable. Packets wait in its queue, and get lost if
// that has no room. After a pause it takes a burst at once, as token buckets
// do: it looks fast until that is used up.
type cable struct {
	rate  float64       // bytes per second
	room  int           // bytes that wait
	burst float64       // bytes
	delay time.Duration // besides; of busy hosts as well
	free  time.Duration // when the last one has left, if there were no bursts
	lost  int
}

// member is an initiator, and what the target has for it.
type member struct {
	command, serve    *crowdPort // the ends of the connection of its commands
	keepalive, answer *crowdPort // those of the other one
	data, copied      []byte

	waits    bool // for the answer of its command
	awaiting bool // that of its keepalive
	tickAt   time.Duration
	unsent   int    // intervals without a keepalive, and without life
	life     uint64 // at the last tick
	peers    [2]sign
	transfer sign // what moves on the connection of its commands
}

// sign is when the life of a peer last changed.
type sign struct {
	life  uint64
	at    time.Duration
	worst float64 // the longest silence, in parts of what the end bears
}

// crowdPort is one end of a connection.
type crowdPort struct {
	port
	side     int // 0: initiator
	dirty    bool
	works    []rc.Work
	posted   int
	receives []rc.Receive
	member   *member
}

// Remote implements rc.Memory.
func (p *crowdPort) Remote(_ uint32, addr uint64, length int, _ rc.Access) []byte {
	return p.member.data[addr:][:length]
}

// Local implements rc.Memory.
func (p *crowdPort) Local(uint64) bool { return true }

// The defaults of initiators and targets.
const (
	crowdMessage  = 64 // bytes
	crowdInterval = 250 * time.Millisecond
	crowdSilence  = 4 * crowdInterval
)

// newCrowd returns a crowd on a fast cable, each with a transfer of so many
// bytes.
func newCrowd(seed uint64, op rc.Op, members, size int, line func() *rc.Line) *crowd {
	fast := cable{rate: 1.25e9, room: 4 << 20, delay: 20 * time.Microsecond}
	c := &crowd{world: newWorld(seed), op: op, cables: [2]cable{fast, fast}}
	stash, atTarget := rc.NewStash(1024), line()
	for i := range members {
		m := &member{data: make([]byte, size), copied: make([]byte, size)}
		pattern(m.data, uint64(i)+1)
		lines := [2]*rc.Line{line(), atTarget}
		m.command, m.serve = c.connect(m, stash, lines)
		m.keepalive, m.answer = c.connect(m, stash, lines)
		m.tickAt = c.now + time.Duration(c.rng.Int64N(int64(crowdInterval)))
		c.members = append(c.members, m)
	}
	return c
}

// connect returns the two ends of a connection.
func (c *crowd) connect(m *member, stash *rc.Stash, lines [2]*rc.Line) (a, b *crowdPort) {
	var ends [2]*crowdPort
	for i := range ends {
		p := &crowdPort{side: i, member: m, works: make([]rc.Work, 16), receives: make([]rc.Receive, 8)}
		p.icrc, p.check = c.ends[i].icrc, c.ends[i].check
		qp, err := rc.New(rc.Config{
			PeerQP: 5, MTU: wire.MTU1024, SendDepth: len(p.works), ReceiveDepth: len(p.receives),
			AllowWrite: true, AllowRead: true, Reads: 16, PeerReads: 16, Window: 512, Retries: 8,
			Stash: stash, Selective: true, Line: lines[i],
		}, p)
		if err != nil {
			panic(err)
		}
		p.qp = qp
		for k := range p.receives {
			p.receives[k].Segments = [][]byte{make([]byte, crowdMessage)}
			qp.PostReceive(&p.receives[k])
		}
		ends[i] = p
		c.ports = append(c.ports, p)
	}
	ends[0].peer, ends[1].peer = &ends[1].port, &ends[0].port
	return ends[0], ends[1]
}

// post posts a work.
func (p *crowdPort) post(w rc.Work) {
	work := &p.works[p.posted%len(p.works)]
	*work = w
	if !p.qp.Post(work) {
		panic("work refused")
	}
	p.posted++
	p.dirty = true
}

func (p *crowdPort) send() {
	p.post(rc.Work{Op: rc.Send, Segments: [][]byte{make([]byte, crowdMessage)}})
}

// ask has all members send their command, and returns how long it takes until
// all are answered.
func (c *crowd) ask(limit time.Duration) (time.Duration, error) {
	began, waiting := c.now, true
	for _, m := range c.members {
		m.waits, m.peers, m.transfer = true, [2]sign{}, sign{}
		m.command.send()
	}
	for waiting {
		if c.now-began > limit {
			return 0, fmt.Errorf("not done after %v", limit)
		}
		if err := c.step(); err != nil {
			return 0, fmt.Errorf("after %v: %w", c.now-began, err)
		}
		waiting = false
		for _, m := range c.members {
			waiting = waiting || m.waits
		}
	}
	return c.now - began, nil
}

// idle lets time pass.
func (c *crowd) idle(d time.Duration) error {
	for end := c.now + d; c.now < end; {
		if err := c.step(); err != nil {
			return err
		}
	}
	return nil
}

// step lets the ends emit and advances to the next event.
func (c *crowd) step() error {
	next := c.members[0].tickAt
	for _, p := range c.ports {
		if p.dirty {
			if err := p.consume(c.op); err != nil {
				return err
			}
			c.emitOver(p)
			p.dirty = false
		}
		if d, ok := p.qp.Deadline(); ok {
			next = min(next, d)
		}
	}
	if len(c.flying) > 0 {
		next = min(next, c.flying[0].at)
	}
	for _, m := range c.members {
		next = min(next, m.tickAt)
	}
	c.now = max(c.now, next)
	for len(c.flying) > 0 && c.flying[0].at <= c.now {
		f := heap.Pop(&c.flying).(flight)
		for _, p := range c.ports {
			p.dirty = p.dirty || &p.port == f.to
		}
		c.arrive(f)
	}
	for _, p := range c.ports {
		if d, ok := p.qp.Deadline(); ok && d <= c.now {
			p.qp.Timeout(c.now)
			p.dirty = true
		}
	}
	for _, m := range c.members {
		m.watch(c.now)
	}
	return nil
}

// watch does what initiators do about keepalives, and notes for how long the
// life that either end sees does not change.
func (m *member) watch(now time.Duration) {
	life := m.command.qp.Life() + m.keepalive.qp.Life()
	if now >= m.tickAt {
		m.tickAt = now + crowdInterval
		period := max(crowdInterval, 3*m.keepalive.qp.AnswerTime())
		if m.unsent++; life != m.life && period > crowdInterval {
			m.unsent = 0
		}
		m.life = life
		if !m.awaiting && time.Duration(m.unsent)*crowdInterval >= period {
			m.awaiting, m.unsent = true, 0
			m.keepalive.send()
		}
	}
	if m.waits {
		m.transfer.look(m.serve.qp.Life(), now, m.serve.qp.AnswerTime())
	}
	m.peers[0].look(life, now, m.keepalive.qp.AnswerTime())
	m.peers[1].look(m.serve.qp.Life()+m.answer.qp.Life(), now, m.answer.qp.AnswerTime())
}

func (s *sign) look(life uint64, now, answer time.Duration) {
	if life != s.life || s.at == 0 {
		s.life, s.at = life, now
	}
	s.worst = max(s.worst, float64(now-s.at)/float64(max(crowdSilence, 16*answer)))
}

// consume does what the consumer of an end does.
func (p *crowdPort) consume(op rc.Op) error {
	m := p.member
	for r := p.qp.PollReceive(); r != nil; r = p.qp.PollReceive() {
		if r.Status != rc.OK {
			return fmt.Errorf("receive: %v", r.Status)
		}
		p.qp.PostReceive(r)
		switch p {
		case m.serve:
			from := m.copied
			if clear(from); op == rc.Write {
				from = m.data
				copy(m.copied, from) // where it lands, as well
			}
			p.post(rc.Work{Op: op, Segments: [][]byte{from}})
			if op == rc.Write {
				p.send()
			}
		case m.command:
			if m.waits = false; !bytes.Equal(m.data, m.copied) {
				return errors.New("other data")
			}
		case m.answer:
			p.send()
		case m.keepalive:
			m.awaiting = false
		}
	}
	for w := p.qp.PollSend(); w != nil; w = p.qp.PollSend() {
		if w.Status != rc.OK {
			return fmt.Errorf("work: %v", w.Status)
		}
		if w.Op == rc.Read {
			p.send()
		}
	}
	return nil
}

// emitOver sends all packets of an end over its cable.
func (c *crowd) emitOver(p *crowdPort) {
	const headers = 14 + 20 + 8 + wire.TagSize // and what the end emits
	x := &c.cables[p.side]
	for full := true; full; {
		c.burst.Reset()
		p.qp.Emit(c.burst, c.now)
		packets := c.burst.Packets()
		full = len(packets) == c.size
		for i := range packets {
			b := p.encode(c.buffer(), &packets[i])
			x.free = max(x.free, c.now-time.Duration(x.burst/x.rate*1e9))
			if waiting := (x.free - c.now).Seconds() * x.rate; waiting+float64(len(b)) > float64(x.room) {
				x.lost++
				c.free = append(c.free, b)
				continue
			}
			x.free += time.Duration(float64(len(b)+headers) / x.rate * 1e9)
			c.fly(p.peer, max(x.free, c.now)+x.delay, b)
		}
	}
}

// retransmitted returns the packets that all ends retransmitted, of all.
func (c *crowd) retransmitted() (again, of uint64) {
	for _, p := range c.ports {
		k := p.qp.Counters()
		again, of = again+k.Retransmitted, of+k.Sent
	}
	return again, of
}
