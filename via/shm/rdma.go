package shm

import (
	"fmt"

	"github.com/viablk/viablk/via"
)

// mapping is a checked translation of a region of the peer. It holds while the
// region's table word stays the same.
type mapping struct {
	word  uint64 // handle and access, as in the table; 0 is empty
	addr  uint64
	bytes []byte // the region in this process
}

// translation outcomes.
type outcome int

const (
	granted outcome = iota
	refused         // no such region, out of bounds or not allowed
	unknown         // exposed, but its arena has not arrived yet
	gone            // local memory was deregistered
	damaged         // the bytes were changed on the way: only a faulty fabric does that
)

// rdma moves an RDMA Write or Read a step on. It returns false when the turn is
// over or the operation has to wait.
func (l *link) rdma(w *via.Work, budget *int) bool {
	if l.unacked != 0 {
		return false // the peer may still refuse what was posted before
	}
	if l.faulty != nil {
		return l.faultyRdma(w, budget)
	}
	for w.Moved < w.Length {
		n := int(w.Length - w.Moved)
		if n > *budget {
			n = *budget &^ (via.CopyStep - 1)
		}
		if n == 0 {
			return false
		}
		if o := l.rdmaStep(w, n); o != granted {
			return l.endRdma(w, o)
		}
		*budget -= n
	}
	return l.rdmaDone(w)
}

// rdmaDone completes an operation that is carried out. It returns false if its
// immediate data has to wait.
func (l *link) rdmaDone(w *via.Work) bool {
	if w.HasImmediate {
		return l.announce(w)
	}
	if w.Op == via.OpRdmaWrite {
		l.stats.RdmaWrites++
	} else {
		l.stats.RdmaReads++
	}
	l.complete(w, 0)
	return true
}

// endRdma ends an operation whose next step is not granted, or lets it
// wait: then it returns false.
func (l *link) endRdma(w *via.Work, o outcome) bool {
	switch o {
	case unknown:
		return l.awaitArena(w)
	case gone:
		l.failRdma(w, via.StatusProtectionError, via.AsyncConnectionLost, errMemoryGone)
	case damaged:
		l.failRdma(w, via.StatusTransportError, via.AsyncRdmaWriteData, errDamaged)
	default:
		l.refuseRdma(w)
	}
	return true
}

// announce puts the immediate data of an RDMA Write that is carried out into the
// ring. It returns false if that has to wait.
func (l *link) announce(w *via.Work) bool {
	if l.room(recordHeader) < recordHeader {
		if l.unreliable {
			l.drop(w)
			return true
		}
		l.stall()
		return false
	}
	start := l.out.tail
	r := record{tag: tag{kind: recordWritten, flags: flagImmediate}, immediate: w.Immediate, total: w.Length}
	l.out.begin(r)
	l.out.end()
	if l.faulty != nil {
		l.disturb(start, r)
	}
	l.stats.RdmaWrites++
	l.sent(w)
	return true
}

// rdmaStep copies n bytes.
func (l *link) rdmaStep(w *via.Work, n int) outcome {
	if !l.segmentsLive(w) {
		return gone
	}
	m, o := l.translate(w)
	if o != granted {
		return o
	}
	if !l.enter(w, m) {
		m.word = 0
		l.leave(w, 0)
		return refused
	}
	at := w.RemoteAddr - m.addr + uint64(w.Moved)
	copySegments(w, m.bytes[at:at+uint64(n)], int(w.Moved))
	l.leave(w, n)
	return granted
}

// enter begins an access. Until its end the hazard word names the region, and the
// region's table word is looked at after the hazard is visible: its owner either
// sees the hazard and waits, or has withdrawn the region before; then enter
// returns false.
func (l *link) enter(w *via.Work, m *mapping) bool {
	storeWord(l.own.mem, offHazard, uint64(w.RemoteHandle)|1<<63)
	return loadWord(l.peer.mem, entryOffset(w.RemoteHandle)) == m.word
}

// leave ends an access, also one that was not granted, that moved n bytes.
func (l *link) leave(w *via.Work, n int) {
	publishWord(l.own.mem, offHazard, 0)
	w.Moved += uint32(n)
	l.stats.BytesCopied += uint64(n)
}

