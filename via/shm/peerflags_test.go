package shm

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
	"github.com/viablk/viablk/internal/sleepflag"
	"github.com/viablk/viablk/via"
)

// sleeping is a thread with two queues, each with a link to another device of a
// peer.
type sleeping struct {
	t     *testing.T
	near  *station
	far   [2]*station
	flag  *sleepflag.Flag
	cqs   [2]*via.CQ
	edges [2]func(time.Duration) bool
	a, b  [2]*via.VI
}

func newSleeping(t *testing.T) *sleeping {
	t.Helper()
	watchLeaks(t)
	s := &sleeping{t: t, near: newStation(t, testTimeouts)}
	page, err := sleepflag.Process()
	check(t, err)
	s.flag, err = page.Acquire()
	check(t, err)
	l := s.near.listen()
	for i := range s.cqs {
		far := newStation(t, testTimeouts)
		check(t, far.mem.SetAttributes(via.MemAttributes{Ptag: far.tag})) // passes no arena: its arrival would be work
		s.cqs[i] = s.near.cq
		if i > 0 {
			s.cqs[i], err = s.near.nic.CreateCQ(2 * stationDepth)
			check(t, err)
		}
		s.a[i], s.b[i] = s.near.newViOn(s.cqs[i], s.cqs[i]), far.newVI()
		s.far[i] = far
		join(t, s.b[i], l, s.a[i])
		s.edges[i] = watchEdges(t, s.cqs[i])
	}
	t.Cleanup(func() {
		s.flag.Release()
		s.near.disconnect(s.a[1])
		check(t, s.cqs[1].Destroy())
	})
	return s
}

// share posts a receive at each link, arms the queues and has them share the
// flag.
func (s *sleeping) share() {
	s.t.Helper()
	for i, cq := range s.cqs {
		check(s.t, s.a[i].PostRecv(s.near.descriptor(i, via.OpRecv, 1<<20, 64)))
		until(s.t, "the peer to have the flags", func() bool {
			pollOne(cq)
			return cq.ArmEdge() && !s.edges[i](0) && cq.Share(s.flag.Index())
		}, s.far[i])
	}
}

// send has the peer send over a link and returns how often it rang.
func (s *sleeping) send(i int) uint64 {
	s.t.Helper()
	before := s.b[i].Stats().Doorbells
	d := s.far[i].descriptor(i, via.OpSend, 1<<20, 64)
	check(s.t, s.b[i].PostSend(d))
	if c := s.far[i].await(d); c.Status.Failed() {
		s.t.Fatalf("send completed with %v", c.Status)
	}
	return s.b[i].Stats().Doorbells - before
}

// expect checks how often the peer rings for a message over a link, which the
// thread finds when it looks.
func (s *sleeping) expect(when string, i int, rings uint64) {
	s.t.Helper()
	if s.cqs[i].Pending() {
		s.t.Fatalf("%s: there is something to do before", when)
	}
	if n := s.send(i); n != rings {
		s.t.Fatalf("%s: %d rings, want %d", when, n, rings)
	}
	if !s.cqs[i].Pending() {
		s.t.Fatalf("%s: the thread does not find the message", when)
	}
	if woken := s.edges[i](0); woken != (rings > 0) {
		s.t.Fatalf("%s: woken %v by %d rings", when, woken, rings)
	}
}

// receive takes the messages.
func (s *sleeping) receive() {
	s.t.Helper()
	for _, cq := range s.cqs {
		until(s.t, "the message", func() bool { return pollOne(cq) == 1 })
	}
}

// TestOneRingForAllQueues: a peer rings once in each sleep of a thread, over
// any of its links, and never while the thread is awake.
func TestOneRingForAllQueues(t *testing.T) {
	s := newSleeping(t)
	for round := range 5 {
		s.share()
		s.expect("awake", 0, 0)
		s.expect("awake", 1, 0)
		s.receive()

		s.share()
		s.flag.Sleep()
		first := round % 2
		s.expect("asleep", first, 1)
		s.expect("rung already", 1-first, 0)
		s.flag.Wake()
		s.receive()
	}
	s.share()
	s.flag.Sleep()
	s.flag.Wake()
	for i, cq := range s.cqs { // each for itself again
		if !cq.Share(-1) {
			t.Fatal("a queue does not stop to share")
		}
		s.expect("armed for itself", i, 1)
	}
	s.receive()
}

// TestQueueStopsSharing: Poll and Disarm end it; a queue that is not armed does
// not begin.
func TestQueueStopsSharing(t *testing.T) {
	s := newSleeping(t)
	for _, end := range []func(*via.CQ){(*via.CQ).Disarm, func(cq *via.CQ) { pollOne(cq) }} {
		s.share()
		s.flag.Sleep()
		for i, cq := range s.cqs {
			end(cq)
			s.expect("not armed", i, 0)
			if cq.Share(s.flag.Index()) {
				t.Fatal("a queue shares that is not armed")
			}
		}
		s.flag.Wake()
		s.receive()
	}
	s.share()
	if s.cqs[0].Share(sleepflag.Flags) {
		t.Error("a queue shares a flag beyond the page")
	}
	s.send(0)
	s.send(1)
	s.receive()
}

