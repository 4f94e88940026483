package rc

import (
	"math"
	"time"
)

// A retransmission takes these steps:
//
//	1 retransmitMissing, retransmitRead, expire   find that a packet is lost
//	2 goBack    moves next back; the work's segments still hold the payload
//	3 emit      sends from next on, and skips what arrived (skipTo, holeEnd)
//	4 progress  resets the back-off once an acknowledgement arrives

// never is later than every time.
const never = time.Duration(math.MaxInt64)

// Retransmission timeouts: before the first round trip is measured, and at
// least.
const (
	firstTimeout = 20 * time.Millisecond
	leastTimeout = time.Millisecond
)

// The timeout after a pause in which the line may have changed: a hundred QPs
// that all send at once, before the first answer can come, fill a slow
// line for longer.
const (
	staleTrip    = 100 * time.Millisecond // without a round trip
	staleTimeout = 200 * time.Millisecond
)

// schedule holds the timers of a requester.
type schedule struct {
	timer      time.Duration // retransmission timeout
	rnrUntil   time.Duration // sends no request until then (RNR NAK)
	progressAt time.Duration // last progress
	backoff    uint          // time-outs without progress
	held       uint          // of before the progress, until a round trip is measured
	lineAt     time.Duration // when to ask the line for room
	rnrCount   int           // RNR NAKs without progress

	// probing limits the requester to one packet until it is answered. After a
	// timeout it cannot tell lost requests from lost answers: it retransmits
	// the first incomplete request, whose answer shows what is missing.
	probing bool
	beyond  seq   // behind the last packet sent before the timeout
	probe   probe // of the peer's queue pair

	sampling  bool // a round trip is being measured
	sampleSeq seq
	sampleAt  time.Duration
}

// sample starts to measure a round trip if none is being measured.
// Retransmitted packets are not measured (Karn).
func (s *schedule) sample(at seq, now time.Duration) {
	if !s.sampling {
		s.sampling, s.sampleSeq, s.sampleAt = true, at, now
	}
}

// deadline returns when the next timer expires, and false if none is armed.
func (s *schedule) deadline() (time.Duration, bool) {
	at := s.timer
	if s.rnrUntil != never {
		at = s.rnrUntil
	}
	at = min(at, s.lineAt)
	return at, at != never
}

// expire runs the timers that have expired.
func (q *requester) expire(now time.Duration) Status {
	if now >= q.schedule.lineAt {
		q.schedule.lineAt = never
	}
	if q.rnrPending(now) || now < q.schedule.timer {
		return OK
	}
	s := &q.schedule
	// Elapsed time alone is not silence: the retransmissions may not have been
	// sent because the QP was not driven.
	if now-s.progressAt >= q.longestTimeout()*time.Duration(q.cfg.Retries+1) && s.backoff > uint(q.cfg.Retries) {
		return q.giveUp(RetriesExceeded)
	}
	q.counters.Timeouts++
	if q.cfg.Line != nil {
		q.cfg.Line.timedOut(now-s.progressAt, now)
	}
	if s.probe.running && q.una == q.highest {
		s.backoff++
		s.probe.due = true
		q.arm(now)
		return OK
	}
	if s.backoff > 0 {
		q.window.timedOut(q.highest)
	}
	s.backoff++
	s.probing, s.beyond = true, q.highest
	q.skipTo = q.acked
	q.holeEnd = max(q.acked, q.una+1)
	q.goBack(q.una)
	q.arm(now)
	return OK
}

// giveUp ends the oldest work and returns its status, by which the connection
// breaks.
func (q *requester) giveUp(s Status) Status {
	if w := q.sends.oldest(); w != nil {
		q.end(w, s)
	}
	return s
}

// timeout returns the current retransmission timeout.
func (q *requester) timeout(now time.Duration) time.Duration {
	s, trip, least := &q.schedule, &q.window.trip, leastTimeout
	switch {
	case trip.smooth == 0:
		least = firstTimeout
	case now-trip.at > staleTrip:
		least = staleTimeout
	}
	if l := q.cfg.Line; l != nil && l.slow() {
		least = max(least, l.slowest())
	}
	d := max(trip.timeout(), least) << min(s.backoff+s.held, 16)
	return min(d, q.longestTimeout())
}

