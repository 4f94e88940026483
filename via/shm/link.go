package shm

import (
	"net"
	"time"

	"github.com/viablk/viablk/via"
)

// link is one end of a connection. A part reaches another one only by the
// references that makeLink passes. Each field has one owner:
//
//	receiver, sender, broken, sleep, bells, bound   the driver of the queues
//	signals                                         agent writes, all read
//	agent                                           the goroutine of serve
//	exposure                                        holders of adapter.mu
//	recvAt, sendAt                                  as member says
//	keepalives                                      any goroutine
//
// The methods of link are those that need several parts. A Send travels:
//
//  1. PostSend queues the work; its segments stay the consumer's memory
//  2. sender.progress copies it into the ring of the local segment
//  3. Doorbell publishes the position and rings if the peer sleeps
//  4. the peer's receiver.progress copies the record into a posted receive
//  5. both ends push the completed work to their queues; Poll returns it
//
// An RDMA operation takes steps 1 and 5; between them sender.progress copies
// between local segments and the peer's arena.
type link struct {
	// Receiving a small message touches the first three cache lines.
	signals  signals
	broken   bool // the connection has ended
	receiver receiver

	sender   sender
	sleep    sleep
	bells    bells // the peer rings them
	bound    bool  // the queues know the link
	recvAt   *member
	sendAt   *member // recvAt if the queues are the same
	agent    controlAgent
	exposure exposure

	keepalives keepalives

	adapter *adapter
	local   *segment
	peer    *segment
}

// wire is what the handshake gives a link: the segments of both ends, the bells
// of this end and the file descriptors of the peer's, and the control socket.
type wire struct {
	conn                *net.UnixConn
	local, peer         *segment
	bells               bells
	peerData, peerSpace int
	peerShares          bool // it knows sleep flags
}

// makeLink makes the link of a wire. room is the timeout of an unreliable work
// that waits.
func makeLink(a *adapter, w wire, cfg via.LinkConfig, room time.Duration) *link {
	l := &link{
		adapter: a, local: w.local, peer: w.peer, bells: w.bells,
		sleep: sleep{local: w.local}, keepalives: keepalives{local: w.local, peer: w.peer},
	}
	l.receiver = makeReceiver(w, cfg, &l.agent.flags)
	l.recvAt = &member{cq: l.receiver.cq, link: l, watchedAt: -1}
	l.sendAt = l.recvAt
	if cfg.SendCQ != cfg.RecvCQ {
		l.sendAt = &member{cq: cfg.SendCQ.(*cq), link: l, watchedAt: -1}
	}
	l.sender.init(w, cfg, room, &l.receiver.events, &l.agent.flags)
	l.agent = controlAgent{
		adapter: a, conn: w.conn, recvAt: l.recvAt, sendAt: l.sendAt,
		signals: &l.signals, arenas: &l.sender.remote.arenas, log: &l.sender.log,
		reception: l.sender.ends != nil, peerShares: w.peerShares, done: make(chan struct{}),
	}
	l.exposure = exposure{
		agent: &l.agent, local: w.local, peer: w.peer,
		tag: cfg.Tag, rdmaWrite: cfg.RdmaWrite, rdmaRead: cfg.RdmaRead,
		exposed: make(map[*via.Memory]struct{}), passed: make(map[*arena]struct{}),
	}
	return l
}

// PostSend queues a work and sends as much as the ring and the quantum allow.
func (l *link) PostSend(w *via.Work) bool {
	s := &l.sender
	if s.sq.Full() {
		return false
	}
	s.sq.Push(w)
	if uint32(s.sq.Len())-s.unacked == 1 && !l.broken {
		if err := s.progress(); err != nil {
			l.fail(err)
		}
	}
	if !s.sq.Empty() {
		l.scheduleSend()
		s.cq.signal() // an armed queue did not arm for this work
	}
	return true
}

// PostRecv queues a receive.
func (l *link) PostRecv(w *via.Work) { l.receiver.rq.Push(w) }

// Doorbell publishes the written records and wakes the peer if it sleeps.
func (l *link) Doorbell() {
	if !l.broken && l.sender.publish() && l.receiver.answered {
		l.receiver.awaitReply()
	}
}

// Stats returns the counters.
func (l *link) Stats() via.LinkStats {
	s := l.sender.stats
	s.Records = l.sender.out.seq
	s.Receives = l.receiver.received
	s.BytesCopied += l.receiver.copied
	s.Dropped += l.receiver.dropped
	s.Doorbells = l.sender.data.rings + l.receiver.space.rings
	return s
}

// KeepAlive implements [via.QuietLink].
func (l *link) KeepAlive() bool {
	l.keepalives.count()
	return true
}

// Life implements [via.Lively]: it counts the peer's keepalives.
func (l *link) Life() uint64 { return l.keepalives.ofPeer() }

// AnswerTime implements [via.Lively]: answers over memory take no time.
func (l *link) AnswerTime() time.Duration { return 0 }

// progressSend sends for one quantum.
func (l *link) progressSend() {
	if l.sender.unacked != 0 && l.signals.gone.Load() {
		// The pass of the receive queue would find the cause, but its consumer
		// may wait for this queue.
		l.progressRecv()
	}
	if l.broken {
		return
	}
	if err := l.sender.progress(); err != nil {
		l.fail(err)
	}
}

// progressRecv receives for one quantum.
func (l *link) progressRecv() {
	if l.signals.severed.Load() {
		l.fail(l.agent.cause())
		return
	}
	if err := l.receiver.progress(l.signals.gone.Load()); err != nil {
		l.fail(err)
	}
}