// TestRingOverLinkThatIsGone: a peer that loaded the wants of a link before the
// thread gave the link away rings, and the thread does not hear it. The peer
// rings for the other link all the same.
func TestRingOverLinkThatIsGone(t *testing.T) {
	s := newSleeping(t)
	s.share()
	gone := s.far[0].onlyLink()
	wants := loadWord(gone.peer.mem, offWants)
	s.cqs[0].Disarm()
	s.flag.Sleep()
	before := gone.sender.data.rings
	if gone.sender.data.wakeThread(wants); gone.sender.data.rings != before+1 {
		t.Fatal("the peer does not ring")
	}
	s.expect("rung over a link that is gone", 1, 1)
	s.flag.Wake()
	s.send(0)
	s.receive()
}

// TestHostileFlags passes sleep flags against the rules: the connection, and
// nothing else, is lost.
func TestHostileFlags(t *testing.T) {
	page := func(t *testing.T, size int, seals bool) int {
		if !seals {
			fd, err := unix.MemfdCreate("raw", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			check(t, err)
			check(t, unix.Ftruncate(fd, int64(size)))
			return fd
		}
		mem, fd, err := memfd.Create("raw", size, 0)
		check(t, err)
		t.Cleanup(func() { _ = unix.Munmap(mem) })
		return fd
	}
	for name, act := range map[string]func(t *testing.T, p *rawPeer){
		"unsealed":  func(t *testing.T, p *rawPeer) { p.passFlags(page(t, sleepflag.Size, false)) },
		"too small": func(t *testing.T, p *rawPeer) { p.passFlags(page(t, sleepflag.Size/2, true)) },
		"too long":  func(t *testing.T, p *rawPeer) { p.passFlags(page(t, 2*sleepflag.Size, true)) },
		"a pipe": func(t *testing.T, p *rawPeer) {
			var pipe [2]int
			check(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
			check(t, unix.Close(pipe[1]))
			p.passFlags(pipe[0])
		},
		"twice": func(t *testing.T, p *rawPeer) {
			p.passFlags(page(t, sleepflag.Size, true))
			p.passFlags(page(t, sleepflag.Size, true))
		},
		"mapped, though never passed": func(t *testing.T, p *rawPeer) {
			check(t, sendControl(p.conn, control{kind: controlMappedFlags}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := attack(t)
			act(t, b.peer)
			b.loses()
		})
	}
}

func (p *rawPeer) passFlags(fd int) {
	p.tb.Helper()
	check(p.tb, errors.Join(sendControl(p.conn, control{kind: controlPassFlags, fds: []int{fd}}), unix.Close(fd)))
}

// TestHostileWants names flags that are none, or none of a page: the victim
// rings or not, and goes on. A queue with such a peer does not share.
func TestHostileWants(t *testing.T) {
	b := attack(t)
	send := func() uint64 {
		t.Helper()
		before := b.vi.Stats().Doorbells
		b.peer.word(offHead, loadWord(b.peer.victim.mem, offTail))
		d := b.descriptor(80, via.OpSend, 1<<20, 64)
		check(t, b.vi.PostSend(d))
		if c := b.await(d); c.Status.Failed() {
			t.Fatalf("send completed with %v", c.Status)
		}
		return b.vi.Stats().Doorbells - before
	}
	shared := func(flag uint64) { b.peer.word(offWants, wantShared|flag<<wantShift|wantData) }
	shared(0)
	if n := send(); n != 0 {
		t.Errorf("%d rings without a page", n)
	}
	mem, fd, err := memfd.Create("raw", sleepflag.Size, 0)
	check(t, err)
	defer func() { check(t, unix.Munmap(mem)) }()
	b.peer.passFlags(fd)
	for answered := false; !answered; {
		m, err := receiveControl(b.peer.conn)
		check(t, err)
		closeAll(m.fds...)
		if m.kind == controlPassFlags {
			t.Error("a peer that does not say that it knows sleep flags was passed some")
		}
		answered = m.kind == controlMappedFlags
	}
	for _, flag := range []uint64{sleepflag.Flags, 1 << 60} {
		shared(flag)
		if n := send(); n != 0 {
			t.Errorf("%d rings for flag %d", n, flag)
		}
	}
	shared(sleepflag.Flags - 1)
	for at, want := range []uint64{0, 1, 0, 0, 1} { // asleep if odd
		flag := []uint64{0, 1, 1, 2, 3}[at]
		storeWord(mem, (sleepflag.Flags-1)*(sleepflag.Size/sleepflag.Flags), flag)
		if n := send(); n != want {
			t.Errorf("%d rings, want %d, at step %d", n, want, at)
		}
	}
	for b.poll() > 0 {
	}
	if b.cq.ArmEdge() && b.cq.Share(0) {
		t.Error("a queue shares its flag with a peer that has none")
	}
	b.keeps()
}

// TestFlagsAreOfAProcess: the page of a process that another one passes is not
// the same: what is rung for the one counts nothing for the other.
func TestFlagsAreOfAProcess(t *testing.T) {
	watchLeaks(t)
	page, err := sleepflag.Process()
	check(t, err)
	open := func(pid int32) *peerFlags {
		t.Helper()
		fd, err := unix.Dup(page.FD())
		check(t, err)
		f, err := mapFlags(fd, pid)
		check(t, err)
		return f
	}
	one, again, other := open(1), open(1), open(2)
	if one != again || one == other {
		t.Errorf("pages %p and %p of a process, %p of another one", one, again, other)
	}
	for _, f := range []*peerFlags{one, again, other} {
		f.release()
	}
}
