package shm

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/viablk/viablk/via"
)

// faultyOps are the operations that a fault strikes, on n bytes.
var faultyOps = map[string]func(c *couple, n int) *via.Descriptor{
	"send":  func(c *couple, n int) *via.Descriptor { return c.send(0, n) },
	"write": func(c *couple, n int) *via.Descriptor { return c.rdma(0, via.OpRdmaWrite, n, c.b.mem, false) },
	"write with immediate": func(c *couple, n int) *via.Descriptor {
		return c.rdma(0, via.OpRdmaWrite, n, c.b.mem, true)
	},
	"read": func(c *couple, n int) *via.Descriptor { return c.rdma(0, via.OpRdmaRead, n, c.b.mem, false) },
}

// consumed marks an effect in which a receive is posted and done without an
// error.
const consumed = via.StatusDone

// faultEffects returns the effects of a fault on an operation of n bytes.
func faultEffects(f via.Fault, op string, n int) effects {
	both := effect{near: codes(lost), far: codes(lost), broken: true}
	with := func(e effect, send, recv via.Status) effect {
		e.send, e.recv = send, recv
		return e
	}
	heard := func(e effect, code via.AsyncCode) effect {
		e.far = codes(code)
		return e
	}
	receives := op == "send" || op == "write with immediate"
	failedRead := effect{send: transport, near: codes(via.AsyncRdmaTransport), far: codes(lost), broken: true}
	missing := effect{dropped: [2]uint64{0, 1}}
	switch {
	case f == via.FaultCut && receives:
		e := with(both, flushed, flushed)
		return effects{ud: e, rd: e, rr: e}
	case f == via.FaultCut:
		e := with(both, flushed, 0)
		return effects{ud: e, rd: e, rr: e}
	case f == via.FaultDuplicate && receives:
		e := with(missing, 0, consumed)
		return effects{ud: e, rd: e, rr: e}
	case f == via.FaultDuplicate:
		return effects{ud: missing, rd: missing, rr: missing}
	case f == via.FaultReorder && receives: // nothing follows: it is sent with the doorbell
		e := effect{recv: consumed}
		return effects{ud: e, rd: e, rr: e}
	case f == via.FaultReorder: // operations of one end are carried out in order
		return effects{ud: {}, rd: {}, rr: {}}
	case op == "read":
		return effects{rd: failedRead, rr: failedRead}
	case f == via.FaultDrop:
		return effects{ud: missing, rd: both, rr: with(both, transport, 0)}
	case f == via.FaultCorrupt && op == "send":
		e := missing
		if n > maxFragment { // strikes the last fragment
			e = effect{recv: transport}
		}
		return effects{ud: e, rd: with(both, 0, transport), rr: with(both, transport, transport)}
	case op == "send":
		return effects{ud: {recv: partial}, rd: with(both, 0, partial), rr: with(both, transport, partial)}
	}
	code, status := via.AsyncRdmaWriteAbort, partial
	if f == via.FaultCorrupt {
		code, status = via.AsyncRdmaWriteData, transport
	}
	if receives {
		e := with(both, transport, status)
		return effects{ud: {recv: status}, rd: e, rr: e}
	}
	e := heard(with(both, transport, 0), code)
	return effects{ud: {far: codes(code)}, rd: e, rr: e}
}

var faultNames = map[via.Fault]string{
	via.FaultDrop: "drop", via.FaultDuplicate: "duplicate", via.FaultReorder: "reorder",
	via.FaultCorrupt: "corrupt", via.FaultTruncate: "truncate", via.FaultCut: "cut",
}

