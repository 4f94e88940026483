package shm

import (
	"sync"
	"testing"

	"github.com/viablk/viablk/via"
)

// TestRegionsWhileConnecting registers, changes and deregisters regions while
// connections come and go: each connection sees the live ones of its tag.
func TestRegionsWhileConnecting(t *testing.T) {
	watchLeaks(t)
	near, far := newStation(t, testTimeouts), newStation(t, testTimeouts)
	l := near.listen()
	kept := near.region()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				m, err := near.nic.RegisterMem(near.mem.Bytes()[:1<<20], near.open)
				if err != nil {
					t.Error(err)
					return
				}
				for _, a := range []via.MemAttributes{{Ptag: near.tag}, near.open} {
					if err := m.SetAttributes(a); err != nil {
						t.Error(err)
					}
				}
				if err := m.Deregister(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 40 {
		a, b := near.newVI(), far.newVI()
		join(t, b, l, a)
		d := far.remote(0, via.OpRdmaWrite, 1<<20, 4096, kept.Addr(), kept.Handle())
		check(t, b.PostSend(d))
		if c := far.await(d, near); c.Status.Failed() {
			t.Fatalf("write to a region that stays: %v", c.Status)
		}
		far.disconnect(b)
		near.disconnect(a)
	}
	a, b := near.newVI(), far.newVI()
	join(t, b, l, a)
	close(stop)
	wg.Wait()
	live := 0
	for entry := range uint32(maxRegions) {
		if loadWord(near.onlyLink().local.mem, entryOffset(entry)) != 0 {
			live++
		}
	}
	if live != 2 { // the station's and the one that stays
		t.Errorf("%d regions in the table", live)
	}
}

// TestCloseWhileArenasArrive closes connections while the agent maps the arenas
// of the peer.
func TestCloseWhileArenasArrive(t *testing.T) {
	b := attack(t)
	for round := range 30 {
		for range 5 + round {
			b.peer.arena(1 << 16)
		}
		b.disconnect(b.vi)
		b.peer.closed()
		b.peer.close()
		b.vi = b.newVI()
		b.peer = attach(t, b.station, b.listener, b.vi)
	}
	b.keeps()
}

// TestBothEndsOnOneQueue connects two VIs of one NIC whose four work queues
// share a completion queue.
func TestBothEndsOnOneQueue(t *testing.T) {
	watchLeaks(t)
	s := newStation(t, testTimeouts)
	a, b := s.newVI(), s.newVI()
	join(t, a, s.listen(), b)
	for i := range 20 {
		s.mem.Bytes()[2<<20] = byte(i)
		r := s.descriptor(0, via.OpRecv, 1<<20, 100000)
		check(t, b.PostRecv(r))
		for s.poll() > 0 {
		}
		armed := s.cq.Arm()
		d := s.descriptor(1, via.OpSend, 2<<20, 100000)
		check(t, a.PostSend(d))
		if armed {
			wakes(t, s.cq, "the own message")
		}
		s.await(d)
		if c := s.await(r); c.Status.Failed() || c.VI != b || s.mem.Bytes()[1<<20] != byte(i) {
			t.Fatalf("received %+v", c)
		}
		w := s.remote(2, via.OpRdmaWrite, 2<<20, 64, s.mem.Addr()+3<<20, s.mem.Handle())
		check(t, b.PostSend(w))
		if c := s.await(w); c.Status.Failed() || s.mem.Bytes()[3<<20] != byte(i) {
			t.Fatalf("rdma completed %v", c.Status)
		}
	}
	check(t, a.Disconnect())
	until(t, "the other end to break", func() bool { return b.State() == via.StateError }, s)
}
