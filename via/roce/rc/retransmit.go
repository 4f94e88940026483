package rc

import (
	"math"
	"time"
)

// never is a time that does not come.
const never = time.Duration(math.MaxInt64)

// Times after which a requester that hears nothing asks again: before the first
// round trip was measured, and at least.
const (
	firstTimeout = 20 * time.Millisecond
	leastTimeout = time.Millisecond
)

// schedule is when a requester does what.
type schedule struct {
	timer      time.Duration // hears nothing until then: ask again
	hold       time.Duration // sends no request until then, for want of a receive at the peer
	progressAt time.Duration // something was acknowledged last
	backoff    uint          // time-outs without progress
	rnrs       int           // RNR NAKs without progress

	// probing lets one packet go, until it is answered. After a silence nobody
	// knows whether requests are lost or answers: the first request that is not
	// settled is asked for again, and its answer tells.
	probing bool

	sampling  bool // a round trip is being measured
	sampleSeq seq
	sampleAt  time.Duration
}

// sample starts to measure a round trip if none is being measured. Packets that
// were sent twice measure nothing (Karn).
func (s *schedule) sample(at seq, now time.Duration) {
	if !s.sampling {
		s.sampling, s.sampleSeq, s.sampleAt = true, at, now
	}
}

// Deadline returns when Timeout is due, and false if it is not.
func (q *QP) Deadline() (time.Duration, bool) {
	at := q.schedule.timer
	if q.schedule.hold != never {
		at = q.schedule.hold
	}
	return at, at != never
}

// Timeout does what is due. It may be called at any time.
func (q *QP) Timeout(now time.Duration) {
	if q.held(now) || now < q.schedule.timer {
		return
	}
	s := &q.schedule
	// Who slept meanwhile has not asked often enough.
	if now-s.progressAt >= q.cfg.Timeout*time.Duration(q.cfg.Retries+1) && s.backoff > uint(q.cfg.Retries) {
		q.giveUp(RetriesExceeded)
		return
	}
	q.counters.Timeouts++
	if s.backoff > 0 {
		q.window.silent(q.highest)
	}
	s.backoff++
	s.probing = true
	q.resend = q.acked
	q.holeEnd = max(q.acked, q.una+1)
	q.goBack(q.una)
	q.arm(now)
}

// giveUp ends the oldest work, and the connection.
func (q *QP) giveUp(s Status) {
	if w := q.sends.oldest(); w != nil {
		q.endWork(w, s)
	}
	q.fail(s)
}

// timeout is how long the requester waits now for an answer.
func (q *QP) timeout() time.Duration {
	d := firstTimeout
	if w := &q.window; w.smooth > 0 {
		d = max(w.smooth+4*w.variation, leastTimeout)
	}
	return min(d<<min(q.schedule.backoff, 16), q.cfg.Timeout)
}

func (q *QP) arm(now time.Duration) { q.schedule.timer = now + q.timeout() }

func (q *QP) disarm() { q.schedule.timer, q.schedule.hold = never, never }

// progress notes that something was acknowledged.
func (q *QP) progress(now time.Duration) {
	s := &q.schedule
	s.progressAt, s.backoff, s.rnrs, s.probing = now, 0, 0, false
	if s.sampling && q.una > s.sampleSeq {
		s.sampling = false
		q.window.measured(now-s.sampleAt, now)
	}
	s.timer = never
	if q.una < q.highest {
		q.arm(now)
	}
}

// fill sends the packets from at to end again, and no more.
func (q *QP) fill(at, end seq) {
	if q.next < q.holeEnd && q.next < q.resend {
		end = max(end, q.holeEnd) // one hole at a time: of two, all in between
	}
	q.resend = max(q.resend, q.next)
	q.holeEnd = end
	q.goBack(at)
}

// goBack sends again from packet to on, but for what resend excludes.
func (q *QP) goBack(to seq) {
	q.schedule.sampling = false
	q.next = min(q.next, to)
	q.pieces.goBack(q.next)
	for q.cur > q.sends.done && (q.cur == q.sends.posted || q.sends.at(q.cur).first > q.next) {
		q.cur--
	}
}

// sendAgain answers a sequence error: the first packet that the peer has not
// carried out is missing. Unless the peer is selective it has dropped what came
// after it. The same error counts again once the packet that was sent again can be missing.
func (q *QP) sendAgain(now time.Duration) {
	missing := q.acked
	if due := q.gap.when + q.window.again(); q.gap.at == missing && now < due {
		if !q.cfg.Selective {
			q.schedule.timer = min(q.schedule.timer, due) // the peer will not say it again
		}
		return
	}
	n := seq(1)
	if q.gap.end == missing {
		n = 2 * (missing - q.gap.at) // more is missing than one packet
	}
	q.gap = gap{missing, missing + n, now}
	q.schedule.probing = false
	if q.cfg.Selective {
		q.fill(missing, missing+n)
	} else {
		q.resend = missing
		q.goBack(missing)
	}
	q.window.lost(missing, int(n), q.highest, q.cfg.Selective)
	q.arm(now)
}

// wait answers an RNR NAK: the peer has no receive, and dropped what came.
func (q *QP) wait(d, now time.Duration) {
	s := &q.schedule
	if s.hold != never {
		return
	}
	if s.rnrs >= q.cfg.RNRRetries && q.cfg.RNRRetries != foreverRNR {
		q.giveUp(RNRExceeded)
		return
	}
	s.rnrs++
	s.hold = now + d
	s.probing = false
	q.resend = q.acked
	q.goBack(q.acked)
}

// held reports whether requests have to wait for a receive at the peer.
func (q *QP) held(now time.Duration) bool {
	s := &q.schedule
	if s.hold == never {
		return false
	} else if now < s.hold {
		return true
	}
	s.hold = never
	s.progressAt = now
	q.arm(now)
	return false
}
