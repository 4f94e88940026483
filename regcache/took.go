package regcache

import (
	"sync/atomic"
	"time"
)

// took is how long the NIC takes for a granule.
type took struct{ register, deregister moving }

// moving follows times: half the way down at once, and slowly up, because what else
// the machine does only adds. Two goroutines that add at a time may lose one of their
// times.
type moving struct{ ns atomic.Int64 }

func (m *moving) add(d time.Duration) {
	old, now := m.ns.Load(), max(1, int64(d))
	switch {
	case old == 0:
	case now < old:
		now = (old + now) / 2
	default:
		now = old + (min(now, 2*old)-old)/16
	}
	m.ns.Store(now)
}

// typical returns the time, 0 before the first.
func (m *moving) typical() time.Duration { return time.Duration(m.ns.Load()) }