// mostTimeouts is how many times longer than configured the retransmission
// timeout may become on a line whose round trips are so long.
const mostTimeouts = 8

// longestTimeout bounds the retransmission timeout: as configured, unless round
// trips last longer. They cannot be measured as long as each packet is
// retransmitted before its answer, so acknowledgements without a measurement
// raise the bound, too.
func (q *requester) longestTimeout() time.Duration {
	d := q.window.trip.timeout()
	if q.cfg.Line != nil {
		d = max(d, q.cfg.Line.slowest())
	}
	return max(q.cfg.Timeout, min(2*d, mostTimeouts*q.cfg.Timeout))
}

func (q *requester) arm(now time.Duration) { q.schedule.timer = now + q.timeout(now) }

func (q *requester) disarm() {
	q.schedule.timer, q.schedule.rnrUntil, q.schedule.lineAt = never, never, never
}

// progress resets the timers after an acknowledgement. The back-off stays until
// a round trip is measured, as no retransmitted packet is: on a link that
// became slow, each packet would time out before its answer, and the longer
// round trip never be known.
func (q *requester) progress(now time.Duration) {
	s := &q.schedule
	s.held = min(s.held+s.backoff, 16)
	s.progressAt, s.backoff, s.rnrCount, s.probing = now, 0, 0, false
	s.probe = probe{}
	if s.sampling && q.una > s.sampleSeq {
		s.sampling, s.held = false, 0
		d := max(now-s.sampleAt, 1)
		q.window.measured(d, now)
		if q.cfg.Line != nil {
			q.cfg.Line.measured(d, now)
		}
	}
	s.timer = never
	if q.una < q.highest {
		q.arm(now)
	}
}

// retransmitRange retransmits the packets from at to end only.
func (q *requester) retransmitRange(at, end seq) {
	if q.next < q.holeEnd && q.next < q.skipTo {
		end = max(end, q.holeEnd) // one hole at a time: two are merged
	}
	q.skipTo = max(q.skipTo, q.next)
	q.holeEnd = end
	q.goBack(at)
}

// goBack moves next back to packet to; skip excludes packets that need no
// retransmission.
func (q *requester) goBack(to seq) {
	q.schedule.sampling = false
	q.next = min(q.next, to)
	q.pieces.goBack(q.next)
	for q.cur > q.sends.done && (q.cur == q.sends.posted || q.sends.at(q.cur).first > q.next) {
		q.cur--
	}
}

// retransmitMissing handles a sequence error: the first packet that the peer
// has not executed is missing. A peer that is not selective has dropped all
// packets behind it. The same error counts again once the retransmitted packet
// can be lost, too.
func (q *requester) retransmitMissing(now time.Duration) {
	missing := q.acked
	if due := q.gap.when + q.window.retransmitDelay(); q.gap.at == missing && now < due {
		if !q.cfg.Selective {
			q.schedule.timer = min(q.schedule.timer, due) // the peer does not repeat it
		}
		return
	}
	n := seq(1)
	if q.gap.end == missing {
		n = 2 * (missing - q.gap.at) // more than one packet is missing
	}
	q.gap = gap{missing, missing + n, now}
	q.schedule.probing = false
	if q.cfg.Selective {
		q.retransmitRange(missing, missing+n)
	} else {
		q.skipTo = missing
		q.goBack(missing)
	}
	q.window.lost(missing, int(n), q.highest, q.cfg.Selective)
	q.arm(now)
}

// startRNRDelay handles an RNR NAK: the peer has no receive and dropped the
// request.
func (q *requester) startRNRDelay(d, now time.Duration) Status {
	s := &q.schedule
	if s.rnrUntil != never {
		return OK
	}
	if s.rnrCount >= q.cfg.RNRRetries && q.cfg.RNRRetries != foreverRNR {
		return q.giveUp(RNRExceeded)
	}
	s.rnrCount++
	s.rnrUntil = now + d
	s.probing = false
	q.skipTo = q.acked
	q.goBack(q.acked)
	return OK
}

// rnrPending reports whether requests wait for the end of an RNR delay.
func (q *requester) rnrPending(now time.Duration) bool {
	s := &q.schedule
	if s.rnrUntil == never {
		return false
	} else if now < s.rnrUntil {
		return true
	}
	s.rnrUntil = never
	s.progressAt = now
	q.arm(now)
	return false
}
