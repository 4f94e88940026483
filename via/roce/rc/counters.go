package rc

import "time"

// Counters count what a QP did since it was made. The last ones are states.
type Counters struct {
	Sent          uint64 // packets
	Received      uint64 // packets, all that were handed over
	Retransmitted uint64 // packets sent again, of those sent
	Duplicates    uint64 // requests and responses that arrived again
	Repeated      uint64 // of these, last packets of Sends
	Damaged       uint64 // packets with a wrong ICRC that seemed to be the peer's
	OutOfSequence uint64 // requests and responses behind a gap
	Ignored       uint64 // packets that make no sense here or come too late
	NAKsSent      uint64
	NAKsReceived  uint64 // sequence errors and refusals
	RNRsSent      uint64
	RNRsReceived  uint64
	ImpliedNAKs   uint64 // gaps in the responses of reads
	Timeouts      uint64
	Congestion    uint64 // notifications
	Dropped       uint64 // messages lost or refused on UC, as far as this end knows
	LostEvents    uint64 // events that nobody polled in time
	Copied        uint64 // bytes placed: of messages received, and of Reads

	RTT    time.Duration // smoothed round-trip time; 0 before the first
	Window int           // packets that may be under way
}
