package via

import (
	"slices"
	"testing"
)

func TestDoorbellPerBatch(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.connect()
	for range 5 {
		b.must(b.vi.StageSend(b.desc(OpSend, 8)))
	}
	if b.link.bells != 0 || len(b.link.sends) != 5 {
		t.Fatalf("%d doorbells, %d sends after staging", b.link.bells, len(b.link.sends))
	}
	b.vi.Doorbell()
	if b.link.bells != 1 {
		t.Errorf("%d doorbells for a batch", b.link.bells)
	}
}

// Posts that waited for room reach the link when earlier work completes, with a
// doorbell of its own.
func TestWaitingForRoom(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.connect()
	b.link.room = 2
	var posted []*Descriptor
	for range 5 {
		posted = append(posted, b.send(OpSend, 8))
	}
	if len(b.link.sends) != 2 {
		t.Fatalf("%d sends at a link with room for 2", len(b.link.sends))
	}
	bells := b.link.bells
	b.poll()
	if b.link.bells != bells {
		t.Errorf("a doorbell for nothing")
	}
	b.link.room = 2
	b.report(done(b.link.sends[0], 0, 8))
	b.poll()
	if len(b.link.sends) != 4 || b.link.bells != bells+1 {
		t.Errorf("%d sends and %d doorbells after a completion made room for 2", len(b.link.sends), b.link.bells-bells)
	}
	b.link.room = 9
	b.report(Done{Work: b.link.sends[1]}, Done{Work: b.link.sends[2]}, Done{Work: b.link.sends[3]})
	b.poll()
	b.report(Done{Work: b.link.sends[4]})
	b.poll()
	for i, d := range posted {
		if d.Status() != StatusDone {
			t.Errorf("send %d is %v", i, d.Status())
		}
	}
	if send, _ := b.vi.QueuesEmpty(); !send {
		t.Error("the send queue is not empty")
	}
}

func TestFenceWaitsForReads(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.connect()
	b.send(OpRdmaRead, 8)
	b.send(OpRdmaRead, 8)
	b.send(OpSend, 8)
	fenced := b.desc(OpSend, 8)
	fenced.SetFence()
	b.must(b.vi.PostSend(fenced))
	b.send(OpSend, 8)
	for i, want := range []int{3, 3, 5} {
		if len(b.link.sends) != want {
			t.Fatalf("after %d reads %d works are at the link, want %d", i, len(b.link.sends), want)
		}
		b.report(Done{Work: b.link.sends[i]})
		b.poll()
	}
}

// A provider's late report does not complete the descriptor that has the place
// of a flushed one.
func TestReportsOfAnEndedLink(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.connect()
	b.send(OpSend, 8)
	stale := b.link.sends[0]
	b.must(b.vi.Disconnect())
	if got := b.poll(); len(got) != 1 || got[0].Status&StatusFlushed == 0 {
		t.Fatalf("completions %+v", got)
	}
	b.report(Done{Work: stale}, Done{Event: &Event{Owner: b.vi, Code: AsyncConnectionLost, Broken: true}})
	if got := b.poll(); len(got) != 0 || len(b.errs) != 0 || b.vi.State() != StateIdle {
		t.Errorf("after late reports: %d completions, %v, %v", len(got), b.codes(), b.vi.State())
	}
}

func TestBrokenReportFlushesInOrder(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.connect()
	var want []*Descriptor
	for range 3 {
		want = append(want, b.send(OpSend, 8))
	}
	r := b.recv(8)
	b.report(Done{Work: b.link.sends[0]}, done(b.link.sends[1], StatusTransportError, 0), Done{Event: &Event{Owner: b.vi, Code: AsyncConnectionLost, Broken: true}})
	got := b.poll()
	if len(got) != 4 || got[0].Descriptor != want[0] || got[1].Descriptor != want[1] || got[2].Descriptor != want[2] || got[3].Descriptor != r {
		t.Fatalf("completions %+v", got)
	}
	for i, s := range []Status{0, StatusTransportError, StatusFlushed, StatusFlushed} {
		if got[i].Status&StatusErrorMask != s {
			t.Errorf("completion %d is %v, want %v", i, got[i].Status, s|StatusDone)
		}
	}
	if b.link.closed != 1 || !slices.Equal(b.codes(), []AsyncCode{AsyncConnectionLost}) {
		t.Errorf("link closed %d times, callbacks %v", b.link.closed, b.codes())
	}
}

