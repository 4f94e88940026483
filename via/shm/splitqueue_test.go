package shm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// split is a pair whose near VI has a queue for sends and another for receives.
type split struct {
	near, far  *station
	send, recv *via.CQ
	a, b       *via.VI
}

func newSplit(t *testing.T) *split {
	t.Helper()
	watchLeaks(t)
	s := &split{near: newStation(t, testTimeouts), far: newStation(t, testTimeouts)}
	var err error
	s.send, err = s.near.nic.CreateCQ(stationDepth)
	check(t, err)
	s.recv, err = s.near.nic.CreateCQ(stationDepth)
	check(t, err)
	s.a, s.b = s.near.newViOn(s.send, s.recv), s.far.newVI()
	l := s.near.listen()
	join(t, s.b, l, s.a)
	s.awaitArena()
	t.Cleanup(func() { // before the station closes
		s.disconnect(s.a)
		check(t, s.send.Destroy())
		check(t, s.recv.Destroy())
	})
	return s
}

// disconnect disconnects and destroys a VI of the split queues.
func (s *split) disconnect(vi *via.VI) {
	s.near.tb.Helper()
	check(s.near.tb, vi.Disconnect())
	for pollOne(s.send) > 0 || pollOne(s.recv) > 0 {
	}
	s.near.disconnect(vi)
}

// awaitArena waits until the agent has mapped the peer's arena and rung for it:
// a later wake-up has another cause.
func (s *split) awaitArena() {
	s.near.tb.Helper()
	fd := s.near.onlyLink().sender.cq.wake
	until(s.near.tb, "the peer's arena", func() bool { return eventCount(s.near.tb, fd) > 0 })
}

// eventCount returns how often an eventfd was rung; the test alone reads it.
func eventCount(tb testing.TB, fd int) int {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	check(tb, err)
	_, rest, _ := strings.Cut(string(b), "eventfd-count:")
	var n int
	_, err = fmt.Sscanf(rest, "%x", &n)
	check(tb, err)
	return n
}

func pollOne(q *via.CQ) int {
	var done [1]via.Completion
	return q.Poll(done[:])
}

// arm polls a queue until it sleeps.
func arm(t *testing.T, q *via.CQ) {
	t.Helper()
	for range 100 {
		for pollOne(q) > 0 {
		}
		if q.Arm() && !readable(t, q.FD(), 0) {
			return
		}
	}
	t.Fatal("the queue never sleeps")
}

func wakes(t *testing.T, q *via.CQ, what string) {
	t.Helper()
	if !readable(t, q.FD(), time.Minute) {
		t.Fatalf("%s does not wake the queue's owner", what)
	}
}

// TestSplitQueuesSleepApart: neither queue consumes wake-ups of the other.
func TestSplitQueuesSleepApart(t *testing.T) {
	s := newSplit(t)
	check(t, s.a.PostRecv(s.near.descriptor(0, via.OpRecv, 1<<20, 64)))
	arm(t, s.recv)
	arm(t, s.send)
	pollOne(s.send) // ends the sleep of one
	arm(t, s.send)
	pollOne(s.send)
	check(t, s.b.PostSend(s.far.descriptor(0, via.OpSend, 1<<20, 64)))
	wakes(t, s.recv, "a message")
	if pollOne(s.recv) != 1 {
		t.Error("no completion")
	}
}

// TestPostWhileArmed: a completion that a post causes wakes, too.
func TestPostWhileArmed(t *testing.T) {
	s := newSplit(t)
	arm(t, s.recv)
	arm(t, s.send)
	check(t, s.a.PostSend(s.near.descriptor(0, via.OpSend, 1<<20, 64)))
	wakes(t, s.send, "a send")
	arm(t, s.send)
	// Longer than a quantum: the rest needs another pass.
	check(t, s.a.PostSend(s.near.remote(1, via.OpRdmaWrite, 1<<20, 3*sendQuantum, s.far.mem.Addr(), s.far.mem.Handle())))
	wakes(t, s.send, "a long write")
	for pollOne(s.send) == 0 {
		if s.send.Arm() {
			wakes(t, s.send, "the rest of a long write")
		}
	}
}

// TestStallWhileArmed: a post that meets a full ring while its queue is armed
// goes on when there is room.
func TestStallWhileArmed(t *testing.T) {
	s := newSplit(t)
	for i := range stationDepth {
		check(t, s.b.PostRecv(s.far.descriptor(i, via.OpRecv, 2<<20, 60<<10)))
	}
	arm(t, s.send)
	for i := range stationDepth {
		check(t, s.a.PostSend(s.near.descriptor(i, via.OpSend, 1<<20, 60<<10)))
	}
	for done := 0; done < stationDepth; {
		if n := pollOne(s.send); n > 0 {
			done += n
			continue
		}
		if !s.send.Arm() {
			continue
		}
		s.far.poll() // makes room
		wakes(t, s.send, "room in the ring")
	}
}

// TestSplitQueueEnds: the receive queue reports the end of a connection that
// breaks in a pass of the send queue, after the completions of the send queue.
func TestSplitQueueEnds(t *testing.T) {
	s := newSplit(t)
	arm(t, s.recv)
	arm(t, s.send)
	bad := s.near.remote(0, via.OpRdmaWrite, 1<<20, 64, s.far.mem.Addr(), s.far.mem.Handle()^1<<16)
	check(t, s.a.PostSend(bad))
	wakes(t, s.send, "a refused write")
	if n := pollOne(s.recv); n != 0 || s.a.State() != via.StateConnected {
		t.Fatalf("%d completions and state %v before the send's", n, s.a.State())
	}
	arm(t, s.recv)
	if pollOne(s.send) != 1 || bad.Status()&via.StatusRdmaProtError == 0 {
		t.Fatalf("the write says %v", bad.Status())
	}
	wakes(t, s.recv, "the end of the connection")
	pollOne(s.recv)
	if s.a.State() != via.StateError {
		t.Fatalf("state %v", s.a.State())
	}
	if !s.send.Arm() || !s.recv.Arm() {
		t.Error("a queue with nothing to do does not sleep")
	}
}

// TestBreakWhileArmed: a post that finds the peer breaking a rule wakes the
// receive queue, though the send queue has nothing to report.
func TestBreakWhileArmed(t *testing.T) {
	s := newSplit(t)
	vi := s.near.newViOn(s.send, s.recv)
	p := attach(t, s.near, s.near.listen(), vi)
	t.Cleanup(func() { s.disconnect(vi) })
	for i := range ringSize / (60 << 10) {
		check(t, vi.PostSend(s.near.descriptor(i, via.OpSend, 1<<20, 60<<10)))
	}
	arm(t, s.recv)
	arm(t, s.send)
	p.word(offHead, 8)
	check(t, vi.PostSend(s.near.descriptor(9, via.OpSend, 1<<20, 60<<10)))
	wakes(t, s.recv, "the end of the connection")
	pollOne(s.recv)
	if vi.State() != via.StateError {
		t.Errorf("state %v", vi.State())
	}
}
