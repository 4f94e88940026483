package shm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
)

const (
	maxArenas    = 256     // of one peer
	maxArenaSize = 1 << 42 // bytes of one peer's arenas together, and so of an arena

	// maxMapped bounds the bytes of all peers' arenas in this process: half of
	// its address space.
	maxMapped = 1 << 46
)

// mapped counts the bytes of peers' arenas that this process maps.
var mapped atomic.Int64

// peerArena is an arena of the peer, mapped here.
type peerArena struct {
	id      uint64
	mem     []byte
	dropped atomic.Bool // the peer closed it
	next    *peerArena
}

func (a *peerArena) unmap() {
	mapped.Add(-int64(len(a.mem)))
	_ = unix.Munmap(a.mem)
}

// peerArenas are the arenas of a peer. The agent goroutine adds and marks them;
// the data path finds them without a lock and, between copies, unmaps the
// marked ones.
type peerArenas struct {
	head  atomic.Pointer[peerArena] // mu guards changes of the list
	stale atomic.Bool               // some are marked

	mu sync.Mutex
	// +checklocks:mu
	count int // not marked
	// +checklocks:mu
	bytes int64 // of these
	// +checklocks:mu
	marked int
}

// find returns the arena with a number, or nil. Only the data path calls it.
func (p *peerArenas) find(id uint64) *peerArena { return findArena(p.head.Load(), id) }

func findArena(a *peerArena, id uint64) *peerArena {
	for ; a != nil; a = a.next {
		if a.id == id && !a.dropped.Load() {
			return a
		}
	}
	return nil
}

// add maps an arena that the peer passed. It owns the file descriptor.
func (p *peerArenas) add(m control) error {
	if err := p.admit(m); err != nil {
		closeAll(m.fds...)
		return err
	}
	mem, err := memfd.MapPeer(m.fds[0], int(m.size), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		mapped.Add(-int64(m.size))
		return fmt.Errorf("map the peer's arena: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	p.bytes += int64(m.size)
	p.head.Store(&peerArena{id: m.value, mem: mem, next: p.head.Load()})
	return nil
}

// admit checks an arena against the limits before anything is mapped.
func (p *peerArenas) admit(m control) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.size == 0 || m.size > maxArenaSize || p.count >= maxArenas || p.bytes > maxArenaSize-int64(m.size) {
		return fmt.Errorf("arena of %d bytes beside %d arenas of %d bytes", m.size, p.count, p.bytes)
	}
	if findArena(p.head.Load(), m.value) != nil {
		return fmt.Errorf("arena %d passed twice", m.value)
	}
	if mapped.Add(int64(m.size)) > maxMapped {
		mapped.Add(-int64(m.size))
		return errors.New("too much memory of peers is mapped")
	}
	return nil
}

// discard marks an arena that the peer closed.
func (p *peerArenas) discard(id uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := findArena(p.head.Load(), id)
	if a == nil || p.marked >= maxArenas {
		return fmt.Errorf("arena %d dropped beside %d others, or not passed", id, p.marked)
	}
	p.count--
	p.bytes -= int64(len(a.mem))
	p.marked++
	a.dropped.Store(true)
	p.stale.Store(true)
	return nil
}

// sweep unmaps the marked arenas. Only the data path calls it.
func (p *peerArenas) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stale.Store(false)
	var kept *peerArena
	for a := p.head.Load(); a != nil; {
		next := a.next
		if a.dropped.Load() {
			p.marked--
			a.unmap()
		} else {
			a.next, kept = kept, a
		}
		a = next
	}
	p.head.Store(kept)
}

// close unmaps all arenas. The agent goroutine has ended.
func (p *peerArenas) close() {
	for a := p.head.Load(); a != nil; a = a.next {
		a.unmap()
	}
	p.head.Store(nil)
}
