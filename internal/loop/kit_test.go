package loop

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

// waitLimit bounds each wait of the tests. Only a lost wake-up reaches it.
const waitLimit = 20 * time.Second

// visitor is a task that is a function.
type visitor func(Round) Next

func (v visitor) Visit(r Round) Next { return v(r) }

// recorder is a task that does as the test wants and records its latest visit.
type recorder struct {
	next   Next
	during func() // part of the visit, may change next
	visits int
	round  Round
	found  []File // next.Files as the visit found them
}

func (r *recorder) Visit(round Round) Next {
	r.visits++
	r.round = round
	r.found = r.found[:0]
	for _, f := range r.next.Files {
		r.found = append(r.found, *f)
	}
	if r.during != nil {
		r.during()
	}
	return r.next
}

// newTestGroup returns a group with so many loops, which end with the test.
func newTestGroup(t testing.TB, most int) (*group, []*Loop) {
	t.Helper()
	g := newGroup(most)
	var loops []*Loop
	for range most {
		var err error
		if loops, err = g.grow(); err != nil {
			t.Fatal(err)
		}
	}
	if len(loops) != most {
		t.Fatalf("%d loops, want %d", len(loops), most)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return // they may still have tasks
		}
		for _, l := range loops {
			eventually(t, "the goroutine of a loop without tasks ends", func() bool { return !l.isRunning() })
			l.close()
		}
	})
	return g, loops
}

func (l *Loop) isRunning() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running
}

// hold keeps the loop from a goroutine of its own until release.
func (l *Loop) hold(held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = held
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, want string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(waitLimit); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", want)
		}
	}
}

// receive returns what a channel delivers.
func receive[T any](t testing.TB, want string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(waitLimit):
		t.Fatalf("not so: %s", want)
		panic("unreachable")
	}
}

// start has the group drive a task, and returns the channel with the result.
func start(g *group, task Task) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- g.drive(task) }()
	return ended
}

func newEntry(task Task) *entry {
	return &entry{task: task, timer: -1, ended: make(chan error, 1), forgotten: make(chan struct{})}
}

// stepped is a loop without a goroutine: the test runs its iterations, and so
// knows their order.
type stepped struct {
	*Loop
	t testing.TB
}

// newStepped returns the loops of a group, each for the test to run. They do
// not balance.
func newStepped(t testing.TB, most int) []stepped {
	t.Helper()
	_, loops := newTestGroup(t, most)
	runtime.LockOSThread() // as the goroutine of a loop
	t.Cleanup(runtime.UnlockOSThread)
	var all []stepped
	for _, l := range loops {
		l.hold(true)
		l.periodStart = 1 << 62 // in the future
		t.Cleanup(func() {
			l.hold(false)
			l.slice.end()
		})
		all = append(all, stepped{l, t})
	}
	return all
}

// begin places a task on this loop and visits it.
func (s stepped) begin(task Task) *entry {
	s.t.Helper()
	e := newEntry(task)
	place([]*Loop{s.Loop}, e)
	s.poll()
	return e
}

// step runs an iteration that something other than the test's poll has to wake.
func (s stepped) step() {
	s.t.Helper()
	var late atomic.Bool
	alarm := time.AfterFunc(waitLimit, func() {
		late.Store(true)
		eventfd.Ring(s.bell)
	})
	defer alarm.Stop()
	if !s.admit() || !s.iterate() {
		s.t.Fatal("the loop has no tasks, or another goroutine")
	}
	if late.Load() {
		s.t.Fatal("nothing wakes the loop")
	}
}

// poll runs an iteration without sleep: it visits tasks that have a reason now.
func (s stepped) poll() {
	s.t.Helper()
	eventfd.Ring(s.bell)
	s.step()
}

// pass lets time pass for the loop's group.
func (s stepped) pass(d time.Duration) { s.group.epoch = s.group.epoch.Add(-d) }

// isRegistered reports whether the epoll set of the loop has a descriptor. It
// takes it out.
func (s stepped) isRegistered(fd int) bool {
	return unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, fd, nil) == nil
}

// expectVisits checks how many visits a task had in all.
func expectVisits(t testing.TB, when string, r *recorder, want int) {
	t.Helper()
	if r.visits != want {
		t.Fatalf("%s: %d visits, want %d", when, r.visits, want)
	}
}

// expectFlags checks what the latest visit found at the first file, and that
// the loop has forgotten it since.
func expectFlags(t testing.TB, when string, r *recorder, ready, writable, gone bool) {
	t.Helper()
	f := r.found[0]
	if f.Ready != ready || f.Writable != writable || f.Closed != gone || f.Gone != gone {
		t.Fatalf("%s: %+v, want ready %v, writable %v, closed and gone %v", when, f, ready, writable, gone)
	}
	for _, f := range r.next.Files {
		if f.Ready || f.Writable || f.Closed || f.Gone {
			t.Fatalf("%s: flags are set after the visit: %+v", when, *f)
		}
	}
}

// newBell returns an eventfd that is closed with the test.
func newBell(t testing.TB) int {
	t.Helper()
	fd, err := eventfd.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = eventfd.Close(fd) })
	return fd
}

// newPair returns two connected sockets. The caller closes them, or closeLater.
func newPair(t testing.TB) [2]int {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func closeLater(t testing.TB, fds ...int) {
	t.Cleanup(func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	})
}

// send writes to a socket that has room.
func send(t testing.TB, fd int, message string) {
	t.Helper()
	for {
		n, err := unix.Write(fd, []byte(message))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n != len(message) {
			t.Fatalf("write to %d: %d, %v", fd, n, err)
		}
		return
	}
}

// drainSocket reads until that would block, and returns how many bytes came. A
// peer that is gone ends it as well.
func drainSocket(t testing.TB, fd int) int {
	t.Helper()
	var buffer [1 << 16]byte
	for got := 0; ; {
		n, err := unix.Read(fd, buffer[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN) || err == nil && n == 0:
			return got
		case err != nil:
			t.Errorf("read from %d: %v", fd, err)
			return got
		default:
			got += n
		}
	}
}
