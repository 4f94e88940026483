package via

import (
	"errors"
	"runtime"
	"testing"
	"time"
)

// Poll, Done and the queue's own Done may be mixed: every completion is taken
// once, in the order of its queue, and an entry too many is no completion.
func TestMixedWaysToTake(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.connect()
	var sends []*Descriptor
	for range 6 {
		sends = append(sends, b.send(OpSend, 8))
	}
	for _, w := range b.link.sends {
		b.report(Done{Work: w})
	}
	vi, recv, err := b.cq.Done() // takes the first entry
	b.must(err)
	if vi != b.vi || recv {
		t.Fatalf("entry %p, %v", vi, recv)
	}
	for i := range 2 { // takes the first two descriptors, one beyond its entry
		if d, err := vi.SendDone(); d != sends[i] || err != nil {
			t.Fatalf("send %d is %p (%v), want %p", i, d, err, sends[i])
		}
	}
	var one [1]Completion
	if n := b.cq.Poll(one[:]); n != 1 || one[0].Descriptor != sends[2] {
		t.Fatalf("polled %d, %p, want %p", n, one[0].Descriptor, sends[2])
	}
	for i := 3; i < 6; i++ {
		if d, err := vi.SendDone(); d != sends[i] || err != nil {
			t.Fatalf("send %d is %p (%v), want %p", i, d, err, sends[i])
		}
	}
	if n := b.cq.Poll(one[:]); n != 0 {
		t.Errorf("an entry without a descriptor became completion %+v", one[0])
	}
	_, _, err = b.cq.Done()
	b.wants(err, ErrNotDone, "done with nothing done")
	_, err = vi.SendDone()
	b.wants(err, ErrDescriptor, "done of an empty queue")
	b.send(OpSend, 8)
	_, err = vi.SendDone()
	b.wants(err, ErrNotDone, "done before it is done")
	b.close()
}

// Without completion queues each queue is asked itself, and only itself.
func TestWorkQueueModel(t *testing.T) {
	b := newBench(t, UnreliableDelivery)
	b.workQueues(2, 2)
	b.connect()
	for _, done := range []func() (*Descriptor, error){b.vi.SendDone, b.vi.RecvDone} {
		d, err := done()
		b.wants(err, ErrDescriptor, "done of an empty queue")
		if d != nil {
			t.Error("an empty queue has a descriptor")
		}
	}
	s, r := b.send(OpSend, 8), b.recv(8)
	for _, done := range []func() (*Descriptor, error){b.vi.SendDone, b.vi.RecvDone} {
		_, err := done()
		b.wants(err, ErrNotDone, "done before it is done")
	}
	b.report(done(b.link.recvs[0], StatusLengthError, 8), Done{Work: b.link.sends[0]})
	if d, err := b.vi.SendDone(); d != s || err != nil {
		t.Errorf("send is %p (%v), want %p", d, err, s)
	}
	if d, err := b.vi.RecvDone(); d != r || err != ErrDescriptor || d.Status()&StatusErrorMask != StatusLengthError {
		t.Errorf("receive is %p (%v), want %p", d, err, r)
	}
	if send, recv := b.vi.QueuesEmpty(); !send || !recv {
		t.Error("queues are not empty")
	}
	b.wants(b.vi.send.cq.Resize(8), ErrInvalidParameter, "resize what is the vi's own")
	b.close()
}

// One queue with a completion queue, the other without: the latter can be
// waited for, the former cannot.
func TestHalfAWorkQueueModel(t *testing.T) {
	p := withEvents(t)
	b := p.bench(t, ReliableDelivery)
	vi, err := b.nic.CreateVi(b.vi.attrs, ViConfig{SendCQ: b.cq, SendDepth: 2, RecvDepth: 2})
	b.must(err)
	b.must(b.vi.Destroy())
	b.vi = vi
	b.connect()
	s, r := b.send(OpSend, 8), b.recv(8)
	b.report(Done{Work: b.link.sends[0]})
	vi.recv.cq.adapter.(*eventCQ).push(Done{Work: b.link.recvs[0]})
	_, err = vi.SendWait(Infinite)
	b.wants(err, ErrInvalidParameter, "wait for a queue with a completion queue")
	if d, err := vi.RecvWait(Infinite); d != r || err != nil {
		t.Errorf("receive is %p (%v), want %p", d, err, r)
	}
	if got := b.poll(); len(got) != 1 || got[0].Descriptor != s {
		t.Errorf("completions %+v", got)
	}
	b.close()
}

