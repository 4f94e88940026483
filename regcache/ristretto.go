package regcache

import (
	"sync"

	"github.com/dgraph-io/ristretto/v2"
)

// ristrettoAdviser keeps what is used most often. Ristretto is asked for
// nothing but that: its Set is seen late or never, it may refuse after having
// accepted, and it evicts what is in use. The rules by which it is harmless:
//
//   - Keys go through a bijection. Equal hashes would lose values without
//     OnExit, and the default hash of numbers is no hash.
//   - OnExit clears a bit. It runs on ristretto's goroutine, under its locks,
//     and with nil for what is not there.
//   - Get comes before Set, or a newcomer has frequency zero and is rejected.
//   - Nothing is called while Close runs or after: Set and Get would send on a
//     closed channel. Wait, Clear and lifetimes are not used.
//   - Del is the reaper's: its send to ristretto's goroutine waits if that is behind.
//   - A region that ended with its Set under way lands dead in the cache. That
//     costs a place until it is replaced, and nothing else.
type ristrettoAdviser struct {
	mu     sync.RWMutex // read-locked for calls into the library, locked to close it
	closed bool         // +checklocks:mu
	cache  *ristretto.Cache[uint64, *region]
}

func newRistrettoAdviser(room, granule int, evict func(*region)) (*ristrettoAdviser, error) {
	cache, err := ristretto.NewCache(&ristretto.Config[uint64, *region]{
		NumCounters:        counters100(room),
		MaxCost:            int64(room) * int64(granule),
		BufferItems:        64,
		IgnoreInternalCost: true,
		KeyToHash:          func(key uint64) (uint64, uint64) { return mix(key), 0 },
		OnExit: func(r *region) {
			if r != nil {
				evict(r)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return &ristrettoAdviser{cache: cache}, nil
}

// counters100 returns how many counters of frequency serve a capacity: with a
// hundred for each region the hit ratio is that of the best policies, with ten
// it is 4 to 9 points lower. Beyond a million, which take 3 MB, ten do.
func counters100(room int) int64 {
	return max(1024, min(100*int64(room), max(1<<20, 10*int64(room))))
}

func (a *ristrettoAdviser) touch(r *region) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if !a.closed {
		a.cache.Get(r.key())
	}
}

func (a *ristrettoAdviser) offer(r *region) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.closed {
		return false
	}
	key := r.key()
	a.cache.Get(key)
	return a.cache.Set(key, r, int64(r.bytes))
}

// forget may evict the granule's next registration, if that was offered in the
// meantime. It is then not kept, which is allowed to a policy at any time.
func (a *ristrettoAdviser) forget(r *region) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if !a.closed {
		a.cache.Del(r.key())
	}
}

func (a *ristrettoAdviser) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.closed = true
	a.cache.Close()
}

// mix is the finaliser of splitmix64, a bijection of 64 bits.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
