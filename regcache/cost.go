package regcache

import (
	"sync/atomic"
	"time"
)

// nicCost holds the NIC's times of one granule.
type nicCost struct{ register, deregister costEWMA }

// costEWMA is an exponentially weighted moving average with weight 1/8. A
// sample counts as at most twice the average, so a single interruption moves it
// little, while persistent load is part of the cost, as it is of the operations
// compared with it. Of two concurrent add calls one sample may be lost.
type costEWMA struct{ ns atomic.Int64 }

// minCost is the floor of the average, in nanoseconds: an eighth of less rounds
// to zero, and the average could not rise again.
const minCost = 8

func (e *costEWMA) add(d time.Duration) {
	old, now := e.ns.Load(), int64(d)
	if old != 0 {
		now = old + (min(now, 2*old)-old)/8
	}
	e.ns.Store(max(minCost, now))
}

// mean returns the average, 0 before the first sample.
func (e *costEWMA) mean() time.Duration { return time.Duration(e.ns.Load()) }
