package nbd

import (
	"runtime"
	"time"
)

// idler decides how long a connection looks for work before it sleeps.
//
// A client that waits for one reply at a time sends the next request a few
// microseconds after it; to be awake then saves a wake-up, the dearest part of a
// small request. But a spinning server may hold the processor that its own client
// needs. So a connection spins only while at most half the processors do, lets
// others run in between, and after spins that found nothing it sleeps at once for
// exponentially more times before it tries again.
type idler struct {
	server *Server
	budget time.Duration
	misses uint // spins in a row that found nothing
	skip   uint // times to sleep without spinning
	most   int32
}

// Limits of the idler's caution.
const (
	maximumMisses = 8                     // skips at most 2^8-1 times
	crowded       = 20 * time.Microsecond // a look that takes longer shared the processor
)

func (i *idler) init(s *Server, budget time.Duration) {
	i.server = s
	i.budget = budget
	i.most = int32(min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) / 2)
}

// missed notes that spinning did not pay.
func (i *idler) missed() {
	i.misses = min(i.misses+1, maximumMisses)
	i.skip = 1<<i.misses - 1
}

// spin takes turns until one makes progress or the time is over, and reports
// which.
func (t *transmission) spin() (bool, error) {
	i := &t.idle
	if i.budget <= 0 || t.draining || !t.out.empty() {
		return false, nil
	}
	if i.skip > 0 {
		i.skip--
		return false, nil
	}
	if i.server.spinning.Add(1) > i.most {
		i.server.spinning.Add(-1)
		return false, nil
	}
	defer i.server.spinning.Add(-1)
	t.counts[countSpins]++
	start := time.Now()
	last := time.Duration(0)
	for {
		t.in.dry = false
		progress, err := t.turn()
		if progress || err != nil {
			t.counts[countSpinsPaid]++
			i.misses = 0
			return progress, err
		}
		now := time.Since(start)
		if now > i.budget || now-last > crowded {
			i.missed()
			return false, nil
		}
		last = now
		yield()
	}
}
