package rc_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
)

// Layout of an end's remote memory: targets that the peer writes, a source that
// it reads. The fences between and around them must stay unchanged.
const (
	remoteKey  = 0x1234
	remoteAddr = 0x7fff_0000_0000
	canary     = 0xc5
	fence      = 64
)

// consumer posts works at one end and predicts their effects at the other.
type consumer struct {
	name     string
	rng      *rand.Rand
	qp       *rc.QP
	peer     *consumer
	reliable bool
	most     int // bytes of a message

	outer   []byte // the arena within fences that no key names
	arena   []byte // targets × (fence + most), source, fence
	targets int
	source  []byte

	works    []operation // ring of the works in flight, by ID
	posted   int
	polled   int
	writes   []*operation // not yet complete
	expected []delivery   // what the peer's receives will bring
	receives []*rc.Receive
	buffers  [][]byte
	got      int // deliveries
	sent     int // works that bring the peer a delivery
	moved    int
	scratch  []byte
	failure  error

	late time.Duration // that a receive is posted later, at most
	idle []int         // receives to post again
	due  time.Duration // when to post them
}

// operation is a work with its expected effect.
type operation struct {
	rc.Work
	number uint64
	data   []byte
	target int
}

// delivery is a receive that the peer is to complete.
type delivery struct {
	number    uint64
	length    int
	immediate uint32
	has, rdma bool
	posted    int // works before it
}

func newConsumer(name string, seed uint64, reliable bool, most, depth int) *consumer {
	c := &consumer{
		name: name, rng: rand.New(rand.NewPCG(seed, uint64(len(name)))), reliable: reliable, most: most,
		targets: depth, works: make([]operation, depth), scratch: make([]byte, most+fence),
	}
	size := depth*(fence+most) + fence + most + fence
	c.outer = bytes.Repeat([]byte{canary}, fence+size+fence)
	c.arena = c.outer[fence:][:size]
	c.source = c.arena[depth*(fence+most)+fence:][:most]
	pattern(c.source, seed)
	for i := range c.works {
		c.works[i].data = make([]byte, most)
	}
	for i := range depth * 2 {
		c.buffers = append(c.buffers, bytes.Repeat([]byte{canary}, most+fence))
		c.receives = append(c.receives, &rc.Receive{ID: uint64(i)})
	}
	return c
}

// Remote implements rc.Memory.
func (c *consumer) Remote(key uint32, addr uint64, length int, a rc.Access) []byte {
	if key != remoteKey || addr < remoteAddr || addr-remoteAddr+uint64(length) > uint64(len(c.arena)) {
		return nil
	}
	return c.arena[addr-remoteAddr:][:length:length]
}

// Local implements rc.Memory.
func (c *consumer) Local(uint64) bool { return true }

func (c *consumer) fail(format string, args ...any) {
	if c.failure == nil {
		c.failure = fmt.Errorf(c.name+": "+format, args...)
	}
}

// start posts all receives.
func (c *consumer) start() {
	for i := range c.receives {
		c.repost(i)
	}
}

func (c *consumer) repost(i int) {
	r := c.receives[i]
	r.Segments = c.split(c.buffers[i][:c.most])
	if !c.qp.PostReceive(r) {
		c.fail("receive refused")
	}
}

// split cuts b into up to four segments.
func (c *consumer) split(b []byte) [][]byte {
	var all [][]byte
	for n := c.rng.IntN(4); n > 0; n-- {
		at := c.rng.IntN(len(b) + 1)
		all = append(all, b[:at])
		b = b[at:]
	}
	return append(all, b)
}

// size picks the length of a message, often one that is near a packet's end.
func (c *consumer) size() int {
	n := c.rng.IntN(c.most + 1)
	if c.rng.IntN(3) == 0 {
		n = n/256*256 + c.rng.IntN(3) - 1
	}
	if c.rng.IntN(4) == 0 {
		n = c.rng.IntN(65)
	}
	return min(max(n, 8), c.most)
}

// post posts a random work. It returns false if there is no room.
func (c *consumer) post() bool {
	if c.posted-c.polled == len(c.works) || len(c.expected) >= len(c.peer.receives)-1 {
		return false
	}
	o := &c.works[c.posted%len(c.works)]
	n := c.size()
	o.number = uint64(c.posted) + 1
	o.target = c.posted % c.targets
	o.Work = rc.Work{ID: uint64(o.target), Key: remoteKey, Op: rc.Op(c.rng.IntN(3))}
	if !c.reliable {
		o.Op = rc.Op(c.rng.IntN(2))
	}
	if o.Op != rc.Read && c.rng.IntN(2) == 0 {
		o.HasImmediate, o.Immediate = true, c.rng.Uint32()
	}
	data := o.data[:n]
	if o.Op == rc.Read {
		at := c.rng.IntN(c.most - n + 1)
		o.Addr = remoteAddr + uint64(len(c.peer.arena)-fence-c.most+at)
		o.number = uint64(at)
		clear(data)
	} else {
		pattern(data, o.number)
		o.Addr = remoteAddr + uint64(c.targetAt(o.target))
	}
	o.Segments = c.split(data)
	if o.Op == rc.Write {
		c.writes = append(c.writes, o)
	}
	if o.Op == rc.Send || o.Op == rc.Write && o.HasImmediate {
		c.sent++
		c.expected = append(c.expected, delivery{o.number, n, o.Immediate, o.HasImmediate, o.Op == rc.Write, len(c.writes)})
	}
	if !c.qp.Post(&o.Work) {
		c.fail("work refused")
	}
	c.posted++
	return true
}

