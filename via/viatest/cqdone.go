package viatest

import (
	"time"

	"github.com/viablk/viablk/via"
)

var announcementCases = []kitCase{
	{"CQDoneNamesTheQueue", EarlyAdopter, "CQ.Done names the work queue of the oldest completion, which is then taken from there", anyLevel, 0, cqDoneNamesQueue},
	{"CQEntriesInOrder", EarlyAdopter, "a completion queue has one entry for each completion, in their order", anyLevel, 0, cqEntriesInOrder},
	{"CQWait", EarlyAdopter, "CQ.Wait sleeps until there is an entry, or until its timeout", anyLevel, 0, cqWait},
	{"PollAndDoneMix", EarlyAdopter, "Poll and Done may be mixed: each completion is taken once", anyLevel, 0, pollAndDoneMix},
	{"TakenBeforeAnnounced", EarlyAdopter, "what is taken from its work queue first leaves no entry behind", anyLevel, 0, takenBeforeAnnounced},
	{"FlushesAreAnnounced", EarlyAdopter, "flushed descriptors make entries as others do", anyLevel, 0, flushesAreAnnounced},
	{"ResizeGrowsAndShrinks", Functional, "a completion queue changes its size in use", anyLevel, 0, resizeGrowsAndShrinks},
	{"ResizeKeepsEntries", Functional, "what is in a completion queue stays, and is refused too small a place", anyLevel, 0, resizeKeepsEntries},
	{"ResizeRefusals", Functional, "a completion queue has at least one and not too many entries after a resize, and exists", anyLevel, 0, resizeRefusals},
	{"ResizeAfterOverflow", Functional, "a queue that overflowed is of use again once it has room, and what it lost is taken from the work queue", anyLevel, 0, resizeAfterOverflow},
}

// announces waits for the next entry of the server's completion queue.
func (e *env) announces() (vi *via.VI, recv bool) {
	e.t.Helper()
	err := error(via.ErrNotDone)
	e.untilBy("an entry", func() bool {
		vi, recv, err = e.server.cq.Done()
		return err != via.ErrNotDone
	}, e.client)
	e.check(err, "take an entry")
	return vi, recv
}

// takesBooked takes a descriptor of the server with a Done call and books it.
func (e *env) takesBooked(recv bool, want *via.Descriptor) {
	e.t.Helper()
	done := e.server.vi.SendDone
	if recv {
		done = e.server.vi.RecvDone
	}
	d, err := done()
	if d != want || err != nil && err != via.ErrDescriptor {
		e.t.Fatalf("took %p with %v, want %p", d, err, want)
	}
	e.server.collect([]via.Completion{{
		VI: e.server.vi, Descriptor: d, Recv: recv, Status: d.Status(), Length: d.Length(), Immediate: d.Immediate(),
	}})
}

func cqDoneNamesQueue(e *env) {
	e.connect()
	if vi, recv, err := e.server.cq.Done(); vi != nil || recv || err != via.ErrNotDone {
		e.t.Fatalf("an empty queue gives vi %p, receive %v, %v", vi, recv, err)
	}
	r := e.server.recv()
	e.client.send()
	if vi, recv := e.announces(); vi != e.server.vi || !recv {
		e.t.Fatalf("the entry is that of vi %p, receive %v", vi, recv)
	}
	e.takesBooked(true, r)
	e.client.recv()
	s := e.server.send()
	if vi, recv := e.announces(); vi != e.server.vi || recv {
		e.t.Fatalf("the entry is that of vi %p, receive %v", vi, recv)
	}
	e.takesBooked(false, s)
	if _, _, err := e.server.cq.Done(); err != via.ErrNotDone {
		e.t.Errorf("an entry is there twice: %v", err)
	}
}

func cqEntriesInOrder(e *env) {
	e.connect()
	const count = 20
	var receives []*via.Descriptor
	for range count {
		receives = append(receives, e.server.recv())
	}
	for i := range count {
		e.client.sendImmediate(uint32(i))
	}
	for i, r := range receives {
		if vi, recv := e.announces(); vi != e.server.vi || !recv {
			e.t.Fatalf("entry %d is that of vi %p, receive %v", i, vi, recv)
		}
		e.takesBooked(true, r)
	}
	if _, err := e.server.vi.RecvDone(); err != via.ErrDescriptor {
		e.t.Errorf("the receive queue is not empty: %v", err)
	}
}

