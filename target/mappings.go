package target

import (
	"fmt"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// mappings are what the connections of a server register of mapped disks. It is one
// cache with one budget, whatever the number of connections and exports: a peer that
// connects often makes the process pin no more. Each connection registers with its
// own protection tag, and takes its registrations along when it ends.
//
// The cache is made at the first need and ends with the last Serve. What cannot be
// made is not tried again: its Reads go through the pool.
type mappings struct {
	cfg *Config

	mu      sync.Mutex             // taken before the cache's; nothing is registered with it held
	users   int                    // calls of Serve; +checklocks:mu
	cache   *regcache.Cache        // +checklocks:mu
	mapped  map[*exported]*mapping // +checklocks:mu
	refused error                  // why there is no cache; +checklocks:mu
	ending  chan struct{}          // closed when the former cache is; +checklocks:mu
}

// mapping is a mapped disk that connections may register.
type mapping struct {
	arena   *regcache.Arena
	refused error // why it has none
}

// enter says that a Serve begins, leave that one has ended: no connection of its is
// left. The last one waits for the end of the cache.
func (m *mappings) enter() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users++
}

func (m *mappings) leave() error {
	m.mu.Lock()
	m.users--
	cache := m.cache
	if m.users > 0 || cache == nil {
		m.mu.Unlock()
		return nil
	}
	ended := make(chan struct{})
	m.cache, m.mapped, m.ending = nil, nil, ended
	m.mu.Unlock()
	defer close(ended)
	if err := cache.Close(); err != nil {
		return fmt.Errorf("end registrations of mapped files: %w", err)
	}
	return nil
}

// open returns the cache and the mapping of a disk, or why there is none; told says
// that it said so before.
func (m *mappings) open(x *exported, d block.Windowed) (cache *regcache.Cache, p *mapping, told bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.ending != nil { // or the two would exceed the budget together
		ending := m.ending
		m.mu.Unlock()
		<-ending
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
		m.mapped = make(map[*exported]*mapping)
	}
	if p = m.mapped[x]; p != nil {
		return m.cache, p, true, p.refused
	}
	p = new(mapping)
	p.arena, p.refused = m.cache.Adopt(d.Mapping())
	m.mapped[x] = p
	return m.cache, p, false, p.refused
}

// withdraw ends the registrations of a connection's tag, of which none is leased.
func (m *mappings) withdraw(tag via.Ptag) error {
	m.mu.Lock()
	cache := m.cache
	m.mu.Unlock()
	if cache == nil {
		return nil
	}
	return cache.InvalidateTag(tag)
}

// off returns why no connection registers anything of a disk, or "".
func (m *mappings) off(x *exported) string {
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
