package cm_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
)

var (
	seedFlag  = flag.Uint64("cm.seed", 0, "replay this seed of the simulation alone")
	seedsFlag = flag.Uint64("cm.seeds", defaultSeeds, "seeds of the simulation for each fate")
)

// fates are the faults of the link, as probabilities from 0 to 1.
var fates = map[string]fate{
	"clean":     {},
	"loss 5%":   {drop: 0.05},
	"loss 30%":  {drop: 0.3},
	"duplicate": {duplicate: 0.3},
	"reorder":   {delay: 0.5},
	"outage":    {outage: true},
	"restart":   {restart: true, drop: 0.02},
	"all":       {drop: 0.1, duplicate: 0.1, delay: 0.1, restart: true, outage: true},
}

// Two hosts connect to each other and disconnect, at random. However lossy the
// link, each connection has only events that may follow each other; both ends
// agree on the parameters; and in the end both have the same connections, or
// none.
func TestSimulation(t *testing.T) {
	for name, f := range fates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, last := uint64(1), *seedsFlag
			if *seedFlag != 0 {
				first, last = *seedFlag, *seedFlag
			}
			var all [cm.Released + 1]int
			for seed := first; seed <= last; seed++ {
				w := simulate(seed, f)
				if err := errors.Join(w.failures...); err != nil {
					t.Fatalf("-cm.seed %d: %v", seed, err)
				}
				for k, n := range w.seen {
					all[k] += n
				}
			}
			for k := cm.Requested; k <= cm.Released; k++ {
				t.Logf("%-13v %d", k, all[k])
			}
		})
	}
}

func simulate(seed uint64, f fate) *world {
	w := newWorld(seed, f)
	for range 1 + w.rng.IntN(30) {
		h := w.hosts[w.rng.IntN(2)]
		w.after(w.upTo(20*time.Second), func() { h.connect(w.rng.Uint64()) })
	}
	if f.restart {
		w.after(w.upTo(20*time.Second), w.hosts[w.rng.IntN(2)].restart)
	}
	w.run(50 * time.Second)
	w.fate, w.calm = fate{}, true
	w.run(80 * time.Second) // until keepalives have detected every broken connection
	w.validateAgreement()
	for _, h := range w.hosts {
		for _, c := range h.living() {
			h.disconnect(c)
		}
	}
	w.run(30 * time.Second)
	w.validateEnd(f)
	return w
}

// connect requests a connection from the other host. The private data has its
// number.
func (h *host) connect(number uint64) {
	r := h.request(number, h.create())
	id, err := h.m.Connect(r, h.w.now)
	if err != nil {
		h.w.fail("connect: %v", err)
		return
	}
	c := &conn{id: id, active: true, number: number, mine: r.End}
	h.conns[id] = c
	if h.w.rng.IntN(10) == 0 {
		h.w.after(h.w.upTo(3*time.Second), func() { h.abandon(c) })
	}
}

// poll polls all events.
func (h *host) poll() {
	var e cm.Event
	for h.m.Poll(&e) {
		c := h.conns[e.ID]
		if c == nil && e.Kind == cm.Requested {
			c = &conn{id: e.ID}
			h.conns[e.ID] = c
		}
		if c == nil {
			h.w.fail("%v of no connection", e.Kind)
			continue
		}
		c.validate(h.w, e.Kind)
		h.act(c, &e)
	}
}

// act responds to an event as a consumer.
func (h *host) act(c *conn, e *cm.Event) {
	w := h.w
	switch e.Kind {
	case cm.Requested:
		c.number, c.peer = binary.BigEndian.Uint64(e.Private), e.Peer
		if want := h.other.request(c.number, e.Peer.QP); e.Peer != want.End || e.MTU != want.MTU || e.From != h.other.addr || !e.SameKind {
			w.fail("requested %+v, want %+v", e, want)
		}
		w.after(w.thinks(), func() { h.decide(c) })
	case cm.Granted:
		c.peer = e.Peer
		if want := h.other.answer(c.number, e.Peer.QP); e.Peer != want.End || binary.BigEndian.Uint64(e.Private) != c.number {
			w.fail("granted %+v, want %+v", e, want)
		}
		w.after(w.thinks(), func() { h.complete(c) })
	case cm.Established:
		h.establish(c)
	case cm.Released:
		delete(h.conns, c.id)
		if c.mine.QP != 0 {
			h.free = append(h.free, c.mine.QP)
		}
	default:
		c.over = true
	}
}

// decide answers a request.
func (h *host) decide(c *conn) {
	if h.conns[c.id] != c || c.over {
		return
	}
	if h.w.rng.IntN(6) == 0 {
		c.over, c.quit = true, true
		if err := h.m.Reject(c.id, &cm.Refusal{}, h.w.now); err != nil {
			h.w.fail("reject: %v", err)
		}
		return
	}
	a := h.answer(c.number, h.create())
	if err := h.m.Accept(c.id, a, h.w.now); err != nil {
		h.w.fail("accept: %v", err)
	}
	c.mine, c.open = a.End, true
}

