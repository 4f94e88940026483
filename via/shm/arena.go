package shm

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
	"github.com/viablk/viablk/via"
)

// arena is memory that can be exposed to peers: a sealed memfd.
type arena struct {
	adapter *adapter
	mem     []byte
	fd      int
	id      uint64
}

// PrivateArenas implements [via.Joinable]: a peer maps the memfd of an arena.
func (*adapter) PrivateArenas() bool { return true }

// arenaIDs number the arenas of the process.
var arenaIDs atomic.Uint64

func newArena(a *adapter, size int) (*arena, error) {
	if size > maxArenaSize {
		return nil, fmt.Errorf("arena of %d bytes (limit %d): %w", size, int64(maxArenaSize), via.ErrInvalidParameter)
	}
	page := os.Getpagesize()
	size = (size + page - 1) &^ (page - 1)
	mem, fd, err := memfd.Create("viablk-arena", size, 0)
	if err != nil {
		return nil, err
	}
	return &arena{adapter: a, mem: mem, fd: fd, id: arenaIDs.Add(1)}, nil
}

// Bytes returns the arena's memory.
func (a *arena) Bytes() []byte { return a.mem }

// Discard punches a hole: the pages go back to the system, for every process
// that maps the arena.
func (a *arena) Discard(off, n int) error {
	err := unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n))
	if err != nil {
		return fmt.Errorf("discard arena pages: %w", err)
	}
	return nil
}

// Close unmaps the arena, here and at the peers it was passed to.
//
// The links of an adapter have exposures of that adapter.
// +checklocksignore
func (a *arena) Close() error {
	a.adapter.mu.Lock()
	for l := range a.adapter.links {
		l.exposure.revoke(a)
	}
	a.adapter.mu.Unlock()
	err := unix.Munmap(a.mem)
	a.mem = nil
	if e := unix.Close(a.fd); err == nil {
		err = e
	}
	return err
}
