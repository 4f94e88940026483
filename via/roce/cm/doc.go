// Package cm is the connection manager of RoCEv2: the InfiniBand communication
// manager, which makes and ends connections by datagrams between general services
// interfaces (queue pair 1). It is a state machine and nothing else: no socket,
// no goroutine, no clock. docs/roce.md has its rules under "Connection manager".
//
//	Connect, Accept, Reject, Establish,  ┌─────────┐
//	Disconnect, Abandon ───────────────▶ │         │ ─▶ Poll: events
//	Receive, Unreachable, Timeout ─────▶ │ Manager │ ─▶ Emit, Deadline
//	                                     └─────────┘
//
// A Manager is the queue pair 1 of one UDP endpoint. One goroutine drives it, in
// turns: it hands over every datagram to queue pair 1 (Receive), says what time it
// is once Deadline has passed (Timeout), does what the consumers want, takes
// events (Poll) and sends what is to be sent (Emit), until both return false.
//
// A connection is made in this way; the two columns are the two ends:
//
//	active                              passive
//	Connect         ── REQ ──▶          Requested
//	                ◀── MRA ──          (the consumer takes its time)
//	Granted         ◀── REP ──          Accept: the queue pair can receive
//	Establish       ── RTU ──▶          Established
//
// and ended by either end:
//
//	Disconnect      ── DREQ ──▶         Disconnected
//	Disconnected    ◀── DREP ──
//
// Every message that has an answer is repeated until it comes, or until nobody
// seems to be there. A connection that has ended stays a while in time-wait, so
// that late packets of it meet neither another connection nor an error; the event
// Released is its last.
//
// Times are durations since any moment that stays the same; they never run
// backwards.
package cm
