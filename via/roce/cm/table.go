package cm

import (
	"cmp"
	"net/netip"
	"slices"
)

// table holds the connections that are not released.
type table struct {
	byID  map[ID]*connection
	byREQ map[remoteID]*connection // passive ends, to know a REQ that comes again
	byQP  map[remoteQP]*connection // of peers whose queue pair is known, to know stale ones

	pending []*connection // requests of peers that are not established, oldest first
	ended   []*connection // in time-wait, oldest first
	refused []*connection // the same, of requests that had no REP: strangers can cause many
}

// remoteID names a connection as its active end does.
type remoteID struct {
	addr netip.Addr
	guid uint64
	id   uint32
}

// remoteQP names a queue pair of a peer.
type remoteQP struct {
	addr netip.Addr
	guid uint64
	qp   uint32
}

func newTable() table {
	return table{
		byID:  make(map[ID]*connection),
		byREQ: make(map[remoteID]*connection),
		byQP:  make(map[remoteQP]*connection),
	}
}

func (c *connection) remoteName() remoteID {
	return remoteID{plain(c.peer.Addr()), c.guid, c.remoteID}
}

func (c *connection) remoteQP() remoteQP {
	return remoteQP{plain(c.peer.Addr()), c.guid, c.peerQP}
}

// add enters a connection: of an active end by its ID, of a passive end by all
// that the REQ said.
func (t *table) add(c *connection) {
	t.byID[c.id] = c
	if c.active {
		return
	}
	t.byREQ[c.remoteName()] = c
	t.byQP[c.remoteQP()] = c
	t.pending = append(t.pending, c)
}

// maxEnded bounds the connections in time-wait that this end had a part in.
const maxEnded = 4096

// bury moves a connection that ends to those in time-wait. It returns one whose
// time has to be over for that, or nil. The peer's queue pair is free at once if
// the connection never had a REP; room is for as many of these.
func (t *table) bury(c *connection, room int) *connection {
	t.settle(c)
	list := &t.ended
	if c.state == requested {
		t.freeQP(c)
		list = &t.refused
	} else {
		room = maxEnded
	}
	*list = append(*list, c)
	if len(*list) > room {
		return (*list)[0]
	}
	return nil
}

// settle takes a connection off the pending ones.
func (t *table) settle(c *connection) { t.pending = without(t.pending, c) }

// freeQP says that the peer's queue pair was not used by the connection.
func (t *table) freeQP(c *connection) {
	if t.byQP[c.remoteQP()] == c {
		delete(t.byQP, c.remoteQP())
	}
}

// remove forgets a connection.
func (t *table) remove(c *connection) {
	t.settle(c)
	t.ended, t.refused = without(t.ended, c), without(t.refused, c)
	t.freeQP(c)
	delete(t.byID, c.id)
	if !c.active {
		delete(t.byREQ, c.remoteName())
	}
}

// crowded returns the requests among which a new one from an address needs room,
// oldest first: none if there is room, those from the same address if there are
// too many of them, else all.
func (t *table) crowded(addr netip.Addr, total, perAddr int) []*connection {
	var same []*connection
	for _, c := range t.pending {
		if plain(c.peer.Addr()) == addr {
			same = append(same, c)
		}
	}
	switch {
	case len(same) >= perAddr:
		return same
	case len(t.pending) >= total:
		return t.pending
	}
	return nil
}

// asking returns the connections whose REQ has no answer.
func (t *table) asking() (all []*connection) {
	for _, c := range t.byID {
		if c.state == asking {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *connection) int { return cmp.Compare(a.id, b.id) })
	return all
}

func without(list []*connection, c *connection) []*connection {
	if i := slices.Index(list, c); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