func cqWait(e *env) {
	e.connect()
	cq := e.server.cq
	for _, timeout := range []time.Duration{0, time.Millisecond} {
		_, _, err := cq.Wait(timeout)
		e.wants(err, via.ErrTimeout, "wait for an entry that never comes")
	}
	for i := range 20 {
		r := e.server.recv()
		type entry struct {
			vi   *via.VI
			recv bool
			err  error
		}
		ended := make(chan entry, 1)
		go func() {
			vi, recv, err := cq.Wait(via.Infinite)
			ended <- entry{vi, recv, err}
		}()
		e.client.sendImmediate(uint32(i))
		var got entry
		e.untilBy("the wait to end", func() bool {
			select {
			case got = <-ended:
				return true
			default:
				return false
			}
		}, e.client)
		if got.vi != e.server.vi || !got.recv || got.err != nil {
			e.t.Fatalf("the wait gives vi %p, receive %v, %v", got.vi, got.recv, got.err)
		}
		e.takesBooked(true, r)
	}
}

// readied posts count receives of the server and has them all complete inside
// its completion queue: a Disconnect flushes them.
func (e *env) readied(count int) []*via.Descriptor {
	e.t.Helper()
	var out []*via.Descriptor
	for range count {
		out = append(out, e.server.recv())
	}
	e.check(e.server.vi.Disconnect(), "disconnect")
	return out
}

func pollAndDoneMix(e *env) {
	e.idle()
	cq := e.server.cq
	receives := e.readied(6)
	_, _, err := cq.Done()
	e.check(err, "take an entry")
	e.takesBooked(true, receives[0])
	var two [2]via.Completion
	if n := cq.Poll(two[:]); n != 2 || two[0].Descriptor != receives[1] || two[1].Descriptor != receives[2] {
		e.t.Fatalf("Poll takes %d completions, or others than the next", n)
	}
	e.server.collect(two[:])
	_, _, err = cq.Done()
	e.check(err, "take an entry")
	// Its descriptor is not taken yet: Poll has it next, for another entry.
	if n := cq.Poll(two[:]); n != 2 || two[0].Descriptor != receives[3] || two[1].Descriptor != receives[4] {
		e.t.Fatalf("Poll takes %d completions, or others than the next", n)
	}
	e.server.collect(two[:])
	if n := cq.Poll(two[:]); n != 0 {
		e.t.Errorf("Poll takes %d completions for no entry", n)
	}
	e.takesBooked(true, receives[5])
	if send, recv := e.server.vi.QueuesEmpty(); !send || !recv {
		e.t.Errorf("queues are not empty although all was taken")
	}
}

func takenBeforeAnnounced(e *env) {
	e.idle()
	cq := e.server.cq
	receives := e.readied(4)
	for _, r := range receives[:3] {
		e.takesBooked(true, r)
	}
	vi, recv, err := cq.Done()
	e.check(err, "take an entry")
	if vi != e.server.vi || !recv {
		e.t.Errorf("the entry is that of vi %p, receive %v", vi, recv)
	}
	e.takesBooked(true, receives[3])
	if _, _, err := cq.Done(); err != via.ErrNotDone {
		e.t.Errorf("an entry is left of what was taken: %v", err)
	}
	more := e.readied(2)
	for _, r := range more {
		e.takesBooked(true, r)
	}
	if n := cq.Poll(e.server.batch[:]); n != 0 {
		e.t.Errorf("Poll takes %d completions that were taken", n)
	}
	if !cq.Arm() {
		e.t.Errorf("Arm refuses although nothing is left")
	}
}

