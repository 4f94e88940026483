package via

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// One handler, one descriptor: at once if it is there, else when it comes, on
// the NIC's goroutine; and no more after that.
func TestNotifyIsOneShot(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	b.workQueues(8, 8)
	b.connect()
	var first *Descriptor
	early := b.recv(8)
	b.report(done(b.link.recvs[0], 0, 3))
	b.must(b.vi.RecvNotify(func(vi *VI, d *Descriptor) { first = d }))
	if first != early || early.Length() != 3 {
		t.Fatalf("the handler of a complete receive got %p, want %p", first, early)
	}
	got := make(chan *Descriptor, 4)
	b.must(b.vi.RecvNotify(func(vi *VI, d *Descriptor) { got <- d }))
	one, two := b.recv(8), b.recv(8)
	b.report(Done{Work: b.link.recvs[1]}, Done{Work: b.link.recvs[2]})
	if d := <-got; d != one {
		t.Errorf("notified of %p, want the oldest, %p", d, one)
	}
	d, err := b.vi.RecvWait(Infinite)
	b.must(err)
	if d != two || len(got) != 0 {
		t.Errorf("the second receive is %p, want %p; %d notifications more", d, two, len(got))
	}
	b.close()
}

// Several are served in the order in which they were armed, also by errors.
func TestNotifyInOrder(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	b.workQueues(8, 8)
	b.connect()
	type call struct {
		index int
		d     *Descriptor
	}
	calls := make(chan call, 8)
	for i := range 4 {
		b.must(b.vi.SendNotify(func(_ *VI, d *Descriptor) { calls <- call{i, d} }))
	}
	var want []*Descriptor
	for range 4 {
		want = append(want, b.send(OpSend, 8))
	}
	b.report(Done{Work: b.link.sends[0]}, done(b.link.sends[1], StatusTransportError, 0),
		Done{Event: &Event{Owner: b.vi, Code: AsyncConnectionLost, Broken: true}})
	for i, status := range []Status{0, StatusTransportError, StatusFlushed, StatusFlushed} {
		if c := <-calls; c.index != i || c.d != want[i] || c.d.Status()&StatusErrorMask != status {
			t.Errorf("call %d is of handler %d for %v, want %v", i, c.index, c.d.Status(), status|StatusDone)
		}
	}
	b.close()
}

// A queue's entry is taken, its descriptor is left to SendDone.
func TestQueueNotify(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	b.connect()
	type entry struct {
		vi   *VI
		recv bool
	}
	entries := make(chan entry, 2)
	for range 2 {
		b.must(b.cq.Notify(func(vi *VI, recv bool) { entries <- entry{vi, recv} }))
	}
	s, r := b.send(OpSend, 8), b.recv(8)
	b.report(Done{Work: b.link.recvs[0]}, Done{Work: b.link.sends[0]})
	for _, recv := range []bool{true, false} {
		if e := <-entries; e.vi != b.vi || e.recv != recv {
			t.Errorf("entry %+v, want one of receives: %v", e, recv)
		}
	}
	_, _, err := b.cq.Done()
	b.wants(err, ErrNotDone, "an entry that a handler had")
	got, err := b.vi.SendDone()
	b.must(err)
	if recv, err := b.vi.RecvDone(); got != s || recv != r || err != nil {
		t.Errorf("descriptors %p and %p (%v), want %p and %p", got, recv, err, s, r)
	}
	b.close()
}

// Destroying cancels: the handler is never called.
func TestDestroyCancelsNotifications(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	never := func(*VI, *Descriptor) { t.Error("called") }
	vi, err := b.nic.CreateVi(b.vi.attrs, ViConfig{SendDepth: 1, RecvDepth: 1})
	b.must(err)
	b.must(vi.RecvNotify(never))
	b.must(vi.SendNotify(never))
	b.must(vi.Destroy())
	b.wants(vi.RecvNotify(never), ErrInvalidParameter, "notify of a destroyed vi")
	b.must(b.cq.Notify(func(*VI, bool) { t.Error("called") }))
	b.wants(b.vi.SendNotify(never), ErrInvalidParameter, "notify of a queue with a completion queue")
	b.wants(b.vi.RecvNotify(nil), ErrInvalidParameter, "notify without a handler")
	b.wants(b.cq.Notify(nil), ErrInvalidParameter, "notify without a handler")
	cq := b.cq
	b.close()
	b.wants(cq.Notify(func(*VI, bool) {}), ErrInvalidParameter, "notify of a destroyed queue")
}

// A handler that arms again finds its next entry without nesting, however many
// there are.
func TestNotifyAgainInHandler(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	b.workQueues(64, 64)
	var nested, deepest, calls int
	var handler func(*VI, *Descriptor)
	handler = func(vi *VI, d *Descriptor) {
		nested++
		deepest = max(deepest, nested)
		calls++
		if calls <= 1000 {
			if err := vi.PostSend(d); err != nil { // completes at once: the vi is idle
				t.Error(err)
			}
			if err := vi.SendNotify(handler); err != nil {
				t.Error(err)
			}
		}
		nested--
	}
	b.send(OpSend, 8)
	b.must(b.vi.SendNotify(handler))
	if calls != 1001 || deepest != 1 {
		t.Errorf("%d calls, %d deep", calls, deepest)
	}
	b.close()
}