// TestFaults strikes each operation with each fault at each level.
func TestFaults(t *testing.T) {
	for f, name := range faultNames {
		for op, post := range faultyOps {
			for _, n := range []int{0, 1, 1000, 200000, 2 * ringSize} {
				for level, want := range faultEffects(f, op, n) {
					if level == ud && op == "read" {
						continue // there is none
					}
					t.Run(fmt.Sprintf("%s/%s/%d/%v", name, op, n, level), func(t *testing.T) {
						c := newCouple(t, level, f)
						fill(c.a.mem.Bytes()[coupleFrom:coupleFrom+n], byte(n))
						receives := want.recv != 0
						want.recv &= via.StatusErrorMask
						want.check(t, c, func(t *testing.T, c *couple) (send, recv *via.Descriptor) {
							if receives {
								recv = c.recv(0, n)
							}
							return post(c, n), recv
						})
						if delivered := f == via.FaultDuplicate || f == via.FaultReorder; delivered && op != "read" &&
							!bytes.Equal(c.a.mem.Bytes()[coupleFrom:coupleFrom+n], c.b.mem.Bytes()[coupleTo:coupleTo+n]) {
							t.Error("other bytes arrived")
						}
					})
				}
			}
		}
	}
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v + byte(i*5)
	}
}

// TestReorderedBatch reorders the first of three messages of a doorbell.
func TestReorderedBatch(t *testing.T) {
	for _, n := range []int{0, 100, 70000} {
		for _, level := range allLevels {
			t.Run(fmt.Sprintf("%d/%v", n, level), func(t *testing.T) {
				c := newCouple(t, level, via.FaultReorder)
				var sends, recvs [3]*via.Descriptor
				for i := range sends {
					recvs[i] = c.recv(i, n)
					sends[i] = c.a.descriptor(i, via.OpSend, coupleFrom, n)
					sends[i].SetImmediate(uint32(i))
					check(t, c.va.StageSend(sends[i]))
				}
				c.va.Doorbell()
				if level != ud {
					c.drainBoth(t, true)
					for i, want := range [3]via.Status{transport, flushed, flushed} {
						if got := sends[i].Status() & via.StatusErrorMask; level == rr && got != want {
							t.Errorf("send %d says %v", i, got|via.StatusDone)
						}
						if got := recvs[i].Status() & via.StatusErrorMask; got != flushed {
							t.Errorf("receive %d says %v", i, got|via.StatusDone)
						}
					}
					return
				}
				until(t, "the late one", func() bool { return c.vb.Stats().Dropped == 1 }, c.a, c.b)
				if len(c.b.done) != 2 || c.b.done[0].Immediate != 1 || c.b.done[1].Immediate != 2 {
					t.Errorf("received are %+v", c.b.done)
				}
			})
		}
	}
}

// TestFaultyFabricBetweenGoroutines sends messages of random sizes over a
// fabric with random faults, each end on a goroutine of its own. Every
// good receive has the bytes that were sent, no message arrives twice, and the
// level's guarantees of order and completeness hold.
func TestFaultyFabricBetweenGoroutines(t *testing.T) {
	mems := [2]*via.Memory{registerHeap(t), registerHeap(t)}
	var round byte
	rapid.Check(t, func(t *rapid.T) {
		level := rapid.SampledFrom(allLevels).Draw(t, "level")
		sizes := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(0, heapBuffer), rapid.Just(maxFragment))
		n := rapid.IntRange(1, heapMessages).Draw(t, "messages")
		messages := make([]message, n)
		for i := range messages {
			immediate := uint32(i)
			messages[i] = message{sizes.Draw(t, "size"), &immediate}
		}
		faults := rapid.SliceOfN(rapid.OneOf(rapid.Just(via.FaultNone), rapid.Just(via.FaultDuplicate),
			rapid.Custom(func(t *rapid.T) via.Fault { return via.Fault(rapid.IntRange(0, 6).Draw(t, "kind")) })), n, n).Draw(t, "faults")
		s := script(faults)
		batch := rapid.IntRange(1, 4).Draw(t, "batch")
		round++
		a, b := newHeapPair(mems, level, &s)
		for i := range heapMessages {
			b.link.PostRecv(b.work(via.OpRecv, i, heapBuffer, nil))
		}
		sent := make(chan []via.Status)
		go func() {
			good, err := a.sendOver(messages, round, batch)
			if err != nil {
				t.Error(err)
			}
			b.link.signals.gone.Store(true)
			sent <- good
		}()
		received, err := b.untilBroken()
		a.link.signals.gone.Store(true)
		statuses := <-sent
		if err != nil {
			t.Fatal(err)
		}
		heapDelivery{level, messages, faults, round}.check(t, b, statuses, received)
	})
}

