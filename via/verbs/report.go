//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"slices"

	"github.com/viablk/viablk/via"
)

// collectEvents collects broken links and events of the device.
func (c *cq) collectEvents() {
	for _, l := range c.links {
		if _, recv := l.queues(); recv == c {
			if e := l.message.Swap(nil); e != nil {
				c.events = append(c.events, via.Done{Event: e})
			}
		}
		if l.loss.Load() != nil && !l.reported && !slices.Contains(c.broken, l) {
			c.broken = append(c.broken, l)
		}
	}
}

// report turns completions into reports and returns how many it stored. The
// completion of a signaled request also completes the unsignaled ones before
// it.
func (c *cq) report(dst []via.Done) int {
	n := 0
	for ; c.next < c.n; c.next++ {
		wc := &c.wcs[c.next]
		l := c.links[uint32(wc.id>>32)]
		if l == nil {
			continue // of a closed link
		}
		if wc.status == C.IBV_WC_WR_FLUSH_ERR {
			// The queue pair broke, and no completion of this end says why. The
			// user agent flushes the remaining works.
			l.flushed()
			continue
		}
		place := uint32(wc.id) >> 1
		if wc.id&1 != 0 {
			if n == len(dst) {
				return n
			}
			dst[n] = via.Done{Work: l.received(wc)}
			n++
			continue
		}
		for {
			if n == len(dst) {
				return n
			}
			last := l.sends.done&(1<<31-1) == place
			status := C.uint32_t(C.IBV_WC_SUCCESS)
			if last {
				status = wc.status
			}
			dst[n] = via.Done{Work: l.sent(status)}
			n++
			if last {
				break
			}
		}
	}
	return n
}

// flushed notes that the queue pair is broken.
func (l *link) flushed() {
	if l.loss.CompareAndSwap(nil, &loss{errRefused}) {
		l.announce()
	}
}

// erred notes that a work's status has the cause by which the queue pair broke.
// Later completions add nothing.
func (l *link) erred(w *via.Work, status C.uint32_t) {
	if l.told {
		return
	}
	l.told, l.code = true, via.AsyncConnectionLost
	if w.Op == via.OpRdmaRead && w.Status == via.StatusTransportError {
		l.code = via.AsyncRdmaTransport
	}
	l.loss.Store(&loss{fmt.Errorf("queue pair: %s", C.GoString(C.ibv_wc_status_str(C.enum_ibv_wc_status(status))))})
	l.announce()
}

// reportEvents stores events, once the completion queue is empty.
func (c *cq) reportEvents(dst []via.Done) int {
	n := copy(dst, c.events)
	c.events = slices.Delete(c.events, 0, n)
	for i := 0; i < len(c.broken); i++ {
		l := c.broken[i]
		if n < len(dst) && l.endedOn(c) {
			dst[n] = via.Done{Event: l.broken()}
			n++
		} else if n == len(dst) {
			return n
		}
		c.broken = slices.Delete(c.broken, i, i+1)
		i--
	}
	return n
}

// endedOn notes that a queue has no more completions of a broken link. It
// returns true when that holds for both queues and the end of the link is to be
// reported.
func (l *link) endedOn(c *cq) bool {
	send, recv := l.queues()
	l.ended[0] = l.ended[0] || c == send || l.sends.done == l.sends.posted
	l.ended[1] = l.ended[1] || c == recv || l.receives.done == l.receives.posted
	if l.reported || c.links[l.serial] != l || !l.ended[0] || !l.ended[1] {
		return false
	}
	l.reported = true
	return true
}

// broken returns the final event of a link. A queue pair that broke without a
// failed work refused an operation of the peer. The device does not report
// which, so the event is that of an RDMA Write.
func (l *link) broken() *via.Event {
	e := &via.Event{Owner: l.cfg.Owner, Code: via.AsyncConnectionLost, Broken: true, Cause: l.loss.Load().cause}
	if l.told {
		e.Code = l.code
		return e
	}
	if l.failed || l.adapter.failed.Load() || C.shim_state(l.qp) != C.IBV_QPS_ERR {
		return e
	}
	e.Code, e.Cause = via.AsyncRdmaWriteProt, errRefused
	return e
}