// copySegments copies between the local segments, from byte skip of them on, and
// remote memory.
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

// translate finds the remote range of a work in this process.
func (l *link) translate(w *via.Work) (*mapping, outcome) {
	if w.RemoteHandle&0xffff >= regionSlots {
		return nil, refused
	}
	need := uint64(entryLive | entryWrite)
	if w.Op == via.OpRdmaRead {
		need = entryLive | entryRead
	}
	word := loadWord(l.peer.mem, entryOffset(w.RemoteHandle))
	if uint32(word>>32) != w.RemoteHandle || word&need != need {
		return nil, refused
	}
	m := &l.cache[w.RemoteHandle%uint32(len(l.cache))]
	if m.word != word {
		if o := l.load(m, word); o != granted {
			return nil, o
		}
	}
	at := w.RemoteAddr - m.addr
	if w.RemoteAddr < m.addr || at > uint64(len(m.bytes)) || uint64(w.Length) > uint64(len(m.bytes))-at {
		return nil, refused
	}
	return m, granted
}

// load reads a table entry, once, and checks it against the arenas that the peer
// passed.
func (l *link) load(m *mapping, word uint64) outcome {
	at := entryOffset(uint32(word >> 32))
	addr := loadWord(l.peer.mem, at+offEntryAddr)
	length := loadWord(l.peer.mem, at+offEntryLength)
	id := loadWord(l.peer.mem, at+offEntryArena)
	off := loadWord(l.peer.mem, at+offEntryAt)
	if loadWord(l.peer.mem, at) != word {
		return refused
	}
	l.awaited = l.arenas.head.Load()
	a := l.arenas.find(id)
	if a == nil {
		return unknown
	}
	size := uint64(len(a.mem))
	if off > size || length > size-off || addr+length < addr {
		return refused
	}
	*m = mapping{word: word, addr: addr, bytes: a.mem[off : off+length]}
	return granted
}

// awaitArena lets an operation wait for the arena of its region, which is on its
// way. At unreliable delivery that has an end.
func (l *link) awaitArena(w *via.Work) bool {
	if l.unreliable && !l.patient() {
		if w.Moved != 0 {
			l.notify(failedWrite(w, via.AsyncRdmaWriteAbort))
		}
		l.drop(w)
		return true
	}
	l.awaiting = true
	return false
}

// refuseRdma ends an operation that the peer's table does not allow.
func (l *link) refuseRdma(w *via.Work) {
	code, cause := via.AsyncRdmaWriteProt, errRefused
	if w.Op == via.OpRdmaRead {
		code = via.AsyncRdmaReadProt
	}
	if !l.unreliable { // no allocation where the connection goes on
		cause = fmt.Errorf("remote region %#x refused %d bytes at %#x", w.RemoteHandle, w.Length, w.RemoteAddr)
	}
	l.failRdma(w, via.StatusRdmaProtError, code, cause)
}

// failRdma ends an operation that was not carried out, or not in full, and tells
// the peer the code. A write that wrote something is an aborted one to the peer.
// At unreliable delivery the writer learns only of errors of its own memory.
func (l *link) failRdma(w *via.Work, status via.Status, code via.AsyncCode, cause error) {
	write := w.Op == via.OpRdmaWrite
	if write && w.Moved != 0 && code != via.AsyncRdmaWriteData {
		code = via.AsyncRdmaWriteAbort
	}
	switch {
	case l.unreliable:
		if code != via.AsyncConnectionLost {
			l.notify(failedWrite(w, code))
		}
		if status != via.StatusProtectionError {
			status, w.Moved = 0, w.Length
		}
		l.complete(w, status)
	case write || status != via.StatusTransportError:
		l.complete(w, status)
		l.refuse(failedWrite(w, code), via.AsyncConnectionLost, cause)
	default:
		l.complete(w, status)
		l.fail(via.AsyncRdmaTransport, cause)
	}
}

func entryOffset(handle uint32) int { return offRegions + int(handle&0xffff)*regionEntry }
