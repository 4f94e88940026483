package target

import (
	"math"
	"time"

	"github.com/viablk/viablk/internal/wire"
)

// clock returns the time since shortly before the table was made, which is
// never 0, and at that of a reading of the scheduler. The ages of requests in
// the disks are measured by it.
func (t *exportTable) clock() time.Duration { return t.at(t.scheduler.Now()) }

func (t *exportTable) at(now time.Time) time.Duration { return now.Sub(t.epoch) + 1 }

// checkAges checks the disks that a session has open.
func (s *session) checkAges() {
	s.mu.Lock()
	opens := s.opens
	s.mu.Unlock()
	for _, o := range opens {
		o.export.Reservations.Overdue()
	}
}

// refuseOverdue returns why an open is refused while the disk is overdue, or
// "". A session that returns is not new: its requests wait at the initiator.
func (x *exported) refuseOverdue(q *wire.OpenRequest) string {
	if q.Return {
		return ""
	}
	if err := x.Reservations.Admit(); err != nil {
		return err.Error()
	}
	return ""
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
			q.age.Set(oldest)
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
