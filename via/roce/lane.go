package roce

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

const (
	laneBits      = 6 // of a queue pair number; port.Lanes
	burstPackets  = 128
	stashPackets  = 512
	arrivalsAtAll = 64 // packets taken at a time
)

// never is a time that does not come.
const never = time.Duration(math.MaxInt64)

// epoch is when times begin.
var epoch = time.Now()

// clock returns the time.
func clock() time.Duration { return time.Since(epoch) }

// What the turn of a lane is.
const (
	turnFree  = iota
	turnTaken // somebody has it
	turnAgain // and will look again at the end: there are news
)

// lane is a socket of an endpoint and the links whose packets arrive there. Who
// has the turn does everything; the fields that others touch are atomic.
type lane struct {
	endpoint *endpoint
	index    int
	port     port.Lane

	state    atomic.Uint32
	ended    atomic.Uint64        // turns
	polls    atomic.Uint64        // turns of consumers, to know whether the lane is attended
	sleepers atomic.Int32         // consumers that are to be woken
	due      atomic.Int64         // no timer of a link runs out before
	rung     atomic.Pointer[link] // links with news, in a list
	inbox    inbox                // what arrived at other lanes

	// Of who has the turn.
	table    table
	started  []*link
	talking  linkList // links that may have something to send
	berths   []*berth
	deferred bool // the last pass left what there is to send to the next
	more     bool // the last pass did not come to its end
	severs   bool // a link under test is to be cut
	burst    *rc.Burst
	stash    *rc.Stash
	spans    []port.Span
	last     *port.Peer // of the last span, if that may grow
	arrivals [arrivalsAtAll]port.Arrival
	packet   wire.Packet
	strays   []*lane // that were left something in their inboxes

	recent []LinkStatistics // of links that are closed
	tally  tally
}

func newLane(e *endpoint, index int, p port.Lane) *lane {
	l := &lane{
		endpoint: e, index: index, port: p,
		burst: rc.NewBurst(burstPackets), stash: rc.NewStash(stashPackets),
		spans: make([]port.Span, 0, burstPackets),
	}
	l.due.Store(int64(never))
	return l
}

// try takes the turn if nobody has it.
func (l *lane) try() bool { return l.state.CompareAndSwap(turnFree, turnTaken) }

// tryHard is try, a few times.
func (l *lane) tryHard(times int) bool {
	for range times {
		if l.try() {
			return true
		}
		runtime.Gosched()
	}
	return false
}

// take takes the turn when it is free, which is soon: nobody who has it waits
// for anything but the device's room.
func (l *lane) take() {
	for i := 0; !l.try(); i++ {
		rest(i)
	}
}

// give ends the turn. If there were news meanwhile they are looked at first.
func (l *lane) give() {
	for {
		l.ended.Add(1)
		if l.state.CompareAndSwap(turnTaken, turnFree) {
			break
		}
		l.state.Store(turnTaken)
		l.pass(clock(), lookNot)
	}
}

// serve makes somebody look at the news: the caller, unless another has the turn.
func (l *lane) serve() {
	for !l.try() {
		if l.state.CompareAndSwap(turnTaken, turnAgain) || l.state.Load() == turnAgain {
			return
		}
	}
	l.pass(clock(), lookNot)
	l.give()
}

// announce leaves news of a link to the next pass.
func (l *lane) announce(k *link) {
	if k.rung.Swap(true) {
		return
	}
	for {
		first := l.rung.Load()
		k.nextRung = first
		if l.rung.CompareAndSwap(first, k) {
			return
		}
	}
}

// How a pass looks for packets.
const (
	lookNot = iota
	lookIn  // takes what is there, and answers later if the consumer may have a reply
	lookOut // takes what is there until nothing is: then the lane's file descriptor tells
)

// pass does what there is to do in a turn: it takes what was posted, and packets;
// lets timers run out; and sends. What has ended stays with the queue pairs.
func (l *lane) pass(now time.Duration, look int) {
	l.more = false
	leaving := l.takeNews()
	if look != lookNot || leaving != nil {
		l.receive(now, look == lookOut || leaving != nil)
	}
	if l.inbox.filled.Load() {
		l.inbox.drain(func(d *letter) { l.delivered(d, now) })
	}
	l.passOn()
	for k := leaving; k != nil; k = k.nextLeaving {
		k.finish(now)
	}
	if now >= time.Duration(l.due.Load()) {
		l.expire(now)
	}
	if l.deferred = look == lookIn && !l.deferred && l.defers(); !l.deferred {
		l.send(now)
	}
	if l.severs {
		l.severs = false
		l.sever(now)
	}
	l.wake()
}

// takeNews takes what was posted, and returns the links whose peers have gone.
func (l *lane) takeNews() (leaving *link) {
	for k := l.rung.Swap(nil); k != nil; {
		next := k.nextRung
		k.rung.Store(false) // before looking, so that what comes later is news
		if k.lane == l && !k.closed {
			k.takePosts()
			l.prefer(k)
			if k.live && k.gone.Load() {
				k.nextLeaving, leaving = leaving, k
			}
		}
		k = next
	}
	return leaving
}

// takeRounds bounds the packets of a turn: about what a socket holds, for what
// does not fit there is lost.
const takeRounds = 16

// receive takes packets, as many as there are or, if out is set, until the port
// says that there are none.
func (l *lane) receive(now time.Duration, out bool) {
	l.more = true
	for range takeRounds {
		n, err := l.port.Receive(l.arrivals[:])
		if err != nil {
			l.tally.failedReceives.Add(1)
			l.more = false
			return
		}
		for i := range n {
			l.arrived(&l.arrivals[i], now)
		}
		if n == 0 || n < len(l.arrivals) && !out {
			l.more = false
			return
		}
	}
}

