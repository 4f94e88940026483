package cm

import (
	"cmp"
	"net/netip"
	"slices"
)

// table holds the connections that are not released.
type table struct {
	byID  map[ID]*connection
	byREQ map[remoteID]*connection // passive ends, to detect repeated REQs
	byQP  map[remoteQP]*connection // peers with known queue pairs, to detect stale ones
	byTag map[uint64]*connection   // the same by the tag of packets to them

	pending []*connection // requests of peers that are not established, oldest first
	ended   []*connection // in time-wait, oldest first
	refused []*connection // in time-wait without a REP: unknown peers can cause many
}

// remoteID identifies a connection by the ID of its active end.
type remoteID struct {
	addr netip.Addr
	guid uint64
	id   uint32
}

// remoteQP identifies a queue pair of a peer.
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
		byTag: make(map[uint64]*connection),
	}
}

func (c *connection) remoteName() remoteID {
	return remoteID{plain(c.peer.Addr()), c.guid, c.remoteID}
}

func (c *connection) remoteQP() remoteQP {
	return remoteQP{plain(c.peer.Addr()), c.guid, c.peerQP}
}

// add adds a connection: of an active end by its ID, of a passive end by all
// data of the REQ.
func (t *table) add(c *connection) {
	t.byID[c.id] = c
	if c.active {
		return
	}
	t.byREQ[c.remoteName()] = c
	t.addPeer(c)
	t.pending = append(t.pending, c)
}

// addPeer adds the peer's queue pair, which is known by now.
func (t *table) addPeer(c *connection) {
	t.byQP[c.remoteQP()] = c
	if c.peerTag != 0 {
		t.byTag[c.peerTag] = c
	}
}

// maxEnded bounds the connections in time-wait that this end requested or
// accepted.
const maxEnded = 4096

// addEnded moves an ended connection to those in time-wait. It returns a
// connection to release if there is no room, or nil. A connection that never
// had a REP frees the peer's queue pair at once; room bounds these connections.
func (t *table) addEnded(c *connection, room int) *connection {
	t.removePending(c)
	list := &t.ended
	if c.state == reqReceived {
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

// removePending removes a connection from the pending ones.
func (t *table) removePending(c *connection) { t.pending = without(t.pending, c) }

// freeQP removes the peer's queue pair, which the connection did not use.
func (t *table) freeQP(c *connection) {
	if t.byQP[c.remoteQP()] == c {
		delete(t.byQP, c.remoteQP())
	}
	if t.byTag[c.peerTag] == c {
		delete(t.byTag, c.peerTag)
	}
}

// remove removes a connection.
func (t *table) remove(c *connection) {
	t.removePending(c)
	t.ended, t.refused = without(t.ended, c), without(t.refused, c)
	t.freeQP(c)
	delete(t.byID, c.id)
	if !c.active {
		delete(t.byREQ, c.remoteName())
	}
}

// pendingOf counts the pending requests of an address.
func (t *table) pendingOf(addr netip.Addr) (n int) {
	for _, c := range t.pending {
		if plain(c.peer.Addr()) == addr {
			n++
		}
	}
	return n
}

// evictable returns the requests of which one must be evicted for a new one
// from an address, oldest first: none if there is room, those of the same
// address if it has too many, otherwise all.
func (t *table) evictable(addr netip.Addr, total, perAddr int) []*connection {
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

// unanswered returns the connections whose REQ has no answer.
func (t *table) unanswered() (all []*connection) {
	for _, c := range t.byID {
		if c.state == reqSent {
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
