package hook

import "github.com/viablk/viablk/via"

// faulty is what a link keeps for Fault.
type faulty struct {
	cut         bool
	remains     remains
	outstanding int // sends
	steps       int
	completions int
}

// remains stands in for a link that was cut. It takes posts, which are flushed
// when the user agent hears that the link is gone.
type remains struct{ stats via.LinkStats }

func (*remains) Start([]*via.Work) error { return nil }
func (*remains) PostSend(*via.Work) bool { return true }
func (*remains) PostRecv(*via.Work)      {}
func (*remains) Doorbell()               {}
func (*remains) Close() error            { return nil }
func (r *remains) Stats() via.LinkStats  { return r.stats }

func (t *faultTap) offer(l *link, _ *via.Work) bool {
	if t.plan.RefusePosts > 0 && l.fault.outstanding > 0 && !l.fault.cut && t.chance(t.plan.RefusePosts) {
		t.injected.Add(1)
		return false
	}
	return true
}

func (t *faultTap) posted(l *link, k *ticket, w *via.Work) {
	if w.Op != via.OpRecv {
		l.fault.outstanding++
	}
	t.step(l)
}

// step counts a step of a link and of its device, and cuts the link if the plan
// says so.
func (t *faultTap) step(l *link) {
	l.fault.steps++
	switch {
	case t.deviceStep(l.adapter):
		t.cut(l, via.AsyncCatastrophic, errDevice)
	case l.fault.steps == t.plan.SeverAt && !l.fault.cut:
		t.injected.Add(1)
		t.cut(l, via.AsyncConnectionLost, errCut)
	}
}

// cut closes a link inside and reports it broken, after what is held.
func (t *faultTap) cut(l *link, code via.AsyncCode, cause error) {
	if l.fault.cut {
		return
	}
	l.fault.remains.stats = l.Link.Stats()
	l.fault.cut = true
	_ = l.Link.Close() // the cut is the point
	l.recv.report(l, via.Done{Event: &via.Event{Owner: l.cfg.Owner, Code: code, Broken: true, Cause: cause}}, 0)
}
