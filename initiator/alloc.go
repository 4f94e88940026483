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

// memory is the payload memory of a device: it registers the granules of its
// arenas on first use and keeps the measured cost of a copy and of a
// registration.
type memory struct {
	mode  regcache.CopyMode
	cache *regcache.Cache // nil if the device registers nothing
	off   string          // why cache is nil
	cost  regcache.Calibration

	mu     sync.Mutex
	arenas []*regcache.Arena // +checklocks:mu
}

// leastArena is the smallest arena, in bytes; a larger buffer gets a larger
// one. Arenas are sparse.
const leastArena = 256 << 20

// maximumBuffer bounds a buffer that is not registered, in bytes; what the
// runtime cannot have ends the process.
const maximumBuffer = 1 << 40

// open prepares the memory and measures the cost of a copy and a registration.
func (m *memory) open(cfg *Config) error {
	m.mode = cfg.CopyMode
	switch {
	case cfg.sealed():
		m.off = "the session is sealed"
		return nil
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
		cfg.Log.Warn("nothing can be registered: all payload is copied", "event", "registration_refused", "error", err)
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

// chooser returns the copy policy of a new queue.
func (m *memory) chooser() *regcache.CopyPolicy {
	return regcache.NewCopyPolicy(m.cache, m.mode, m.cost)
}

// Alloc returns n bytes that the target may access by RDMA, so that payload
// there moves without a copy where that is faster. The memory begins at a page
// boundary, lies outside the Go heap, and belongs to the caller until Free. A
// caller that reuses one buffer pays for one registration. A slice from
// elsewhere works as well and is copied.
//
// If the process of a target on this host is stopped amid a copy when its
// connection ends, a request in this memory does not end before the process
// continues or dies: its memory would be the caller's again. A request in other
// memory ends at the loss timeout.
//
// The device registers whole granules of 1 MiB: its target may access the other
// buffers of a granule too. Alloc is safe for concurrent use. Its error wraps
// ENOMEM when memory runs out.
func (d *Device) Alloc(n int) ([]byte, error) {
	m := &d.memory
	if n <= 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w", n, via.ErrInvalidParameter)
	}
	if m.cache == nil { // all payload is copied: any memory will do
		if n > maximumBuffer {
			return nil, fmt.Errorf("allocate %d bytes: %w", n, syscall.ENOMEM)
		}
		return make([]byte, n), nil
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

// Free returns a buffer of Alloc that no request uses. For other memory, and
// for a buffer that is free already, its error wraps regcache.ErrNotAllocated.
func (d *Device) Free(b []byte) error {
	m := &d.memory
	if m.cache == nil {
		return nil // the garbage collector frees it
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

// close unmaps the arenas. While buffers are allocated it returns an error that
// wraps regcache.ErrInUse; the caller may call it again.
func (m *memory) close() error {
	if m.cache == nil {
		return nil
	}
	return m.cache.Close()
}
