package shm

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/via"
)

// A region with remote access is entered in the table of every link of its tag.
// The table word goes last when access is given and first when it is taken; a
// peer looks at it again once its hazard word names the region. So after the word
// is 0, a peer is either out of the region or says that it is inside.

// Register exposes a region with remote access to the peers of its tag.
func (a *adapter) Register(m *via.Memory) error {
	a.mu.Lock()
	var err error
	// A region whose attributes change may be deregistered meanwhile.
	if attrs := m.Attributes(); m.Live() && (attrs.EnableRdmaRead || attrs.EnableRdmaWrite) {
		a.exposed[m] = struct{}{}
		for l := range a.links {
			err = errors.Join(err, l.expose(m, attrs))
		}
	}
	a.mu.Unlock()
	if err != nil {
		return errors.Join(err, a.Deregister(m))
	}
	return nil
}

// Deregister withdraws a region from every peer.
func (a *adapter) Deregister(m *via.Memory) error {
	a.mu.Lock()
	delete(a.exposed, m)
	links := a.withdrawLocked(m)
	err := a.lingeringLocked(m)
	a.mu.Unlock()
	return errors.Join(err, a.awaitAccess(m, links))
}

// DeregisterAll withdraws all regions before it waits for the first.
func (a *adapter) DeregisterAll(list []*via.Memory) error {
	var err error
	links := make([][]*link, len(list))
	a.mu.Lock()
	for i, m := range list {
		delete(a.exposed, m)
		links[i] = a.withdrawLocked(m)
		err = errors.Join(err, a.lingeringLocked(m))
	}
	a.mu.Unlock()
	for i, m := range list {
		err = errors.Join(err, a.awaitAccess(m, links[i]))
	}
	return err
}

// Update withdraws the region, waits for accesses under way, and exposes it
// under its present attributes.
func (a *adapter) Update(m *via.Memory) error {
	if err := a.Deregister(m); err != nil {
		return err
	}
	return a.Register(m)
}

// withdrawLocked clears the region's entry at every link and returns the links
// whose peers may be inside the region.
//
// +checklocks:a.mu
func (a *adapter) withdrawLocked(m *via.Memory) []*link {
	var links []*link
	for l := range a.links {
		_, ok := l.exposed[m]
		if ok {
			delete(l.exposed, m)
			storeWord(l.own.mem, entryOffset(m.Handle()), 0)
		}
		if ok || l.closing {
			links = append(links, l)
		}
	}
	return links
}

// errStillAccessed means that the memory must not be used again.
var errStillAccessed = errors.New("a peer is still accessing the region")

// awaitAccess waits until no peer is inside a copy to or from the region. A peer
// that does not come out loses its connection.
func (a *adapter) awaitAccess(m *via.Memory, links []*link) error {
	deadline := time.Now().Add(a.patience.access)
	for _, l := range links {
		for a.inside(l, m) {
			if time.Now().After(deadline) {
				a.cutOff(l, errStillAccessed)
				return errStillAccessed
			}
			time.Sleep(10 * time.Microsecond)
		}
	}
	return nil
}

// inside reports whether a link's peer is inside a copy to or from a region. The
// link may close meanwhile: then its ghost says.
func (a *adapter) inside(l *link, m *via.Memory) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.links[l]; !ok {
		return a.lingeringLocked(m) != nil
	}
	return !l.gone.Load() && loadWord(l.peer.mem, offHazard) == hazardOf(m.Handle())
}

// cutOff makes the owner of a link give it up, if it still exists.
func (a *adapter) cutOff(l *link, cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.links[l]; ok {
		l.cutOff(cause)
	}
}

// hazardOf returns the hazard word of a region; it is never 0.
func hazardOf(handle uint32) uint64 { return uint64(handle) | 1<<63 }

// expose enters a region in the link's table, as far as the region's attributes
// and those of the link's VI allow. A link that is live passes the arena first.
//
// +checklocks:l.adapter.mu
func (l *link) expose(m *via.Memory, attrs via.MemAttributes) error {
	word := uint64(m.Handle())<<32 | entryLive
	if attrs.EnableRdmaWrite && l.cfg.RdmaWrite {
		word |= entryWrite
	}
	if attrs.EnableRdmaRead && l.cfg.RdmaRead {
		word |= entryRead
	}
	mem, ok := m.Arena().Memory().(*arena)
	if word&(entryWrite|entryRead) == 0 || l.closing || l.cfg.Tag != attrs.Ptag.ID() || !ok {
		return nil
	}
	if _, ok := l.passed[mem]; !ok {
		if len(l.passed) >= maxArenas {
			return fmt.Errorf("expose a region: its peer has %d arenas: %w", maxArenas, via.ErrResource)
		}
		l.passed[mem] = struct{}{}
		if l.started {
			l.passArena(mem)
		}
	}
	l.exposed[m] = struct{}{}
	at := entryOffset(m.Handle())
	storeWord(l.own.mem, at+offEntryAddr, m.Addr())
	storeWord(l.own.mem, at+offEntryLength, uint64(len(m.Bytes())))
	storeWord(l.own.mem, at+offEntryArena, mem.id)
	storeWord(l.own.mem, at+offEntryAt, m.Addr()-addressOf(mem.mem))
	storeWord(l.own.mem, at, word)
	return nil
}

// add makes a link known and fills its table, before the peer may believe that
// the connection stands.
func (a *adapter) add(l *link) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.links[l] = struct{}{}
	var err error
	for m := range a.exposed {
		if m.Live() {
			err = errors.Join(err, l.expose(m, m.Attributes()))
		}
	}
	if err != nil {
		delete(a.links, l)
	}
	return err
}

// goLive passes the arenas of the regions in the table; from now on expose does.
func (a *adapter) goLive(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.started = true
	for mem := range l.passed {
		l.passArena(mem)
	}
}

// remove forgets a link that never went live.
func (a *adapter) remove(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.links, l)
}

// revoke withdraws everything that is exposed to a link, waits until its peer is
// out of every copy, and forgets the link. Until then Deregister waits for the
// link, too. It returns false if the peer is still inside a region: then the link
// lives on as a ghost.
func (a *adapter) revoke(l *link) bool {
	a.mu.Lock()
	l.closing = true
	for m := range l.exposed {
		storeWord(l.own.mem, entryOffset(m.Handle()), 0)
	}
	clear(l.exposed)
	a.mu.Unlock()
	deadline := time.Now()
	if cause := l.cut.Load(); cause == nil || !errors.Is(*cause, errStillAccessed) {
		deadline = deadline.Add(a.patience.access) // else it is used up
	}
	out := true
	for loadWord(l.peer.mem, offHazard) != 0 && !l.gone.Load() {
		if time.Now().After(deadline) {
			out = false
			break
		}
		time.Sleep(10 * time.Microsecond)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.links, l)
	if !out {
		a.ghosts = append(a.ghosts, &ghost{peer: l.peer, conn: l.conn})
	}
	return out
}
