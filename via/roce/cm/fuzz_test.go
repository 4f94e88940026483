package cm_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// FuzzReceive plays hostile peers against a Manager whose consumer makes any
// call at any time. Each step is 6 bytes of the input: the message or call, the
// connection, the source, the wrong fields, a value for them, the time that
// passes. After a step 10 the next 240 bytes are a raw message. Nothing panics,
// each connection has only the events that may follow each other, the state is
// bounded, and in the end empty.
func FuzzReceive(f *testing.F) {
	f.Fuzz(func(t *testing.T, in []byte) {
		x := newAnything(t)
		for n := 0; len(in) >= 6 && n < 400; in = in[6:] {
			n++
			x.now += time.Duration(in[5]) * time.Duration(in[5]) * time.Millisecond / 8
			x.m.Timeout(x.now)
			x.drain()
			if in[0]%24 == 10 {
				if len(in) < 6+240 {
					break
				}
				x.raw(in[1], in[6:6+240])
				in = in[240:]
			} else {
				x.step(in)
			}
			x.drain()
			x.check()
		}
		x.finish()
	})
}

// anything is a Manager with hostile peers and a consumer that makes any call.
type anything struct {
	*script
	conns map[cm.ID]*conn
	ids   []cm.ID          // of all connections so far
	tids  map[cm.ID]uint64 // of the handshakes
	ends  map[cm.ID]uint64 // of our DREQs
	qps   map[cm.ID]uint32 // our queue pairs
	w     *world           // that records failures
	next  uint32           // queue pair
	addrs []netip.AddrPort // of peers
}

func newAnything(t *testing.T) *anything {
	x := &anything{
		script: newScript(t), conns: make(map[cm.ID]*conn), next: 2, w: &world{},
		tids: make(map[cm.ID]uint64), ends: make(map[cm.ID]uint64), qps: make(map[cm.ID]uint32),
	}
	x.m = newBox(t, "10.0.0.1:4791", func(c *cm.Config) { c.Pending, c.PendingPerAddr = 6, 4 }).m
	x.m.Listen(service)
	for _, a := range []string{"10.0.0.2:51234", "10.0.0.2:4791", "10.0.0.3:4791", "10.0.0.4:1"} {
		x.addrs = append(x.addrs, netip.MustParseAddrPort(a))
	}
	return x
}

// step executes one step of the input.
func (x *anything) step(in []byte) {
	x.peer = x.addrs[in[2]&3]
	x.peerID, x.peerQP, x.guid = 0x100+uint32(in[1]>>4), 0x200+uint32(in[1]>>4), 0x300+uint64(in[2]&1)
	x.vendor = uint32(in[2]>>2&1) * cm.VendorID
	x.tid, x.qp, x.id = 0x400, 0x111, 0
	if len(x.ids) > 0 {
		x.id = x.ids[int(in[1])%len(x.ids)]
		x.tid, x.end, x.qp = x.tids[x.id], x.ends[x.id], x.qps[x.id]
	}
	wrong, value := in[3], in[4]
	if wrong&1 != 0 {
		x.tid += uint64(value)
		x.end += uint64(value)
	}
	if wrong&2 != 0 {
		x.id += cm.ID(value)
	}
	if wrong&4 != 0 {
		x.peerID = uint32(value)
	}
	if wrong&8 != 0 {
		x.peerQP, x.qp = uint32(value), uint32(value)
	}
	x.sendMessage(in[0]%24, wrong, value)
}

// sendMessage sends a message of a peer, or leaves the step to the consumer.
func (x *anything) sendMessage(what, wrong, value byte) {
	switch what {
	case 0, 11, 12:
		req := x.req()
		req.TID = 0x400 + uint64(wrong>>7)
		if wrong&16 != 0 {
			req.RemoteTimeout, req.MTU = wire.Timeout(value), wire.MTU(value>>5)
		}
		if wrong&32 != 0 {
			req.ServiceID ^= wire.ServiceID(value)
		}
		if wrong&64 != 0 {
			req.Primary.LocalGID[15] ^= value
		}
		x.deliver(x.peer, req)
	case 1, 13:
		rep := x.rep()
		if wrong&16 != 0 {
			copy(rep.Private[:], "vbk")
			rep.Private[3] = value
		}
		x.deliver(x.peer, rep)
	case 2, 14:
		x.deliver(x.peer, x.rtu())
	case 3:
		rej := x.rej(wire.Reason(value))
		rej.ARILength, rej.ARI[0] = wrong, value
		x.deliver(x.peer, rej)
	case 4:
		x.deliver(x.peer, x.gone())
	case 5:
		mra := x.mra(wire.Answered(wrong >> 6))
		mra.ServiceTimeout = wire.Timeout(value)
		x.deliver(x.peer, mra)
	case 6:
		x.deliver(x.peer, x.dreq())
	case 7:
		x.deliver(x.peer, x.drep())
	default:
		x.consume(what)
	}
}

