package initiator_test

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
)

// cutAt is the offset of a request at which deaf targets end the connection.
const cutAt = 1 << 30

// deaf is a target that executes commands and, in its first session, does not
// answer those to the first block. It notes the commands of each session.
type deaf struct {
	refuse   bool // every session but the first
	sessions atomic.Int32

	mu    sync.Mutex
	heard []string // guarded by mu
}

func (x *deaf) play() play {
	return play{
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			if q.Role == wire.RoleControl && x.sessions.Add(1) > 1 && x.refuse {
				return false
			}
			e.sendControl(a)
			return true
		},
		command: func(e *end, cmd *wire.Command, _ []byte) bool {
			// A connection of the first session may outlive it for a moment.
			first := x.refuse || x.sessions.Load() == 1
			x.mu.Lock()
			x.heard = append(x.heard, fmt.Sprintf("%d %v %d", min(x.sessions.Load(), 2), cmd.Opcode, cmd.Offset))
			x.mu.Unlock()
			if first && cmd.Offset == cutAt {
				return false
			}
			if !first || cmd.Offset != 0 {
				e.answer(cmd)
			}
			return true
		},
	}
}

// commands returns the commands so far; those that end connections are not
// among them.
func (x *deaf) commands() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	cut := fmt.Sprintf("%v %d", wire.OpPrefetch, cutAt)
	return slices.DeleteFunc(slices.Clone(x.heard), func(s string) bool { return s[2:] == cut })
}

// waitForCommand waits until the target has a command.
func (x *deaf) waitForCommand(t testing.TB, want string) {
	t.Helper()
	waitFor(t, want, func() bool { return slices.Contains(x.commands(), want) })
}

// cut ends the connection of a queue.
func cut(t testing.TB, q block.Queue) {
	submit(t, q, request(block.Prefetch, cutAt, 4096))
}

// TestRequestsWaitForThoseTheyOverlap: while a write is not answered, no queue
// of the device sends a request to its blocks, before the loss of the target
// and after it: executed again, the write must come first.
func TestRequestsWaitForThoseTheyOverlap(t *testing.T) {
	var x deaf
	d := newStage(t, x.play()).dialWith(t, lasting(initiator.Forever))
	q1, q2 := open(t, d, 8), open(t, d, 8)
	submit(t, q1, request(block.Write, 0, 8192))
	x.waitForCommand(t, "1 write 0")
	// Each of these overlaps the write, but for the last.
	submit(t, q2, request(block.Read, 4096, 4096), request(block.Trim, 0, 4096), request(block.WriteZeroes, 4096, 4096), request(block.Read, 8192, 4096))
	submit(t, q1, request(block.Read, 0, 4096), request(block.Read, 16384, 4096))
	wantAll(t, q1, 1, 0)
	wantAll(t, q2, 1, 0)
	want := []string{"1 write 0", "1 read 8192", "1 read 16384"}
	got := x.commands()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("commands %q, wanted are %q", got, want)
	}
	cut(t, q1)
	done := make(chan error, 1)
	go func() {
		_, err := reap(q2, 3)
		done <- err
	}()
	wantAll(t, q1, 3, 0)
	must(t, <-done)
	again := slices.DeleteFunc(x.commands(), func(s string) bool { return s[0] == '1' })
	// The target hears once more what the other connection had answered.
	rest := slices.Compact(slices.Sorted(slices.Values(again[1:])))
	if again[0] != "2 write 0" || len(rest) != 4 || slices.Contains(rest, again[0]) {
		t.Errorf("after the loss came %q, not the write first and then four others", again)
	}
}

