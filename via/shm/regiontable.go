package shm

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/via"
)

// A region with remote access has an entry in the table of every link of its
// tag. The owner writes the table word last to grant access and clears it first
// to withdraw access. A peer loads the table word again once its hazard word
// names the region. So after the word is 0, a peer is either outside the region
// or its hazard word names it.

// Register exposes a region with remote access to the peers of its tag.
//
// The links of an adapter have exposures of that adapter.
// +checklocksignore
func (a *adapter) Register(m *via.Memory) error {
	a.mu.Lock()
	var err error
	// Update may race with a deregistration of the region.
	if attrs := m.Attributes(); m.Live() && (attrs.EnableRdmaRead || attrs.EnableRdmaWrite) {
		a.exposed[m] = struct{}{}
		for l := range a.links {
			err = errors.Join(err, l.exposure.expose(m, attrs))
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
	err := a.stillAccessedLocked(m)
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
		err = errors.Join(err, a.stillAccessedLocked(m))
	}
	a.mu.Unlock()
	for i, m := range list {
		err = errors.Join(err, a.awaitAccess(m, links[i]))
	}
	return err
}

// Update withdraws the region, waits for accesses in flight, and exposes it
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
// The links of an adapter have exposures of that adapter.
// +checklocksignore
func (a *adapter) withdrawLocked(m *via.Memory) []*link {
	var links []*link
	for l := range a.links {
		if l.exposure.withdraw(m) {
			links = append(links, l)
		}
	}
	return links
}

// awaitAccess waits until no peer is inside a copy to or from the region. A
// peer that does not leave in time loses its connection.
func (a *adapter) awaitAccess(m *via.Memory, links []*link) error {
	deadline := time.Now().Add(a.timeouts.access)
	for _, l := range links {
		for a.inside(l, m) {
			if time.Now().After(deadline) {
				a.sever(l, via.ErrStillAccessed)
				return via.ErrStillAccessed
			}
			time.Sleep(10 * time.Microsecond)
		}
	}
	return nil
}

// inside reports whether a link's peer is inside a copy to or from a region.
// The link may close meanwhile: then a lingering link may have replaced it.
func (a *adapter) inside(l *link, m *via.Memory) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.links[l]; !ok {
		return a.lingersLocked(m)
	}
	return l.exposure.hazard() == hazardOf(m.Handle())
}

// sever breaks a link, if it still exists.
func (a *adapter) sever(l *link, cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.links[l]; ok {
		l.agent.sever(cause)
	}
}

// hazardOf returns the hazard word of a region; it is never 0.
func hazardOf(handle uint32) uint64 { return uint64(handle) | 1<<63 }

// add adds a link and fills its table, before the peer may take the connection
// for established. While too many links linger it refuses: to forget one would
// give memory away that its peer may be inside.
//
// The links of an adapter have exposures of that adapter.
// +checklocksignore
func (a *adapter) add(l *link) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sweepLocked(); len(a.lingering) >= maxLingering {
		return fmt.Errorf("connect: %d peers that are gone may still access memory: %w", len(a.lingering), via.ErrResource)
	}
	a.links[l] = struct{}{}
	var err error
	for m := range a.exposed {
		if m.Live() {
			err = errors.Join(err, l.exposure.expose(m, m.Attributes()))
		}
	}
	if err != nil {
		delete(a.links, l)
	}
	return err
}

// goLive passes the arenas of the regions in the table. From now on expose
// passes arenas.
//
// The links of an adapter have exposures of that adapter.
// +checklocksignore
func (a *adapter) goLive(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l.exposure.start()
}

// remove removes a link that never went live.
func (a *adapter) remove(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.links, l)
}

// revoke withdraws all regions from a link, waits until its peer has left every
// copy, and removes the link. Until then Deregister waits for the link, too. It
// returns false if the peer is still inside a region: then a lingeringLink
// replaces the link.
//
// l.adapter is a.
// +checklocksignore
func (a *adapter) revoke(l *link) bool {
	a.mu.Lock()
	l.exposure.end()
	a.mu.Unlock()
	deadline := time.Now()
	if !l.signals.severed.Load() || !errors.Is(l.agent.cause(), via.ErrStillAccessed) {
		deadline = deadline.Add(a.timeouts.access) // else awaitAccess used it up
	}
	out := true
	for l.exposure.hazard() != 0 {
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
		a.lingering = append(a.lingering, &lingeringLink{peer: l.peer, conn: l.agent.conn})
	}
	return out
}
