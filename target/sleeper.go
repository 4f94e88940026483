package target

import (
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/spin"
)

// sleeper is how a worker waits when it has no work: it busy-polls while that
// finds work, then leaves the loop to others.
type sleeper struct {
	scheduler sched.Scheduler
	bell      sched.Bell // of the connection's signals
	idle      spin.Spinner
	asleep    bool // since the last visit

	// The files that end a sleep: a signal, the VI, the backends.
	signal, vi loop.File
	files      []*loop.File

	served                              uint64 // commands
	sleeps, yields, busyPolls, pollHits uint64
}

func newSleeper(s sched.Scheduler, busyPoll time.Duration) sleeper {
	return sleeper{scheduler: s, idle: spin.New(busyPoll), vi: loop.File{FD: -1}}
}

// setBell sets the bell.
func (s *sleeper) setBell(b sched.Bell) { s.bell, s.signal.FD = b, b.FD() }

// arm collects what ends the sleep: a signal, the VI, a backend. It returns how
// long the sleep may last, or false if a backend has work already.
func (s *sleeper) arm(vi int, queues []*exportQueue, wait time.Duration) (time.Duration, bool) {
	s.vi.FD = vi
	s.files = append(s.files[:0], &s.signal, &s.vi)
	for _, q := range queues {
		d, ok := q.queue.Arm()
		if !ok {
			return 0, false
		}
		if d >= 0 && d < wait {
			wait = d
		}
		q.file.FD, q.file.Version = q.queue.FD(), block.FDVersion(q.queue)
		if q.file.FD >= 0 {
			s.files = append(s.files, &q.file)
		}
	}
	return wait, true
}

// awake ends a sleep.
func (w *worker) awake(r loop.Round) {
	s := &w.sleeper
	if r.Yielded {
		s.yields++
	}
	if !s.asleep {
		return
	}
	s.asleep = false
	if s.signal.Ready {
		s.bell.Drain()
	}
	for _, q := range w.exports.queues {
		if q.active == 0 {
			q.queue.Reap(w.execute.reaped[:]) // lets the queue progress; nothing is in flight
		}
	}
}

// busyPoll polls for a short time before a sleep, if recent polls found work.
func (w *worker) busyPoll() bool {
	s := &w.sleeper
	if !s.idle.Start(false, s.served) {
		return false
	}
	s.busyPolls++
	w.stopwatch.Flush()
	for s.idle.Continue() {
		if w.iterate() {
			s.pollHits++
			s.idle.Hit()
			return true
		}
	}
	return false
}

// sleep returns what the worker waits for: the VI, a backend, a signal, or the
// end of the watch's interval. It returns false if there is something to do
// now.
func (w *worker) sleep() (loop.Next, bool) {
	now := w.sleeper.scheduler.Now()
	w.stopwatch.At(w.conn.server.exports.at(now))
	w.stopwatch.Expire()
	w.publish()
	if w.execute.held.count > 0 || w.exports.inDisk() {
		w.watch.within(now, w.conn.server.cfg.KeepAlive)
	}
	wait := w.watch.next.Sub(now)
	if wait <= 0 {
		w.checkPeer()
		return loop.Next{}, false
	}
	if w.sleeper.vi.Edge = w.carrier.Edges(); !w.carrier.ArmEdge() {
		return loop.Next{}, false
	}
	wait, ok := w.sleeper.arm(w.carrier.FD(), w.exports.queues, wait)
	if signals := &w.conn.signals; !ok || signals.recheck.Load() || signals.halt.Load() != 0 && w.finished() {
		return loop.Next{}, false
	}
	w.exports.publishLatency()
	w.sleeper.sleeps++
	w.sleeper.asleep = true
	return loop.Next{Wait: wait, Files: w.sleeper.files, Source: w.carrier}, true
}
