package cm

import (
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// state is where a connection stands.
//
//	active    asking ──REP──▶ granted ──Establish──▶ established
//	passive   requested ──Accept──▶ answered ──RTU──▶ established
//
//	established ──Disconnect──▶ disconnecting ──DREP──▶ timeWait ──▶ gone
//	any ──REJ, DREQ, silence, Reject, Abandon──▶ timeWait
type state uint8

const (
	asking        state = iota // REQ sent
	requested                  // REQ received; the consumer thinks
	answered                   // REP sent
	granted                    // REP received; the consumer thinks
	established                // nothing is under way
	disconnecting              // DREQ sent
	timeWait                   // ended; late messages are answered
)

// connection is one end of a connection, from the REQ to the end of time-wait.
type connection struct {
	id       ID
	remoteID uint32 // the peer's; 0 until it is known
	state    state
	active   bool // this end has asked
	own      bool // the peer is of our own kind
	service  wire.ServiceID
	peer     netip.AddrPort
	tid      uint64 // of the handshake
	endTID   uint64 // of our DREQ
	farewell []byte // private data of our DREQ
	qp       uint32 // ours; 0 until it is known
	peerQP   uint32
	guid     uint64 // the peer's
	patience time.Duration

	// message is what is said again: the REQ, REP or DREQ that waits for its answer,
	// the RTU, or the REJ that was the last word.
	message [wire.MADSize]byte
	spoken  bool // message is set
	unknown bool // the consumer was never told of the connection

	since           time.Duration // when the REP was sent first
	wait            time.Duration // until message is repeated the next time
	again, deadline time.Duration // when it is repeated; when it is over
	alarm           int           // place among the timers, from 1 on; 0 is none
}

// say sets the message that is repeated from now on.
func (c *connection) say(m wire.Message) {
	m.Encode(c.message[:])
	c.spoken = true
}

// ask sends the message and repeats it until it is answered.
func (m *Manager) ask(c *connection, now time.Duration) {
	c.wait = m.cfg.Interval
	c.again, c.deadline = now+c.wait, now+m.cfg.Patience
	m.timers.set(c)
	m.repeat(c)
}

// repeat sends the message of a connection, if it has one.
func (m *Manager) repeat(c *connection) {
	if c.spoken && !m.out.add(c.peer, &c.message) {
		m.counters.Dropped++
	}
}

// send sends a message that is not repeated.
func (m *Manager) send(to netip.AddrPort, msg wire.Message) {
	var mad [wire.MADSize]byte
	msg.Encode(mad[:])
	if !m.out.add(to, &mad) {
		m.counters.Dropped++
	}
}

// think waits for the consumer. The peer is told when half of its patience is
// over, and the request is forgotten when the peer seems to be.
func (m *Manager) think(c *connection, half, now time.Duration) {
	c.again, c.deadline = now+half, now+c.patience
	m.timers.set(c)
}

// plead asks the peer to wait for the consumer.
func (m *Manager) plead(c *connection, now time.Duration) {
	service := wire.TimeoutFor(m.cfg.Think)
	about := wire.AnsweredREQ
	if c.active {
		about = wire.AnsweredREP
	}
	m.send(c.peer, &wire.MRA{
		TID: c.tid, LocalID: uint32(c.id), RemoteID: c.remoteID,
		Answered: about, ServiceTimeout: service,
	})
	c.again, c.deadline = never, now+patientThinks*service.Duration()+c.patience
	m.timers.set(c)
}

// patientThinks is how many times of an MRA a peer may be silent before its
// request is forgotten: it asks again after each, and such a message can be lost.
const patientThinks = 3

// expire does what is due of a connection.
func (m *Manager) expire(c *connection, now time.Duration) {
	thinks := c.state == requested || c.state == granted
	switch {
	case c.state == timeWait:
		m.release(c)
	case now >= c.deadline:
		m.giveUp(c, now)
	case thinks:
		m.plead(c, now)
	default:
		m.counters.Retransmitted++
		c.wait = min(2*c.wait, m.slowest())
		c.again = now + c.wait
		m.timers.set(c)
		m.repeat(c)
	}
}

// slowest returns the longest wait between two repetitions.
func (m *Manager) slowest() time.Duration { return max(maxInterval, m.cfg.Interval) }

// giveUp ends a connection whose peer is silent.
func (m *Manager) giveUp(c *connection, now time.Duration) {
	m.counters.TimedOut++
	if c.state == disconnecting {
		m.report(c, Event{Kind: Disconnected})
	} else {
		m.report(c, Event{Kind: TimedOut})
	}
	m.leave(c)
	m.end(c, now)
}

// leave tells the peer, once, that this end goes. If that is a REJ, it is also
// the answer to what the peer sends late.
func (m *Manager) leave(c *connection) {
	switch c.state {
	case disconnecting:
	case established:
		m.send(c.peer, m.disconnection(c))
	default:
		c.say(m.timeoutRefusal(c))
		m.repeat(c)
	}
}

// establish ends the handshake.
func (m *Manager) establish(c *connection) {
	m.table.settle(c)
	c.state = established
	c.spoken = c.active // the RTU, for a REP that is repeated
	m.timers.clear(c)
}

// end begins the time-wait.
func (m *Manager) end(c *connection, now time.Duration) {
	switch c.state {
	case established, disconnecting:
		c.spoken = false // the RTU or DREQ is no last word
	}
	old := m.table.bury(c, m.cfg.Pending)
	c.state = timeWait
	c.again, c.deadline = never, now+m.cfg.TimeWait
	m.timers.set(c)
	if old != nil {
		m.release(old)
	}
}

// release forgets a connection.
func (m *Manager) release(c *connection) {
	m.timers.clear(c)
	m.table.remove(c)
	m.report(c, Event{Kind: Released})
}
