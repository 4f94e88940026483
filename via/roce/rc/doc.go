// Package rc is the transport of one queue pair of RoCEv2: requester and
// responder of a reliable connection (RC) or an unreliable one (UC). It is a
// pure state machine: no socket, no goroutine, no clock, no allocation per
// packet. docs/roce.md has its rules.
//
//	Post, PostReceive ─▶ ┌────┐ ─▶ PollSend, PollReceive, PollEvent
//	Receive, Timeout  ─▶ │ QP │ ─▶ Emit, Deadline
//	                     └────┘
//
// One goroutine drives a QP in rounds: it hands over each packet that arrived
// (Receive), reports the time once Deadline has passed (Timeout), collects the
// packets to send (Emit), sends them, and then polls completions. Any call may
// create work for the next three steps, until Emit and the polls return
// nothing.
//
// The data path of a request:
//
//	1 requester.go    cuts a work into packets, as the window allows
//	2 segment.go      gathers a packet from the work's segments, no copy
//	3 burst.go        joins packets of one size into runs (UDP_SEGMENT)
//	4 responder.go    at the peer: orders packets by PSN
//	5 execute.go      checks a packet and copies its payload to memory
//	6 respond.go      sends read responses and acknowledgements
//	7 acknowledge.go  completes the work, or decides what to retransmit
//	8 read.go         copies read responses to the work's segments
//
// The type says who owns what: a method of requester changes the sending half
// of a QP, one of responder the receiving half, and QP joins them.
//
// retransmit.go retransmits lost packets from the first missing one on, with
// the same boundaries. stash.go keeps out-of-order packets, so that less is
// retransmitted. window.go bounds the packets in flight. unreliable.go is the
// responder of UC, which never retransmits. probe.go asks whether the peer's
// queue pair still exists.
//
// Times are durations since a fixed moment; they never run backwards. Memory of
// a work belongs to the QP until the work is polled.
package rc
