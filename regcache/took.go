package regcache

import (
	"sync/atomic"
	"time"
)

// took is how long the NIC takes for a granule.
type took struct{ register, deregister moving }

// moving follows times: an eighth of the way to each, of which no more than twice what is
// known counts. A long interruption moves it little, but what goes on all the time is part
// of the cost, as it is of the operations that it is compared with. Two goroutines that
// add at a time may lose one of their times.
type moving struct{ ns atomic.Int64 }

// leastMoving is where the way down ends, in nanoseconds: an eighth of less is nothing,
// and there would be no way up.
const leastMoving = 8

func (m *moving) add(d time.Duration) {
	old, now := m.ns.Load(), int64(d)
	if old != 0 {
		now = old + (min(now, 2*old)-old)/8
	}
	m.ns.Store(max(leastMoving, now))
}

// typical returns the time, 0 before the first.
func (m *moving) typical() time.Duration { return time.Duration(m.ns.Load()) }
