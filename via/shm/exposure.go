package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/viablk/viablk/via"
)

// exposure is the memory that the peer of a link may access: the table in the
// local segment, and the arenas that the peer has.
type exposure struct {
	agent               *controlAgent // posts messages
	reached             atomic.Bool   // the peer has had an arena
	local, peer         *segment
	tag                 uint32 // of the regions
	rdmaWrite, rdmaRead bool   // what the VI allows the peer

	// +checklocks:agent.adapter.mu
	exposed map[*via.Memory]struct{} // regions in the table
	// +checklocks:agent.adapter.mu
	passed map[*arena]struct{} // arenas that the peer has, or gets when the link is live
	// +checklocks:agent.adapter.mu
	started bool // the peer expects arenas
	// +checklocks:agent.adapter.mu
	closing bool // no region is exposed any more
}

// expose writes a region's entry into the table, with the access that both the
// region and the VI allow. A live link passes the arena first.
//
// +checklocks:e.agent.adapter.mu
func (e *exposure) expose(m *via.Memory, attrs via.MemAttributes) error {
	word := uint64(m.Handle())<<32 | entryLive
	if attrs.EnableRdmaWrite && e.rdmaWrite {
		word |= entryWrite
	}
	if attrs.EnableRdmaRead && e.rdmaRead {
		word |= entryRead
	}
	mem, ok := m.Arena().Memory().(*arena)
	if word&(entryWrite|entryRead) == 0 || e.closing || e.tag != attrs.Ptag.ID() || !ok {
		return nil
	}
	if _, ok := e.passed[mem]; !ok {
		if len(e.passed) >= maxArenas {
			return fmt.Errorf("expose a region: its peer has %d arenas: %w", maxArenas, via.ErrResource)
		}
		e.passed[mem] = struct{}{}
		if e.started {
			e.pass(mem)
		}
	}
	e.exposed[m] = struct{}{}
	at := entryOffset(m.Handle())
	storeWord(e.local.mem, at+offEntryAddr, m.Addr())
	storeWord(e.local.mem, at+offEntryLength, uint64(len(m.Bytes())))
	storeWord(e.local.mem, at+offEntryArena, mem.id)
	storeWord(e.local.mem, at+offEntryAt, m.Addr()-addressOf(mem.mem))
	storeWord(e.local.mem, at, word)
	return nil
}

// withdraw clears a region's entry. It reports whether the peer may be inside
// the region.
//
// +checklocks:e.agent.adapter.mu
func (e *exposure) withdraw(m *via.Memory) bool {
	_, ok := e.exposed[m]
	if ok {
		delete(e.exposed, m)
		storeWord(e.local.mem, entryOffset(m.Handle()), 0)
	}
	return ok || e.closing
}

// end clears all entries, for good.
//
// +checklocks:e.agent.adapter.mu
func (e *exposure) end() {
	e.closing = true
	for m := range e.exposed {
		storeWord(e.local.mem, entryOffset(m.Handle()), 0)
	}
	clear(e.exposed)
}

// hazard returns the hazard word of the peer: the region that it is copying to
// or from, or 0. A peer that is gone copies nothing, nor does one that never
// got an arena, whatever its hazard word says.
func (e *exposure) hazard() uint64 {
	if !e.reached.Load() || e.agent.signals.gone.Load() {
		return 0
	}
	return loadWord(e.peer.mem, offHazard)
}

// start passes the arenas of the regions in the table. From now on expose
// passes arenas.
//
// +checklocks:e.agent.adapter.mu
func (e *exposure) start() {
	e.started = true
	for mem := range e.passed {
		e.pass(mem)
	}
}

// pass passes an arena to the peer.
//
// +checklocks:e.agent.adapter.mu
func (e *exposure) pass(a *arena) {
	e.reached.Store(true)
	e.agent.post(control{kind: controlArena, value: a.id, size: uint64(len(a.mem)), fds: []int{a.fd}})
}

// revoke tells the peer that an arena is gone.
//
// +checklocks:e.agent.adapter.mu
func (e *exposure) revoke(a *arena) {
	if _, ok := e.passed[a]; !ok {
		return
	}
	delete(e.passed, a)
	if e.started {
		e.agent.post(control{kind: controlDrop, value: a.id})
	}
}
