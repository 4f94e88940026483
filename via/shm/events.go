package shm

import "github.com/viablk/viablk/via"

// events are what a link reports beside completions. Their address identifies
// the link in its queues. The driver of the receive queue owns them.
type events struct {
	owner    *via.VI
	reported bool // the end of the link
	code     via.AsyncCode
	cause    error
	byCode   [via.AsyncCatastrophic]*via.Event // events that do not break the connection
	raised   []via.AsyncCode                   // events in the receive queue
	handed   int                               // events of raised that Poll returned
}

// end notes why the connection ended.
func (e *events) end(f *failure) { e.code, e.cause = f.code, f.cause }

// broken returns the event that reports the end.
func (e *events) broken() *via.Event {
	return &via.Event{Owner: e.owner, Code: e.code, Broken: true, Cause: e.cause}
}

// raise notes an event that does not break the connection.
func (e *events) raise(code via.AsyncCode, cause error) {
	if e.byCode[code] == nil {
		e.byCode[code] = &via.Event{Owner: e.owner, Code: code, Cause: cause}
	}
	if e.handed != 0 && len(e.raised) == cap(e.raised) {
		e.raised, e.handed = append(e.raised[:0], e.raised[e.handed:]...), 0
	}
	e.raised = append(e.raised, code) // grows to what the queue has room for
}

// next dequeues the oldest raised event. Events are read-only: a link needs one
// of each code.
func (e *events) next() *via.Event {
	event := e.byCode[e.raised[e.handed]]
	if e.handed++; e.handed == len(e.raised) {
		e.raised, e.handed = e.raised[:0], 0
	}
	return event
}

// raise reports an event that does not break the connection.
func (r *receiver) raise(code via.AsyncCode, cause error) {
	r.events.raise(code, cause)
	r.cq.push(&r.events, nil)
}
