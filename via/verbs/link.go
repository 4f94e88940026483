//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

// link is one end of a connection: a queue pair. Its consumer posts, rings the
// doorbell and polls. The adapter's goroutine stores loss and message.
type link struct {
	adapter *adapter
	cfg     via.LinkConfig
	pd      *C.struct_ibv_pd
	qp      *C.struct_ibv_qp
	conn    *cmConn
	serial  uint32 // in the IDs of its work requests
	inline  int    // most bytes of an inline request

	// Accessed by the consumer alone.
	sends    ring32
	receives ring32
	unasked  int // requests since the last signaled one
	failed   bool
	started  bool
	ended    [2]bool // sends, receives: no more completions
	reported bool
	told     bool          // a work's status has the cause of the break
	code     via.AsyncCode // if told: the code of the final event
	stats    via.LinkStats
	reserved []*bounceBuffer

	loss    atomic.Pointer[loss]      // not nil: the link is broken
	message atomic.Pointer[via.Event] // device event that does not break the link
}

// loss is the cause by which a link broke.
type loss struct{ cause error }

// ring32 holds the works of a queue, in posting order.
//
//	done ≤ posted ≤ tail
//	[done, posted)  the queue pair's
//	[posted, tail)  wait for the doorbell
type ring32 struct {
	entries            []entry
	done, posted, tail uint32
}

// entry is a work, and its bounce buffer if it has too many segments.
type entry struct {
	work *via.Work
	via  *bounceBuffer
}

func (r *ring32) init(depth int) {
	size := 1
	for size < depth {
		size <<= 1
	}
	r.entries = make([]entry, size)
}

func (r *ring32) at(i uint32) *entry { return &r.entries[i&uint32(len(r.entries)-1)] }

// maxReads bounds the RDMA Reads in flight of a connection, per direction.
const maxReads = 16

// A peer whose Send finds no receive gets an RNR NAK and retries for 573 ms:
// the link posts receives when it starts, a moment after the connection is
// established, and some wait for the next poll. On a busy host this takes
// hundreds of milliseconds. VIA itself has no RNR retry.
const (
	rnrTimer   = 26 // code of 81.92 ms
	rnrRetries = 6  // 7 would mean without limit
)

// requestedInline is the requested inline size of a queue pair, bytes.
const requestedInline = 220

// newLink creates the queue pair of a link.
func (a *adapter) newLink(cfg via.LinkConfig) (*link, error) {
	if err := a.usable(); err != nil {
		return nil, err
	}
	pd, err := a.domain(cfg.Tag)
	if err != nil {
		return nil, err
	}
	l := &link{adapter: a, cfg: cfg, pd: pd}
	l.sends.init(cfg.SendDepth)
	l.receives.init(cfg.RecvDepth)
	send, recv := l.queues()
	if err := send.reserve(cfg.SendDepth); err != nil {
		a.releaseDomain(cfg.Tag)
		return nil, err
	}
	if err := recv.reserve(cfg.RecvDepth); err != nil {
		send.unreserve(cfg.SendDepth)
		a.releaseDomain(cfg.Tag)
		return nil, err
	}
	inline := C.int(requestedInline)
	l.qp, err = C.shim_qp(pd, send.cq, recv.cq, C.int(cfg.SendDepth), C.int(cfg.RecvDepth), C.int(a.segments()), &inline)
	if l.qp == nil {
		err = a.refused(fmt.Sprintf("create a queue pair for %d and %d works", cfg.SendDepth, cfg.RecvDepth), err)
		l.release()
		return nil, err
	}
	l.inline = int(inline)
	a.mu.Lock()
	a.serial = (a.serial + 1) & (1<<31 - 1)
	l.serial = a.serial
	a.links[l] = struct{}{}
	a.mu.Unlock()
	return l, nil
}

// queues returns the completion queues of the link.
func (l *link) queues() (send, recv *cq) { return l.cfg.SendCQ.(*cq), l.cfg.RecvCQ.(*cq) }

