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

// link is one end of a connection: a queue pair. Its consumer posts, rings and polls;
// the adapter's goroutine tells it that the peer has gone.
type link struct {
	adapter *adapter
	cfg     via.LinkConfig
	pd      *C.struct_ibv_pd
	qp      *C.struct_ibv_qp
	talk    *conversation
	serial  uint32 // in the IDs of its work requests
	inline  int    // bytes that a request may carry itself

	// Of the consumer.
	sends    ring32
	receives ring32
	unasked  int // requests since the last that asked for a completion
	failed   bool
	started  bool
	ended    [2]bool // nothing more will come of sends, of receives
	reported bool
	told     bool          // a work told why the link is broken
	code     via.AsyncCode // then: of the event that ends it
	stats    via.LinkStats
	spare    []*bounce

	loss    atomic.Pointer[loss]      // why the link is broken
	message atomic.Pointer[via.Event] // of the device, that does not break it
}

// loss is why a link is broken.
type loss struct{ cause error }

// ring32 are the works of a queue, in the order of their posts.
//
//	done ≤ posted ≤ tail
//	[done, posted)  the queue pair's
//	[posted, tail)  wait for the doorbell
type ring32 struct {
	slots              []slot
	done, posted, tail uint32
}

// slot is a work, and the memory that it goes through if it has too many segments.
type slot struct {
	work *via.Work
	via  *bounce
}

func (r *ring32) init(depth int) {
	size := 1
	for size < depth {
		size <<= 1
	}
	r.slots = make([]slot, size)
}

func (r *ring32) at(i uint32) *slot { return &r.slots[i&uint32(len(r.slots)-1)] }

// How many RDMA Reads of a connection are under way at once, in each direction.
const mostReads = 16

// What a peer does that finds no receive. VIA has no word for waiting, but receives come
// with the start of the link, a moment after the connection is there, and some wait for
// the next poll: so it asks again for 143 ms.
const (
	rnrTimer   = 22 // code of 20.48 ms
	rnrRetries = 6  // times; 7 would be for ever
)

// inlineWish is how many bytes a request should carry itself.
const inlineWish = 220

// newLink makes the queue pair of one end.
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
		a.leaveDomain(cfg.Tag)
		return nil, err
	}
	if err := recv.reserve(cfg.RecvDepth); err != nil {
		send.unreserve(cfg.SendDepth)
		a.leaveDomain(cfg.Tag)
		return nil, err
	}
	inline := C.int(inlineWish)
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

// queues returns the completion queues.
func (l *link) queues() (send, recv *cq) { return l.cfg.SendCQ.(*cq), l.cfg.RecvCQ.(*cq) }

// segments returns how many segments a work request has at most. Devices that take
// hundreds pay for each in every request.
func (a *adapter) segments() int { return min(int(a.device.limits.max_sge), 16) }

// connect takes the queue pair to where it sends and receives.
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

// timeoutCode returns the code of a time (InfiniBand specification, volume 1,
// §9.9.2.1.1): 4.096 µs times two to its power.
func timeoutCode(d time.Duration) int {
	code := 1
	for code < 31 && 4096*time.Nanosecond<<code < d {
		code++
	}
	return code
}

// reads returns how many reads an end serves or asks for at once.
func (a *adapter) reads() int { return min(mostReads, int(a.device.limits.reads)) }

// Start brings the receives and binds the link to its queues.
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

// lose is the news that the peer has gone, or the device.
func (l *link) lose(cause error) {
	l.loss.CompareAndSwap(nil, &loss{cause})
	l.announce()
}

// tell is news of the device.
func (l *link) tell(code via.AsyncCode, cause error) {
	l.message.Store(&via.Event{Owner: l.cfg.Owner, Code: code, Cause: cause})
	l.announce()
}

// announce makes the completion queues look at the link.
func (l *link) announce() {
	send, recv := l.queues()
	recv.signal()
	if send != recv {
		send.signal()
	}
}

// Close ends the connection: the device has finished with the link's works when the
// queue pair is gone.
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
	if l.talk != nil {
		l.adapter.part(l.talk, true)
	}
	code := C.ibv_destroy_qp(l.qp)
	l.qp = nil
	l.release()
	if code != 0 && !l.adapter.failed.Load() {
		return fmt.Errorf("destroy a queue pair of RDMA device %s: %w", l.adapter.device.name, errno(code))
	}
	return nil
}

// release gives back what a link without a queue pair has.
func (l *link) release() {
	send, recv := l.queues()
	send.unreserve(l.cfg.SendDepth)
	recv.unreserve(l.cfg.RecvDepth)
	for _, r := range []*ring32{&l.sends, &l.receives} {
		for i := range r.slots {
			if b := r.slots[i].via; b != nil {
				l.spare = append(l.spare, b)
				r.slots[i].via = nil
			}
		}
	}
	for _, b := range l.spare {
		b.close()
	}
	l.spare = nil
	l.adapter.leaveDomain(l.cfg.Tag)
}

// Stats returns the link's counters.
func (l *link) Stats() via.LinkStats { return l.stats }
