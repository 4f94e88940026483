package shm_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/via"
)

// player is one end of an exchange of messages, as a task of a loop. It sleeps
// until a peer wakes it, without a limit: a wake-up that is lost stops it.
type player struct {
	tb         testing.TB
	end        *end
	recv, send *via.Descriptor
	serves     bool
	begun      bool
	rounds     int
	pause      func() time.Duration
	file       loop.File
	files      []*loop.File
	received   int
	sending    bool
	paused     time.Time
	total      *atomic.Int64
}

func newPlayer(tb testing.TB, e *end, serves bool, rounds int, total *atomic.Int64, pause func() time.Duration) *player {
	p := &player{
		tb: tb, end: e, recv: e.descriptor(tb, 0), send: e.descriptor(tb, 1), serves: serves, rounds: rounds,
		pause: pause, file: loop.File{FD: e.cq.FD(), Edge: true}, total: total,
	}
	p.files = []*loop.File{&p.file}
	postRecv(tb, e, p.recv)
	return p
}

func (p *player) play() {
	p.sending = true
	p.send.Reset(via.OpSend)
	p.send.AddSegment(p.end.mem.Addr()+8192, p.end.mem.Handle(), 64)
	must(p.tb, p.end.vi.PostSend(p.send))
}

func (p *player) Visit(loop.Round) loop.Next {
	if !p.serves && !p.begun {
		p.begun = true
		p.play()
	}
	var done [4]via.Completion
	for n := p.end.cq.Poll(done[:]); n > 0; n = p.end.cq.Poll(done[:]) {
		for _, c := range done[:n] {
			if c.Status.Failed() {
				p.tb.Errorf("%+v", c)
				return loop.Next{Done: true}
			}
			if !c.Recv {
				p.sending = false
				continue
			}
			p.received++
			p.total.Add(1)
			if p.received < p.rounds {
				postRecv(p.tb, p.end, p.recv)
			}
			p.paused = time.Now().Add(p.pause())
		}
	}
	due := p.received > 0 && !p.paused.IsZero() && (p.serves || p.received < p.rounds)
	if due && time.Until(p.paused) <= 0 {
		p.paused = time.Time{}
		p.play()
	} else if due {
		return loop.Next{Wait: time.Until(p.paused), Files: p.files} // by its timer alone
	}
	if p.received == p.rounds && !p.sending {
		return loop.Next{Done: true}
	}
	if !p.end.cq.ArmEdge() {
		return loop.Next{Again: true}
	}
	return loop.Next{Wait: -1, Files: p.files, Source: p.end.cq}
}

// TestNoWakeUpIsLostByLoops has pairs of tasks of loops exchange messages: busy
// ones, which share the sleep flags of the loops, ones that pause for longer
// than that lasts, and ones that block their loop now and then, so that it is
// given to another goroutine and they go to another loop. Tasks also move
// because loops are unequal.
func TestNoWakeUpIsLostByLoops(t *testing.T) {
	const pairs = 24
	rounds := 20_000
	if testing.Short() {
		rounds = 2000
	}
	var total atomic.Int64
	ended := make(chan error, 2*pairs)
	rings := make([]func() uint64, 0, pairs)
	want := int64(0)
	for i := range pairs {
		client, server := connectedPair(t, 8, 1<<20)
		n, pause := rounds, func() time.Duration { return 0 }
		switch i % 8 {
		case 6:
			n = rounds / 100
			pause = func() time.Duration { return rand.N(30 * time.Millisecond) }
		case 7:
			n = rounds / 20
			pause = func() time.Duration {
				if rand.IntN(40) == 0 {
					loop.MayBlock()
					time.Sleep(50 * time.Millisecond) // a disk that blocks
				}
				return 0
			}
		}
		want += 2 * int64(n)
		rings = append(rings, func() uint64 { return client.vi.Stats().Doorbells + server.vi.Stats().Doorbells })
		for _, p := range []*player{
			newPlayer(t, server, true, n, &total, func() time.Duration { return 0 }),
			newPlayer(t, client, false, n, &total, pause),
		} {
			go func() { ended <- loop.Drive(p) }()
		}
	}
	last, since := int64(-1), time.Now()
	for left := 2 * pairs; left > 0; {
		select {
		case err := <-ended:
			must(t, err)
			left--
		case <-time.After(time.Second):
			if n := total.Load(); n != last {
				last, since = n, time.Now()
			} else if time.Since(since) > time.Minute {
				t.Fatalf("no message arrives any more, %d of %d did", n, want)
			}
		}
	}
	if n := total.Load(); n != want {
		t.Errorf("%d messages, want %d", n, want)
	}
	doorbells := uint64(0)
	for _, r := range rings {
		doorbells += r()
	}
	t.Logf("%d rings for %d messages", doorbells, want)
	if doorbells > uint64(want)/2 {
		t.Errorf("%d rings for %d messages: the ends share no sleep flag", doorbells, want)
	}
}
