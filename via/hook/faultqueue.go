package hook

import "github.com/viablk/viablk/via"

// holding is what a queue keeps for Fault: reports in order, each with the
// polls for which it waits once it is the first.
type holding struct {
	reports []held
	batch   [64]via.Done
	alarm   alarm
}

type held struct {
	done via.Done
	link *link
	wait int
}

// report adds a report to those that wait.
func (q *queue) report(l *link, d via.Done, wait int) {
	q.hold.reports = append(q.hold.reports, held{d, l, wait})
}

// poll takes the inner queue's reports into those that wait, and returns the
// ones whose time has come.
func (t *faultTap) poll(q *queue, dst []via.Done) int {
	t.cutFailed(q)
	h := &q.hold
	n := q.AdapterCQ.Poll(h.batch[:])
	for i := range h.batch[:n] {
		l, _ := q.of(&h.batch[i])
		if l == nil {
			continue // of a link that is closed
		}
		wait := 0
		if t.plan.HoldCompletions > 0 {
			if wait = t.draw(t.plan.HoldCompletions + 1); wait > 0 {
				t.injected.Add(1)
			}
		}
		q.report(l, h.batch[i], wait)
	}
	out := 0
	for out < len(dst) && len(h.reports) > 0 {
		first := &h.reports[0]
		if first.wait > 0 {
			first.wait--
			break
		}
		dst[out] = first.done
		out++
		l, work := first.link, first.done.Work
		h.reports = h.reports[:copy(h.reports, h.reports[1:])]
		if work != nil {
			t.completed(q, l, work)
		}
	}
	return out
}

// completed counts a completion that is about to be returned.
func (t *faultTap) completed(q *queue, l *link, w *via.Work) {
	k := q.tickets[w]
	k.out = false
	if k.op != via.OpRecv {
		l.fault.outstanding--
	}
	if l.fault.completions++; l.fault.completions == t.plan.BreakAt {
		t.injected.Add(1)
		q.report(l, via.Done{Event: &via.Event{Owner: l.cfg.Owner, Code: via.AsyncConnectionLost, Broken: true, Cause: errBroken}}, 0)
	}
	t.step(l)
}

// arm refuses to sleep while a report waits.
func (t *faultTap) arm(q *queue) bool {
	t.cutFailed(q)
	return len(q.hold.reports) == 0 && q.AdapterCQ.Arm()
}

// closed drops the reports of a link.
func (t *faultTap) closed(l *link) {
	for _, q := range []*queue{l.send, l.recv} {
		kept := q.hold.reports[:0]
		for _, r := range q.hold.reports {
			if r.link != l {
				kept = append(kept, r)
			}
		}
		clear(q.hold.reports[len(kept):])
		q.hold.reports = kept
	}
}
