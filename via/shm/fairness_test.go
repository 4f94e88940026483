package shm

import (
	"fmt"
	"testing"

	"github.com/viablk/viablk/via"
)

// TestGreedyPeer: a peer whose ring is full of messages delays those of another
// peer by one quantum, for watched links and for links that ready logs name.
func TestGreedyPeer(t *testing.T) {
	const flood = 10 * recvQuantum
	for name, others := range map[string]int{"watched": 0, "ready logs": manyLinks} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, others)
			vi := func(s *station) *via.VI {
				v, err := s.nic.CreateVi(
					via.ViAttributes{Reliability: via.ReliableDelivery, Ptag: s.tag},
					via.ViConfig{SendCQ: s.cq, RecvCQ: s.cq, SendDepth: flood, RecvDepth: flood})
				check(t, err)
				s.vis = append(s.vis, v)
				return v
			}
			greedy, modest := [2]*via.VI{vi(c.near), vi(c.far)}, [2]*via.VI{vi(c.near), vi(c.far)}
			for _, v := range [][2]*via.VI{greedy, modest} {
				join(t, v[1], c.l, v[0])
			}
			if others > 0 {
				c.awaitLogs(t)
			}
			for range flood {
				check(t, greedy[0].PostRecv(c.near.descriptor(0, via.OpRecv, 1<<20, 64)))
				check(t, greedy[1].PostSend(c.far.descriptor(1, via.OpSend, 1<<20, 64)))
			}
			until(t, "a full ring", func() bool { return greedy[1].Stats().Sends == flood }, c.far)
			check(t, modest[0].PostRecv(c.near.descriptor(2, via.OpRecv, 1<<20, 64)))
			check(t, modest[1].PostSend(c.far.descriptor(3, via.OpSend, 1<<20, 64)))
			before, waits := 0, true
			for before+1 <= flood {
				c.near.poll()
				for _, e := range c.near.done {
					switch {
					case e.Status.Failed():
						t.Fatalf("completed with %v", e.Status)
					case e.VI == modest[0]:
						waits = false
					case waits:
						before++
					}
				}
				if c.near.done = c.near.done[:0]; !waits {
					break
				}
			}
			if before > 2*recvQuantum {
				t.Errorf("%d messages of another came first", before)
			}
			until(t, "the flood", func() bool { return greedy[0].Stats().Receives == flood }, c.near, c.far)
		})
	}
}

// TestGreedyQueue: long transfers of one VI delay those of another by one
// quantum.
func TestGreedyQueue(t *testing.T) {
	for name, op := range map[string]via.Opcode{"write": via.OpRdmaWrite, "read": via.OpRdmaRead} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, 2)
			transfer := func(i, size int) *via.Descriptor {
				return c.near.remote(i, op, 1<<20, size, c.far.mem.Addr()+1<<20, c.far.mem.Handle())
			}
			long := func(i int) *via.Descriptor { return transfer(i, 2*sendQuantum) }
			for i, vi := range c.a[:2] { // the peer's arena arrives at each
				check(t, vi.PostSend(transfer(i, 8)))
			}
			until(t, "short transfers", func() bool { return len(c.near.done) == 2 }, c.near)
			c.near.done = c.near.done[:0]
			for i := range stationDepth - 1 {
				check(t, c.a[0].PostSend(long(i)))
			}
			check(t, c.a[1].PostSend(long(stationDepth)))
			before := 0
			until(t, "the other transfer", func() bool {
				for _, e := range c.near.done {
					if e.VI == c.a[1] {
						return true
					}
					before++
				}
				c.near.done = c.near.done[:0]
				return false
			}, c.near)
			if before > 2 {
				t.Errorf("%d transfers of another came first", before)
			}
			c.near.done = c.near.done[:0]
		})
	}
}

// TestGreedyMessages: a long message stops after one quantum, though its peer
// reads as fast as the sender writes.
func TestGreedyMessages(t *testing.T) {
	mems := [2]*via.Memory{registerHeap(t), registerHeap(t)}
	a, b := newHeapPair(mems, via.ReliableDelivery, nil)
	budget := 2 * maxFragment
	w := a.work(via.OpSend, 0, 3*maxFragment, nil)
	b.link.PostRecv(b.work(via.OpRecv, 0, heapBuffer, nil))
	a.link.sender.sq.Push(w)
	if done, err := a.link.sender.sendMessage(w, &budget); done || err != nil || w.Moved != 2*maxFragment {
		t.Fatalf("%d of %d bytes moved with room for all, over the budget by %d", w.Moved, w.Length, -budget)
	}
	a.link.scheduleSend() // its next pass
	if n := a.cq.Poll(a.done); n != 1 || w.Moved != w.Length {
		t.Fatalf("%d completions, %d of %d bytes after two passes", n, w.Moved, w.Length)
	}
	check(t, b.poll(1, func(d via.Done) error {
		if d.Work.Status != 0 || d.Work.Moved != w.Length {
			return fmt.Errorf("%+v", d.Work)
		}
		return nil
	}))
}
