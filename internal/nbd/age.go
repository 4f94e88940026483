package nbd

import (
	"time"

	"github.com/viablk/viablk/internal/latency"
)

// ageInterval is how often a loop tells the age of its oldest request anew
// while requests stay in the disk.
const ageInterval = time.Second

// requestAge is what the reservation was told of the oldest request in the
// disk.
type requestAge struct {
	since time.Duration // since the epoch; 0: no request is there
	told  time.Duration // when that was
}

// noteAge tells the reservation since when the oldest request has been in the
// disk. It is called before each sleep: the first time with the time of the
// sleep, then each ageInterval with what is found.
func (t *transmission) noteAge(now time.Duration) {
	switch a := &t.age; {
	case t.reservation == nil || t.inQueue == 0:
	case a.since == 0:
		t.tellAge(now, now)
	case now-a.told >= ageInterval:
		t.tellAge(t.requests.oldestGiven(now), now)
	}
}

// clearAge tells the reservation that no request is in the disk any more.
func (t *transmission) clearAge() {
	if t.inQueue == 0 && t.age.since != 0 {
		t.age = requestAge{}
		t.reservation.InDisk(time.Time{})
	}
}

func (t *transmission) tellAge(since, now time.Duration) {
	t.age = requestAge{since, now}
	t.reservation.InDisk(t.epoch.Add(since))
}

// oldestGiven returns when the oldest request that is in the queue was given to
// it, now if there is none.
func (x *requestTable) oldestGiven(now time.Duration) time.Duration {
	oldest := now
	for i, chunk := range x.chunks {
		for k := range chunk[:min(entriesPerChunk, x.made-i*entriesPerChunk)] {
			if s := &chunk[k]; s.inQueue && s.given != latency.NotGiven {
				oldest = min(oldest, s.given)
			}
		}
	}
	return oldest
}
