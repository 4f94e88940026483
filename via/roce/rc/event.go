package rc

// Event is what a QP reports beside the ends of works.
type Event uint8

// The events, each about a message of the peer but the last.
const (
	NoEvent      Event = iota
	EmptyQueue         // it found no receive
	WriteRefused       // a Write to memory that is not the peer's to write
	WriteAborted       // a Write that lost its end
	WriteDamaged       // a Write that was damaged on the way, and could not be had again
	ReadRefused        // a Read of memory that is not the peer's to read
	Broken             // the QP is broken, see [QP.Cause]; nothing follows
)

// eventDepth bounds the events that wait. A peer can cause more of them than
// anybody polls; what does not fit is counted.
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

func (e *events) poll() Event {
	if e.first == e.last {
		return NoEvent
	}
	v := e.ring[e.first%eventDepth]
	e.first++
	return v
}
