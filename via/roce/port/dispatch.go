package port

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// dispatch is one Send of a udpShard on its way to the kernel.
type dispatch struct {
	shard    *udpShard
	deadline time.Time // end of all waits; zero before the first
	late     bool      // the deadline has passed
	failed   int       // packets
	err      error     // first error of a message
	fatal    error     // the socket is unusable
}

// flush sends the batch and empties it.
func (d *dispatch) flush() {
	b := &d.shard.out
	for at, skipped := 0, 0; at < b.count && d.fatal == nil; {
		n, errno := sendBatch(d.shard.fd, b.messages[at:b.count])
		switch {
		case errno == 0:
			d.sent(b.runs[at : at+n])
			at += n
			skipped = 0
		case errno == unix.EAGAIN && d.wait():
		case errno == unix.EAGAIN:
			d.discard(b.runs[at:b.count])
			at = b.count
		case isFatal(errno):
			d.fatal = fmt.Errorf("port %v: send: %w", d.shard.port.local, errno)
		case isAboutRuns(errno) && len(b.runs[at].packets) > 1:
			d.sendSingly(b.runs[at:b.count])
			return
		case errno == unix.ECONNREFUSED && skipped < maxErrors:
			skipped++ // error of an earlier packet; this one was not tried
		default:
			d.refuse(&b.runs[at], errno)
			at++
		}
	}
	b.reset()
}

// isAboutRuns reports whether errno may mean that a device or route does not
// support segmentation.
func isAboutRuns(errno unix.Errno) bool { return errno == unix.EIO || errno == unix.EINVAL }

// sent counts messages of one call.
func (d *dispatch) sent(runs []outgoing) {
	packets, bytes := 0, 0
	for i := range runs {
		packets += len(runs[i].packets)
		bytes += runs[i].bytes
	}
	d.shard.countSent(1, packets, bytes)
}

// discard counts messages dropped for lack of room.
func (d *dispatch) discard(runs []outgoing) {
	for i := range runs {
		d.failed += len(runs[i].packets)
		d.shard.dropped.Add(uint64(len(runs[i].packets)))
	}
}

// refuse counts a message that cannot be sent: there is no route, or its
// packets exceed the path MTU.
func (d *dispatch) refuse(r *outgoing, errno unix.Errno) {
	d.failed += len(r.packets)
	d.shard.dropped.Add(uint64(len(r.packets)))
	if d.err == nil {
		d.err = fmt.Errorf("send to %v: %w", r.to.to, errno)
	}
}

// wait waits for room in the device and reports whether there may be some. One
// deadline bounds all waits of a dispatch.
func (d *dispatch) wait() bool {
	if d.late {
		return false
	}
	now := time.Now()
	if d.deadline.IsZero() {
		d.deadline = now.Add(SendTimeout)
	}
	rest := d.deadline.Sub(now)
	d.late = rest <= 0 || !awaitRoom(d.shard.fd, rest)
	return !d.late
}

// sendSingly sends the rest of the batch packet by packet, after its first run
// was refused. If this succeeds for the first packet, which has the full size,
// the port stops segmenting: some devices and routes do not support it, and
// fail only on send.
func (d *dispatch) sendSingly(rest []outgoing) {
	b := &d.shard.out
	again := append(d.shard.retried[:0], rest...)
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
					d.shard.port.segmentation.Store(false)
				}
			}
		}
	}
	d.flush()
	clear(again)
}