// hasWork reports whether a pass would make progress, so that c must not sleep.
func (l *link) hasWork(c *cq) bool {
	if l.broken {
		return l.reportable(c)
	}
	return l.receiver.cq == c && l.arrives() || l.sender.cq == c && l.sender.pending(l.signals.gone.Load())
}

// arrives reports whether records or the end of the connection wait.
func (l *link) arrives() bool {
	return l.receiver.pending() || l.signals.gone.Load() || l.signals.severed.Load()
}

// setWants tells the peer that the driver of c sleeps. The other queue of the
// link may be armed already.
func (l *link) setWants(c *cq) {
	if l.broken {
		return
	}
	var wants uint64
	if l.receiver.cq == c {
		wants = wantData
	}
	if l.sender.cq == c && l.sender.stalled {
		wants |= wantSpace
	}
	l.sleep.begin(wants)
}

// clearWants withdraws the wants that setWants published for c.
func (l *link) clearWants(c *cq) {
	if l.broken {
		return
	}
	var wants uint64
	if l.receiver.cq == c {
		wants = wantData
	}
	if l.sender.cq == c {
		wants |= wantSpace
	}
	l.sleep.end(wants)
}

// shareable reports whether the peer can go by a sleep flag: it has this
// process's, and both ends of the link have one driver.
func (l *link) shareable() bool { return l.sendAt == l.recvAt && l.signals.shares.Load() }

// fail breaks the connection from this end. A notice in err goes to the peer
// first, behind the acknowledgement of the records before the failed one.
func (l *link) fail(err error) {
	if l.broken {
		return
	}
	f := failureOf(err)
	if f.refused != 0 {
		if err := l.sender.refusedWork(f.refused); err != nil {
			f = failureOf(err)
		}
	}
	if f.notice.kind != 0 {
		l.receiver.publishHead()
		if err := l.sender.sendNotice(f.notice); err != nil {
			f = failureOf(err)
		}
	}
	l.broken = true
	l.receiver.events.end(f)
	l.addUnreported(1)
	l.sender.lastAcknowledgements()
	if l.reportable(l.receiver.cq) {
		l.receiver.cq.signal()
	}
	l.agent.hangUp() // tells the peer at once; Close does the rest
}

// reportable reports whether c has to report the end of the link: the receive
// queue reports it once, after the send queue has returned its last
// completions.
func (l *link) reportable(c *cq) bool {
	return l.broken && !l.receiver.events.reported && l.receiver.cq == c && (l.sender.cq == c || l.sender.cq.empty())
}

// addUnreported adds n to the number of unreported link ends at both queues of
// the link.
func (l *link) addUnreported(n int) {
	l.receiver.cq.unreported += n
	if l.sender.cq != l.receiver.cq {
		l.sender.cq.unreported += n
	}
}

// markReported records that the end of the link needs no report any more.
func (l *link) markReported() {
	if l.broken && !l.receiver.events.reported {
		l.addUnreported(-1)
	}
	l.broken, l.receiver.events.reported = true, true
}

// goLive ends the handshake. From now on the ends pass arenas.
func (l *link) goLive() {
	l.local.seal()
	l.bells.seal()
	_ = l.agent.conn.SetDeadline(time.Time{})
	go l.agent.serve()
	l.adapter.goLive(l)
	l.agent.passFlags()
}

// Start queues the receives, and binds the link and its bells to its queues.
func (l *link) Start(receives []*via.Work) error {
	for _, w := range receives {
		l.receiver.rq.Push(w)
	}
	l.bound = true
	place := l.recvAt.cq.bind(l.recvAt)
	err := l.recvAt.cq.watch(l.bells.data, place)
	if err == nil && l.sendAt != l.recvAt {
		place = l.sendAt.cq.bind(l.sendAt)
		err = l.sendAt.cq.watch(l.bells.space, place)
	}
	if err != nil {
		return err // Close unbinds
	}
	l.recvAt.cq.requestLogs(l.adapter)
	return nil
}

func (l *link) unbind() {
	l.recvAt.cq.unwatch(l.bells.data)
	if l.bells.space != l.bells.data {
		l.sendAt.cq.unwatch(l.bells.space)
	}
	l.sendAt.cq.unbind(l.sendAt)
	l.recvAt.cq.unbind(l.recvAt)
}

// Close ends the connection. It first withdraws the peer's access to local
// memory and waits until the peer has left: the consumer reuses the memory
// afterwards.
func (l *link) Close() error {
	left := l.adapter.revoke(l)
	err := l.agent.close(left)
	if l.bound {
		l.unbind()
	}
	l.markReported()
	l.sender.cq.releaseLog(l.sender.log.Load())
	l.receiver.cq.releasePeerLog(l.agent.passedLog.Load(), l.receiver.peerLog != nil)
	l.sender.remote.arenas.close()
	l.agent.flags.Load().release()
	l.release(left)
	return err
}

// abandon releases a link that never started.
func (l *link) abandon() {
	l.adapter.remove(l)
	_ = l.agent.conn.Close()
	l.release(true)
}

// release closes the bells and the segments, but not the peer's if the peer is
// still inside a region.
func (l *link) release(left bool) {
	l.keepalives.end()
	if left {
		l.peer.close()
	}
	closePair(l.sender.data.fd, l.receiver.space.fd)
	l.bells.close()
	l.local.close()
}