// Depths that are no power of two hold just what they say, round after round.
func TestDepthIsExact(t *testing.T) {
	for depth := 1; depth <= 9; depth++ {
		b := newBench(t, UnreliableDelivery)
		vi, err := b.nic.CreateVi(b.vi.attrs, ViConfig{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: depth, RecvDepth: depth})
		b.must(err)
		b.vi = vi
		b.connect()
		if b.link.cfg.SendDepth != depth || b.link.cfg.RecvDepth != depth {
			t.Errorf("the link hears of depths %d and %d, want %d", b.link.cfg.SendDepth, b.link.cfg.RecvDepth, depth)
		}
		for range 5 {
			b.used = 0
			for range depth {
				b.send(OpSend, 8)
			}
			b.wants(vi.PostSend(b.desc(OpSend, 8)), ErrResource, "one send too many")
			for _, w := range b.link.sends {
				b.report(Done{Work: w})
			}
			b.link.sends = nil
			if got := b.poll(); len(got) != depth {
				t.Fatalf("%d completions, want %d", len(got), depth)
			}
		}
	}
}

func TestReceivesOfTheStart(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	first, second := b.recv(8), b.recv(16)
	bad := b.desc(OpRecv, 8)
	bad.b[offLength]++
	b.must(b.vi.PostRecv(bad))
	late := b.recv(8)
	b.connect()
	if n := len(b.link.begun); n != 2 || b.link.begun[1].Length != 16 {
		t.Fatalf("%d receives at the start, want the two before the faulty one", n)
	}
	b.report(done(b.link.begun[0], 0, 3), done(b.link.begun[1], 0, 4))
	got := b.poll()
	want := []*Descriptor{first, second, bad, late}
	for i, s := range []Status{0, 0, StatusLengthError, StatusFlushed} {
		if len(got) != 4 || got[i].Descriptor != want[i] || got[i].Status&StatusErrorMask != s {
			t.Fatalf("completions %+v", got)
		}
	}
	if b.vi.State() != StateError {
		t.Errorf("vi is %v", b.vi.State())
	}
}

func TestQueueOverflowIsReportedOnce(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	small, err := b.nic.CreateCQ(3) // has room for four
	b.must(err)
	b.vi, err = b.nic.CreateVi(b.vi.attrs, ViConfig{SendCQ: small, RecvCQ: small, SendDepth: 8, RecvDepth: 8})
	b.must(err)
	for range 7 {
		b.recv(8)
	}
	b.must(b.vi.Disconnect())
	if len(b.errs) != 1 || b.errs[0].CQ != small || b.errs[0].Code != AsyncCatastrophic {
		t.Errorf("callbacks %+v", b.errs)
	}
	var batch [16]Completion
	if n := small.Poll(batch[:]); n != 4 {
		t.Errorf("%d completions, want the four that there was room for", n)
	}
	b.must(b.vi.Destroy())
}

func TestPollAndArmFollowTheProvider(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.connect()
	if !b.cq.Arm() || b.cq.FD() != 7 {
		t.Error("an idle queue cannot sleep on its provider's file descriptor")
	}
	b.recv(8)
	b.report(Done{Work: b.link.recvs[0]})
	if b.cq.Arm() {
		t.Error("the queue may sleep while the provider has a report")
	}
	b.poll()
	b.must(b.vi.Disconnect())
	b.must(b.vi.Destroy())
	b.must(b.cq.Destroy())
	if b.cq.FD() != -1 || len(b.poll()) != 0 {
		t.Error("a destroyed queue still has its file descriptor")
	}
}