// sent completes the oldest Send or RDMA operation.
func (l *link) sent(status C.uint32_t) *via.Work {
	s := l.sends.at(l.sends.done)
	l.sends.done++
	w := s.work
	w.Moved, w.Status = 0, sendStatus(w.Op, status)
	if w.Status == 0 {
		w.Moved = w.Length
	}
	switch w.Op {
	case via.OpSend:
		l.stats.Sends++
	case via.OpRdmaWrite:
		l.stats.RdmaWrites++
	case via.OpRdmaRead:
		l.stats.RdmaReads++
	}
	if s.via != nil {
		if w.Op == via.OpRdmaRead && w.Status == 0 {
			s.via.scatter(w, int(w.Length))
		}
		l.reserved = append(l.reserved, s.via)
	}
	*s = entry{}
	if w.Status != 0 {
		l.erred(w, status)
	}
	return w
}

// sendStatus translates the status of a Send or RDMA operation.
func sendStatus(op via.Opcode, s C.uint32_t) via.Status {
	switch s {
	case C.IBV_WC_SUCCESS:
		return 0
	case C.IBV_WC_LOC_LEN_ERR:
		return via.StatusLengthError
	case C.IBV_WC_LOC_PROT_ERR, C.IBV_WC_LOC_QP_OP_ERR, C.IBV_WC_LOC_ACCESS_ERR:
		return via.StatusProtectionError
	case C.IBV_WC_REM_INV_REQ_ERR, C.IBV_WC_REM_ACCESS_ERR:
		if op != via.OpSend {
			return via.StatusRdmaProtError
		}
		return via.StatusRemoteDescError
	case C.IBV_WC_REM_OP_ERR, C.IBV_WC_RNR_RETRY_EXC_ERR:
		return via.StatusRemoteDescError
	default:
		return via.StatusTransportError
	}
}

// receiveStatus translates the status of a receive. Devices that follow the
// specification report a receive that is too short and one whose memory was
// withdrawn by different errors. rdma_rxe reports one error for both, so the
// memory of the receive decides.
func (l *link) receiveStatus(w *via.Work, s C.uint32_t) via.Status {
	switch s {
	case C.IBV_WC_SUCCESS:
		return 0
	case C.IBV_WC_LOC_LEN_ERR, C.IBV_WC_REM_INV_REQ_ERR:
		return via.StatusLengthError
	case C.IBV_WC_LOC_PROT_ERR, C.IBV_WC_LOC_ACCESS_ERR:
		return via.StatusProtectionError
	case C.IBV_WC_LOC_QP_OP_ERR:
		if l.withdrawn(w) {
			return via.StatusProtectionError
		}
		return via.StatusLengthError
	case C.IBV_WC_REM_ACCESS_ERR:
		return via.StatusRdmaProtError | via.StatusOpRemoteWrite
	default:
		return via.StatusTransportError
	}
}

// withdrawn reports whether memory of a work was deregistered or changed its
// tag since the post.
func (l *link) withdrawn(w *via.Work) bool {
	return slices.ContainsFunc(w.Segments, func(s via.Segment) bool { return !s.Memory.Live() || s.Memory.Tag() != l.cfg.Tag })
}

// received completes the oldest receive.
func (l *link) received(wc *C.struct_shim_wc) *via.Work {
	s := l.receives.at(l.receives.done)
	l.receives.done++
	w := s.work
	w.Moved, w.Status = 0, l.receiveStatus(w, wc.status)
	if w.Status == 0 {
		l.stats.Receives++
		w.Moved = uint32(wc.length)
		if wc.by_write != 0 {
			w.Status |= via.StatusOpRemoteWrite
		}
		if wc.has_immediate != 0 {
			w.Immediate = uint32(wc.immediate)
			w.Status |= via.StatusImmediate
		}
	}
	if s.via != nil {
		if wc.status == C.IBV_WC_SUCCESS && wc.by_write == 0 {
			s.via.scatter(w, int(wc.length))
		}
		l.reserved = append(l.reserved, s.via)
	}
	*s = entry{}
	if wc.status != C.IBV_WC_SUCCESS {
		l.erred(w, wc.status)
	}
	return w
}
