package initiator

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"syscall"

	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// memory is a device's memory for its callers: arenas whose granules are registered
// at need, and the knowledge of what that costs.
type memory struct {
	mode  regcache.CopyMode
	cache *regcache.Cache // nil if nothing is ever registered
	off   string          // why
	cost  regcache.Calibration

	mu     sync.Mutex
	arenas []*regcache.Arena // +checklocks:mu
}

// leastArena is the size of an arena in bytes, unless a buffer needs a larger one.
// Arenas are sparse.
const leastArena = 256 << 20

// open prepares the memory, and measures what a copy and a registration cost.
func (m *memory) open(cfg *Config) error {
	m.mode = cfg.CopyMode
	switch {
	case m.mode == regcache.CopyBounce:
		m.off = "the copy mode is bounce"
		return nil
	case cfg.RegisterMax < 0:
		m.off = "the budget is nothing"
		return nil
	}
	c := regcache.Config{MaxBytes: cfg.RegisterMax, Policy: cfg.Policy}
	err := c.Check(cfg.NIC.Limits())
	if err == nil {
		err = m.calibrate(cfg.NIC)
	}
	if err == nil {
		m.cache, err = regcache.New(cfg.NIC, c.SuitedTo(&m.cost))
	}
	if err == nil {
		return nil
	}
	if regcache.CannotRegister(err) {
		m.off = err.Error()
		cfg.Log.Warn("nothing can be registered: all payload is copied", "error", err)
		return nil
	}
	return err
}

// calibrate measures the NIC.
func (m *memory) calibrate(nic *via.NIC) error {
	tag, err := nic.CreatePtag()
	if err != nil {
		return err
	}
	m.cost, err = regcache.Calibrate(nic, tag)
	return errors.Join(err, nic.DestroyPtag(tag))
}

// chooser returns the judge of a queue.
func (m *memory) chooser() *regcache.Chooser { return regcache.NewChooser(m.cache, m.mode, m.cost) }

// Alloc returns n bytes that the target may reach by RDMA: what is read or written
// from there is not copied, where that is faster. The memory begins at a page, holds
// anything, lies outside the Go heap, and is the caller's until Free. One buffer that
// is used again and again costs one registration. Any other slice works as well, and
// is copied.
//
// Registered is not the buffer alone but its neighbourhood of 1 MiB, buffers of the
// same device: the target of the device may reach those too. Alloc is safe for
// concurrent use. Its error wraps ENOMEM when there is no memory.
func (d *Device) Alloc(n int) ([]byte, error) {
	m := &d.memory
	if n <= 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w", n, via.ErrInvalidParameter)
	}
	if m.cache == nil {
		return make([]byte, n), nil // all payload is copied: any memory will do
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(m.arenas) - 1; i >= 0; i-- {
		b, err := m.arenas[i].Alloc(n)
		if err == nil || !errors.Is(err, syscall.ENOMEM) {
			return b, err
		}
	}
	size := max(leastArena, 1<<bits.Len(uint(n-1)))
	a, err := m.cache.NewArena(size)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes: %w", n, err)
	}
	m.arenas = append(m.arenas, a)
	return a.Alloc(n)
}

// Free gives a buffer of Alloc back; no request uses it. What is not allocated, or
// was freed before, is an error that wraps regcache.ErrNotAllocated.
func (d *Device) Free(b []byte) error {
	m := &d.memory
	if m.cache == nil {
		return nil // the garbage collector's
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.arenas {
		if err := a.Free(b); err != regcache.ErrNotAllocated {
			return err
		}
	}
	return fmt.Errorf("free %d bytes: %w", len(b), regcache.ErrNotAllocated)
}

// close unmaps the arenas. While buffers are allocated it returns an error that wraps
// regcache.ErrInUse, and may be called again.
func (m *memory) close() error {
	if m.cache == nil {
		return nil
	}
	return m.cache.Close()
}