func (c *consumer) targetAt(target int) int { return target*(fence+c.most) + fence }

func length(s [][]byte) (n int) {
	for _, b := range s {
		n += len(b)
	}
	return n
}

// poll polls and validates all completions.
func (c *consumer) poll() {
	for r := c.qp.PollReceive(); r != nil; r = c.qp.PollReceive() {
		c.validateReceive(r)
	}
	for w := c.qp.PollSend(); w != nil; w = c.qp.PollSend() {
		c.validateWork(w)
	}
}

// validateWork checks that a completed work has moved its bytes.
func (c *consumer) validateWork(w *rc.Work) {
	o := &c.works[c.polled%len(c.works)]
	c.polled++
	if &o.Work != w {
		c.fail("work %d ended out of order", w.ID)
		return
	}
	if w.Status != rc.OK {
		c.fail("work %d ended with %v", o.number, w.Status)
		return
	}
	n := length(o.Segments)
	c.moved += n
	switch o.Op {
	case rc.Read:
		if !bytes.Equal(o.data[:n], c.peer.source[o.number:][:n]) {
			c.fail("read %d of %d bytes brought something else", c.polled, n)
		}
	case rc.Write:
		c.writes = c.writes[1:]
		for i := range c.expected {
			c.expected[i].posted--
		}
		if c.reliable {
			c.validatePlaced(o)
		}
	}
}

// validatePlaced checks that the bytes of a write are at their address.
func (c *consumer) validatePlaced(o *operation) {
	n := length(o.Segments)
	if !bytes.Equal(c.peer.arena[c.targetAt(o.target):][:n], o.data[:n]) {
		c.fail("write %d of %d bytes is not in place", o.number, n)
	}
}

// validateReceive checks that a receive has the peer's next message and, on a
// reliable connection, that all earlier writes are placed.
func (c *consumer) validateReceive(r *rc.Receive) {
	i := int(r.ID)
	if r.Status == rc.Partial && !c.reliable {
		c.rewind(i, r)
		return
	} else if r.Status != rc.OK {
		c.fail("receive ended with %v", r.Status)
		return
	}
	all := &c.peer.expected
	var d delivery
	for {
		if len(*all) == 0 {
			c.fail("receive %d was never sent", c.got)
			return
		}
		d = (*all)[0]
		*all = (*all)[1:]
		if c.reliable || c.matches(d, i, r) {
			break
		}
	}
	if !c.matches(d, i, r) {
		c.fail("receive %d is not message %d: %d bytes %x, not %d %x", c.got, d.number, r.Length, r.Immediate, d.length, d.immediate)
		return
	}
	if c.reliable {
		for _, o := range c.peer.writes[:max(d.posted, 0)] {
			c.peer.validatePlaced(o)
		}
	}
	c.got++
	c.rewind(i, r)
}

// matches reports whether a receive holds a message.
func (c *consumer) matches(d delivery, i int, r *rc.Receive) bool {
	if r.Length != d.length || r.ByWrite != d.rdma || r.HasImmediate != d.has || r.HasImmediate && r.Immediate != d.immediate {
		return false
	}
	if d.rdma {
		return true
	}
	pattern(c.scratch[:d.length], d.number)
	return bytes.Equal(c.scratch[:d.length], c.buffers[i][:d.length])
}

// rewind checks that no byte behind the message changed, and posts the receive
// again.
func (c *consumer) rewind(i int, r *rc.Receive) {
	for _, b := range c.buffers[i][c.most:] {
		if b != canary {
			c.fail("bytes beyond a receive were written")
		}
	}
	if c.late > 0 {
		c.idle = append(c.idle, i)
		return
	}
	c.repost(i)
}

// postLate posts the receives that are due again.
func (c *consumer) postLate(now time.Duration) {
	if len(c.idle) == 0 || now < c.due {
		return
	}
	for _, i := range c.idle {
		c.repost(i)
	}
	c.idle = c.idle[:0]
	c.due = now + time.Duration(c.rng.Int64N(int64(c.late)))
}

// validateFences checks that no fence changed.
func (c *consumer) validateFences() {
	at := func(from int) {
		for _, b := range c.arena[from:][:fence] {
			if b != canary {
				c.fail("bytes at a fence were written")
			}
		}
	}
	for s := range c.targets + 1 {
		at(s * (fence + c.most))
	}
	at(len(c.arena) - fence)
	c.validateEnds()
}

// validateEnds checks that no byte outside the arena changed.
func (c *consumer) validateEnds() {
	for i := range fence {
		if c.outer[i] != canary || c.outer[len(c.outer)-1-i] != canary {
			c.fail("bytes around the memory were written")
		}
	}
}

// pattern fills b with bytes that no other number has.
func pattern(b []byte, number uint64) {
	x := number*0x9e3779b97f4a7c15 + 1
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, x)
		x = x*6364136223846793005 + 1442695040888963407
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}
