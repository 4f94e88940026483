package rc

// Event is an event of a QP other than a completion.
type Event uint8

// The events. All but the last are about a message of the peer.
const (
	NoEvent      Event = iota
	EmptyQueue         // it found no receive
	WriteRefused       // a Write to memory that the peer may not write
	WriteAborted       // a Write that lost its end
	WriteDamaged       // a damaged Write that was not retransmitted
	ReadRefused        // a Read of memory that the peer may not read
	Broken             // the QP is broken, see [QP.Cause]; nothing follows
)

// eventDepth bounds the queued events. A peer can cause them faster than the
// consumer polls; LostEvents counts those that do not fit.
const eventDepth = 16

type events struct {
	ring        [eventDepth]Event
	first, last uint32
}

// add keeps one place for Broken.
func (e *events) add(v Event) bool {
	n := e.last - e.first
	if n == eventDepth || n == eventDepth-1 && v != Broken {
		return false
	}
	e.ring[e.last%eventDepth] = v
	e.last++
	return true
}

func (e *events) isEmpty() bool { return e.first == e.last }

func (e *events) poll() Event {
	if e.isEmpty() {
		return NoEvent
	}
	v := e.ring[e.first%eventDepth]
	e.first++
	return v
}
