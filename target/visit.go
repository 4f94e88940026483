package target

import "github.com/viablk/viablk/internal/loop"

// The share of a visit: then other connections of the loop have theirs. One
// without others has it several times, so that the loop looks for others less
// often.
const (
	visitIterations = 16
	visitBytes      = 1 << 20 // of payload, that begin to move
	aloneShare      = 4
)

// Visit implements [loop.Task]. A panic ends the connection.
func (w *worker) Visit(r loop.Round) (next loop.Next) {
	if !w.guard(func() { next = w.visit(r) }) {
		return loop.Next{Done: true}
	}
	return next
}

// visit serves the connection until it has nothing to do, or its share is used
// up.
func (w *worker) visit(r loop.Round) loop.Next {
	iterations, bytes := visitIterations, uint64(visitBytes)
	if r.Alone {
		iterations, bytes = aloneShare*iterations, aloneShare*bytes
	}
	w.share = w.payload + bytes
	w.awake(r)
	for ; iterations > 0 && w.payload < w.share; iterations-- {
		if w.finished() {
			return loop.Next{Done: true}
		}
		w.tendSignals()
		if w.failure != nil || w.iterate() || r.Alone && w.busyPoll() {
			continue
		}
		if next, ok := w.sleep(); ok {
			return next
		}
	}
	return loop.Next{Again: true}
}

// tendSignals does what other goroutines asked for.
func (w *worker) tendSignals() {
	recheck := &w.conn.signals.recheck
	if recheck.Load() || w.execute.aborted {
		recheck.Store(false)
		w.handleSignals()
		w.reapDiskCalls()
		w.tendRekey(w.sleeper.scheduler.Now())
		w.exports.closeUnused()
		w.logout()
		w.stopwatch.Expire() // this may have taken long
	}
	if w.conn.signals.halt.Load() == stopDrain {
		w.tendDrain()
	}
}
