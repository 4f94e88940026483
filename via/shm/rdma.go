package shm

import (
	"fmt"

	"github.com/viablk/viablk/via"
)

// rdma runs an RDMA Write or Read for the rest of the quantum:
//
//  1. segmentsLive checks that local memory is still registered
//  2. translate validates the region in the peer's table and returns its
//     mapping
//  3. begin publishes the hazard word and rechecks the table word
//  4. copySegments copies between local segments and the peer's arena
//  5. end clears the hazard word; of an RDMA Read, valid checks that what was
//     copied was the region's; steps 1 to 5 repeat (rdmaStep)
//  6. rdmaDone completes the work, after announce sent its immediate data
//
// It returns false when the quantum is used up or the operation has to wait.
func (s *sender) rdma(w *via.Work, budget *int) (bool, error) {
	if s.unacked != 0 {
		return false, nil // the peer may still refuse what was posted before
	}
	if s.faulty != nil {
		return s.faultyRdma(w, budget)
	}
	for w.Moved < w.Length {
		n := int(w.Length - w.Moved)
		if n > *budget {
			n = *budget &^ (via.CopyStep - 1)
		}
		if n == 0 {
			return false, nil
		}
		if o := s.rdmaStep(w, n); o != granted {
			return s.endRdma(w, o)
		}
		*budget -= n
	}
	return s.rdmaDone(w)
}

// rdmaDone completes an operation whose bytes are copied. It returns false if
// its immediate data has to wait.
func (s *sender) rdmaDone(w *via.Work) (bool, error) {
	if w.HasImmediate {
		return s.announce(w)
	}
	if w.Op == via.OpRdmaWrite {
		s.stats.RdmaWrites++
	} else {
		s.stats.RdmaReads++
	}
	s.complete(w, 0)
	return true, nil
}

// endRdma completes in error an operation whose next step was not granted. It
// returns false if the operation waits for an arena instead.
func (s *sender) endRdma(w *via.Work, o accessResult) (bool, error) {
	switch o {
	case unknown:
		return s.awaitArena(w)
	case localGone:
		return true, s.failRdma(w, via.StatusProtectionError, via.AsyncConnectionLost, errMemoryGone)
	case damaged:
		return true, s.failRdma(w, via.StatusTransportError, via.AsyncRdmaWriteData, errDamaged)
	default:
		return true, s.refuseRdma(w)
	}
}

// announce puts the immediate data of a finished RDMA Write into the ring. It
// returns false if the ring has no room.
func (s *sender) announce(w *via.Work) (bool, error) {
	switch room, err := s.room(recordHeader); {
	case err != nil:
		return false, err
	case room >= recordHeader:
	case s.unreliable:
		s.dropMessage(w)
		return true, nil
	default:
		s.stall()
		return false, nil
	}
	start := s.out.tail
	r := record{tag: tag{kind: recordWritten, flags: flagImmediate}, immediate: w.Immediate, total: w.Length}
	s.out.begin(r)
	s.out.end()
	if s.faulty != nil {
		if err := s.disturb(start, r); err != nil {
			return false, err
		}
	}
	s.stats.RdmaWrites++
	s.sent(w)
	return true, nil
}

// rdmaStep validates the access and copies n bytes.
func (s *sender) rdmaStep(w *via.Work, n int) accessResult {
	if !segmentsLive(w, s.tag) {
		return localGone
	}
	m, o := s.remote.translate(w)
	if o != granted {
		return o
	}
	if !s.remote.begin(m) {
		s.remote.forget(m)
		return refused
	}
	at := w.RemoteAddr - m.addr + uint64(w.Moved)
	if remote := m.bytes[at : at+uint64(n)]; s.faulty == nil {
		copySegments(w, remote, int(w.Moved))
	} else if !s.faulty.copySegments(w, remote) {
		n, o = 0, damaged
	}
	s.remote.end()
	if w.Op == via.OpRdmaRead && !s.remote.valid(m) {
		return refused
	}
	w.Moved += uint32(n)
	s.stats.BytesCopied += uint64(n)
	return o
}

// copySegments copies between the local segments, from byte skip on, and remote
// memory.
func copySegments(w *via.Work, remote []byte, skip int) {
	if len(w.Segments) == 1 {
		if local := w.Segments[0].Bytes[skip : skip+len(remote)]; w.Op == via.OpRdmaWrite {
			move(remote, local)
		} else {
			move(local, remote)
		}
		return
	}
	for i := range w.Segments {
		b := w.Segments[i].Bytes
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:min(len(b), skip+len(remote))]
		skip = 0
		if w.Op == via.OpRdmaWrite {
			move(remote, b)
		} else {
			move(b, remote)
		}
		if remote = remote[len(b):]; len(remote) == 0 {
			return
		}
	}
}

// awaitArena makes an operation wait for the arena of its region, which is in
// flight. At unreliable delivery the wait has a timeout.
func (s *sender) awaitArena(w *via.Work) (bool, error) {
	if s.unreliable && !s.withinTimeout() {
		var err error
		if w.Moved != 0 {
			err = s.notify(failedWrite(w, via.AsyncRdmaWriteAbort))
		}
		s.dropMessage(w)
		return true, err
	}
	s.awaiting = true
	return false, nil
}

// refuseRdma fails an operation that the peer's table does not allow.
func (s *sender) refuseRdma(w *via.Work) error {
	code, cause := via.AsyncRdmaWriteProt, errRefused
	if w.Op == via.OpRdmaRead {
		code = via.AsyncRdmaReadProt
	}
	if !s.unreliable { // no allocation where the connection goes on
		cause = fmt.Errorf("remote region %#x refused %d bytes at %#x", w.RemoteHandle, w.Length, w.RemoteAddr)
	}
	return s.failRdma(w, via.StatusRdmaProtError, code, cause)
}

// failRdma completes a failed operation and tells the peer the code. A write
// that moved some bytes is an aborted one to the peer. At unreliable delivery
// the writer learns only of errors of local memory; at the other levels
// failRdma returns the failure of the connection.
func (s *sender) failRdma(w *via.Work, status via.Status, code via.AsyncCode, cause error) error {
	write := w.Op == via.OpRdmaWrite
	if write && w.Moved != 0 && code != via.AsyncRdmaWriteData {
		code = via.AsyncRdmaWriteAbort
	}
	switch {
	case s.unreliable:
		var err error
		if code != via.AsyncConnectionLost {
			err = s.notify(failedWrite(w, code))
		}
		if status != via.StatusProtectionError {
			status, w.Moved = 0, w.Length
		}
		s.complete(w, status)
		return err
	case write || status != via.StatusTransportError:
		s.complete(w, status)
		return &failure{code: via.AsyncConnectionLost, cause: cause, notice: failedWrite(w, code)}
	default:
		s.complete(w, status)
		return &failure{code: via.AsyncRdmaTransport, cause: cause}
	}
}
