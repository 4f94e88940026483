package hook_test

import (
	"bytes"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/viatest/loopback"
	"pgregory.net/rapid"
)

// Pieces of each station's data: what its operations send or fetch, what the
// peer's write or fetch, and its receives.
const (
	mostOps      = 60 // of one end; all fit into its queue
	remotePieces = 64
	recvPieces   = 128
)

// Random traffic in both directions under random faults keeps what its level
// promises.
func TestLevelsKeepTheirPromise(t *testing.T) {
	for _, level := range allLevels {
		t.Run(level.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { runExchange(t, level) })
		})
	}
}

// exchange is random traffic and what its model knows.
type exchange struct {
	t         *rapid.T
	level     via.ReliabilityLevel
	harmless  bool // no fault and no receive can break the connection
	reordered bool // faults may change the order
	ends      [2]*party
}

// party is one end.
type party struct {
	*station
	c          *exchange
	peer       *party
	seed       int // of its bytes
	ops        []*operation
	recvs      []*via.Descriptor
	inspected  int     // completions looked at
	heads      [2]int  // completions of the send and of the receive queue
	over       [2]bool // nothing good follows in that queue
	lastNumber int     // of the message that arrived last
}

// operation is a Send, RDMA Write or RDMA Read; its index is its number.
type operation struct {
	op      via.Opcode
	takes   bool // a receive: a Send, or a write with immediate data
	bytes   []byte
	desc    *via.Descriptor
	arrived bool // a good receive said so, or for a read its own completion
}

func runExchange(t *rapid.T, level via.ReliabilityLevel) {
	c := &exchange{t: t, level: level}
	plan := c.plan()
	p := hook.Fault(loopback.New(), plan)
	for i := range c.ends {
		c.ends[i] = &party{station: newStationAt(t, p, level), c: c, seed: 100 * i, lastNumber: -1}
	}
	c.ends[0].peer, c.ends[1].peer = c.ends[1], c.ends[0]
	if rapid.Bool().Draw(t, "enough receives") {
		for _, e := range c.ends {
			for range mostOps {
				e.receive(piece)
			}
		}
	} else {
		c.harmless = c.harmless && level == via.UnreliableDelivery
	}
	if err := meet(t, c.ends[0].station, c.ends[1].station); err != nil {
		t.Fatal(err)
	}
	for range rapid.IntRange(1, 40).Draw(t, "actions") {
		e := c.ends[rapid.IntRange(0, 1).Draw(t, "end")]
		switch rapid.IntRange(0, 3).Draw(t, "action") {
		case 0, 1:
			for range rapid.IntRange(1, 6).Draw(t, "batch") {
				e.operate()
			}
			e.vi.Doorbell()
		case 2:
			e.receive(rapid.IntRange(0, piece).Draw(t, "room"))
		default:
			e.pollAndCheck()
		}
	}
	c.finish()
}

// plan draws what the fabric does.
func (c *exchange) plan() hook.Plan {
	plan := hook.Plan{
		Seed:            rapid.Uint64().Draw(c.t, "seed"),
		HoldCompletions: rapid.IntRange(0, 2).Draw(c.t, "hold"),
		RefusePosts:     rapid.SampledFrom([]float64{0, 0.3}).Draw(c.t, "refuse"),
		Chances:         make(map[via.Fault]float64),
	}
	c.harmless = true
	for _, fault := range allFaults {
		chance := rapid.SampledFrom([]float64{0, 0, 0.02, 0.15}).Draw(c.t, "chance")
		if chance == 0 {
			continue
		}
		plan.Chances[fault] = chance
		c.reordered = c.reordered || fault == via.FaultReorder
		switch fault {
		case via.FaultDuplicate:
		case via.FaultReorder:
			c.harmless = c.harmless && c.level != via.ReliableDelivery
		case via.FaultCut:
			c.harmless = false
		default:
			c.harmless = c.harmless && c.level == via.UnreliableDelivery
		}
	}
	return plan
}

// receive posts a receive.
func (e *party) receive(size int) {
	if i := len(e.recvs); i < mostOps {
		e.recvs = append(e.recvs, e.stage(e.c.t, via.OpRecv, recvPieces+i, size, nil, 0, 0))
	}
}

// operate stages a random operation with bytes of its own.
func (e *party) operate() {
	k := len(e.ops)
	if k == mostOps {
		return
	}
	t := e.c.t
	size := rapid.IntRange(0, piece).Draw(t, "size")
	kinds := []via.Opcode{via.OpSend, via.OpRdmaWrite, via.OpRdmaRead}
	if e.c.level == via.UnreliableDelivery {
		kinds = kinds[:2]
	}
	o := &operation{op: rapid.SampledFrom(kinds).Draw(t, "operation"), bytes: pattern(size, e.seed+k)}
	o.takes = o.op == via.OpSend || o.op == via.OpRdmaWrite && rapid.Bool().Draw(t, "immediate")
	imm, remote := uint32(0), e.peer.station
	if o.takes {
		imm = uint32(k + 1)
	}
	if o.op == via.OpSend {
		remote = nil
	}
	if o.op == via.OpRdmaRead {
		copy(e.peer.area(remotePieces+k, size), o.bytes)
	} else {
		copy(e.area(k, size), o.bytes)
	}
	o.desc = e.stage(t, o.op, k, size, remote, remotePieces+k, imm)
	e.ops = append(e.ops, o)
}

