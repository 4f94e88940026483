package backend

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Held are the files and block devices that the disks of a process have open
// for writing, with their locks. A process that takes over from another one
// opens its disks with the descriptors of that one: at no time is a disk
// without its lock. Its methods are safe for concurrent use.
type Held struct {
	mu sync.Mutex
	// +checklocks:mu
	open map[heldKey]int // descriptors of open disks
	// +checklocks:mu
	given map[heldKey]int // descriptors of the process before
}

// heldKey tells a file or device from every other.
type heldKey struct {
	device bool
	a, b   uint64 // device and inode, or number of the device
}

// NewHeld returns what a process holds that starts with descriptors of another
// one. It owns them, also if there is an error.
func NewHeld(given []int) (*Held, error) {
	h := &Held{open: make(map[heldKey]int), given: make(map[heldKey]int)}
	var errs []error
	for _, fd := range given {
		key, err := keyOf(fd)
		if err != nil {
			errs = append(errs, err, unix.Close(fd))
			continue
		}
		if before, ok := h.given[key]; ok {
			_ = unix.Close(before)
		}
		h.given[key] = fd
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
	h.mu.Lock()
	defer h.mu.Unlock()
	fd, ok := h.given[key]
	if !ok {
		return -1, false
	}
	delete(h.given, key)
	return fd, key.device
}

// add notes the descriptor of an open disk.
func (h *Held) add(fd int) {
	if h == nil {
		return
	}
	if key, err := keyOf(fd); err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.open[key] = fd
	}
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

// Copy returns further descriptors of the files and devices of all open disks.
// The caller owns them. They keep the locks when the disks are closed.
func (h *Held) Copy() (fds []int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, fd := range h.open {
		copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			return nil, fmt.Errorf("copy the descriptor of a disk: %w", err)
		}
		fds = append(fds, copied)
	}
	return fds, nil
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
