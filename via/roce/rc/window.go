package rc

import "time"

// Sizes of the window, packets. A loss costs Go-back-N all packets in flight,
// so a window that grows without limit is slower, not faster.
const (
	firstWindow = 16
	leastWindow = 4
)

// maxQueueing is the queueing delay, a round trip beyond the shortest one, at
// which the window stops growing: the queue at the bottleneck is long enough.
const maxQueueing = 2 * time.Millisecond

// minRTTAge is how long the shortest round trip stays valid.
const minRTTAge = 10 * time.Second

// window bounds the packets in flight. It doubles in each round until the first
// loss and then grows by an eighth. The effect of a loss depends on its cost:
//
// Where all packets in flight are retransmitted, a round with losses shrinks
// the window to 7/10. Random losses of 1 % and growth balance at about 33
// packets, so that go-back-N wastes a quarter; halving would balance at half of
// that and leave long paths empty.
//
// Where only lost packets are retransmitted, as with read responses and with a
// selective peer, each lost packet takes two off the window. Losses and growth
// balance where 1 packet of 16 is lost: a lower rate is a property of the path,
// not a full queue.
type window struct {
	size      int // packets
	limit     int // packets: the peer's receive buffer
	threshold int // above it growth is slow
	credit    int // eighths of a packet
	recover   seq // losses before this packet are one loss
	limited   bool

	trip    roundTrip
	least   time.Duration // the shortest recent one, 0 before the first
	leastAt time.Duration
}

func newWindow(c *Config) window {
	return window{size: min(firstWindow, c.Window), limit: c.Window, threshold: c.Window}
}

// admits reports whether n more packets may be sent while some are in flight. A
// message larger than the window is sent alone.
func (w *window) admits(inFlight, n int) bool {
	if inFlight == 0 || inFlight+n <= w.size {
		return true
	}
	w.limited = true
	return false
}

// acknowledged notes n packets that arrived. The window grows only if it was
// the limit.
func (w *window) acknowledged(n int) {
	if !w.limited || w.least > 0 && w.trip.smooth > 2*w.least+maxQueueing {
		return
	}
	w.limited = false
	if w.size < w.threshold {
		w.size = min(w.size+n, w.limit)
		return
	}
	w.credit += n
	w.size = min(w.size+w.credit/8, w.limit)
	w.credit %= 8
}

// lost notes n lost packets from at on, when packets before end were sent. A
// loss is cheap if only lost packets are retransmitted.
func (w *window) lost(at seq, n int, end seq, cheap bool) {
	growsFast := w.size < w.threshold
	switch {
	case at < w.recover && (growsFast || !cheap):
		return
	case growsFast || !cheap:
		w.size = w.size * 7 / 10
	default:
		w.size -= min(2*n, w.size*3/10)
	}
	w.recover = end
	w.size = max(w.size, min(leastWindow, w.limit))
	w.threshold = w.size
}

// timedOut notes a silence so long that all packets may be lost.
func (w *window) timedOut(end seq) {
	w.recover = end
	w.threshold = max(w.size/2, min(leastWindow, w.limit))
	w.size = min(leastWindow, w.limit)
}

// measured adds a round trip.
func (w *window) measured(d, now time.Duration) {
	if w.least == 0 || d < w.least || now-w.leastAt > minRTTAge {
		w.least, w.leastAt = d, now
	}
	w.trip.add(d, now)
}

// retransmitDelay returns how long a retransmitted packet may be in flight
// before it counts as lost again.
func (w *window) retransmitDelay() time.Duration {
	return w.trip.smooth + max(w.trip.smooth/4, w.trip.variation)
}
