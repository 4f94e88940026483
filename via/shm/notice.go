package shm

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/via"
)

// A notice (recordFailed) reports a failed operation to the peer, with an
// asynchronous error code in immediate. It comes from
//
//   - the requester of an RDMA operation, for the owner of the memory. With
//     flagImmediate the operation had immediate data: the receive that it would
//     have consumed completes in error, and no event is raised;
//   - the receiver of a message, with AsyncConnectionLost. At reliable
//     reception total is the status of the failed work.
//
// At unreliable delivery only RDMA Writes send notices, and the connection
// survives. At the other levels the notice is the last record of its sender.

var (
	errRefused   = errors.New("the peer refused an operation")
	errNoReceive = errors.New("a message arrived and no receive was posted")
)

// refusal is the notice that ends a connection.
func refusal(code via.AsyncCode) record {
	return record{tag: tag{kind: recordFailed}, immediate: uint32(code)}
}

// failedWrite is the notice of a failed RDMA Write. For other operations it is
// their refusal.
func failedWrite(w *via.Work, code via.AsyncCode) record {
	r := refusal(code)
	if _, ok := remoteWriteStatus[code]; ok && w.HasImmediate {
		r.flags = flagImmediate
	}
	return r
}

// refuse returns the failure that refuses a message of the peer. At reliable
// reception the peer's work gets the status.
func (r *receiver) refuse(status via.Status, localCode via.AsyncCode, cause error) error {
	notice := refusal(via.AsyncConnectionLost)
	if r.reception {
		notice.total = uint32(status)
	}
	return &failure{code: localCode, cause: cause, notice: notice}
}

// sendNotice publishes the last record of a connection. It may use the room
// that was kept for it.
func (s *sender) sendNotice(notice record) error {
	room, err := s.room(recordHeader)
	if err == nil && room+s.out.kept >= recordHeader {
		s.out.begin(notice)
		s.out.end()
		s.publish()
	}
	return err
}

// notify tells the peer of a failed RDMA Write at unreliable delivery, if there
// is room.
func (s *sender) notify(notice record) error {
	room, err := s.room(recordHeader)
	if err != nil {
		return err
	}
	if room < recordHeader {
		s.stats.Dropped++
		return nil
	}
	s.out.begin(notice)
	s.out.end()
	return nil
}

// remoteWriteStatus is the status of a receive that a failed RDMA Write with
// immediate data consumed, by the code of its notice.
var remoteWriteStatus = map[via.AsyncCode]via.Status{
	via.AsyncRdmaWriteProt:  via.StatusRdmaProtError,
	via.AsyncRdmaWriteData:  via.StatusTransportError,
	via.AsyncRdmaWriteAbort: via.StatusPartialError,
}

// receiveNotice handles a notice; the peer may lie.
func (r *receiver) receiveNotice(rec record) error {
	code, status := via.AsyncCode(rec.immediate), via.Status(rec.total)
	consumed, ofWrite := remoteWriteStatus[code]
	switch {
	case rec.length != 0 || rec.flags&^flagImmediate != 0,
		!ofWrite && (r.unreliable || rec.flags != 0),
		!ofWrite && code != via.AsyncConnectionLost && code != via.AsyncRdmaReadProt,
		code != via.AsyncConnectionLost && (r.current != nil || r.skipping),
		status != 0 && !r.mayRefuse(code, status):
		return fmt.Errorf("malformed notice: code %d, flags %#x, status %#x", rec.immediate, rec.flags, rec.total)
	case rec.flags != 0:
		return r.receiveFailedWrite(rec, consumed)
	case r.unreliable:
		r.raise(code, errRefused)
		return nil
	default:
		return &failure{code: code, cause: errRefused, refused: status}
	}
}

// receiveFailedWrite consumes a receive for a failed RDMA Write with immediate
// data.
func (r *receiver) receiveFailedWrite(rec record, status via.Status) error {
	w, err := r.dequeue(rec)
	if w == nil {
		return err
	}
	w.Status = status | via.StatusOpRemoteWrite
	r.cq.push(&r.events, w)
	if r.unreliable {
		return nil
	}
	return errRefused
}

// mayRefuse reports whether a peer may give the status to a work of this end.
func (r *receiver) mayRefuse(code via.AsyncCode, status via.Status) bool {
	return r.reception && code == via.AsyncConnectionLost &&
		(status == via.StatusRemoteDescError || status == via.StatusTransportError)
}