// TestRequestGoesOnThatGetsItsRangeAtAReturn: a request that waited for one of
// another queue gets its range while its own queue has no connection and
// nothing else to send. It is sent when the connection is back.
func TestRequestGoesOnThatGetsItsRangeAtAReturn(t *testing.T) {
	var x deaf
	var isCut atomic.Bool
	p := x.play()
	command := p.command
	p.command = func(e *end, cmd *wire.Command, payload []byte) bool {
		switch cmd.Offset {
		case cutAt + 4096:
			e.answer(cmd)
			return false
		case cutAt: // perhaps when the other queue's loss has made a second session
			if !isCut.Swap(true) {
				return false
			}
		}
		return command(e, cmd, payload)
	}
	d := newStage(t, p).dialWith(t, lasting(initiator.Forever))
	q1, q2 := open(t, d, 8), open(t, d, 8)
	submit(t, q1, request(block.Write, 0, 4096))
	x.waitForCommand(t, "1 write 0")
	submit(t, q2, request(block.Read, 0, 4096), request(block.Prefetch, cutAt+4096, 4096))
	wantAll(t, q2, 1, 0)
	cut(t, q1)
	waitFor(t, "the loss", func() bool {
		q2.Reap(nil)
		return q2.Err() != nil
	})
	wantAll(t, q1, 2, 0)              // the second queue's range is free
	time.Sleep(20 * time.Millisecond) // its connection is back; if not, this test finds nothing
	for done := make([]*block.Request, 1); q2.Reap(done) == 0; {
		wait, ok := q2.Arm()
		if !ok {
			continue
		}
		if wait < 0 {
			wait = testTimeout
		}
		fds := []unix.PollFd{{Fd: int32(q2.FD()), Events: unix.POLLIN}}
		if k, err := unix.Poll(fds, int(wait/time.Millisecond)); k == 0 && wait == testTimeout {
			t.Fatalf("the queue sleeps with a request that waits, and nothing wakes it: %v", err)
		}
	}
}

// TestReconnectIsPublished: the status of a device has the reconnect of a queue
// whose owner does not sleep after it.
func TestReconnectIsPublished(t *testing.T) {
	var x deaf
	d := newStage(t, x.play()).dialWith(t, lasting(initiator.Forever))
	q := open(t, d, 8)
	submit(t, q, request(block.Write, 0, 4096)) // answered over the next connection
	x.waitForCommand(t, "1 write 0")
	cut(t, q)
	done := make([]*block.Request, 2)
	waitFor(t, "the answers", func() bool {
		return q.Reap(done) > 0
	})
	if n := d.Status().Stats.Reconnects; n != 1 {
		t.Errorf("%d reconnects in the status, not 1", n)
	}
}

// TestWaitingRequestsFail when the target does not return in time, whichever
// queue has the request that they wait for.
func TestWaitingRequestsFail(t *testing.T) {
	x := deaf{refuse: true}
	d := newStage(t, x.play()).dialWith(t, lasting(100*time.Millisecond))
	q1, q2 := open(t, d, 8), open(t, d, 8)
	submit(t, q1, request(block.Write, 0, 4096), request(block.Read, 0, 4096))
	x.waitForCommand(t, "1 write 0")
	submit(t, q2, request(block.Read, 0, 4096), request(block.Write, 0, 4096))
	cut(t, q1)
	cut(t, q2)
	done := make(chan []*block.Request, 1)
	go func() {
		rs, _ := reap(q2, 3)
		done <- rs
	}()
	wantAll(t, q1, 3, syscall.EIO)
	rs := <-done
	if len(rs) != 3 {
		t.Fatalf("%d of 3 requests came back", len(rs))
	}
	for _, r := range rs {
		if block.Errno(r.Err) != syscall.EIO {
			t.Errorf("%v: %v", r.Op, r.Err)
		}
	}
}

// TestRangeWakesQueueWithoutConnection: the owner of a queue that has aborted
// while its target is away sleeps until its last request, which waits for a
// range, has it from another queue.
func TestRangeWakesQueueWithoutConnection(t *testing.T) {
	x := deaf{refuse: true}
	d := newStage(t, x.play()).dialWith(t, func(c *initiator.Config) {
		lasting(initiator.Forever)(c)
		c.Timeout = time.Second
	})
	holder, err := d.NewQueue(8)
	must(t, err)
	submit(t, holder, request(block.Write, 0, 4096))
	x.waitForCommand(t, "1 write 0")
	q := open(t, d, 8)
	submit(t, q, request(block.Read, 0, 4096))
	cut(t, q)
	waitFor(t, "the loss", func() bool {
		q.Reap(nil)
		return q.Err() != nil
	})
	q.Abort()
	wantAll(t, q, 1, syscall.EIO) // the one that cut
	if wait := armed(t, q); wait >= 0 {
		t.Fatalf("the owner polls, after %v", wait)
	}
	closed := make(chan error, 1)
	go func() { closed <- holder.Close() }()
	fds := []unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}
	for n := 0; n == 0; {
		if n, err = unix.Poll(fds, int(testTimeout/time.Millisecond)); n == 0 && err != unix.EINTR {
			t.Fatalf("nothing wakes the owner: %v", err)
		}
	}
	must(t, <-closed)
	wantAll(t, q, 1, syscall.EIO)
}