// consume makes a call of the consumer, valid in the state or not.
func (x *anything) consume(what byte) {
	c := x.conns[x.id]
	if what == 8 || what == 9 {
		x.connect()
		return
	}
	if c == nil {
		return
	}
	switch what {
	case 15, 16, 17:
		a := *answer
		a.End.QP = x.next
		if x.m.Accept(c.id, &a, x.now) == nil {
			c.open, x.qps[c.id] = true, x.next
			x.next++
		}
	case 18, 19:
		if x.m.Establish(c.id, x.now) == nil {
			c.established, c.open = true, true
		}
	case 20:
		before := x.m.State(c.id)
		if err := x.m.Reject(c.id, &cm.Refusal{}, x.now); err != nil {
			x.t.Error(err)
		}
		if after := x.m.State(c.id); after != before {
			c.quit, c.over = true, true
		}
	case 21:
		if !c.over {
			c.over, c.quit = true, x.m.State(c.id) != "established" && x.m.State(c.id) != "dreq-sent"
		}
		x.m.Disconnect(c.id, x.now)
	case 22:
		if !c.terminal {
			c.over, c.quit = true, true
		}
		x.m.Abandon(c.id, x.now)
	case 23:
		x.m.Unreachable(x.peer, x.now)
	}
}

func (x *anything) connect() {
	r := x.request(&box{addr: x.addrs[1]})
	r.End.QP = x.next
	id, err := x.m.Connect(r, x.now)
	if err != nil {
		x.t.Fatal(err)
	}
	x.conns[id], x.qps[id] = &conn{id: id, active: true}, x.next
	x.ids = append(x.ids, id)
	x.next++
}

// raw sends a message with an arbitrary body.
func (x *anything) raw(attribute byte, body []byte) {
	b := envelop(&wire.RTU{})
	mad := b[len(b)-wire.MADSize:]
	mad[17] = 0x10 + attribute%8
	copy(mad[8:16], body[:8])
	copy(mad[24:], body[8:])
	x.receive(x.addrs[0], b)
}

// drain emits all datagrams and polls all events.
func (x *anything) drain() {
	var d cm.Datagram
	for x.m.Emit(&d) {
		switch msg := open(x.t, d.Bytes[:]).(type) {
		case *wire.REQ:
			x.tids[cm.ID(msg.LocalID)] = msg.TID
		case *wire.REP:
			x.tids[cm.ID(msg.LocalID)] = msg.TID
		case *wire.DREQ:
			x.ends[cm.ID(msg.LocalID)] = msg.TID
		}
	}
	var e cm.Event
	for x.m.Poll(&e) {
		c := x.conns[e.ID]
		if c == nil && e.Kind == cm.Requested {
			c = &conn{id: e.ID}
			x.conns[e.ID] = c
			x.ids = append(x.ids, e.ID)
			x.tids[e.ID] = 0x400
		}
		if c == nil {
			x.t.Fatalf("%v of no connection", e.Kind)
		}
		if c.validate(x.w, e.Kind); len(x.w.failures) != 0 {
			x.t.Fatal(x.w.failures[0])
		}
		switch {
		case e.Kind == cm.Released:
			delete(x.conns, e.ID)
		case e.Kind == cm.Established:
			c.established = true
		case e.Kind >= cm.Rejected:
			c.over = true
		}
	}
}

// check requires that the Manager holds only the consumer's connections and a
// bounded number of others.
func (x *anything) check() {
	connections, _, _, _, _, events, messages := x.m.Footprint()
	if c := x.m.Counters(); connections != len(x.conns) || c.Pending > 6 || events != 0 || messages != 0 {
		x.t.Fatalf("%d connections, the consumer knows %d; %d pending, %d events, %d messages",
			connections, len(x.conns), c.Pending, events, messages)
	}
}

// finish ends all connections and requires that no state remains.
func (x *anything) finish() {
	for id, c := range x.conns {
		if !c.terminal {
			c.over, c.quit = true, true
		}
		x.m.Abandon(id, x.now)
	}
	x.drain()
	x.wait(time.Minute)
	x.drain()
	connections, names, queuePairs, lists, alarms, _, _ := x.m.Footprint()
	if len(x.conns) != 0 || connections+names+queuePairs+lists+alarms != 0 {
		x.t.Fatalf("%d connections are not released; %d connections, %d names, %d queue pairs, %d in lists, %d alarms",
			len(x.conns), connections, names, queuePairs, lists, alarms)
	}
}