// pollAndCheck polls an end and checks what it says, before anything else
// happens.
func (e *party) pollAndCheck() {
	e.poll()
	for ; e.inspected < len(e.done); e.inspected++ {
		if c := e.done[e.inspected]; c.Recv {
			e.received(c)
		} else {
			e.completed(c)
		}
	}
	if e.c.harmless && e.vi.State() != via.StateConnected {
		e.c.t.Fatalf("the vi is %v, broken by %v: %v", e.vi.State(), e.codes, e.cause)
	}
}

// next counts a completion of a queue, which must be the next one's, and says
// whether it is good.
func (e *party) next(queue int, c via.Completion, want *via.Descriptor) bool {
	e.heads[queue]++
	switch bits := c.Status & via.StatusErrorMask; {
	case c.Descriptor != want:
		e.c.t.Fatalf("completion %d of queue %d is another's", e.heads[queue], queue)
	case bits == 0 && e.over[queue]:
		e.c.t.Fatalf("a good completion behind an error")
	case bits == 0:
		return true
	case bits == via.StatusFlushed || e.c.level != via.UnreliableDelivery:
		e.over[queue] = true
	case queue == 0:
		e.c.t.Fatalf("unreliable delivery tells the sender of %v", c.Status)
	}
	return false
}

// completed checks a completion of the send queue.
func (e *party) completed(c via.Completion) {
	k := e.heads[0]
	o := e.ops[k]
	if !e.next(0, c, o.desc) {
		return
	}
	local := e.area(k, len(o.bytes))
	if o.op == via.OpRdmaRead {
		if o.arrived = true; !bytes.Equal(local, o.bytes) {
			e.c.t.Fatalf("read %d is done with other bytes", k)
		}
		return
	}
	if e.c.level == via.ReliableReception && !bytes.Equal(e.destination(k), o.bytes) {
		e.c.t.Fatalf("operation %d is done, and its bytes are not there", k)
	}
	for i := range local { // they are the sender's again
		local[i] = 0xee
	}
}

// destination is where the bytes of a Send or RDMA Write belong; of a Send only
// if all before it that take a receive took one.
func (e *party) destination(k int) []byte {
	size := len(e.ops[k].bytes)
	if e.ops[k].op == via.OpRdmaWrite {
		return e.peer.area(remotePieces+k, size)
	}
	receive := recvPieces
	for _, o := range e.ops[:k] {
		if o.takes {
			receive++
		}
	}
	return e.peer.area(receive, size)
}

// received checks a completion of the receive queue.
func (e *party) received(c via.Completion) {
	i, t := e.heads[1], e.c.t
	if !e.next(1, c, e.recvs[i]) {
		return
	}
	k := int(c.Immediate) - 1
	if c.Status&via.StatusImmediate == 0 || k < 0 || k >= len(e.peer.ops) || !e.peer.ops[k].takes {
		t.Fatalf("receive %d: number %d was never sent", i, k)
	}
	o := e.peer.ops[k]
	if o.arrived {
		t.Fatalf("message %d is delivered twice", k)
	}
	o.arrived = true
	at := e.area(recvPieces+i, len(o.bytes))
	if o.op == via.OpRdmaWrite {
		at = e.area(remotePieces+k, len(o.bytes))
	}
	if int(c.Length) != len(o.bytes) || !bytes.Equal(at, o.bytes) {
		t.Fatalf("message %d arrived as good with other bytes", k)
	}
	if k < e.lastNumber && !(e.c.level == via.UnreliableDelivery && e.c.reordered) {
		t.Fatalf("message %d arrived after message %d", k, e.lastNumber)
	}
	e.lastNumber = k
}

// finish lets everything arrive and checks the whole.
func (c *exchange) finish() {
	for moving := true; moving; {
		moving = false
		for _, e := range c.ends {
			e.pollAndCheck()
		}
		for _, e := range c.ends { // the other may have sent more
			moving = !e.cq.Arm() || moving
		}
	}
	for _, e := range c.ends {
		e.checkEffects()
	}
	for _, e := range c.ends {
		if err := e.vi.Disconnect(); err != nil {
			c.t.Fatal(err)
		}
		e.poll()
		if n := len(e.ops) + len(e.recvs); len(e.done) != n {
			c.t.Fatalf("%d completions of %d descriptors", len(e.done), n)
		}
	}
}

// checkEffects checks that what an end did took effect in order, up to where
// the connection broke, and that nothing else did.
func (e *party) checkEffects() {
	reliable := e.c.level != via.UnreliableDelivery
	missing := -1
	for k, o := range e.ops {
		effect := o.arrived
		if o.op == via.OpRdmaWrite {
			if len(o.bytes) == 0 && !o.takes {
				continue // no effect is visible
			}
			at := e.destination(k)
			if !o.takes {
				effect = bytes.Equal(at, o.bytes)
			}
			if !effect && !bytes.Equal(at, make([]byte, len(at))) {
				e.c.t.Fatalf("write %d did not arrive, and left bytes", k)
			}
		}
		switch {
		case !effect && missing < 0:
			missing = k
		case effect && missing >= 0 && reliable:
			e.c.t.Fatalf("operation %d took effect, and number %d before it did not", k, missing)
		}
	}
	if missing >= 0 && reliable && e.vi.State() == via.StateConnected && e.peer.vi.State() == via.StateConnected {
		e.c.t.Fatalf("operation %d took no effect, and nothing is broken", missing)
	}
}
