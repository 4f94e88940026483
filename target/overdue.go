package target

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/wire"
)

// The target never answers a request in place of its disk: the disk may execute
// it later, and a client that was told of an error would not expect that. A
// request that is in the disk for longer than Config.IOTimeout makes the disk
// overdue: the log says so, and new opens are refused until the disk answers.
// Sessions that return are not new: their requests wait at the initiator.

// requestAge tells other goroutines since when the oldest request of an export
// queue has been in the disk. The worker that may block there cannot.
type requestAge struct {
	since atomic.Int64 // on the clock of the export table; 0: none
}

// clock returns the time since shortly before the table was made, which is
// never 0, and at that of a reading of the scheduler.
func (t *exportTable) clock() time.Duration { return t.at(t.scheduler.Now()) }

func (t *exportTable) at(now time.Time) time.Duration { return now.Sub(t.epoch) + 1 }

// addAge makes the age of a new queue known, and removeAge ends that.
func (t *exportTable) addAge(x *exported) *requestAge {
	a := new(requestAge)
	t.mu.Lock()
	defer t.mu.Unlock()
	x.ages[a] = struct{}{}
	return a
}

func (t *exportTable) removeAge(x *exported, a *requestAge) {
	t.mu.Lock()
	delete(x.ages, a)
	t.mu.Unlock()
	t.checkAge(x)
}

// oldestLocked returns how long the oldest request has been in the disk.
//
// +checklocks:t.mu
func (t *exportTable) oldestLocked(x *exported) time.Duration {
	now, oldest := t.clock(), time.Duration(0)
	for a := range x.ages {
		if since := time.Duration(a.since.Load()); since != 0 {
			oldest = max(oldest, now-since)
		}
	}
	return oldest
}

// checkAge logs when a disk becomes overdue, and when it has answered. It
// returns how long the disk is overdue, or 0.
func (t *exportTable) checkAge(x *exported) time.Duration {
	if t.ioTimeout <= 0 {
		return 0
	}
	t.mu.Lock()
	age, before := t.oldestLocked(x), x.overdue
	if age < t.ioTimeout {
		age = 0
	}
	x.overdue = age
	t.mu.Unlock()
	switch {
	case age > 0 && before == 0:
		t.log.Warn("a request is in the disk for longer than io_timeout: new opens are refused until the disk answers",
			"event", "disk_overdue", "export", x.Name, "age", age.Round(time.Millisecond), "io_timeout", t.ioTimeout)
	case age == 0 && before > 0:
		t.log.Info("the disk has answered: opens are admitted", "event", "disk_answered", "export", x.Name, "age", before.Round(time.Millisecond))
	}
	return age
}

// checkAges checks the disks that a session has open.
func (s *session) checkAges(t *exportTable) {
	s.mu.Lock()
	opens := s.opens
	s.mu.Unlock()
	for _, o := range opens {
		t.checkAge(o.export)
	}
}

// refuseOverdue returns why an open is refused while the disk is overdue, or
// "".
func (t *exportTable) refuseOverdue(x *exported, q *wire.OpenRequest) string {
	if q.Return {
		return ""
	}
	age := t.checkAge(x)
	if age == 0 {
		return ""
	}
	return fmt.Sprintf("the disk has not answered a request for %v: try again", age.Round(time.Second))
}

// measureAges finds the oldest request of each export queue.
func (w *worker) measureAges() {
	for _, q := range w.exports.queues {
		if q.active == 0 {
			continue
		}
		oldest := time.Duration(math.MaxInt64)
		for i := range w.receive.requests {
			if r := &w.receive.requests[i]; r.state == running && r.handle.queue == q {
				oldest = min(oldest, r.given)
			}
		}
		if oldest != math.MaxInt64 {
			q.age.since.Store(int64(oldest))
		}
	}
}

// inDisk reports whether a request is in a disk.
func (t *handleTable) inDisk() bool {
	for _, q := range t.queues {
		if q.active > 0 {
			return true
		}
	}
	return false
}
