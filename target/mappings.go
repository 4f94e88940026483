package target

import (
	"context"
	"fmt"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target/reserve"
	"github.com/viablk/viablk/via"
)

// mappings are the registrations of mapped disks of all connections of a
// server. They share one cache with one budget, whatever the number of
// connections and exports, so that a peer with many connections pins no more
// memory. Each connection registers with its own protection tag, and its
// registrations end with it.
//
// The cache is made at the first need and ends with the last Serve. A failed
// creation is not retried: the Reads go through the pool.
type mappings struct {
	cfg *Config // immutable

	mu sync.Mutex // taken before the cache's; nothing is registered with it held
	// +checklocks:mu
	users int // calls of Serve
	// +checklocks:mu
	cache *regcache.Cache
	// +checklocks:mu
	mapped map[*exported]*diskArena
	// +checklocks:mu
	refused error // why there is no cache
	// +checklocks:mu
	ending *sched.Event // the former cache is closed
}

// diskArena is a mapped disk that connections may register.
type diskArena struct {
	arena   *regcache.Arena
	refused error // why it has none
}

// acquire counts a Serve that begins, release one that has ended and has no
// connections left. The last one closes the cache.
func (m *mappings) acquire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users++
}

func (m *mappings) release() error {
	m.mu.Lock()
	m.users--
	cache := m.cache
	if m.users > 0 || cache == nil {
		m.mu.Unlock()
		return nil
	}
	ended := m.cfg.Scheduler.NewEvent()
	m.cache, m.mapped, m.ending = nil, nil, ended
	m.mu.Unlock()
	defer ended.Set()
	if err := cache.Close(); err != nil {
		return fmt.Errorf("end registrations of mapped files: %w", err)
	}
	return nil
}

// open returns the cache and the mapping of a disk, or the reason of the
// failure; logged means that it was returned before.
func (m *mappings) open(x *exported, d block.FileMapped) (cache *regcache.Cache, p *diskArena, logged bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.ending != nil { // or the two would exceed the budget together
		ending := m.ending
		m.mu.Unlock()
		m.cfg.Scheduler.Wait(context.Background(), -1, ending)
		m.mu.Lock()
		if m.ending == ending {
			m.ending = nil
		}
	}
	if m.refused != nil {
		return nil, nil, true, m.refused
	}
	if m.cache == nil {
		m.cache, m.refused = regcache.New(m.cfg.NIC, regcache.Config{
			Granule: regcache.HugeGranule, MaxBytes: m.cfg.RegisterMax, Policy: regcache.PolicyClock,
		})
		if m.refused != nil {
			return nil, nil, false, m.refused
		}
		m.mapped = make(map[*exported]*diskArena)
	}
	if p = m.mapped[x]; p != nil {
		return m.cache, p, true, p.refused
	}
	p = new(diskArena)
	p.arena, p.refused = m.cache.Adopt(d.Mapping())
	m.mapped[x] = p
	return m.cache, p, false, p.refused
}

// forget ends the mapping of a disk, none of which is leased.
func (m *mappings) forget(disk *reserve.Disk) error {
	m.mu.Lock()
	var arenas []*regcache.Arena
	for x, p := range m.mapped {
		if x.Reservations != disk {
			continue
		}
		delete(m.mapped, x)
		if p.arena != nil {
			arenas = append(arenas, p.arena)
		}
	}
	m.mu.Unlock()
	for _, a := range arenas {
		if err := a.Close(); err != nil {
			return fmt.Errorf("end registrations of a mapped file: %w", err)
		}
	}
	return nil
}

// invalidate ends the registrations of a connection's tag, none of which is
// leased.
func (m *mappings) invalidate(tag via.Ptag) error {
	m.mu.Lock()
	cache := m.cache
	m.mu.Unlock()
	if cache == nil {
		return nil
	}
	return cache.InvalidateTag(tag)
}

// disabledReason returns why no connection registers a disk, or "".
func (m *mappings) disabledReason(x *exported) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch p := m.mapped[x]; {
	case m.cfg.CopyMode == regcache.CopyBounce:
		return "the copy mode is bounce"
	case !m.cfg.NIC.Limits().PostsCopy:
		return fmt.Sprintf("provider %s reads memory after it was posted, when the file may have changed or ended", m.cfg.NIC.Name())
	case m.refused != nil:
		return m.refused.Error()
	case p != nil && p.refused != nil:
		return p.refused.Error()
	}
	return ""
}

// stats returns the cache's counters, or nil if there is none now.
func (m *mappings) stats() *regcache.Stats {
	m.mu.Lock()
	cache := m.cache
	m.mu.Unlock()
	if cache == nil {
		return nil
	}
	s := cache.Stats()
	return &s
}
