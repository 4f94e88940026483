package shm

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/via"
)

// A notice (recordFailed) tells the peer of an operation that failed here: what
// went wrong is an asynchronous error code, in immediate. It is sent
//
//   - by the end that carried out an RDMA operation, for the end whose memory it
//     is, which else would not know. With flagImmediate the operation had
//     immediate data: the receive that it would have consumed says so, and not an
//     event;
//   - by the end that a message arrived at, with AsyncConnectionLost. At reliable
//     reception total is the status of the work that failed.
//
// At unreliable delivery there are notices of RDMA Writes only, and life goes on.
// At the other levels the notice is the last record of its sender.

var (
	errRefused   = errors.New("the peer refused an operation")
	errNoReceive = errors.New("a message arrived and no receive was posted")
)

// refusal is the notice that ends a connection.
func refusal(code via.AsyncCode) record {
	return record{tag: tag{kind: recordFailed}, immediate: uint32(code)}
}

// failedWrite is the notice of an operation that wrote to the peer's memory, or
// should have; of others it is their refusal.
func failedWrite(w *via.Work, code via.AsyncCode) record {
	r := refusal(code)
	if _, ok := remoteWriteStatus[code]; ok && w.HasImmediate {
		r.flags = flagImmediate
	}
	return r
}

// refuse tells the peer why the connection ends, then breaks it. What was read
// before the failing record is acknowledged.
func (l *link) refuse(notice record, own via.AsyncCode, cause error) {
	if !l.broken {
		l.publishHead()
		if l.room(recordHeader)+l.out.kept >= recordHeader {
			l.out.begin(notice)
			l.out.end()
			l.Doorbell()
		}
	}
	l.fail(own, cause)
}

// refuseMessage refuses what the peer sent; status is what its work says at
// reliable reception.
func (l *link) refuseMessage(status via.Status, own via.AsyncCode, cause error) {
	notice := refusal(via.AsyncConnectionLost)
	if l.ends != nil {
		notice.total = uint32(status)
	}
	l.refuse(notice, own, cause)
}

// notify tells the peer of a failed RDMA Write at unreliable delivery, if there
// is room.
func (l *link) notify(notice record) {
	if l.room(recordHeader) < recordHeader {
		l.stats.Dropped++
		return
	}
	l.out.begin(notice)
	l.out.end()
}

// raise reports an event that does not break the connection.
func (l *link) raise(code via.AsyncCode, cause error) {
	if l.events[code] == nil {
		l.events[code] = &via.Event{Owner: l.cfg.Owner, Code: code, Cause: cause}
	}
	if l.handed != 0 && len(l.raised) == cap(l.raised) {
		l.raised, l.handed = append(l.raised[:0], l.raised[l.handed:]...), 0
	}
	l.raised = append(l.raised, code) // grows to what the queue has room for
	l.recvCQ.push(l, nil)
}

// nextEvent takes the oldest event that was raised. Events are read only: one of
// each code serves the link.
func (l *link) nextEvent() *via.Event {
	e := l.events[l.raised[l.handed]]
	if l.handed++; l.handed == len(l.raised) {
		l.raised, l.handed = l.raised[:0], 0
	}
	return e
}

// remoteWriteStatus is what a receive says that a failed RDMA Write with
// immediate data consumed, by the code of its notice.
var remoteWriteStatus = map[via.AsyncCode]via.Status{
	via.AsyncRdmaWriteProt:  via.StatusRdmaProtError,
	via.AsyncRdmaWriteData:  via.StatusTransportError,
	via.AsyncRdmaWriteAbort: via.StatusPartialError,
}

// receiveNotice handles a notice; the peer may lie.
func (l *link) receiveNotice(rec record) error {
	code, status := via.AsyncCode(rec.immediate), via.Status(rec.total)
	consumed, ofWrite := remoteWriteStatus[code]
	switch {
	case rec.length != 0 || rec.flags&^flagImmediate != 0,
		!ofWrite && (l.unreliable || rec.flags != 0),
		!ofWrite && code != via.AsyncConnectionLost && code != via.AsyncRdmaReadProt,
		code != via.AsyncConnectionLost && (l.current != nil || l.skipping),
		status != 0 && !l.mayRefuse(code, status):
		return fmt.Errorf("malformed notice: code %d, flags %#x, status %#x", rec.immediate, rec.flags, rec.total)
	case status != 0:
		if err := l.refusedWork(status); err != nil {
			return err
		}
		fallthrough
	case rec.flags == 0:
		if l.unreliable {
			l.raise(code, errRefused)
			return nil
		}
		l.fail(code, errRefused)
		return nil
	}
	if w := l.takeReceive(rec); w != nil {
		w.Status = consumed | via.StatusOpRemoteWrite
		l.recvCQ.push(l, w)
		if !l.unreliable {
			l.fail(via.AsyncConnectionLost, errRefused)
		}
	}
	return nil
}

// mayRefuse reports whether a peer may give the status to a work of this end.
func (l *link) mayRefuse(code via.AsyncCode, status via.Status) bool {
	return l.ends != nil && code == via.AsyncConnectionLost &&
		(status == via.StatusRemoteDescError || status == via.StatusTransportError)
}
