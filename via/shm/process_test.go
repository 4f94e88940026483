package shm

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// accept connects the exchange to the next requester.
func (x *exchange) accept(l *via.Listener) {
	x.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := l.Wait(ctx)
	check(x.tb, err)
	check(x.tb, r.Accept(ctx, x.vi))
}

// contended is a station with a healthy connection and one to a process that
// loads it as much as it can.
type contended struct {
	*exchange
	listener *via.Listener
	healthy  *healthy
	child    *child
	messages int
}

func contend(t *testing.T, p timeouts) *contended {
	t.Helper()
	watchLeaks(t)
	r := &contended{exchange: newExchange(t, p)}
	r.listener = r.listen()
	r.healthy = newHealthy(t, r.station, r.listener)
	r.receive = func(buffer int, _ via.Completion) {
		r.messages++
		r.repost(buffer)
		r.send(buffer, 1) // the child goes on
	}
	r.sent = func(via.Completion) {}
	r.start()
	return r
}

func (r *contended) start() {
	r.child = startRole(r.tb, "load", r.listener.Addr().Host, r.place().String())
	r.accept(r.listener)
	r.underLoad()
}

// underLoad serves some more messages.
func (r *contended) underLoad() {
	r.tb.Helper()
	deadline := time.Now().Add(time.Minute)
	for want := r.messages + 200; r.messages < want; {
		r.pollOnce()
		if r.vi.State() != via.StateConnected || time.Now().After(deadline) {
			r.tb.Fatalf("%d messages, then the vi is %v", r.messages, r.vi.State())
		}
	}
}

// TestPeerKilled kills a process in the middle of its work.
func TestPeerKilled(t *testing.T) {
	r := contend(t, testTimeouts)
	for round := range 5 {
		if round > 0 {
			r.start()
		}
		m := r.region()
		r.child.signal(syscall.SIGKILL)
		if err := r.child.wait(); err == nil {
			t.Error("the child ended well")
		}
		for r.vi.State() == via.StateConnected {
			if !r.pollOnce() && r.vi.State() == via.StateConnected && !r.sleep() {
				t.Fatal("nothing tells of the peer's death")
			}
		}
		check(t, m.Deregister()) // also if it died inside
		r.healthy.check()
		r.done = nil
		r.disconnect(r.vi)
		r.vi = r.newVI()
		for i := range buffers {
			r.repost(i)
		}
	}
}

// TestPeerStopped stops a process in the middle of its work. Its connection
// waits, and Deregister fails for a region that it may still access.
func TestPeerStopped(t *testing.T) {
	p := testTimeouts
	p.access = time.Second // a healthy peer on a busy machine is out by then
	r := contend(t, p)
	for range 5 {
		r.child.signal(syscall.SIGSTOP)
		for r.pollOnce() {
		}
		for range 3 {
			r.healthy.check()
			r.dispatch()
		}
		r.child.signal(syscall.SIGCONT)
		r.underLoad()
	}
	r.child.signal(syscall.SIGSTOP)
	target := r.mem.Bytes()[3<<20 : 3<<20+256<<10]
	err := r.mem.SetAttributes(via.MemAttributes{Ptag: r.tag})
	inside := errors.Is(err, via.ErrStillAccessed) // stopped amid a copy
	if err != nil && !inside {
		t.Fatal(err)
	}
	if inside {
		for r.vi.State() == via.StateConnected {
			r.pollOnce()
		}
		if !r.mem.Accessed() {
			t.Error("the memory counts as free, and the child is stopped amid a copy")
		}
	} else { // the memory is this process's alone
		for i := range target {
			target[i] = 0xee
		}
	}
	before := string(target)
	r.child.signal(syscall.SIGCONT)
	for r.vi.State() == via.StateConnected {
		r.pollOnce()
	}
	if err := r.child.wait(); err != nil {
		t.Errorf("the child: %v", err)
	}
	if !inside && before != string(target) {
		t.Error("withdrawn memory changes")
	}
	if r.mem.Accessed() {
		t.Error("a child that has ended is inside the memory")
	}
	if err := r.mem.SetAttributes(r.open); err != nil {
		t.Errorf("give access back: %v", err)
	}
	r.healthy.check()
	if err := r.vi.Disconnect(); errors.Is(err, via.ErrStillAccessed) != inside {
		t.Errorf("disconnect: %v, and stopped amid a copy: %v", err, inside)
	}
}

// TestNoLostWakeUp bounces bursts between two processes that sleep whenever
// they have nothing to do.
func TestNoLostWakeUp(t *testing.T) {
	watchLeaks(t)
	x := newExchange(t, testTimeouts)
	l := x.listen()
	c := startRole(t, "echo", l.Addr().Host, "sleep")
	x.accept(l)
	c.line()
	got, free := 0, buffers
	x.receive = func(buffer int, _ via.Completion) { got++; x.repost(buffer) }
	x.sent = func(via.Completion) { free++ }
	rng := rand.New(rand.NewPCG(1, 2))
	end := time.Now().Add(3 * time.Second)
	sent := 0
	for time.Now().Before(end) {
		burst := 1 + rng.IntN(buffers/2) // the peer may not have posted again what it just answered
		for i := range burst {
			x.send(i, 1+rng.IntN(bufferBytes))
			free--
		}
		sent += burst
		for range rng.IntN(2000) { // the peer is asleep, or about to be, or not yet
			_ = x.vi.State()
		}
		for got < sent || free < buffers {
			if !x.pollOnce() && !x.sleep() {
				t.Fatalf("%d of %d messages came back, then nothing wakes", got, sent)
			}
		}
	}
	if s := x.vi.Stats(); s.Doorbells == 0 || s.Doorbells > 3*uint64(sent) {
		t.Errorf("%d doorbells for %d messages", s.Doorbells, sent)
	}
	t.Logf("%d messages each way", sent)
	check(t, x.vi.Disconnect())
	check(t, c.wait())
}

// TestOtherUser connects as another user: only who is named is admitted.
func TestOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: only root can become another user")
	}
	const uid = 65534
	dir, err := os.MkdirTemp("", "shm") // a test's own directory is closed to others
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	check(t, os.Chmod(dir, 0o755))
	binary := filepath.Join(dir, "binary")
	copyFile(t, "/proc/self/exe", binary)
	for name, c := range map[string]struct {
		opts Options
		open bool // the socket's mode
		want string
	}{
		"the socket's mode": {Options{}, false, "no connection"},
		"not named":         {Options{}, true, "closed"},
		"named":             {Options{AdmitUIDs: []uint32{uid}}, false, "accepted"},
		"another named":     {Options{AdmitUIDs: []uint32{uid - 1}}, false, "closed"},
	} {
		t.Run(name, func(t *testing.T) {
			watchLeaks(t)
			s := newStationOf(t, provider{opts: c.opts, timeouts: testTimeouts})
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", ""))
			l, err := s.nic.Listen(via.Address{Host: path, Discriminator: "d"})
			check(t, err)
			defer func() { check(t, l.Close()) }()
			if c.open {
				check(t, os.Chmod(path, 0o666))
			}
			attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			p := startProcess(t, binary, attr, "dial", path)
			if c.want == "accepted" {
				check(t, acceptNext(t, l, s.newVI()))
			}
			if got := p.line(); !strings.HasPrefix(got, c.want) {
				t.Errorf("the handshake ends with %q, want %q", got, c.want)
			}
			check(t, p.wait())
		})
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	check(t, err)
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	check(t, err)
	_, err = io.Copy(out, in)
	check(t, err)
	check(t, in.Close())
	check(t, out.Close())
}