func flushesAreAnnounced(e *env) {
	e.connect()
	receives := []*via.Descriptor{e.server.recv(), e.server.recv()}
	e.check(e.client.vi.Disconnect(), "disconnect")
	for _, r := range receives {
		if vi, recv := e.announces(); vi != e.server.vi || !recv {
			e.t.Fatalf("the entry is that of vi %p, receive %v", vi, recv)
		}
		e.takesBooked(true, r)
	}
	s := e.server.send() // in the error state
	if vi, recv := e.announces(); vi != e.server.vi || recv {
		e.t.Fatalf("the entry is that of vi %p, receive %v", vi, recv)
	}
	e.takesBooked(false, s)
}

func resizeGrowsAndShrinks(e *env) {
	e.connect()
	calls := e.server.nic.Agent().AttributeChanges.Load()
	sizes := []int{8 * queueDepth, 2 * queueDepth, 3 * queueDepth, 4 * queueDepth}
	for i, n := range sizes {
		for range 10 {
			e.server.recv()
			e.client.sendImmediate(uint32(i))
		}
		e.check(e.server.cq.Resize(n), "resize")
		want := 10 * (i + 1)
		e.until("messages through a resized queue", func() bool { return len(e.server.done) == want && len(e.client.done) == want })
	}
	if got := e.server.nic.Agent().AttributeChanges.Load() - calls; got != uint64(len(sizes)) {
		e.t.Errorf("the agent counts %d changes, want %d", got, len(sizes))
	}
}

func resizeKeepsEntries(e *env) {
	x := e.server
	cq := x.newCQ(8)
	x.vi = x.newViOn(x.attributes(), via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 8, RecvDepth: 8})
	for _, sizes := range [][]int{{16}, {5}, {64, 5, 7}} {
		receives := e.readied(5)
		e.wants(cq.Resize(4), via.ErrResource, "resize below what is in it")
		for _, n := range sizes {
			e.check(cq.Resize(n), "resize")
		}
		for i, r := range receives {
			if n := cq.Poll(x.batch[:1]); n != 1 || x.batch[0].Descriptor != r {
				e.t.Fatalf("entry %d is lost or another after a resize to %v", i, sizes)
			}
			x.collect(x.batch[:1])
		}
	}
	if n := len(x.errors()); n != 0 {
		e.t.Errorf("%d callbacks", n)
	}
}

func resizeRefusals(e *env) {
	x := e.server
	cq, err := x.nic.CreateCQ(4)
	e.check(err, "create completion queue")
	for _, n := range []int{0, -1, x.nic.Limits().MaxCQEntries + 1} {
		e.wants(cq.Resize(n), via.ErrInvalidParameter, "resize")
	}
	e.check(cq.Resize(1), "resize to one entry")
	e.check(cq.Destroy(), "destroy completion queue")
	e.wants(cq.Resize(4), via.ErrInvalidParameter, "resize a destroyed queue")
}

func resizeAfterOverflow(e *env) {
	x := e.server
	cq := x.newCQ(4)
	x.vi = x.newViOn(x.attributes(), via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 8, RecvDepth: 8})
	for round := 1; round <= 2; round++ {
		receives := e.readied(8)
		if n := x.count(via.AsyncCatastrophic); n != round {
			e.t.Fatalf("%d callbacks of an overflow, want %d", n, round)
		}
		for range 4 {
			if n := cq.Poll(x.batch[:1]); n != 1 {
				e.t.Fatalf("an entry of a queue that overflowed is lost")
			}
			x.collect(x.batch[:1])
		}
		for _, r := range receives[4:] { // they have no entries
			e.takesBooked(true, r)
		}
		e.check(cq.Resize(8), "resize")
		full := e.readied(8)
		e.untilBy("all entries", func() bool { return x.seen[full[7]].Descriptor != nil }, x)
		e.check(cq.Resize(4), "resize")
	}
	if n := len(x.errors()); n != 2 {
		e.t.Errorf("%d callbacks, want one for each overflow", n)
	}
	waiting := x.recv()
	e.wants(x.vi.Destroy(), via.ErrResource, "destroy a vi with a posted receive after an overflow")
	e.check(x.vi.Disconnect(), "disconnect")
	e.flushed(x, waiting)
}