// Everything that a handler may do, it may do with no lock in its way, on
// either goroutine.
func TestHandlersHoldNoLock(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	b.workQueues(8, 8)
	b.connect()
	ended := make(chan error, 1)
	b.must(b.vi.SendNotify(func(vi *VI, d *Descriptor) {
		vi.QueuesEmpty()
		vi.Stats()
		if err := vi.PostRecv(d); err != nil {
			t.Error(err)
		}
		if err := vi.Disconnect(); err != nil {
			t.Error(err)
		}
		if got, err := vi.RecvDone(); got != d || err != ErrDescriptor {
			t.Errorf("flushed receive: %p, %v", got, err)
		}
		ended <- vi.Destroy()
	}))
	b.send(OpSend, 8)
	b.report(Done{Work: b.link.sends[0]})
	b.must(<-ended)
	b.must(b.mem.Deregister())
	b.must(b.nic.Close())
}

// The handler of asynchronous errors is called with no lock held, whichever
// goroutine met the error, and may post.
func TestErrorCallbackMayPost(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, UnreliableDelivery)
	b.workQueues(8, 8)
	b.connect()
	again := b.desc(OpRecv, 8)
	posted := make(chan error, 1)
	b.nic.ErrorCallback(func(e AsyncError) {
		if e.Code == AsyncRecvQueueEmpty {
			posted <- e.VI.PostRecv(again)
		}
	})
	got := make(chan *Descriptor, 1)
	b.must(b.vi.RecvNotify(func(_ *VI, d *Descriptor) { got <- d }))
	b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncRecvQueueEmpty}})
	b.must(<-posted)
	b.must(b.vi.Disconnect())
	if d := <-got; d != again {
		t.Errorf("notified of %p, want %p", d, again)
	}
	b.close()
}

// The same where nothing is notified: the handler comes after the call that met
// the error, so that it finds everything in order.
func TestErrorCallbackComesAfterTheCall(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	lost, err := b.nic.RegisterMem(b.mem.bytes[1<<15:1<<15+128], MemAttributes{Ptag: b.tag})
	b.must(err)
	gone, err := lost.NewDescriptor(0, 64)
	b.must(err)
	gone.Reset(OpSend)
	b.connect()
	b.must(b.vi.PostSend(gone))
	b.must(lost.Deregister())
	last := b.desc(OpRecv, 8)
	calls := 0
	b.nic.ErrorCallback(func(e AsyncError) {
		calls++
		if e.Code != AsyncCompletionProt {
			t.Errorf("%v", e.Code)
		}
		b.must(b.vi.PostRecv(last))
	})
	b.must(b.vi.Disconnect()) // cannot write the completion
	if calls != 1 || b.vi.State() != StateIdle || last.Status() != 0 {
		t.Errorf("%d callbacks, vi is %v, the receive posted by one is %v", calls, b.vi.State(), last.Status())
	}
}

// A handler that polls takes nothing away from the poll that met the error.
func TestErrorCallbackMayPoll(t *testing.T) {
	b := newBench(t, UnreliableDelivery)
	b.connect()
	for range 4 {
		b.send(OpSend, 8)
	}
	var inside []Completion
	b.nic.ErrorCallback(func(AsyncError) { inside = append(inside, b.poll()...) })
	b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncRecvQueueEmpty}}, Done{Work: b.link.sends[0]}, Done{Work: b.link.sends[1]})
	b.report(Done{Work: b.link.sends[2]}, Done{Work: b.link.sends[3]})
	var batch [2]Completion
	n := b.cq.Poll(batch[:])
	if n+len(inside) != 4 {
		t.Errorf("%d completions, and %d in the handler, want 4 in all", n, len(inside))
	}
}

// A wait is woken although the NIC's goroutine, which drives for a
// notification, was faster.
func TestWaitBesideNotify(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	b.workQueues(8, 8)
	b.connect()
	for i := range 200 {
		b.used = 0
		notified := make(chan struct{})
		b.must(b.vi.RecvNotify(func(*VI, *Descriptor) { close(notified) }))
		s, _ := b.send(OpSend, 8), b.recv(8)
		go func() {
			if i%2 == 0 {
				runtime.Gosched()
			}
			b.report(Done{Work: b.link.recvs[i]}, Done{Work: b.link.sends[i]})
		}()
		d, err := b.vi.SendWait(Infinite)
		b.must(err)
		if d != s {
			t.Fatalf("waited for %p, got %p", s, d)
		}
		<-notified
	}
	_, err := b.vi.SendWait(Infinite)
	b.wants(err, ErrDescriptor, "wait with nothing posted")
	b.send(OpSend, 8)
	_, err = b.vi.SendWait(time.Millisecond)
	b.wants(err, ErrTimeout, "wait for what does not come")
	if n := len(b.cq.sleepers); n != 0 {
		t.Errorf("%d sleepers remain", n)
	}
	b.close()
}