// segments returns the most segments of a work request. On devices that support
// hundreds, each one allowed would cost space in every request.
func (a *adapter) segments() int { return min(int(a.device.limits.max_sge), 16) }

// connect moves the queue pair to ready-to-send.
func (l *link) connect(id *C.struct_rdma_cm_id, t terms) error {
	o := &l.adapter.options
	terms := C.struct_shim_terms{
		write: flag(l.cfg.RdmaWrite), read: flag(l.cfg.RdmaRead),
		reads_served: C.int(t.served), reads_asked: C.int(t.asked),
		rnr_timer: rnrTimer, rnr_retries: rnrRetries,
		timeout: C.int(timeoutCode(o.Timeout)), retries: C.int(o.Retries),
	}
	if code := C.shim_connect(l.qp, id, &terms); code != 0 {
		return fmt.Errorf("connect a queue pair of RDMA device %s: %w", l.adapter.device.name, errno(code))
	}
	return nil
}

// timeoutCode returns the code of a timeout (InfiniBand specification, volume
// 1, §9.9.2.1.1): 4.096 µs times two to its power.
func timeoutCode(d time.Duration) int {
	code := 1
	for code < 31 && 4096*time.Nanosecond<<code < d {
		code++
	}
	return code
}

// reads returns the most RDMA Reads that this end serves or requests at once.
func (a *adapter) reads() int { return min(maxReads, int(a.device.limits.reads)) }

// Start posts the first receives and binds the link to its queues.
func (l *link) Start(receives []*via.Work) error {
	send, recv := l.queues()
	for _, w := range receives {
		l.PostRecv(w)
	}
	l.started = true
	send.links[l.serial], recv.links[l.serial] = l, l
	l.flush(true)
	if l.loss.Load() != nil {
		l.announce()
	}
	return nil
}

// lose breaks the link: the peer or the device is gone.
func (l *link) lose(cause error) {
	l.loss.CompareAndSwap(nil, &loss{cause})
	l.announce()
}

// reportAsync stores an asynchronous event for the consumer.
func (l *link) reportAsync(code via.AsyncCode, cause error) {
	l.message.Store(&via.Event{Owner: l.cfg.Owner, Code: code, Cause: cause})
	l.announce()
}

// announce makes the completion queues inspect the link.
func (l *link) announce() {
	send, recv := l.queues()
	recv.signal()
	if send != recv {
		send.signal()
	}
}

// Close disconnects and destroys the queue pair, after which the device no
// longer accesses the memory of works.
func (l *link) Close() error {
	if l.qp == nil {
		return nil
	}
	if l.started {
		send, recv := l.queues()
		delete(send.links, l.serial)
		delete(recv.links, l.serial)
	}
	l.adapter.mu.Lock()
	delete(l.adapter.links, l)
	l.adapter.mu.Unlock()
	if l.conn != nil {
		l.adapter.disconnect(l.conn, true)
	}
	code := C.ibv_destroy_qp(l.qp)
	l.qp = nil
	l.release()
	if code != 0 && !l.adapter.failed.Load() {
		return fmt.Errorf("destroy a queue pair of RDMA device %s: %w", l.adapter.device.name, errno(code))
	}
	return nil
}

// release frees the resources of a link that has no queue pair.
func (l *link) release() {
	send, recv := l.queues()
	send.unreserve(l.cfg.SendDepth)
	recv.unreserve(l.cfg.RecvDepth)
	for _, r := range []*ring32{&l.sends, &l.receives} {
		for i := range r.entries {
			if b := r.entries[i].via; b != nil {
				l.reserved = append(l.reserved, b)
				r.entries[i].via = nil
			}
		}
	}
	for _, b := range l.reserved {
		b.close()
	}
	l.reserved = nil
	l.adapter.releaseDomain(l.cfg.Tag)
}

// Stats returns the link's counters.
func (l *link) Stats() via.LinkStats { return l.stats }
