package cm

// Counters count what a Manager did since it was made. The last two are states.
type Counters struct {
	Sent          uint64 // messages, all that Emit returned
	Received      uint64 // packets, all that were handed over
	Retransmitted uint64 // messages sent again for want of an answer
	Duplicates    uint64 // messages that arrived again
	Malformed     uint64 // packets that are no message to queue pair 1
	Stray         uint64 // messages about a connection that there is not
	Forged        uint64 // messages about a connection, but not from its peer
	Refused       uint64 // REJs to requests that nobody was asked about
	Evicted       uint64 // requests that gave way to newer ones, or found no room
	TimedOut      uint64 // connections whose peer was silent
	Dropped       uint64 // messages that found no room on the way out

	Connections int // that are not released
	Pending     int // of these, requests of peers that are not established
}
