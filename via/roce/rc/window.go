package rc

import "time"

// Sizes of the window, packets. Go-back-N pays for every loss with what is under
// way, so a window that grows without end is slower, not faster.
const (
	firstWindow = 16
	leastWindow = 4
)

// patience is how much longer than the shortest round trip one may take before
// the window stops growing: the queue in front of the narrow place is long
// enough.
const patience = 2 * time.Millisecond

// baseAge is how long the shortest round trip is believed.
const baseAge = 10 * time.Second

// window is how many packets may be under way. It doubles in each round until
// the first loss, and then grows by an eighth. What a loss does depends on what
// it costs:
//
// Where all that is under way has to be sent again, a round with losses shrinks
// the window to 7/10. Random losses of 1 % and growth balance at about 33
// packets, so that go-back-N wastes a quarter; with halving they would at half
// of that, and leave long paths empty.
//
// Where only what is lost is sent again, as with responses of reads and with a
// selective peer, each lost packet takes two off the
// window. Losses and growth balance where 1 packet of 16 is lost: what is less is
// the path's way, not a full queue.
type window struct {
	size      int // packets
	limit     int // packets: the peer's receive buffer
	threshold int // above it growth is slow
	credit    int // eighths of a packet
	recover   seq // losses before this packet are one loss
	narrow    bool

	smooth, variation time.Duration // round-trip time; RFC 6298
	base              time.Duration // the shortest of late
	baseAt            time.Duration
}

func newWindow(c *Config) window {
	return window{size: min(firstWindow, c.Window), limit: c.Window, threshold: c.Window}
}

// admits reports whether n more packets may go when some are under way. What is
// larger than the window goes alone.
func (w *window) admits(underway, n int) bool {
	if underway == 0 || underway+n <= w.size {
		return true
	}
	w.narrow = true
	return false
}

// acknowledged tells of n packets that arrived. The window grows only if it was
// in the way.
func (w *window) acknowledged(n int) {
	if !w.narrow || w.base > 0 && w.smooth > 2*w.base+patience {
		return
	}
	w.narrow = false
	if w.size < w.threshold {
		w.size = min(w.size+n, w.limit)
		return
	}
	w.credit += n
	w.size = min(w.size+w.credit/8, w.limit)
	w.credit %= 8
}

// lost tells of n lost packets from at on, when packets before end were sent.
// Cheap is a loss that makes only what is lost be sent again.
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

// silent tells that nothing was heard for so long that all may be lost.
func (w *window) silent(end seq) {
	w.recover = end
	w.threshold = max(w.size/2, min(leastWindow, w.limit))
	w.size = min(leastWindow, w.limit)
}

// again is how long something that was sent again may be under way before it is
// lost again.
func (w *window) again() time.Duration { return w.smooth + max(w.smooth/4, w.variation) }

// measured tells of a round trip.
func (w *window) measured(d, now time.Duration) {
	d = max(d, 1)
	if w.base == 0 || d < w.base || now-w.baseAt > baseAge {
		w.base, w.baseAt = d, now
	}
	if w.smooth == 0 {
		w.smooth, w.variation = d, d/2
		return
	}
	w.variation += ((w.smooth - d).Abs() - w.variation) / 4
	w.smooth += (d - w.smooth) / 8
}