// sendOver posts the messages and returns their statuses, as far as they
// complete before the connection breaks.
func (e *heapEnd) sendOver(messages []message, round byte, batch int) ([]via.Status, error) {
	for i, m := range messages {
		w := e.work(via.OpSend, i, m.size, nil)
		w.HasImmediate, w.Immediate = true, *m.immediate
		copy(e.mem.Bytes()[i*heapBuffer:], m.bytes(i, round))
		if !e.link.PostSend(w) {
			return nil, fmt.Errorf("message %d is not taken", i)
		}
		if i%batch == batch-1 {
			e.link.Doorbell()
		}
	}
	e.link.Doorbell()
	var out []via.Status
	for deadline := time.Now().Add(heapTimeout); len(out) < len(messages); {
		for _, d := range e.done[:e.cq.Poll(e.done)] {
			if d.Event != nil {
				return out, nil
			}
			out = append(out, d.Work.Status)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d of %d messages are done", len(out), len(messages))
		}
	}
	e.link.Doorbell()
	return out, nil
}

// untilBroken returns the receives that complete until the connection breaks.
func (e *heapEnd) untilBroken() ([]*via.Work, error) {
	var out []*via.Work
	for deadline := time.Now().Add(heapTimeout); ; {
		for _, d := range e.done[:e.cq.Poll(e.done)] {
			if d.Event != nil {
				return out, nil
			}
			out = append(out, d.Work)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no end after %d receives", len(out))
		}
	}
}

// heapDelivery is the messages that a sender sent, with their faults.
type heapDelivery struct {
	level    via.ReliabilityLevel
	messages []message
	faults   []via.Fault
	round    byte
}

// check compares the receives with the sent messages. Receives are in the
// buffers of the receiver's memory, in order.
func (h heapDelivery) check(t *rapid.T, b *heapEnd, sends []via.Status, receives []*via.Work) {
	good, last := 0, -1
	for buffer, w := range receives {
		if w.Status.Failed() {
			if h.level != ud && buffer != len(receives)-1 {
				t.Fatalf("something arrives after a receive that says %v", w.Status|via.StatusDone)
			}
			continue
		}
		i := int(w.Immediate)
		if i <= last || h.level != ud && i != last+1 {
			t.Fatalf("message %d arrives after %d", i, last)
		}
		good, last = good+1, i
		m := h.messages[i]
		if int(w.Moved) != m.size || !bytes.Equal(b.mem.Bytes()[buffer*heapBuffer:buffer*heapBuffer+m.size], m.bytes(i, h.round)) {
			t.Fatalf("message %d of %d bytes arrives as %d others", i, m.size, w.Moved)
		}
	}
	harmless := true
	for _, f := range h.faults {
		harmless = harmless && (f == via.FaultNone || f == via.FaultDuplicate)
	}
	if harmless && h.level != ud && good != len(h.messages) {
		t.Fatalf("%d of %d messages arrive over a harmless fabric", good, len(h.messages))
	}
	acknowledged := 0
	for i, s := range sends {
		if s.Failed() {
			if h.level != rr || i != len(sends)-1 {
				t.Fatalf("send %d of %d says %v", i, len(sends), s|via.StatusDone)
			}
			continue
		}
		acknowledged++
	}
	if h.level == rr && acknowledged > good {
		t.Fatalf("%d sends are done, %d messages arrived", acknowledged, good)
	}
}
