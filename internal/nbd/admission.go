package nbd

import (
	"container/heap"
	"container/list"
	"errors"
)

// admission decides which clients a server has. A client that was accepted is
// in its handshake until it has chosen an export, and a connection of the
// server from then on.
//
// To begin a handshake costs a client nothing, so the newest always gets in:
// when there are too many, the client that has most of them loses one: the
// oldest that has sent nothing yet, or else the oldest. A flood therefore
// evicts its own handshakes, and a client of another address, or one that
// sends data, gets through. Connections are clients that may have a disk
// mounted: none is closed for another, and when there are too many, of one
// client or in all, the next client is refused. Some are kept for clients that
// have one: a host that comes without end does not keep a client from another
// connection to the disk that it has mounted.
//
// It is guarded by Server.mu.
type admission struct {
	limits     *Limits
	clients    map[string]*client
	busiest    clientHeap // clients with handshakes
	handshakes int
	admitted   int // connections
}

// client is who connections are counted for; see clientIDOf.
type client struct {
	name      string
	silent    list.List // handshakes that have sent nothing, of *conn, the oldest first
	active    list.List // the others
	admitted  int
	heapIndex int // in clientHeap; valid while there are handshakes
}

// handshakes returns how many the origin has.
func (o *client) handshakes() int { return o.silent.Len() + o.active.Len() }

// oldest returns the handshake that goes first. There is one.
func (o *client) oldest() *conn {
	if e := o.silent.Front(); e != nil {
		return e.Value.(*conn)
	}
	return o.active.Front().Value.(*conn)
}

// list returns the list for c, whose handshake it is.
func (o *client) list(c *conn) *list.List {
	if c.dataReceived {
		return &o.active
	}
	return &o.silent
}

// stage is where a connection is in its life.
type stage uint8

const (
	untracked   stage = iota // not counted: not there yet, gone, or the caller's own
	handshaking              // in the handshake
	evicted                  // its handshake made room for another
	admitted                 // has an export
)

const (
	// connectionsOfHost is how many connections another host has by default: as
	// many as fio with 16 jobs or nbd-client -C 16. nbdcopy and QEMU take fewer.
	connectionsOfHost = 16

	keptShare = 4 // of the connections, for clients that have one
)

// Reasons to refuse a client, or to close its handshake.
var (
	errTooMany     = errors.New("too many connections")
	errTooManyHere = errors.New("too many connections from this address or user")
	errEvicted     = errors.New("too many handshakes at a time: closed for a newer one")
)

// begin counts c in as a handshake. It returns the connection whose handshake
// has to end for it, if there are too many.
func (a *admission) begin(c *conn) (victim *conn) {
	a.insert(a.clientOf(c.clientID), c)
	if a.handshakes > a.limits.Handshakes {
		return a.evict()
	}
	return nil
}

// clientOf returns the client of a name.
func (a *admission) clientOf(name string) *client {
	o := a.clients[name]
	if o == nil {
		o = &client{name: name}
		if a.clients == nil {
			a.clients = make(map[string]*client)
		}
		a.clients[name] = o
	}
	return o
}

// forget removes a client that has no connection.
func (a *admission) forget(o *client) {
	if o.handshakes() == 0 && o.admitted == 0 {
		delete(a.clients, o.name)
	}
}

// evict takes the oldest handshake from the client that has most of them. It
// returns nil if there is none.
func (a *admission) evict() *conn {
	if len(a.busiest) == 0 {
		return nil
	}
	c := a.busiest[0].oldest()
	a.end(c)
	c.stage = evicted
	return c
}

// markActive notes that c has sent its first bytes.
func (a *admission) markActive(c *conn) {
	if c.stage == handshaking {
		o := a.clients[c.clientID]
		a.remove(o, c)
		c.dataReceived = true
		a.insert(o, c)
	}
}

// admit makes a connection of a handshake, or says why not. The connection
// counts for the identity from now on, if that is not empty.
func (a *admission) admit(c *conn, identity string) error {
	switch c.stage {
	case untracked: // not accepted by the server: not limited
		return nil
	case evicted:
		return errEvicted
	}
	from := a.clients[c.clientID]
	o := from
	if identity != "" {
		o = a.clientOf(identity)
	}
	defer a.forget(o)
	limit := a.limits.ConnectionsPerAddress
	if limit == 0 && !c.local {
		limit = connectionsOfHost
	}
	switch most := a.limits.Connections; {
	case a.admitted >= most, o.admitted == 0 && a.admitted >= most-most/keptShare:
		return errTooMany
	case limit > 0 && o.admitted >= limit:
		return errTooManyHere
	}
	a.admitted++
	o.admitted++
	a.remove(from, c)
	a.forget(from)
	c.stage, c.clientID = admitted, o.name
	return nil
}

// revoke undoes admit: the client has no export after all, and may choose
// another.
func (a *admission) revoke(c *conn) {
	if c.stage != admitted {
		return
	}
	o := a.clients[c.clientID]
	a.admitted--
	o.admitted--
	a.insert(o, c)
}

// end counts c out.
func (a *admission) end(c *conn) {
	o := a.clients[c.clientID]
	switch c.stage {
	case handshaking:
		a.remove(o, c)
	case admitted:
		a.admitted--
		o.admitted--
	default:
		return
	}
	c.stage = untracked
	a.forget(o)
}

// insert puts c behind the handshakes of its client.
func (a *admission) insert(o *client, c *conn) {
	c.stage = handshaking
	c.element = o.list(c).PushBack(c)
	a.handshakes++
	if o.handshakes() == 1 {
		heap.Push(&a.busiest, o)
	} else {
		heap.Fix(&a.busiest, o.heapIndex)
	}
}

// remove takes c from the handshakes of its client.
func (a *admission) remove(o *client, c *conn) {
	o.list(c).Remove(c.element)
	c.element = nil
	a.handshakes--
	if o.handshakes() == 0 {
		heap.Remove(&a.busiest, o.heapIndex)
	} else {
		heap.Fix(&a.busiest, o.heapIndex)
	}
}

// clientHeap is a heap of clients with handshakes. The first has most of them;
// of several that do, it is the one whose next to go is the oldest.
type clientHeap []*client

func (x clientHeap) Len() int { return len(x) }

func (x clientHeap) Less(i, j int) bool {
	if n, m := x[i].handshakes(), x[j].handshakes(); n != m {
		return n > m
	}
	return x[i].oldest().since.Before(x[j].oldest().since)
}

func (x clientHeap) Swap(i, j int) {
	x[i], x[j] = x[j], x[i]
	x[i].heapIndex, x[j].heapIndex = i, j
}

func (x *clientHeap) Push(o any) {
	o.(*client).heapIndex = len(*x)
	*x = append(*x, o.(*client))
}

func (x *clientHeap) Pop() any {
	last := len(*x) - 1
	o := (*x)[last]
	(*x)[last] = nil
	*x = (*x)[:last]
	return o
}