// Completions that a full queue cannot announce stay where SendDone finds them,
// and are no reason to keep the VI.
func TestOverflow(t *testing.T) {
	for _, c := range []struct {
		name    string
		dequeue func(b *bench, small *CQ) int
	}{
		{"polled", func(b *bench, small *CQ) int {
			var batch [16]Completion
			return small.Poll(batch[:]) + small.Poll(batch[:])
		}},
		{"taken off their queue", func(b *bench, _ *CQ) int {
			n := 0
			for d, _ := b.vi.RecvDone(); d != nil; d, _ = b.vi.RecvDone() {
				n++
			}
			return n
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, ReliableDelivery)
			small, err := b.nic.CreateCQ(4)
			b.must(err)
			b.must(b.vi.Destroy())
			b.vi, err = b.nic.CreateVi(b.vi.attrs, ViConfig{SendCQ: small, RecvCQ: small, SendDepth: 8, RecvDepth: 8})
			b.must(err)
			for range 7 {
				b.recv(8)
			}
			b.must(b.vi.Disconnect())
			if len(b.errs) != 1 || b.errs[0].CQ != small || b.errs[0].Code != AsyncCatastrophic {
				t.Errorf("callbacks %+v", b.errs)
			}
			b.wants(b.vi.Destroy(), ErrResource, "destroy with completions announced")
			want := map[string]int{"polled": 4, "taken off their queue": 7}[c.name]
			if n := c.dequeue(b, small); n != want {
				t.Errorf("%d completions, want %d", n, want)
			}
			for range 3 { // as many as were lost
				b.recv(8)
			}
			b.wants(b.vi.Destroy(), ErrResource, "destroy with receives posted")
			b.must(small.Resize(16))
			b.must(b.vi.Disconnect())
			if n := c.dequeue(b, small); n != 3 {
				t.Errorf("%d completions, want the 3 posted later or as many older ones", n)
			}
			if c.name == "taken off their queue" && b.vi.recv.lost != 0 {
				t.Errorf("%d are lost of an empty queue", b.vi.recv.lost)
			}
			b.must(b.vi.Destroy())
			b.must(small.Destroy())
		})
	}
}

// Entries in the queue stay, in order; Resize refuses less room than they need.
func TestResize(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	var want []*Descriptor
	for round := range 40 { // at every place of the ring
		for range 3 {
			want = append(want, b.send(OpSend, 8)) // completes at once: the vi is idle
		}
		size := 3 + round%5
		b.wants(b.cq.Resize(2), ErrResource, "resize below what is there")
		b.must(b.cq.Resize(size))
		if b.cq.entries != size {
			t.Errorf("%d entries, want %d", b.cq.entries, size)
		}
		for _, c := range b.poll() {
			if c.Descriptor != want[0] {
				t.Fatalf("descriptor %p, want %p", c.Descriptor, want[0])
			}
			want = want[1:]
		}
		if len(want) != 0 {
			t.Fatalf("%d completions are gone", len(want))
		}
		b.used = 0
	}
	for _, n := range []int{0, -1, b.p.limits.MaxCQEntries + 1} {
		b.wants(b.cq.Resize(n), ErrInvalidParameter, "resize to what is no size")
	}
	cause := errors.New("no room")
	b.p.newCQ = func() AdapterCQ { return &stiffCQ{scriptedCQ{}, cause} }
	stiff, err := b.nic.CreateCQ(4)
	b.must(err)
	b.wants(stiff.Resize(8), cause, "resize what the provider cannot")
	if stiff.entries != 4 || len(stiff.ready) != 4 {
		t.Errorf("%d entries, room for %d after a refusal", stiff.entries, len(stiff.ready))
	}
}

// stiffCQ cannot be resized.
type stiffCQ struct {
	scriptedCQ
	fail error
}

func (q *stiffCQ) Resize(int) error { return q.fail }

// A resized queue reports its next overflow too.
func TestOverflowAfterResize(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.must(b.cq.Resize(1))
	for i := range 3 {
		b.send(OpSend, 8)
		b.send(OpSend, 8)
		if len(b.errs) != i+1 {
			t.Fatalf("%d callbacks after overflow %d", len(b.errs), i+1)
		}
		b.drain()
		b.must(b.cq.Resize(1))
	}
}

