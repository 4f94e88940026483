package regcache

import (
	"sync"

	"github.com/dgraph-io/ristretto/v2"
)

// ristrettoPolicy keeps the most frequently used regions. Ristretto is used for
// this advice only: its Set becomes visible late or never, it may reject after
// having accepted, and it evicts entries in use. The rules that make it safe:
//
//   - Keys go through a bijection. Equal hashes would lose values without
//     OnExit, and the default hash of numbers is no hash.
//   - OnExit clears a bit. It runs on ristretto's goroutine, under its locks,
//     and with nil for absent keys.
//   - Get comes before Set, or a new key has frequency zero and is rejected.
//   - No method is called during or after Close: Set and Get would send on a
//     closed channel. Wait, Clear and lifetimes are not used.
//   - Only the reaper calls Del: its send to ristretto's goroutine may block.
//   - A region that ended while its Set was pending lands dead in the cache. It
//     only occupies a place until it is replaced.
type ristrettoPolicy struct {
	mu sync.RWMutex // read-locked for calls into the library, locked to close it
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	cache *ristretto.Cache[uint64, *region]
}

func newRistrettoPolicy(room, granule int, evict func(*region)) (*ristrettoPolicy, error) {
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
	return &ristrettoPolicy{cache: cache}, nil
}

// counters100 returns how many frequency counters a capacity needs: with a
// hundred for each region the hit ratio is that of the best policies, with ten
// it is 4 to 9 points lower. Beyond a million counters (3 MB) ten are used.
func counters100(room int) int64 {
	return max(1024, min(100*int64(room), max(1<<20, 10*int64(room))))
}

func (p *ristrettoPolicy) touch(r *region) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !p.closed {
		p.cache.Get(r.key())
	}
}

func (p *ristrettoPolicy) offer(r *region) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return false
	}
	key := r.key()
	p.cache.Get(key)
	return p.cache.Set(key, r, int64(r.bytes))
}

// forget may evict the granule's next registration, if that was offered in the
// meantime. A policy may decline to keep a region at any time.
func (p *ristrettoPolicy) forget(r *region) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !p.closed {
		p.cache.Del(r.key())
	}
}

func (p *ristrettoPolicy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	p.cache.Close()
}

// mix is the finaliser of splitmix64, a bijection of 64 bits.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
