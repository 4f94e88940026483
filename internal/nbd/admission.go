package nbd

import (
	"container/heap"
	"container/list"
	"errors"
)

// admission decides which clients a server has. A client that was accepted is in
// its handshake until it has chosen an export, and a connection of the server from
// then on.
//
// To begin a handshake costs a client nothing, so the newest always gets in: when
// there are too many, the origin that has most of them loses one: the oldest that has
// not said a word yet, or else the oldest. Whoever floods the server therefore pushes
// out its own handshakes, and a client of another origin, or one that speaks, gets
// through. Connections are clients that may have a
// disk mounted: none is closed for another, and when there are too many, of an origin
// or in all, the next client is refused.
//
// It is guarded by Server.mu.
type admission struct {
	limits     *Limits
	origins    map[string]*origin
	crowd      crowd // origins with handshakes
	handshakes int
	admitted   int // connections
}

// origin is who connections are counted for; see originOf.
type origin struct {
	name     string
	mute     list.List // handshakes without a word, of *conn, the oldest first
	speaking list.List // the others
	admitted int
	rank     int // in the crowd; valid while there are handshakes
}

// handshakes returns how many the origin has.
func (o *origin) handshakes() int { return o.mute.Len() + o.speaking.Len() }

// next returns the handshake that goes first. There is one.
func (o *origin) next() *conn {
	if e := o.mute.Front(); e != nil {
		return e.Value.(*conn)
	}
	return o.speaking.Front().Value.(*conn)
}

// list returns the list for c, whose handshake it is.
func (o *origin) list(c *conn) *list.List {
	if c.spoke {
		return &o.speaking
	}
	return &o.mute
}

// stage is where a connection is in its life.
type stage uint8

const (
	outside     stage = iota // not counted: not there yet, gone, or the caller's own
	handshaking              // in the handshake
	dropped                  // its handshake made room for another
	admitted                 // has an export
)

// Reasons to refuse a client, or to close its handshake.
var (
	errTooMany     = errors.New("too many connections")
	errTooManyHere = errors.New("too many connections from this address or user")
	errDropped     = errors.New("too many handshakes at a time: closed for a newer one")
)

// begin counts c in as a handshake. It returns the connection whose handshake has to
// end for it, if there are too many.
func (a *admission) begin(c *conn) (victim *conn) {
	o := a.origins[c.origin]
	if o == nil {
		o = &origin{name: c.origin}
		if a.origins == nil {
			a.origins = make(map[string]*origin)
		}
		a.origins[c.origin] = o
	}
	a.enter(o, c)
	if a.handshakes > a.limits.Handshakes {
		return a.drop()
	}
	return nil
}

// drop takes the oldest handshake from the origin that has most of them. It returns
// nil if there is none.
func (a *admission) drop() *conn {
	if len(a.crowd) == 0 {
		return nil
	}
	c := a.crowd[0].next()
	a.end(c)
	c.stage = dropped
	return c
}

// hear notes that c has said its first words.
func (a *admission) hear(c *conn) {
	if c.stage == handshaking {
		o := a.origins[c.origin]
		a.leave(o, c)
		c.spoke = true
		a.enter(o, c)
	}
}

// admit makes a connection of a handshake, or says why not.
func (a *admission) admit(c *conn) error {
	switch c.stage {
	case outside: // not accepted by the server: not limited
		return nil
	case dropped:
		return errDropped
	}
	o := a.origins[c.origin]
	switch limit := a.limits.ConnectionsPerAddress; {
	case a.admitted >= a.limits.Connections:
		return errTooMany
	case limit > 0 && o.admitted >= limit:
		return errTooManyHere
	}
	a.leave(o, c)
	c.stage = admitted
	a.admitted++
	o.admitted++
	return nil
}

// resign undoes admit: the client has no export after all, and may choose another.
func (a *admission) resign(c *conn) {
	if c.stage != admitted {
		return
	}
	o := a.origins[c.origin]
	a.admitted--
	o.admitted--
	a.enter(o, c)
}

// end counts c out.
func (a *admission) end(c *conn) {
	o := a.origins[c.origin]
	switch c.stage {
	case handshaking:
		a.leave(o, c)
	case admitted:
		a.admitted--
		o.admitted--
	default:
		return
	}
	c.stage = outside
	if o.handshakes() == 0 && o.admitted == 0 {
		delete(a.origins, c.origin)
	}
}

// enter puts c behind the handshakes of its origin.
func (a *admission) enter(o *origin, c *conn) {
	c.stage = handshaking
	c.place = o.list(c).PushBack(c)
	a.handshakes++
	if o.handshakes() == 1 {
		heap.Push(&a.crowd, o)
	} else {
		heap.Fix(&a.crowd, o.rank)
	}
}

// leave takes c from the handshakes of its origin.
func (a *admission) leave(o *origin, c *conn) {
	o.list(c).Remove(c.place)
	c.place = nil
	a.handshakes--
	if o.handshakes() == 0 {
		heap.Remove(&a.crowd, o.rank)
	} else {
		heap.Fix(&a.crowd, o.rank)
	}
}

// crowd is a heap of origins with handshakes. The first has most of them; of several
// that do, it is the one whose next to go is the oldest.
type crowd []*origin

func (x crowd) Len() int { return len(x) }

func (x crowd) Less(i, j int) bool {
	if n, m := x[i].handshakes(), x[j].handshakes(); n != m {
		return n > m
	}
	return x[i].next().since.Before(x[j].next().since)
}

func (x crowd) Swap(i, j int) {
	x[i], x[j] = x[j], x[i]
	x[i].rank, x[j].rank = i, j
}

func (x *crowd) Push(o any) {
	o.(*origin).rank = len(*x)
	*x = append(*x, o.(*origin))
}

func (x *crowd) Pop() any {
	last := len(*x) - 1
	o := (*x)[last]
	(*x)[last] = nil
	*x = (*x)[:last]
	return o
}