// A destroyed VI leaves no entry behind, nor anything that keeps it alive; the
// entries of the others stay in order.
func TestPurge(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	cfg := ViConfig{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 4, RecvDepth: 4}
	other, err := b.nic.CreateVi(b.vi.attrs, cfg)
	b.must(err)
	collected := make(chan struct{})
	runtime.AddCleanup(other, func(ch chan struct{}) { close(ch) }, collected)
	var want []*Descriptor
	for range 4 {
		want = append(want, b.send(OpSend, 8))
		b.must(other.PostSend(b.desc(OpSend, 8)))
	}
	for range 4 { // its entries become stale
		if d, err := other.SendDone(); d == nil || err != ErrDescriptor {
			t.Fatalf("flushed send: %p, %v", d, err)
		}
	}
	b.must(other.Destroy())
	other = nil
	got := b.poll()
	for i, c := range got {
		if c.VI != b.vi || c.Descriptor != want[i] {
			t.Errorf("completion %d is %+v", i, c)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d completions, want 4", len(got))
	}
	for range 100 {
		runtime.GC()
		select {
		case <-collected:
			runtime.KeepAlive(b) // and with it the queue
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Errorf("the destroyed vi is still alive, by %p", b.cq)
}

// A wait ends with the timeout, at once if there is none, or with what another
// goroutine's event brings.
func TestWaits(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	b.connect()
	b.send(OpSend, 8)
	for _, timeout := range []time.Duration{0, 1, time.Millisecond} {
		_, _, err := b.cq.Wait(timeout)
		b.wants(err, ErrTimeout, "wait for nothing")
	}
	for i := range 50 {
		go func() {
			if i%2 == 0 {
				time.Sleep(time.Duration(i) * time.Microsecond)
			}
			b.report(Done{Work: b.link.sends[i]})
		}()
		vi, recv, err := b.cq.Wait(Infinite)
		b.must(err)
		if vi != b.vi || recv {
			t.Fatalf("entry %p, %v", vi, recv)
		}
		_, err = vi.SendDone()
		b.must(err)
		b.used = 0
		b.send(OpSend, 8)
	}
	go b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncConnectionLost, Broken: true}})
	if _, _, err := b.cq.Wait(Infinite); err != nil { // the flushed send
		t.Error(err)
	}
	if d, err := b.vi.SendDone(); d == nil || err != ErrDescriptor || b.vi.State() != StateError {
		t.Errorf("after the loss: %p, %v, %v", d, err, b.vi.State())
	}
	b.close()
}

// A deadline holds for the whole wait, whatever else arrives.
func TestWaitForOneQueueOfTwo(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	b.workQueues(8, 8)
	b.connect()
	s, r := b.send(OpSend, 8), b.recv(8)
	go func() {
		b.report(Done{Work: b.link.recvs[0]})
		time.Sleep(time.Millisecond)
		b.report(Done{Work: b.link.sends[0]})
	}()
	if d, err := b.vi.SendWait(time.Minute); d != s || err != nil {
		t.Errorf("waited for %p, got %p (%v)", s, d, err)
	}
	if d, err := b.vi.RecvWait(0); d != r || err != nil {
		t.Errorf("the receive that came meanwhile is %p (%v), want %p", d, err, r)
	}
	b.send(OpSend, 8)
	_, err := b.vi.SendWait(0)
	b.wants(err, ErrTimeout, "look once")
	b.close()
}

func TestSetAttributes(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	other, err := b.nic.CreatePtag()
	b.must(err)
	good := ViAttributes{Reliability: UnreliableDelivery, MaxTransferSize: 4096, QoS: 7, Ptag: other, EnableRdmaWrite: true}
	was := b.vi.attrs
	for name, c := range map[string]struct {
		spoil func(*ViAttributes)
		want  error
	}{
		"no level":      {func(a *ViAttributes) { a.Reliability = 0 }, ErrInvalidReliability},
		"two levels":    {func(a *ViAttributes) { a.Reliability = 3 }, ErrInvalidReliability},
		"size":          {func(a *ViAttributes) { a.MaxTransferSize = b.p.limits.MaxTransferSize + 1 }, ErrInvalidMTU},
		"reads":         {func(a *ViAttributes) { a.EnableRdmaRead = true }, ErrInvalidRdmaRead},
		"no tag":        {func(a *ViAttributes) { a.Ptag = Ptag{} }, ErrInvalidPtag},
		"destroyed tag": {func(a *ViAttributes) { a.Ptag.id = 99 }, ErrInvalidPtag},
	} {
		bad := good
		c.spoil(&bad)
		b.wants(b.vi.SetAttributes(bad), c.want, name)
		if b.vi.Attributes() != was {
			t.Errorf("%s: attributes became %+v", name, b.vi.Attributes())
		}
	}
	b.wants(b.nic.DestroyPtag(was.Ptag), ErrResource, "destroy the tag in use")
	b.must(b.vi.SetAttributes(good))
	if b.vi.Attributes() != good {
		t.Errorf("attributes are %+v, want %+v", b.vi.Attributes(), good)
	}
	b.wants(b.nic.DestroyPtag(other), ErrResource, "destroy the new tag")
	b.wants(b.vi.PostSend(b.desc(OpSend, 8)), ErrInvalidParameter, "post memory of the former tag")
	defaults := was
	defaults.MaxTransferSize = 0
	b.must(b.vi.SetAttributes(defaults))
	if got := b.vi.Attributes().MaxTransferSize; got != b.p.limits.MaxTransferSize {
		t.Errorf("no size became %d", got)
	}
	b.must(b.nic.DestroyPtag(other))
	for _, s := range []State{StatePending, StateConnected, StateError} {
		b := newBench(t, ReliableDelivery)
		b.in(s)
		b.wants(b.vi.SetAttributes(b.vi.attrs), ErrInvalidState, s.String())
	}
}
