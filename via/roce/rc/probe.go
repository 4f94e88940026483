package rc

import (
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// probe asks whether the peer's queue pair still exists, by a request that
// changes nothing there: an empty Write with the PSN of the newest one that is
// acknowledged. A responder answers such a duplicate by its newest ACK; a queue
// pair that is gone does not answer. A requester with requests in flight needs
// no probe: they time out.
type probe struct {
	running bool
	due     bool // the packet is to be sent
}

// Probe breaks the QP after the timeout if the peer's queue pair is gone. It
// has no effect on UC, which has no answers, and while a probe runs.
func (q *QP) Probe(now time.Duration) {
	if q.cause == OK && !q.requester.cfg.Unreliable {
		q.requester.startProbe(now)
	}
}

// startProbe begins a probe.
func (q *requester) startProbe(now time.Duration) {
	s := &q.schedule
	if s.probe.running || q.una < q.highest || s.rnrUntil != never {
		return
	}
	s.probe = probe{running: true, due: true}
	s.progressAt, s.backoff = now, 0
	q.arm(now)
}

// emitProbe sends the packet of a probe.
func (q *requester) emitProbe(b *Burst) {
	q.schedule.probe.due = false
	h := q.start(b, wire.RCWriteOnly, q.una-1)
	h.AckRequest = true
	h.RETH, h.Immediate = wire.RETH{}, 0
	b.add(h, len(b.segments), 0, nil)
	q.counters.Sent++
	q.counters.Retransmitted++
}

// answersProbe reports whether an answer for packet s is that to the probe,
// which has ended then.
func (q *requester) answersProbe(s seq, now time.Duration) bool {
	if !q.schedule.probe.running || s+1 != q.una {
		return false
	}
	q.schedule.probe = probe{}
	if q.una == q.highest {
		q.schedule.backoff = 0
		q.disarm()
	}
	return true
}
