//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/arena"
)

// region is a registered region of the device. Its R_Key is the region's
// handle.
type region struct {
	key atomic.Uint32 // L_Key, which the data path reads
	mu  sync.Mutex
	mr  *C.struct_ibv_mr // nil once it is deregistered
	tag uint32           // of its protection domain
}

// mapped is the memory of an arena. Registered pages are pinned unless the
// device has on-demand paging.
type mapped struct {
	*arena.Arena
	onDemand bool
	count    sync.Mutex
	regions  int // registered regions; guarded by count
}

// hugePage is the least arena size for which huge pages are requested, bytes.
const hugePage = 2 << 20

// MapArena maps anonymous memory, in huge pages where available: the device
// then needs fewer address translations.
func (a *adapter) MapArena(size int) (via.ArenaMemory, error) {
	if err := a.usable(); err != nil {
		return nil, err
	}
	m, err := arena.New(size)
	if err != nil {
		return nil, err
	}
	if size >= hugePage {
		_ = unix.Madvise(m.Bytes(), unix.MADV_HUGEPAGE) // optional
	}
	return &mapped{Arena: m, onDemand: a.device.limits.on_demand != 0}, nil
}

// pin adds n to the registered regions.
func (m *mapped) pin(n int) {
	m.count.Lock()
	defer m.count.Unlock()
	m.regions += n
}

// Discard clears a range. It frees the pages unless a device has them pinned:
// the device would keep using the old pages.
func (m *mapped) Discard(off, n int) error {
	m.count.Lock()
	defer m.count.Unlock()
	if m.regions > 0 && !m.onDemand {
		clear(m.Bytes()[off : off+n])
		return nil
	}
	return m.Arena.Discard(off, n)
}

// arenaOf returns the arena of a region, or nil.
func arenaOf(m *via.Memory) *mapped {
	if m.Arena() == nil {
		return nil
	}
	return m.Arena().Memory().(*mapped)
}

// Register registers a region in the protection domain of its tag.
func (a *adapter) Register(m *via.Memory) error {
	r := &region{}
	if err := a.register(m, r); err != nil {
		return err
	}
	m.Provider = r
	m.Name(r.handle())
	return nil
}

// handle returns the handle by which peers name the region. Some devices give a
// region without remote access no R_Key; its L_Key serves instead.
func (r *region) handle() uint32 {
	if r.mr.rkey != 0 {
		return uint32(r.mr.rkey)
	}
	return uint32(r.mr.lkey)
}

// register registers a region by its current attributes.
func (a *adapter) register(m *via.Memory, r *region) error {
	if err := a.usable(); err != nil {
		return err
	}
	tag := m.Tag()
	pd, err := a.domain(tag)
	if err != nil {
		return err
	}
	if x := arenaOf(m); x != nil {
		x.pin(1)
	}
	b := m.Bytes()
	// Safety: registered memory is mapped, not of the Go heap, and stays mapped
	// until it is deregistered; the device gets its address as a number would
	// be.
	mr, err := C.shim_register(pd, unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b)),
		flag(m.RemoteWrite()), flag(m.RemoteRead()), a.device.limits.on_demand)
	if mr == nil {
		if x := arenaOf(m); x != nil {
			x.pin(-1)
		}
		a.releaseDomain(tag)
		if errors.Is(err, syscall.ENOMEM) && memoryLocked() {
			err = fmt.Errorf("%w: raise it with ulimit -l or LimitMEMLOCK= of the unit, or run with CAP_IPC_LOCK: %w", ErrMemoryLock, err)
		}
		return a.refused(fmt.Sprintf("register %d bytes with RDMA device %s", len(b), a.device.name), err)
	}
	r.mr, r.tag = mr, tag
	r.key.Store(uint32(mr.lkey))
	return nil
}

func flag(set bool) C.int {
	if set {
		return 1
	}
	return 0
}

// memoryLocked reports whether the process has a limit of locked memory.
func memoryLocked() bool {
	var l unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil && l.Cur != unix.RLIM_INFINITY
}

// Update registers a region again, because keys keep the access rights of their
// registration: the handle changes. Peers lose the old access before they get
// the new one.
func (a *adapter) Update(m *via.Memory) error {
	r := m.Provider.(*region)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mr == nil {
		return fmt.Errorf("region is gone: %w", via.ErrInvalidParameter)
	}
	if err := a.withdraw(m, r); err != nil {
		return err
	}
	if err := a.register(m, r); err != nil {
		return err
	}
	m.Name(r.handle())
	return nil
}

// Accessed returns false: the device is done with a link when that has closed.
func (*adapter) Accessed(*via.Memory) bool { return false }

// Deregister deregisters a region after the device has finished its accesses.
func (a *adapter) Deregister(m *via.Memory) error {
	r := m.Provider.(*region)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mr == nil {
		return nil // Update failed after it deregistered
	}
	return a.withdraw(m, r)
}

// withdraw deregisters a region.
func (a *adapter) withdraw(m *via.Memory, r *region) error {
	code := C.ibv_dereg_mr(r.mr)
	r.mr = nil
	r.key.Store(0)
	if x := arenaOf(m); x != nil {
		x.pin(-1)
	}
	a.releaseDomain(r.tag)
	if code != 0 && !a.failed.Load() {
		return fmt.Errorf("deregister memory of RDMA device %s: %w: %w", a.device.name, via.ErrResource, errno(code))
	}
	return nil
}