// complete establishes a granted connection.
func (h *host) complete(c *conn) {
	if h.conns[c.id] != c || c.over {
		return
	}
	if h.w.rng.IntN(10) == 0 {
		c.over, c.quit = true, true
		if err := h.m.Reject(c.id, &cm.Refusal{}, h.w.now); err != nil {
			h.w.fail("reject: %v", err)
		}
		return
	}
	c.open = true
	if err := h.m.Establish(c.id, h.w.now); err != nil {
		h.w.fail("establish: %v", err)
	}
	h.establish(c)
}

// establish starts the data phase of a connection, until an end disconnects.
func (h *host) establish(c *conn) {
	if c.established {
		return
	}
	c.established, c.heard = true, h.w.now
	h.keepalive(c)
	switch h.w.rng.IntN(5) {
	case 0, 1:
		h.w.after(h.w.upTo(5*time.Second), func() { h.disconnect(c) })
	case 2:
		h.w.after(h.w.upTo(5*time.Second), func() { h.abandon(c) })
	}
}

// keepalive sends data at intervals. A connection without acknowledgements is
// broken.
func (h *host) keepalive(c *conn) {
	w := h.w
	if h.conns[c.id] != c || c.over {
		return
	}
	if w.now-c.heard > 6*time.Second {
		h.disconnect(c)
		return
	}
	w.carry(func() {
		p := h.other.at(c.peer.QP)
		if p == nil || p.peer.QP != c.mine.QP {
			return
		}
		if err := h.other.m.Establish(p.id, w.now); err != nil {
			w.fail("data for a connection that does not wait for it: %v", err)
		}
		h.other.establish(p)
		w.carry(func() { c.heard = w.now })
	})
	w.after(500*time.Millisecond, func() { h.keepalive(c) })
}

// at returns the connection whose open queue pair has a number.
func (h *host) at(qp uint32) *conn {
	for _, c := range h.conns {
		if c.open && !c.over && c.mine.QP == qp {
			return c
		}
	}
	return nil
}

func (h *host) disconnect(c *conn) {
	if h.conns[c.id] == c && !c.over {
		c.left = true
		c.quit = !c.established
		c.over = true
		h.m.Disconnect(c.id, h.w.now)
	}
}

func (h *host) abandon(c *conn) {
	if h.conns[c.id] == c && !c.over {
		c.over, c.quit = true, true
		h.m.Abandon(c.id, h.w.now)
	}
}

// validate requires that an event may occur in the connection's state.
func (c *conn) validate(w *world, k cm.Kind) {
	bad := c.released
	switch k {
	case cm.Requested:
		bad = bad || c.active || c.seen != 0
	case cm.Granted:
		bad = bad || !c.active || c.seen != 0 || c.over
	case cm.Established:
		bad = bad || c.active || !c.open || c.established || c.over
	case cm.Rejected, cm.TimedOut, cm.Unreachable:
		bad = bad || c.established || c.over || c.quit
	case cm.Disconnected:
		bad = bad || c.quit || c.terminal
	case cm.Released:
		bad = bad || !c.quit && !c.terminal
		c.released = true
	}
	if bad {
		w.fail("%v of %+v", k, *c)
	}
	if k >= cm.Rejected && k <= cm.Disconnected {
		c.terminal = true
	}
	w.seen[k]++
	c.seen++
}

// validateAgreement requires that each established connection has one other
// end, with the same parameters.
func (w *world) validateAgreement() {
	for _, h := range w.hosts {
		for _, c := range h.living() {
			p := h.other.at(c.peer.QP)
			switch {
			case !c.established:
				w.fail("at the end nothing has come of %+v", *c)
			case p == nil || !p.established:
				w.fail("one end lives: %+v", *c)
			case p.number != c.number || p.active == c.active || p.peer != c.mine || c.peer != p.mine:
				w.fail("the ends differ: %+v and %+v", *c, *p)
			}
		}
	}
}

// validateEnd requires that both hosts released all state.
func (w *world) validateEnd(f fate) {
	for _, h := range w.hosts {
		if len(h.conns) != 0 {
			w.fail("%d connections are not released", len(h.conns))
		}
		connections, names, queuePairs, lists, alarms, events, messages := h.m.Footprint()
		if n := connections + names + queuePairs + lists + alarms + events + messages; n != 0 {
			w.fail("something is left: %d connections, %d names, %d queue pairs, %d in lists, %d alarms, %d events, %d messages",
				connections, names, queuePairs, lists, alarms, events, messages)
		}
		if _, ok := h.m.Deadline(); ok {
			w.fail("a time is still waited for")
		}
		if c := h.m.Counters(); c.Malformed != 0 || c.Dropped != 0 || c.Evicted != 0 {
			w.fail("%+v", c)
		}
	}
	if n := w.seen[cm.TimedOut]; n != 0 && f == (fate{}) {
		w.fail("%d connections timed out on a clean link", n)
	}
}

var errFate = errors.New("simulation")

func (w *world) fail(format string, args ...any) {
	if len(w.failures) < 5 {
		w.failures = append(w.failures, fmt.Errorf("%w: at %v: "+format, append([]any{errFate, w.now}, args...)...))
	}
}
