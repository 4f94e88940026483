package loopback

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/viablk/viablk/via"
)

// unit is what travels: a Send, an RDMA Write, the request of an RDMA Read, or
// an answer. The end where it arrives trusts the header and checks the rest.
type unit struct {
	seq          uint32 // of a link's works, from 1; an answer has its work's
	op           via.Opcode
	hasImmediate bool
	immediate    uint32
	length       uint32 // bytes of the payload, or that a read asks for
	remoteHandle uint32
	remoteAddr   uint64
	answer       bool
	status       via.Status // of an answer: what its work is done with

	body []byte // the payload and its checksum, as they arrive
}

// checksumSize is what follows the payload in a unit's body.
const checksumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is a unit for a work, without its bytes.
func header(seq uint32, w *via.Work) unit {
	return unit{
		seq: seq, op: w.Op, hasImmediate: w.HasImmediate, immediate: w.Immediate,
		length: w.Length, remoteHandle: w.RemoteHandle, remoteAddr: w.RemoteAddr,
	}
}

// payload returns the bytes that were sent and nil, or what happened to them on
// the way.
func (u *unit) payload() ([]byte, *problem) {
	if len(u.body) < checksumSize || len(u.body)-checksumSize < int(u.length) {
		return nil, &truncated
	}
	b := u.body[:u.length]
	if crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(u.body[u.length:]) {
		return nil, &corrupt
	}
	return b, nil
}

// wire is one direction of a connection: units that arrive in the order of
// flight. A unit's bytes are the wire's: what the sender's memory becomes later
// does not touch them.
type wire struct {
	buf    []byte // of the unit that was put last; it grows to the longest
	flight []unit

	// Under test:
	fault via.Fault // befalls the unit that is put next
	late  []unit    // held back: they arrive after the next, or when none follows
	cut   bool      // nothing arrives any more, and both ends notice
}

// room returns a buffer for a payload of n bytes; put seals what the caller
// copied into it.
func (w *wire) room(n int) []byte {
	if size := n + checksumSize; size > len(w.buf) {
		w.buf = make([]byte, max(size, 2*len(w.buf)))
	}
	return w.buf[:n]
}

// put sends a unit with the first n bytes of room as its payload.
func (w *wire) put(u unit, n int) {
	w.room(n)
	u.body = w.buf[:n+checksumSize]
	binary.LittleEndian.PutUint32(u.body[n:], crc32.Checksum(u.body[:n], castagnoli))
	fault := w.fault
	w.fault = via.FaultNone
	switch middle := len(u.body) / 2; fault {
	case via.FaultDrop:
		return
	case via.FaultReorder:
		u.body = bytes.Clone(u.body)
		w.late = append(w.late, u)
		return
	case via.FaultDuplicate:
		w.flight = append(w.flight, u)
	case via.FaultCorrupt:
		u.body[middle] ^= 1 << (u.seq % 8)
	case via.FaultTruncate:
		u.body = u.body[:middle]
	case via.FaultCut:
		w.cut = true // what has arrived of it is no unit
		return
	}
	w.flight = append(w.flight, u)
	w.release()
}

// release lets what was held back arrive. It returns false if that is nothing.
func (w *wire) release() bool {
	if len(w.late) == 0 {
		return false
	}
	w.flight = append(w.flight, w.late...)
	w.late = w.late[:0]
	return true
}
