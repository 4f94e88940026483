package target

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/spin"
)

// sleeper is how a worker waits when it has no work: it busy-polls while that
// finds work, then sleeps.
type sleeper struct {
	scheduler sched.Scheduler
	bell      sched.Bell // of the connection's signals
	idle      spin.Spinner
	slice     loop.TimeSlice
	polls     []unix.PollFd

	sleeps, yields, busyPolls, pollHits uint64
}

func newSleeper(s sched.Scheduler, busyPoll time.Duration) sleeper {
	return sleeper{scheduler: s, idle: spin.New(busyPoll)}
}

// arm collects what ends the sleep: a signal, the VI, a backend. It returns how
// long the sleep may last, or false if a backend has work already.
func (s *sleeper) arm(vi int, queues []*exportQueue, wait time.Duration) (time.Duration, bool) {
	s.polls = append(s.polls[:0], unix.PollFd{Fd: int32(s.bell.FD()), Events: unix.POLLIN}, unix.PollFd{Fd: int32(vi), Events: unix.POLLIN})
	for _, q := range queues {
		d, ok := q.queue.Arm()
		if !ok {
			return 0, false
		}
		if d >= 0 && d < wait {
			wait = d
		}
		if fd := q.queue.FD(); fd >= 0 {
			s.polls = append(s.polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
	return wait, true
}

// sleep waits for what arm collected, from now on.
func (s *sleeper) sleep(now time.Time, wait time.Duration) error {
	s.sleeps++
	if s.slice.Due(now) {
		s.scheduler.Yield()
		s.yields++
	}
	err := s.scheduler.Poll(s.polls, wait)
	if s.polls[0].Revents != 0 {
		s.bell.Drain()
	}
	if err != nil {
		return fmt.Errorf("wait for work: %w", err)
	}
	return nil
}

// busyPoll polls for a short time before a sleep, if recent polls found work.
func (w *worker) busyPoll() bool {
	s := &w.sleeper
	if !s.idle.Start(false) {
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

// sleep waits for the VI, a backend, a signal, or the end of the watch's
// interval.
func (w *worker) sleep() {
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
		return
	}
	if !w.carrier.Arm() {
		return
	}
	wait, ok := w.sleeper.arm(w.carrier.FD(), w.exports.queues, wait)
	if signals := &w.conn.signals; !ok || signals.recheck.Load() || signals.halt.Load() != 0 && w.finished() {
		return
	}
	w.exports.publishLatency()
	if err := w.sleeper.sleep(now, wait); err != nil {
		w.fail(err)
	}
	for _, q := range w.exports.queues {
		if q.active == 0 {
			q.queue.Reap(w.execute.reaped[:]) // lets the queue progress; nothing is in flight
		}
	}
}
