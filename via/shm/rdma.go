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
)

// rdma moves an RDMA Write or Read a step on. It returns false when the turn is
// over or the ring has no room for the notice.
func (l *link) rdma(w *via.Work, budget *int) bool {
	for w.Moved < w.Length {
		n := min(int(w.Length-w.Moved), *budget)
		if n == 0 {
			return false
		}
		if !segmentsLive(w) {
			l.protectionError(w)
			return false
		}
		switch l.rdmaStep(w, n) {
		case refused:
			l.refuseRdma(w)
			return false
		case unknown:
			l.awaiting = true
			return false
		}
		*budget -= n
	}
	if w.HasImmediate {
		if l.room(recordHeader) < recordHeader {
			l.stall()
			return false
		}
		l.out.begin(record{kind: recordWritten, flags: flagImmediate, immediate: w.Immediate, total: w.Length})
		l.out.end()
	}
	if w.Op == via.OpRdmaWrite {
		l.stats.RdmaWrites++
	} else {
		l.stats.RdmaReads++
	}
	l.complete(w, 0)
	return true
}

// rdmaStep copies n bytes. While it does, the hazard word names the region, and
// the region's table word is looked at after the hazard is visible: its owner
// either sees the hazard and waits, or has withdrawn the region before.
func (l *link) rdmaStep(w *via.Work, n int) outcome {
	m, o := l.translate(w)
	if o != granted {
		return o
	}
	storeWord(l.own.mem, offHazard, uint64(w.RemoteHandle)|1<<63)
	if loadWord(l.peer.mem, entryOffset(w.RemoteHandle)) != m.word {
		storeWord(l.own.mem, offHazard, 0)
		m.word = 0
		return refused
	}
	at := w.RemoteAddr - m.addr + uint64(w.Moved)
	copySegments(w, m.bytes[at:at+uint64(n)], int(w.Moved))
	storeWord(l.own.mem, offHazard, 0)
	w.Moved += uint32(n)
	l.stats.BytesCopied += uint64(n)
	return granted
}

// copySegments copies between the local segments, from byte skip of them on, and
// remote memory.
func copySegments(w *via.Work, remote []byte, skip int) {
	for i := range w.Segments {
		b := w.Segments[i].Bytes
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:min(len(b), skip+len(remote))]
		skip = 0
		if w.Op == via.OpRdmaWrite {
			copy(remote, b)
		} else {
			copy(b, remote)
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

// refuseRdma completes an RDMA that the peer's table does not allow, tells the
// peer, and breaks the connection.
func (l *link) refuseRdma(w *via.Work) {
	code := via.AsyncRdmaWriteProt
	if w.Op == via.OpRdmaRead {
		code = via.AsyncRdmaReadProt
	}
	notice := refusal(code)
	if w.HasImmediate {
		notice.flags = flagImmediate
	}
	l.complete(w, via.StatusRdmaProtError)
	l.refuse(notice, via.AsyncConnectionLost,
		fmt.Errorf("remote region %#x refused %d bytes at %#x", w.RemoteHandle, w.Length, w.RemoteAddr))
}

func entryOffset(handle uint32) int { return offRegions + int(handle&0xffff)*regionEntry }
