package cm

// Counters count events of a Manager since it was made. The last two are
// states.
type Counters struct {
	Sent          uint64 // messages, all that Emit returned
	Received      uint64 // packets, all that were handed over
	Retransmitted uint64 // messages repeated without an answer
	Duplicates    uint64 // messages that arrived again
	Malformed     uint64 // packets that are not a message to queue pair 1
	UnknownID     uint64 // messages of an unknown connection
	BadSource     uint64 // messages of a connection, not from its peer
	Refused       uint64 // REJs to requests that no consumer saw
	Challenged    uint64 // REJs to requests that need a cookie
	Evicted       uint64 // requests evicted by newer ones, or without room
	TimedOut      uint64 // connections whose peer timed out
	Dropped       uint64 // messages that did not fit the output queue

	Connections int // that are not released
	Pending     int // of these, requests of peers that are not established
}
