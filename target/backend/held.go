package backend

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Held are the files and block devices that the disks of a process have open
// for writing, with their locks, and the memory of disks in memory. A process
// that takes over from another one opens its disks with the descriptors of that
// one: at no time is a disk without its lock, and memory keeps its bytes. Its
// methods are safe for concurrent use.
type Held struct {
	mu sync.Mutex
	// +checklocks:mu
	open map[heldKey]int // descriptors of open disks
	// +checklocks:mu
	given map[heldKey]int // descriptors of the process before
}

// heldKey tells a file, device or memory from every other.
type heldKey struct {
	device bool
	a, b   uint64 // device and inode, or number of the device
	memory bool
	export string // whose memory it is
}

// Descriptor is a descriptor of a file or block device, or of memory.
type Descriptor struct {
	FD     int
	Memory bool
	Export string // the name of the export whose memory it is
}

// NewHeld returns what a process holds that starts with descriptors of another
// one. It owns them, also if there is an error.
func NewHeld(given []Descriptor) (*Held, error) {
	h := &Held{open: make(map[heldKey]int), given: make(map[heldKey]int)}
	var errs []error
	for _, d := range given {
		key, err := heldKey{memory: true, export: d.Export}, error(nil)
		if !d.Memory {
			key, err = keyOf(d.FD)
		}
		if err != nil {
			errs = append(errs, err, unix.Close(d.FD))
			continue
		}
		if before, ok := h.given[key]; ok {
			_ = unix.Close(before)
		}
		h.given[key] = d.FD
	}
	if len(errs) > 0 {
		h.Forget()
		return nil, fmt.Errorf("descriptors of disks: %w", errors.Join(errs...))
	}
	return h, nil
}

// keyOf returns which file or device a descriptor is of.
func keyOf(fd int) (heldKey, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return heldKey{}, err
	}
	return keyOfStat(&st), nil
}

func keyOfStat(st *unix.Stat_t) heldKey {
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return heldKey{device: true, a: st.Rdev}
	}
	return heldKey{a: st.Dev, b: st.Ino}
}

// claim returns the descriptor that was given of what is at path, -1 without
// one. The caller owns it.
func (h *Held) claim(path string) (fd int, device bool) {
	var st unix.Stat_t
	if h == nil || unix.Stat(path, &st) != nil {
		return -1, false
	}
	key := keyOfStat(&st)
	return h.acquire(key), key.device
}

// claimMemory returns the descriptor that was given of the memory of an export,
// -1 without one. The caller owns it.
func (h *Held) claimMemory(export string) int {
	if h == nil {
		return -1
	}
	return h.acquire(heldKey{memory: true, export: export})
}

func (h *Held) acquire(key heldKey) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	fd, ok := h.given[key]
	if !ok {
		return -1
	}
	delete(h.given, key)
	return fd
}

// add notes the descriptor of an open disk.
func (h *Held) add(fd int) {
	if h == nil {
		return
	}
	if key, err := keyOf(fd); err == nil {
		h.put(key, fd)
	}
}

// addMemory notes the memory of an export.
func (h *Held) addMemory(export string, fd int) {
	if h != nil {
		h.put(heldKey{memory: true, export: export}, fd)
	}
}

func (h *Held) put(key heldKey, fd int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[key] = fd
}

// remove forgets the descriptor of a disk that is about to be closed.
func (h *Held) remove(fd int) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, other := range h.open {
		if other == fd {
			delete(h.open, key)
		}
	}
}

// Copy returns further descriptors of what all open disks have open. The caller
// owns them. They keep locks and memory when the disks are closed.
func (h *Held) Copy() (all []Descriptor, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, fd := range h.open {
		copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, d := range all {
				_ = unix.Close(d.FD)
			}
			return nil, fmt.Errorf("copy the descriptor of a disk: %w", err)
		}
		all = append(all, Descriptor{FD: copied, Memory: key.memory, Export: key.export})
	}
	return all, nil
}

// RetireMemory forgets the memory of an export that was removed: no successor
// gets it, although clients may still have its disk.
func (h *Held) RetireMemory(export string) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, heldKey{memory: true, export: export})
}

// HasMemory returns an export whose disk in memory is open.
func (h *Held) HasMemory() (export string, ok bool) {
	if h == nil {
		return "", false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return memoryIn(h.open)
}

// memoryIn returns an export whose memory is among descriptors.
func memoryIn(all map[heldKey]int) (export string, ok bool) {
	for key := range all {
		if key.memory {
			return key.export, true
		}
	}
	return "", false
}

// MemoryLeft returns an export whose memory the process before gave, and no
// disk was opened with: it would end with its last descriptor.
func (h *Held) MemoryLeft() (export string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return memoryIn(h.given)
}

// Forget closes the descriptors of the process before that no disk was opened
// with.
func (h *Held) Forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, fd := range h.given {
		_ = unix.Close(fd)
		delete(h.given, key)
	}
}
