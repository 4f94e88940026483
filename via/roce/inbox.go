package roce

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// inboxLetters bounds what waits in an inbox.
const inboxLetters = 256

// letter is a copy of a packet that arrived at another lane, intact.
type letter struct {
	from  netip.AddrPort
	size  int
	bytes [wire.MaxPacket]byte
}

// inbox takes packets that arrived at the wrong lane: the kernel steers by the
// first packet of those it joins, and by chance where lanes are not open. That is
// rare, so memory is made when there are some. Anyone puts.
type inbox struct {
	filled atomic.Bool

	mu      sync.Mutex
	letters []*letter
	free    []*letter
}

// put copies a packet. It returns false if there is no room.
func (b *inbox) put(a *port.Arrival) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.letters) == inboxLetters {
		return false
	}
	var d *letter
	if n := len(b.free); n > 0 {
		d = b.free[n-1]
		b.free = b.free[:n-1]
	} else {
		d = new(letter)
	}
	d.from, d.size = a.From, copy(d.bytes[:], a.Bytes)
	b.letters = append(b.letters, d)
	b.filled.Store(true)
	return true
}

// drain hands over what is there now.
func (b *inbox) drain(do func(*letter)) {
	b.mu.Lock()
	letters := b.letters
	b.letters = nil
	b.filled.Store(false)
	b.mu.Unlock()
	for _, d := range letters {
		do(d)
	}
	b.mu.Lock()
	b.free = append(b.free, letters...)
	b.mu.Unlock()
}

// stray deals with a packet that is for none of the lane's links.
func (l *lane) stray(a *port.Arrival, qpn uint32) {
	to := l.endpoint.laneOf(qpn)
	switch {
	case qpn != wire.GSI && (to == nil || to == l):
		l.tally.unknown.Add(1)
	case !l.port.Intact(a):
		l.tally.damaged.Add(1)
	case qpn == wire.GSI:
		if !l.endpoint.deliver(a) {
			l.tally.crowded.Add(1)
		}
	case !to.inbox.put(a):
		l.tally.crowded.Add(1)
	default:
		l.tally.strays.Add(1)
		l.strays = append(l.strays, to)
	}
}

// passOn makes somebody look into the inboxes of other lanes. Nobody waits: who
// has a lane's turn looks again when it ends.
func (l *lane) passOn() {
	for i, to := range l.strays {
		if i == 0 || to != l.strays[i-1] {
			to.serve()
		}
	}
	clear(l.strays)
	l.strays = l.strays[:0]
}

// delivered deals with a packet from the inbox.
func (l *lane) delivered(d *letter, now time.Duration) {
	b := d.bytes[:d.size]
	qpn, _ := (&port.Arrival{Bytes: b}).DestQP()
	switch k := l.table.find(qpn); {
	case k == nil:
		l.tally.unknown.Add(1)
	case !k.isFrom(d.from):
		l.tally.forged.Add(1)
	default:
		l.accept(k, b, now)
	}
}