// TestClosedQueuesHoldNothing: a queue that is closed with a request that
// waits, or with one that is not answered, is in no other queue's way.
func TestClosedQueuesHoldNothing(t *testing.T) {
	var x deaf
	d := newStage(t, x.play()).dialWith(t, func(c *initiator.Config) {
		lasting(initiator.Forever)(c)
		c.Timeout = time.Second
	})
	holder, err := d.NewQueue(8)
	must(t, err)
	waiter, err := d.NewQueue(8)
	must(t, err)
	q := open(t, d, 8)
	submit(t, holder, request(block.Write, 0, 4096))
	x.waitForCommand(t, "1 write 0")
	submit(t, waiter, request(block.Write, 0, 8192))
	submit(t, q, request(block.Write, 4096, 8192))
	if q.Reap(make([]*block.Request, 1)) != 0 {
		t.Fatal("a write did not wait for one that came first")
	}
	must(t, waiter.Close())
	must(t, holder.Close())
	wantAll(t, q, 1, 0)
	if got := x.commands(); len(got) != 2 {
		t.Errorf("commands %q: a request of a closed queue was sent", got)
	}
}

// TestLongTrimsGoOn: a range longer than a command is sent command by command,
// and after a loss from where it was answered.
func TestLongTrimsGoOn(t *testing.T) {
	var mu sync.Mutex
	var heard []string
	var sessions atomic.Int32
	d := newStage(t, play{
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			if q.Role == wire.RoleControl {
				sessions.Add(1)
			}
			e.sendControl(a)
			return true
		},
		command: func(e *end, cmd *wire.Command, _ []byte) bool {
			mu.Lock()
			heard = append(heard, fmt.Sprintf("%d: %d+%d", sessions.Load(), cmd.Offset>>30, cmd.Length>>30))
			mu.Unlock()
			if sessions.Load() == 1 && cmd.Offset == 4<<30 {
				return false
			}
			e.answer(cmd)
			return true
		},
	}).dialWith(t, lasting(initiator.Forever))
	q := open(t, d, 4)
	submit(t, q, request(block.Trim, 1<<30, 6<<30))
	wantAll(t, q, 1, 0)
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"1: 1+1", "1: 2+2", "1: 4+2", "2: 4+2", "2: 6+1"}; !slices.Equal(heard, want) {
		t.Errorf("commands %q, wanted are %q", heard, want)
	}
}

// TestRequestsThatReservedAllMemoryWait: a request in memory of the caller's
// goes on although those that wait for it, behind it or for its range, have
// reserved the whole pool.
func TestRequestsThatReservedAllMemoryWait(t *testing.T) {
	const pool, chunk = 64 << 10, 16 << 10
	r := newRemote(t, target.Config{}, fileSpec(t, 1<<20))
	d := r.dial(t, "a", func(c *initiator.Config) {
		lasting(initiator.Forever)(c)
		c.PoolBytes, c.Chunk, c.CopyMode = pool, chunk, regcache.CopyBounce
	})
	for _, off := range []int64{0, 512 << 10} { // overlaps, and does not
		q := open(t, d, 4)
		reserved := &block.Request{Op: block.Write, Offset: off, Length: pool}
		if !q.Reserve(reserved) {
			t.Fatal("not reserved")
		}
		pattern(reserved.Data, 2)
		first := request(block.Write, 0, 2*chunk+4096)
		pattern(first.Data, 1)
		submit(t, q, first, reserved)
		wantAll(t, q, 2, 0)
		q.Release(reserved)
		got := make([]byte, 2*chunk+4096)
		want := first.Data
		if off == 0 {
			want = make([]byte, pool)
			pattern(want, 2)
			want = want[:len(got)]
		}
		if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("at %d: %v, or other data than was written last", off, err)
		}
	}
}
