// Package cm is the connection manager of RoCEv2: the InfiniBand communication
// manager, which makes and ends connections by datagrams between general
// services interfaces (queue pair 1). It is a pure state machine: no socket, no
// goroutine, no clock. docs/roce.md has its rules under "Connection manager".
//
//	Connect, Accept, Reject, Establish,  ┌─────────┐
//	Disconnect, Abandon ───────────────▶ │         │ ─▶ Poll: events
//	Receive, Unreachable, Timeout ─────▶ │ Manager │ ─▶ Emit, Deadline
//	                                     └─────────┘
//
// A Manager is the queue pair 1 of one UDP endpoint. One goroutine drives it in
// rounds: it hands over each datagram to queue pair 1 (Receive), reports the
// time once Deadline has passed (Timeout), makes the calls of the consumers,
// polls events (Poll) and sends datagrams (Emit) until both return false.
//
// A connection is made in this way; the columns are the two ends:
//
//	active                              passive
//	Connect         ── REQ ──▶          Requested
//	                ◀── MRA ──          (while the consumer decides)
//	Granted         ◀── REP ──          Accept: the queue pair can receive
//	Establish       ── RTU ──▶          Established
//
// and ended by either end:
//
//	Disconnect      ── DREQ ──▶         Disconnected
//	Disconnected    ◀── DREP ──
//
// Every message that has an answer is retransmitted until the answer comes or
// the timeout expires. An ended connection stays in time-wait, so that its late
// packets reach neither another connection nor an error path; Released is its
// last event.
//
// Times are durations since a fixed moment; they never run backwards.
package cm
