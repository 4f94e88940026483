package roce

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/rc"
)

// completions is what a link reports to its completion queues:
//
//  1. the queue pair keeps completions in the order of its queues (rc)
//  2. listCompletions lists the link at the completion queue, and wakes a
//     consumer that sleeps
//  3. report translates them when the consumer polls (cq.go); with that the
//     work and its memory are the consumer's again
type completions struct {
	bindings       [2]linkBinding                    // sends, receives; the first serves both if they share a queue
	code           via.AsyncCode                     // cause of a break
	brokenReported bool                              // the consumer has the event of the break
	events         [via.AsyncCatastrophic]*via.Event // by code; do not break the connection
}

// linkBinding is a link's membership in a completion queue: which of its
// completions the queue reports.
type linkBinding struct {
	transport *transport // nil without a queue
	binding   *cqBinding
	sends     bool // reports Sends and RDMA operations
	receives  bool // reports receives and events
	listed    bool
	next      *linkBinding
}

// bindingList is a FIFO of bindings with completions to report.
type bindingList struct{ first, last *linkBinding }

func (q *bindingList) push(s *linkBinding) {
	s.listed, s.next = true, nil
	if q.last == nil {
		q.first = s
	} else {
		q.last.next = s
	}
	q.last = s
}

func (q *bindingList) pop() *linkBinding {
	s := q.first
	q.first = s.next
	if q.first == nil {
		q.last = nil
	}
	s.listed, s.next = false, nil
	return s
}

// remove unlinks a binding, if it is listed.
func (q *bindingList) remove(s *linkBinding) {
	if !s.listed {
		return
	}
	var kept bindingList
	for q.first != nil {
		if x := q.pop(); x != s {
			kept.push(x)
		}
	}
	*q = kept
}

// listCompletions lists the link at the queues it has completions for. With two
// queues an event waits until the send completions are polled.
func (t *transport) listCompletions() {
	sent, received, happened := t.qp.Ended()
	for i := range t.completions.bindings {
		s := &t.completions.bindings[i]
		if s.transport == nil || s.listed {
			continue
		}
		if s.sends && sent || s.receives && (received || happened && (s.sends || !sent)) {
			s.binding.reports.ready.push(s)
			if s.binding.reports.wakeRequested {
				s.binding.wake()
			}
		}
	}
}

// reportQuantum bounds the completions of one link before the next link
// reports, for fairness.
const reportQuantum = 16

// report stores completions of the link.
func (s *linkBinding) report(dst []via.Done) int {
	n, t := 0, s.transport
	dst = dst[:min(len(dst), reportQuantum)]
	for ; n < len(dst); n++ {
		sent, received, happened := t.qp.Ended()
		switch {
		case s.sends && sent:
			dst[n] = via.Done{Work: t.completeSend(t.qp.PollSend())}
			continue
		case s.receives && received:
			dst[n] = via.Done{Work: t.completeReceive(t.qp.PollReceive())}
			continue
		case s.receives && happened && !sent:
			if e := t.nextEvent(); e != nil {
				dst[n] = via.Done{Event: e}
				continue
			}
		}
		break
	}
	t.listCompletions()
	return n
}

// completeSend completes a Send or RDMA operation.
func (t *transport) completeSend(x *rc.Work) *via.Work {
	w := t.releaseEntry(x.ID)
	w.Moved, w.Status = 0, sendStatus(x.Op, x.Status)
	switch x.Op {
	case rc.Send:
		t.stats.Sends++
	case rc.Write:
		t.stats.RdmaWrites++
	case rc.Read:
		t.stats.RdmaReads++
		if w.Status == via.StatusTransportError {
			t.completions.code = via.AsyncRdmaTransport
		}
	}
	if x.Status == rc.OK {
		w.Moved = w.Length
	}
	return w
}

// sendStatus translates the completion status of a Send or RDMA operation.
func sendStatus(op rc.Op, s rc.Status) via.Status {
	switch s {
	case rc.OK:
		return 0
	case rc.LocalInvalid:
		return via.StatusLengthError
	case rc.LocalProtection:
		return via.StatusProtectionError
	case rc.RemoteInvalid, rc.RemoteAccess:
		if op != rc.Send {
			return via.StatusRdmaProtError
		}
		return via.StatusRemoteDescError
	case rc.RemoteOperational, rc.RNRExceeded:
		return via.StatusRemoteDescError
	case rc.RetriesExceeded:
		return via.StatusTransportError
	default:
		return via.StatusFlushed
	}
}

// receiveStatus translates the completion status of a receive.
var receiveStatus = map[rc.Status]via.Status{
	rc.OK:              0,
	rc.Flushed:         via.StatusFlushed,
	rc.LocalProtection: via.StatusProtectionError,
	rc.TooLong:         via.StatusLengthError,
	rc.Partial:         via.StatusPartialError,
	rc.Damaged:         via.StatusTransportError,
	rc.Refused:         via.StatusRdmaProtError,
}

// completeReceive completes a receive.
func (t *transport) completeReceive(x *rc.Receive) *via.Work {
	w := t.releaseEntry(x.ID)
	w.Moved, w.Status = 0, receiveStatus[x.Status]
	if x.ByWrite {
		w.Status |= via.StatusOpRemoteWrite
	}
	if x.Status != rc.OK {
		return w
	}
	t.stats.Receives++
	w.Moved = uint32(x.Length)
	if x.HasImmediate {
		w.Immediate = x.Immediate
		w.Status |= via.StatusImmediate
	}
	return w
}

// eventCode translates events of the queue pair.
var eventCode = [...]via.AsyncCode{
	rc.EmptyQueue:   via.AsyncRecvQueueEmpty,
	rc.WriteRefused: via.AsyncRdmaWriteProt,
	rc.WriteAborted: via.AsyncRdmaWriteAbort,
	rc.WriteDamaged: via.AsyncRdmaWriteData,
	rc.ReadRefused:  via.AsyncRdmaReadProt,
}

var errPeerClosed = errors.New("the peer disconnected")

// nextEvent returns the next asynchronous event to report, or nil. On a
// reliable connection an event breaks the connection, and the break has its
// code.
func (t *transport) nextEvent() *via.Event {
	for {
		switch e := t.qp.PollEvent(); {
		case e == rc.NoEvent:
			return nil
		case e == rc.Broken && !t.completions.brokenReported:
			t.completions.brokenReported = true
			return &via.Event{Owner: t.link.cfg.Owner, Code: t.completions.code, Broken: true, Cause: t.cause()}
		case e == rc.Broken:
		case t.link.cfg.Reliability == via.UnreliableDelivery:
			return t.event(eventCode[e])
		default:
			t.completions.code = eventCode[e]
		}
	}
}

// event returns the event of a code that does not break the connection. Events
// are read-only: the link shares one per code.
func (t *transport) event(code via.AsyncCode) *via.Event {
	if t.completions.events[code] == nil {
		t.completions.events[code] = &via.Event{Owner: t.link.cfg.Owner, Code: code, Cause: fmt.Errorf("message from the peer: %v", code)}
	}
	return t.completions.events[code]
}

// cause returns why the queue pair is in the error state.
func (t *transport) cause() error {
	if t.qp.Cause() == rc.Closed {
		return errPeerClosed
	}
	return fmt.Errorf("queue pair: %v", t.qp.Cause())
}
