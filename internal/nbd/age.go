package nbd

import (
	"time"

	"github.com/viablk/viablk/internal/latency"
)

// How often a loop looks for its oldest request again while requests stay in
// the disk.
const (
	ageInterval      = time.Second
	wrongAgeInterval = 10 * time.Millisecond // the one it told of may be answered
)

// requestAge is what the reservation was told of the oldest request in the
// disk.
type requestAge struct {
	since time.Duration // since the epoch; 0: no request is there
	told  time.Duration // when that was
	wrong bool          // a request as old was answered since
}

// interval is how long what was told may stand.
func (a *requestAge) interval() time.Duration {
	if a.wrong {
		return wrongAgeInterval
	}
	return ageInterval
}

// answered notes the answer to a request that was given to the disk at a time.
func (a *requestAge) answered(given time.Duration) {
	if given <= a.since {
		a.wrong = true
	}
}

// startAge tells the reservation of a request that is about to enter the disk,
// if none is there: the disk may hold the goroutine up.
func (t *transmission) startAge() {
	if t.reservation != nil && t.age.since == 0 {
		now := t.timing.Now()
		t.tellAge(now, now)
	}
}

// tendAge tells the reservation since when the oldest request has been in the
// disk, or that none is. It is called before each sleep, and now and then
// without one.
func (t *transmission) tendAge(now time.Duration) {
	switch a := &t.age; {
	case t.reservation == nil:
	case t.inQueue == 0:
		t.clearAge()
	case now-a.told >= a.interval():
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
	t.age = requestAge{since: since, told: now}
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