// A goroutine that sleeps on a queue wakes when a handler destroys the queue.
func TestDestroyWakesWaits(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	b.connect()
	b.recv(8)
	ended := make(chan struct{})
	b.must(b.cq.Notify(func(vi *VI, _ bool) { // has the only entry
		defer close(ended)
		if _, err := vi.RecvDone(); err != nil {
			t.Error(err)
		}
		for range 1000 { // the wait was woken by the entry; most likely it sleeps again
			runtime.Gosched()
		}
		for _, step := range []func() error{vi.Disconnect, vi.Destroy, b.cq.Destroy} {
			if err := step(); err != nil {
				t.Error(err)
			}
		}
	}))
	sleeping := func() bool {
		defer b.cq.acquire().release()
		return len(b.cq.sleepers) > 0
	}
	cq, first := b.cq.adapter.(*eventCQ), b.link.recvs[0]
	go func() {
		for !sleeping() {
			runtime.Gosched()
		}
		cq.push(Done{Work: first})
	}()
	_, _, err := b.cq.Wait(Infinite)
	b.wants(err, ErrInvalidParameter, "wait for a destroyed queue")
	<-ended
	b.must(b.mem.Deregister())
	b.must(b.nic.Close())
}

// Notifications of one queue go on while its driver is joined with another's.
func TestJoinDriversWhileNotified(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, UnreliableDelivery)
	b.connect()
	stop := make(chan struct{})
	var feeding sync.WaitGroup
	feeding.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncRecvQueueEmpty}})
				runtime.Gosched()
			}
		}
	})
	var raised atomic.Int64
	b.nic.ErrorCallback(func(AsyncError) { raised.Add(1) })
	b.must(b.cq.Notify(func(*VI, bool) {}))
	for range 50 {
		other, err := b.nic.CreateCQ(8)
		b.must(err)
		vi, err := b.nic.CreateVi(b.vi.attrs, ViConfig{SendCQ: other, RecvCQ: b.cq, SendDepth: 1, RecvDepth: 1})
		b.must(err)
		if other.driver.Load() != b.cq.driver.Load() || !other.driver.Load().shared {
			t.Fatal("two queues of a vi have two drivers")
		}
		before := raised.Load()
		for raised.Load() == before {
			b.poll()
		}
		b.must(vi.Destroy())
		b.must(other.Destroy())
	}
	close(stop)
	feeding.Wait()
	b.close()
}

// Queues that share VIs share one driver, transitively.
func TestJoinDrivers(t *testing.T) {
	p := newScripted()
	p.limits.MaxCQ, p.limits.MaxVI = 8, 8
	b := p.bench(t, ReliableDelivery)
	var cqs []*CQ
	for range 6 {
		cq, err := b.nic.CreateCQ(8)
		b.must(err)
		cqs = append(cqs, cq)
	}
	for _, pair := range [][2]int{{0, 1}, {2, 3}, {1, 2}, {4, 4}} {
		_, err := b.nic.CreateVi(b.vi.attrs, ViConfig{SendCQ: cqs[pair[0]], RecvCQ: cqs[pair[1]], SendDepth: 1, RecvDepth: 1})
		b.must(err)
	}
	var groups []int
	for _, c := range cqs {
		groups = append(groups, slices.IndexFunc(cqs, func(o *CQ) bool { return o.driver.Load() == c.driver.Load() }))
	}
	if !slices.Equal(groups, []int{0, 0, 0, 0, 4, 5}) {
		t.Errorf("groups %v", groups)
	}
}

// A consumer that polls and the NIC's goroutine that drives for notifications
// get every completion, together, once, and each queue in order.
func TestPollBesideNotify(t *testing.T) {
	watchLeaks(t)
	b := withEvents(t).bench(t, ReliableDelivery)
	b.connect()
	const rounds = 3000
	var taken [2]atomic.Int64 // sends, receives
	take := func(recv bool) {
		if recv {
			taken[1].Add(1)
		} else {
			taken[0].Add(1)
		}
	}
	var arm func()
	arm = func() {
		if err := b.cq.Notify(func(vi *VI, recv bool) {
			done := vi.SendDone
			if recv {
				done = vi.RecvDone
			}
			if _, err := done(); err == nil { // else the consumer was faster
				take(recv)
			}
			arm()
		}); err != nil {
			t.Error(err)
		}
	}
	arm()
	var batch [4]Completion
	for round := range int64(rounds) {
		b.used = 0
		b.send(OpSend, 8)
		b.recv(8)
		go b.report(Done{Work: b.link.sends[round]}, Done{Work: b.link.recvs[round]})
		for taken[0].Load()+taken[1].Load() < 2*(round+1) {
			for _, c := range batch[:b.cq.Poll(batch[:])] {
				take(c.Recv)
			}
		}
	}
	if taken[0].Load() != rounds || taken[1].Load() != rounds {
		t.Errorf("%d sends and %d receives completed, want %d", taken[0].Load(), taken[1].Load(), rounds)
	}
	b.close()
}
