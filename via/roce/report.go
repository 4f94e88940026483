package roce

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/rc"
)

// seat is a link's place at a completion queue: what of it is reported there.
type seat struct {
	link     *link
	berth    *berth
	sends    bool // the ends of Sends and RDMA operations
	receives bool // those of receives, and events
	listed   bool
	next     *seat
}

// seatList is a queue of seats with something to report.
type seatList struct{ first, last *seat }

func (q *seatList) push(s *seat) {
	s.listed, s.next = true, nil
	if q.last == nil {
		q.first = s
	} else {
		q.last.next = s
	}
	q.last = s
}

func (q *seatList) pop() *seat {
	s := q.first
	q.first = s.next
	if q.first == nil {
		q.last = nil
	}
	s.listed, s.next = false, nil
	return s
}

// remove takes a seat out, if it is there.
func (q *seatList) remove(s *seat) {
	if !s.listed {
		return
	}
	var kept seatList
	for q.first != nil {
		if x := q.pop(); x != s {
			kept.push(x)
		}
	}
	*q = kept
}

// queue puts the link in line where it has something to report. With two queues
// an event waits until the ends of sends are taken.
func (l *link) queue() {
	sent, received, happened := l.qp.Ended()
	for i := range l.seats {
		s := &l.seats[i]
		if s.link == nil || s.listed {
			continue
		}
		if s.sends && sent || s.receives && (received || happened && (s.sends || !sent)) {
			s.berth.ready.push(s)
			if s.berth.asleep {
				s.berth.rouse()
			}
		}
	}
}

// share is how many reports of one link are taken before it is another's turn.
const share = 16

// report stores what has ended.
func (s *seat) report(dst []via.Done) int {
	n, l := 0, s.link
	dst = dst[:min(len(dst), share)]
	for ; n < len(dst); n++ {
		sent, received, happened := l.qp.Ended()
		switch {
		case s.sends && sent:
			dst[n] = via.Done{Work: l.sent(l.qp.PollSend())}
			continue
		case s.receives && received:
			dst[n] = via.Done{Work: l.received(l.qp.PollReceive())}
			continue
		case s.receives && happened && !sent:
			if e := l.nextEvent(); e != nil {
				dst[n] = via.Done{Event: e}
				continue
			}
		}
		break
	}
	l.queue()
	return n
}

// sent ends a Send or RDMA operation.
func (l *link) sent(x *rc.Work) *via.Work {
	w := l.release(x.ID)
	w.Moved, w.Status = 0, sendStatus(x.Op, x.Status)
	switch x.Op {
	case rc.Send:
		l.stats.Sends++
	case rc.Write:
		l.stats.RdmaWrites++
	case rc.Read:
		l.stats.RdmaReads++
		if w.Status == via.StatusTransportError {
			l.code = via.AsyncRdmaTransport
		}
	}
	if x.Status == rc.OK {
		w.Moved = w.Length
	}
	return w
}

// sendStatus translates how a Send or RDMA operation ended.
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

// receiveStatus translates how a receive ended.
var receiveStatus = map[rc.Status]via.Status{
	rc.OK:              0,
	rc.Flushed:         via.StatusFlushed,
	rc.LocalProtection: via.StatusProtectionError,
	rc.TooLong:         via.StatusLengthError,
	rc.Partial:         via.StatusPartialError,
	rc.Damaged:         via.StatusTransportError,
	rc.Refused:         via.StatusRdmaProtError,
}

// received ends a receive.
func (l *link) received(x *rc.Receive) *via.Work {
	w := l.release(x.ID)
	w.Moved, w.Status = 0, receiveStatus[x.Status]
	if x.ByWrite {
		w.Status |= via.StatusOpRemoteWrite
	}
	if x.Status != rc.OK {
		return w
	}
	l.stats.Receives++
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

// nextEvent returns the next event that is to be reported, or nil. On a reliable
// connection an event is the reason why it breaks, and is reported as that.
func (l *link) nextEvent() *via.Event {
	for {
		switch e := l.qp.PollEvent(); {
		case e == rc.NoEvent:
			return nil
		case e == rc.Broken && !l.reported:
			l.reported = true
			return &via.Event{Owner: l.cfg.Owner, Code: l.code, Broken: true, Cause: l.cause()}
		case e == rc.Broken:
		case l.cfg.Reliability == via.UnreliableDelivery:
			return l.event(eventCode[e])
		default:
			l.code = eventCode[e]
		}
	}
}

// event returns the event of a code that breaks nothing. Events are read only:
// one of each code serves the link.
func (l *link) event(code via.AsyncCode) *via.Event {
	if l.events[code] == nil {
		l.events[code] = &via.Event{Owner: l.cfg.Owner, Code: code, Cause: fmt.Errorf("a message of the peer: %v", code)}
	}
	return l.events[code]
}

// cause says why the link is broken.
func (l *link) cause() error {
	if l.qp.Cause() == rc.Closed {
		return errPeerClosed
	}
	return fmt.Errorf("queue pair: %v", l.qp.Cause())
}
