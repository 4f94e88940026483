package target

import (
	"fmt"

	"github.com/viablk/viablk/internal/wire"
)

// exportNews tells an initiator, by events, what the list of exports has that
// it did not have before, and the other way round. It belongs to a control
// connection.
type exportNews struct {
	told           *exportList // nil: nothing was told yet
	added, removed []*exported // what is not told of the list after told
	next           *exportList // that list
	addedPending   bool        // an event has no ack yet
	removedPending bool
}

// update compares the present list with the one that was told, if the initiator
// knows all about that one.
func (n *exportNews) update(now *exportList, visible func(*exportList) []*exported) {
	if n.told == nil {
		n.told = now
	}
	if n.next != nil || n.told == now {
		return
	}
	n.next = now
	n.added, n.removed = missing(visible(now), n.told), missing(visible(n.told), now)
}

// missing returns those exports whose disks a list does not have under their
// names.
func missing(exports []*exported, from *exportList) (all []*exported) {
	for _, x := range exports {
		if other := from.byName[x.Name]; other == nil || other.Reservations != x.Reservations {
			all = append(all, x)
		}
	}
	return all
}

// finish forgets the list before when all is told.
func (n *exportNews) finish() {
	if n.next != nil && len(n.added)+len(n.removed) == 0 {
		n.told, n.next = n.next, nil
	}
}

// watchExports sends events for exports that came or went, one of each kind at
// a time: the next one when the initiator has acknowledged it. It is called
// when the list is replaced and with every keepalive of the control connection.
func (k *controller) watchExports() error {
	if k.login.role != wire.RoleControl || k.login.features&wire.FeatureEvents == 0 || k.leaving() {
		return nil
	}
	visible := func(l *exportList) []*exported { return l.visible(k.login.identity) }
	for {
		k.news.update(k.server.exports.current.Load(), visible)
		if err := k.tellNews(); err != nil {
			return err
		}
		k.news.finish()
		if k.news.next != nil || k.news.told == k.server.exports.current.Load() {
			return nil
		}
	}
}

// tellNews sends the events that may be sent now. A removed export goes first:
// another may have its name.
func (k *controller) tellNews() error {
	n := &k.news
	if len(n.removed) > 0 && !n.removedPending {
		if err := k.sendNews(wire.EventExportRemoved, n.removed[0]); err != nil {
			return err
		}
		n.removed, n.removedPending = n.removed[1:], true
	}
	if len(n.added) > 0 && len(n.removed) == 0 && !n.addedPending {
		if err := k.sendNews(wire.EventExportAdded, n.added[0]); err != nil {
			return err
		}
		n.added, n.addedPending = n.added[1:], true
	}
	return nil
}

func (k *controller) sendNews(kind wire.EventKind, x *exported) error {
	k.events++
	v := wire.Event{ID: k.events, PathEpoch: k.login.epoch, Kind: kind, UUID: x.identity.UUID(), Name: x.Name}
	if kind == wire.EventExportAdded {
		v.Size = uint64(x.size) // its disk may be closed by now
	} else {
		v.Export = k.login.session.handleOf(x)
	}
	if err := k.send(&v); err != nil {
		return fmt.Errorf("send event: %w", err)
	}
	k.carrier.Doorbell()
	return nil
}

// handleOf returns the handle of an open export, or 0 for one that is not open.
func (s *session) handleOf(x *exported) uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for handle, o := range s.opens {
		if !o.closed.Load() && o.export.Reservations == x.Reservations {
			return uint16(handle)
		}
	}
	return 0
}

// announceExports has the control connections tell what changed in the list.
func (s *Server) announceExports() {
	for _, x := range s.sessions.all() {
		x.controls((*signals).recheckSession)
	}
}
