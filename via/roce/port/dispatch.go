package port

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// dispatch is one Send of a udpLane on its way to the kernel.
type dispatch struct {
	lane     *udpLane
	deadline time.Time // after which it waits no more; zero until it waits
	late     bool      // the deadline has passed
	failed   int       // packets
	err      error     // the first about a packet
	fatal    error     // nothing can be sent
}

// flush sends the batch and empties it.
func (d *dispatch) flush() {
	b := &d.lane.out
	for at, skipped := 0, 0; at < b.count && d.fatal == nil; {
		n, errno := sendBatch(d.lane.fd, b.messages[at:b.count])
		switch {
		case errno == 0:
			d.sent(b.runs[at : at+n])
			at += n
			skipped = 0
		case errno == unix.EAGAIN && d.wait():
		case errno == unix.EAGAIN:
			d.drop(b.runs[at:b.count])
			at = b.count
		case isFatal(errno):
			d.fatal = fmt.Errorf("port %v: send: %w", d.lane.port.local, errno)
		case isAboutRuns(errno) && len(b.runs[at].packets) > 1:
			d.sendApart(b.runs[at:b.count])
			return
		case errno == unix.ECONNREFUSED && skipped < mostErrors:
			skipped++ // about an earlier packet; this one was not looked at
		default:
			d.refuse(&b.runs[at], errno)
			at++
		}
	}
	b.reset()
}

// isAboutRuns reports whether a device or route may have refused a message for
// being a run of packets.
func isAboutRuns(errno unix.Errno) bool { return errno == unix.EIO || errno == unix.EINVAL }

// sent counts messages of one call.
func (d *dispatch) sent(runs []outgoing) {
	packets, bytes := 0, 0
	for i := range runs {
		packets += len(runs[i].packets)
		bytes += runs[i].bytes
	}
	d.lane.gave(1, packets, bytes)
}

// drop counts messages for which there is no room.
func (d *dispatch) drop(runs []outgoing) {
	for i := range runs {
		d.failed += len(runs[i].packets)
		d.lane.dropped.Add(uint64(len(runs[i].packets)))
	}
}

// refuse counts a message that cannot be sent where it is meant to go, for want
// of a route or because its packets are longer than the path's MTU.
func (d *dispatch) refuse(r *outgoing, errno unix.Errno) {
	d.failed += len(r.packets)
	d.lane.dropped.Add(uint64(len(r.packets)))
	if d.err == nil {
		d.err = fmt.Errorf("send to %v: %w", r.to.to, errno)
	}
}

// wait waits for room in the device and reports whether there may be some. All
// waits of a dispatch together are bounded.
func (d *dispatch) wait() bool {
	if d.late {
		return false
	}
	now := time.Now()
	if d.deadline.IsZero() {
		d.deadline = now.Add(patience)
	}
	rest := d.deadline.Sub(now)
	d.late = rest <= 0 || !awaitRoom(d.lane.fd, rest)
	return !d.late
}

// sendApart sends what is left of the batch packet by packet, after its first
// run was refused. If the first packet, which is as long as any, can be sent in
// that way, runs are not tried again: some devices, and some kinds of route, take
// none, and say so when something is sent.
func (d *dispatch) sendApart(rest []outgoing) {
	b := &d.lane.out
	again := append(d.lane.again[:0], rest...)
	b.reset()
	for i := range again {
		r := &again[i]
		for k := range r.packets {
			if b.add(r.to, r.packets[k:k+1], false) == 0 {
				d.flush()
				b.add(r.to, r.packets[k:k+1], false)
			}
			if failed := d.failed; i == 0 && k == 0 {
				d.flush()
				if d.failed == failed && d.fatal == nil {
					d.lane.port.segmentation.Store(false)
				}
			}
		}
	}
	d.flush()
	clear(again)
}