// arrived deals with a packet. What comes from strangers costs a look into the
// table.
func (l *lane) arrived(a *port.Arrival, now time.Duration) {
	qpn, _ := a.DestQP()
	switch k := l.table.find(qpn); {
	case k == nil:
		l.stray(a, qpn)
	case !k.isFrom(a.From):
		l.tally.forged.Add(1)
	case !l.port.Intact(a):
		l.damaged(k, a.Bytes)
	default:
		l.accept(k, a.Bytes, now)
	}
}

// accept deals with a packet for a link, from its peer and intact.
func (l *lane) accept(k *link, b []byte, now time.Duration) {
	p := &l.packet
	refusal := p.Decode(b, wire.DefaultPKey)
	switch {
	case refusal != wire.Accepted && !refusal.IsInvalidRequest():
		l.tally.refused[refusal].Add(1)
	case !k.live:
		k.keep(b)
	default:
		k.takePosts()
		k.qp.Receive(p, refusal, now)
		l.touch(k)
	}
}

// damaged tells a link of a packet with a wrong ICRC. Whole packets are multiples
// of four bytes.
func (l *lane) damaged(k *link, b []byte) {
	l.tally.damaged.Add(1)
	if !k.live {
		return
	}
	var h wire.BTH
	h.Decode(b) // no port delivers less
	k.takePosts()
	k.qp.Damaged(&h, len(b)%4 != 0)
	l.touch(k)
}

// touch lets a link say what it has to say in this pass.
func (l *lane) touch(k *link) {
	if !k.talks && k.live {
		k.talks = true
		l.talking.push(k)
	}
}

// prefer is touch for a link that has new works: it speaks before those that may only
// have an acknowledgement to send, which is shorter and so can end a run of theirs.
func (l *lane) prefer(k *link) {
	if !k.talks && k.live {
		k.talks = true
		l.talking.pushFront(k)
	}
}

// expire lets timers run out.
func (l *lane) expire(now time.Duration) {
	next := never
	for _, k := range l.started {
		if k.due <= now {
			k.due = never // until it has said what it has to say
			k.takePosts()
			k.qp.Timeout(now)
			l.touch(k)
		}
		next = min(next, k.due)
	}
	l.due.Store(int64(next))
}

// defers reports whether something has ended that a consumer of the lane is to see
// first. What it posts then goes out with the acknowledgement, ahead of it, in one
// system call; if it posts nothing its next poll sends, whatever has ended by then.
func (l *lane) defers() bool {
	for k := l.talking.first; k != nil; k = k.nextTalking {
		k.queue()
	}
	for _, b := range l.berths {
		if b.ready.first != nil {
			return true
		}
	}
	return false
}

// send lets the links that may have something to say have one burst each.
func (l *lane) send(now time.Duration) {
	for n := l.talking.count; n > 0; n-- {
		k := l.talking.pop()
		k.talks = false
		before := len(l.burst.Packets())
		if !l.follows(k) {
			l.burst.Apart()
		}
		k.qp.Emit(l.burst, now)
		packets := l.burst.Packets()[before:]
		if full := before+len(packets) == burstPackets; full {
			l.touch(k)
			l.more = true
		}
		if len(packets) > 0 {
			l.hand(k, packets)
		}
		k.settle()
		if before+len(packets) == burstPackets {
			l.flush()
		}
	}
	l.flush()
}

// follows reports whether a link's packets go where the last ones handed over do, so that
// they may be of one run. A link under test has spans of its own.
func (l *lane) follows(k *link) bool {
	return l.last != nil && k.faulty == nil && l.last.Addr() == k.peer.Addr()
}

// hand adds a link's packets, the last of the burst, to what is sent.
func (l *lane) hand(k *link, packets []rc.Packet) {
	k.stats.Doorbells++ // a send wakes the peer
	switch {
	case k.faulty != nil:
		l.spans, l.last = k.faulty.strike(packets, l.spans), nil
		l.severs = l.severs || k.faulty.cut
	case l.follows(k):
		s := &l.spans[len(l.spans)-1]
		s.Packets = s.Packets[:len(s.Packets)+len(packets)] // they lie behind it in the burst
	default:
		l.spans, l.last = append(l.spans, port.Span{To: k.peer, Packets: packets}), k.peer
	}
}

// flush sends what was handed over.
func (l *lane) flush() {
	if len(l.spans) > 0 {
		if err := l.port.Send(l.spans); err != nil {
			l.tally.failedSends.Add(1) // as if it were lost on the way
		}
	}
	clear(l.spans)
	l.spans, l.last = l.spans[:0], nil
	l.burst.Reset()
}

// wake wakes consumers if there is more to do.
func (l *lane) wake() {
	for _, b := range l.berths {
		if b.asleep && l.more {
			b.rouse()
		}
	}
}

// linkList is a queue of links that have something to say.
type linkList struct {
	first, last *link
	count       int
}

func (q *linkList) push(k *link) {
	k.nextTalking = nil
	if q.last == nil {
		q.first = k
	} else {
		q.last.nextTalking = k
	}
	q.last = k
	q.count++
}

func (q *linkList) pushFront(k *link) {
	k.nextTalking = q.first
	q.first = k
	if q.last == nil {
		q.last = k
	}
	q.count++
}

func (q *linkList) pop() *link {
	k := q.first
	q.first = k.nextTalking
	k.nextTalking = nil
	if q.first == nil {
		q.last = nil
	}
	q.count--
	return k
}

// remove takes a link out, if it is there.
func (q *linkList) remove(k *link) {
	for n := q.count; n > 0; n-- {
		if x := q.pop(); x != k {
			q.push(x)
		}
	}
}
