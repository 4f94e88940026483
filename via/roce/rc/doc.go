// Package rc is the transport of one queue pair of RoCEv2: requester and
// responder of a reliable connection (RC), or of an unreliable one (UC). It is a
// state machine and nothing else: no socket, no goroutine, no clock, no
// allocation for a packet. docs/roce.md has its rules.
//
//	Post, PostReceive ─▶ ┌────┐ ─▶ PollSend, PollReceive, PollEvent
//	Receive, Timeout  ─▶ │ QP │ ─▶ Emit, Deadline
//	                     └────┘
//
// One goroutine drives a QP, in turns: it hands over every packet that arrived
// (Receive), says what time it is once Deadline has passed (Timeout), takes the
// packets that are to be sent (Emit), sends them, and only then takes what is
// complete. Whatever is called, the next three steps have something to do until
// Emit and the polls return nothing.
//
// A request goes this way:
//
//	1 requester.go    a work is cut into packets, as far as the window allows
//	2 segment.go      a packet is gathered from the work's segments, not copied
//	3 burst.go        packets of one size stand in runs, for segmented sends
//	4 responder.go    at the peer it is checked, and copied to where it belongs
//	5 respond.go      and answered: acknowledgements, and responses of a read
//	6 acknowledge.go  the answer ends the work, or says what to send again
//	7 read.go         responses of a read are copied to the work's segments
//
// What is lost is sent again by retransmit.go: from the first missing packet on,
// always cut in the same way. stash.go keeps what comes before its turn, so that
// less has to be sent again. window.go decides how much is under way.
// unreliable.go is the responder that has nobody to ask.
//
// Times are durations since any moment that stays the same; they never run
// backwards. Memory of a work belongs to the QP until the work is polled.
package rc
