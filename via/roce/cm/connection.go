package cm

import (
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// state is the state of a connection.
//
//	active    reqSent ──REP──▶ repReceived ──Establish──▶ established
//	passive   reqReceived ──Accept──▶ repSent ──RTU──▶ established
//
//	established ──Disconnect──▶ dreqSent ──DREP──▶ timeWait ──▶ released
//	any ──REJ, DREQ, timeout, Reject, Abandon──▶ timeWait
type state uint8

const (
	reqSent     state = iota // REQ sent
	reqReceived              // REQ received; waits for the consumer
	repSent                  // REP sent
	repReceived              // REP received; waits for the consumer
	established              // no message is in flight
	dreqSent                 // DREQ sent
	timeWait                 // ended; late messages are answered
)

// connection is one end of a connection, from the REQ to the end of time-wait.
type connection struct {
	id          ID
	remoteID    uint32 // the peer's; 0 until it is known
	state       state
	active      bool // this end sent the REQ
	sameKind    bool // the peer is a viablk end
	challenges  int  // active end: cookies that the REQ had
	repeats     int  // active end: RTUs to repeat
	answers     int  // passive end before the RTU: messages that it may send
	service     wire.ServiceID
	peer        netip.AddrPort
	tid         uint64 // of the handshake
	endTID      uint64 // of our DREQ
	dreqPrivate []byte // private data of our DREQ
	qp          uint32 // ours; 0 until it is known
	peerQP      uint32
	peerTag     uint64 // of packets to the peer; 0 is none
	guid        uint64 // the peer's
	timeout     time.Duration

	// message is repeated: the REQ, REP or DREQ that waits for its answer, the
	// RTU, or the final REJ.
	message    [wire.MADSize]byte
	hasMessage bool // message is set
	proven     bool // passive end: an RTU or data has arrived
	unreported bool // no event of the connection was polled

	since                  time.Duration // when the REP was first sent
	interval               time.Duration // current wait between repetitions
	retransmitAt, deadline time.Duration // next repetition; end of the state
	timerIndex             int           // 1-based index in timers; 0: not in timers
}

// setMessage sets the message to repeat.
func (c *connection) setMessage(m wire.Message) {
	m.Encode(c.message[:])
	c.hasMessage = true
}

// startRetransmit sends the message and repeats it until it is answered.
func (m *Manager) startRetransmit(c *connection, now time.Duration) {
	c.interval = m.cfg.Interval
	c.retransmitAt, c.deadline = now+c.interval, now+m.cfg.Timeout
	m.timers.set(c)
	m.transmit(c)
}

// transmit sends the current message of a connection, if any.
func (m *Manager) transmit(c *connection) {
	if c.hasMessage && c.pay() && !m.out.add(c.peer, &c.message) {
		m.counters.Dropped++
	}
}

// answersPerMessage is how many messages a passive end sends for each of the
// peer, before an RTU shows that the peer receives them: the address of a REQ
// may be that of another host.
const answersPerMessage = 2

// earn counts a message of the peer.
func (c *connection) earn() { c.answers = answersPerMessage }

// pay reports whether a message may be sent, and counts it.
func (c *connection) pay() bool {
	if c.active || c.proven {
		return true
	}
	if c.answers == 0 {
		return false
	}
	c.answers--
	return true
}

// send sends a message that is not repeated.
func (m *Manager) send(to netip.AddrPort, msg wire.Message) {
	var mad [wire.MADSize]byte
	msg.Encode(mad[:])
	if !m.out.add(to, &mad) {
		m.counters.Dropped++
	}
}

// awaitConsumer waits for the consumer's decision. The peer gets an MRA after
// half of its timeout; a request whose peer is silent for too long is dropped.
func (m *Manager) awaitConsumer(c *connection, half, now time.Duration) {
	c.retransmitAt, c.deadline = now+half, now+c.timeout
	m.timers.set(c)
}

// sendMRA asks the peer to wait for the consumer.
func (m *Manager) sendMRA(c *connection, now time.Duration) {
	service := wire.TimeoutFor(m.cfg.ServiceTimeout)
	about := wire.AnsweredREQ
	if c.active {
		about = wire.AnsweredREP
	}
	if c.pay() {
		m.send(c.peer, &wire.MRA{
			TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID,
			Answered: about, ServiceTimeout: service,
		})
	}
	c.retransmitAt, c.deadline = never, now+maxSilentMRAs*service.Duration()+c.timeout
	m.timers.set(c)
}

// maxSilentMRAs bounds the silence of a requester, in service timeouts: it
// repeats its request after each, and such a message can be lost.
const maxSilentMRAs = 3

// expire handles the expired timer of a connection.
func (m *Manager) expire(c *connection, now time.Duration) {
	awaiting := c.state == reqReceived || c.state == repReceived
	switch {
	case c.state == timeWait:
		m.release(c)
	case c.state == established:
		m.repeatRTU(c, now)
	case now >= c.deadline:
		m.giveUp(c, now)
	case awaiting:
		m.sendMRA(c, now)
	case !c.active && !c.proven && c.answers == 0:
		c.retransmitAt = never // the peer repeats its REQ, or sends its RTU
		m.timers.set(c)
	default:
		m.counters.Retransmitted++
		c.interval = min(2*c.interval, m.longestInterval(c))
		c.retransmitAt = now + c.interval
		m.timers.set(c)
		m.transmit(c)
	}
}

// longestInterval returns the longest wait between two repetitions of a
// connection. A requester finds a peer that was away soon.
func (m *Manager) longestInterval(c *connection) time.Duration {
	if c.state == reqSent && !c.proven {
		return max(requestInterval, m.cfg.Interval)
	}
	return m.maxInterval()
}

// maxInterval returns the longest wait between two repetitions.
func (m *Manager) maxInterval() time.Duration { return max(intervalLimit, m.cfg.Interval) }

// giveUp ends a connection whose peer is silent.
func (m *Manager) giveUp(c *connection, now time.Duration) {
	m.counters.TimedOut++
	if c.state == dreqSent {
		m.report(c, Event{Kind: Disconnected})
	} else {
		m.report(c, Event{Kind: TimedOut})
	}
	m.notifyPeer(c)
	m.enterTimeWait(c, now)
}

// notifyPeer notifies the peer, once, that this end closes the connection. A
// REJ is also the answer to the peer's late messages.
func (m *Manager) notifyPeer(c *connection) {
	switch c.state {
	case dreqSent:
	case established:
		m.send(c.peer, m.newDREQ(c))
	default:
		c.setMessage(m.newTimeoutREJ(c))
		m.transmit(c)
	}
}

// establish completes the handshake.
func (m *Manager) establish(c *connection) {
	m.table.removePending(c)
	c.state, c.proven = established, true
	c.hasMessage = c.active // the RTU, for a REP that is repeated
	m.timers.clear(c)
}

// rtuRepeats is how often an active end repeats its RTU: a viablk peer that
// misses it repeats its REP only once.
const rtuRepeats = 4

// startRepeats schedules the repetitions of the RTU.
func (m *Manager) startRepeats(c *connection, now time.Duration) {
	if !c.sameKind {
		return
	}
	c.repeats, c.interval = rtuRepeats, m.cfg.Interval
	c.retransmitAt = now + c.interval
	m.timers.set(c)
}

// repeatRTU resends the RTU.
func (m *Manager) repeatRTU(c *connection, now time.Duration) {
	m.counters.Retransmitted++
	m.transmit(c)
	c.repeats--
	c.interval *= 2
	c.retransmitAt = now + c.interval
	if c.repeats == 0 {
		c.retransmitAt = never
	}
	m.timers.set(c)
}

// enterTimeWait begins the time-wait.
func (m *Manager) enterTimeWait(c *connection, now time.Duration) {
	switch c.state {
	case established, dreqSent:
		c.hasMessage = false // neither the RTU nor the DREQ is repeated now
	}
	old := m.table.addEnded(c, m.cfg.Pending)
	c.state = timeWait
	c.retransmitAt, c.deadline = never, now+m.cfg.TimeWait
	m.timers.set(c)
	if old != nil {
		m.release(old)
	}
}

// release removes a connection.
func (m *Manager) release(c *connection) {
	m.timers.clear(c)
	m.table.remove(c)
	m.report(c, Event{Kind: Released})
}
