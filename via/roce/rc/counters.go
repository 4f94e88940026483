package rc

import "time"

// Counters count events of a QP since it was made. The last two are states.
type Counters struct {
	Sent           uint64 // packets
	Received       uint64 // packets, all that were handed over
	Retransmitted  uint64 // packets retransmitted, of those sent
	Duplicates     uint64 // requests and responses that arrived again
	DuplicateSends uint64 // of these, last packets of Sends
	Damaged        uint64 // packets of the peer with a wrong ICRC
	OutOfSequence  uint64 // requests and responses behind a gap
	Ignored        uint64 // packets that fit no state, or are late
	NAKsSent       uint64
	NAKsReceived   uint64 // sequence errors and refusals
	RNRsSent       uint64
	RNRsReceived   uint64
	ImpliedNAKs    uint64 // gaps in the responses of reads
	Timeouts       uint64
	Congestion     uint64 // CNPs
	Dropped        uint64 // messages lost or refused on UC, if detected
	LostEvents     uint64 // events that did not fit the queue
	Copied         uint64 // bytes placed: of messages received, and of Reads

	RTT    time.Duration // smoothed round-trip time; 0 before the first
	Window int           // packets that may be in flight
}

// add adds the counts of the other half. The states stay.
func (c *Counters) add(d *Counters) {
	c.Sent += d.Sent
	c.Received += d.Received
	c.Retransmitted += d.Retransmitted
	c.Duplicates += d.Duplicates
	c.DuplicateSends += d.DuplicateSends
	c.Damaged += d.Damaged
	c.OutOfSequence += d.OutOfSequence
	c.Ignored += d.Ignored
	c.NAKsSent += d.NAKsSent
	c.NAKsReceived += d.NAKsReceived
	c.RNRsSent += d.RNRsSent
	c.RNRsReceived += d.RNRsReceived
	c.ImpliedNAKs += d.ImpliedNAKs
	c.Timeouts += d.Timeouts
	c.Congestion += d.Congestion
	c.Dropped += d.Dropped
	c.LostEvents += d.LostEvents
	c.Copied += d.Copied
}
