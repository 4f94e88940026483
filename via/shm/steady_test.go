package shm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/viablk/viablk/via"
)

// duo is a connected pair in one process, driven by one goroutine.
type duo struct {
	a, b   *station
	va, vb *via.VI
	done   [4]via.Completion
}

func newDuo(tb testing.TB) *duo {
	tb.Helper()
	d := &duo{a: newStation(tb, testTimeouts), b: newStation(tb, testTimeouts)}
	d.va, d.vb = d.a.newVI(), d.b.newVI()
	join(tb, d.va, d.b.listen(), d.vb)
	return d
}

// onlyLink returns the only link of a station.
func (s *station) onlyLink() *link {
	s.tb.Helper()
	s.adapter.mu.Lock()
	defer s.adapter.mu.Unlock()
	if len(s.adapter.links) != 1 {
		s.tb.Fatalf("%d links", len(s.adapter.links))
	}
	for l := range s.adapter.links {
		return l
	}
	return nil
}

// receive polls a queue until n completions are there; none may have failed.
func (d *duo) receive(q *via.CQ, n int) {
	for n > 0 {
		k := q.Poll(d.done[:])
		for _, c := range d.done[:k] {
			if c.Status.Failed() {
				panic(c.Status.String())
			}
		}
		n -= k
	}
}

// message moves n bytes from a to b.
func (d *duo) message(recv, send *via.Descriptor, n int) {
	recv.Reset(via.OpRecv)
	recv.AddSegment(d.b.mem.Addr()+1<<20, d.b.mem.Handle(), uint32(n))
	if err := d.vb.PostRecv(recv); err != nil {
		panic(err)
	}
	send.Reset(via.OpSend)
	send.AddSegment(d.a.mem.Addr()+1<<20, d.a.mem.Handle(), uint32(n))
	if err := d.va.PostSend(send); err != nil {
		panic(err)
	}
	d.receive(d.a.cq, 1)
	d.receive(d.b.cq, 1)
}

// rdma moves n bytes between a's and b's memory.
func (d *duo) rdma(op via.Opcode, w *via.Descriptor, n int) {
	w.Reset(op)
	w.SetRemote(d.b.mem.Addr()+4<<20, d.b.mem.Handle())
	w.AddSegment(d.a.mem.Addr()+4<<20, d.a.mem.Handle(), uint32(n))
	if err := d.va.PostSend(w); err != nil {
		panic(err)
	}
	d.receive(d.a.cq, 1)
}

// operations are the operations of a connection in steady state.
func (d *duo) operations() map[string]func() {
	recv, send := d.b.descriptor(0, via.OpRecv, 0, 0), d.a.descriptor(0, via.OpSend, 0, 0)
	return map[string]func(){
		"send 64 bytes":   func() { d.message(recv, send, 64) },
		"send 200000":     func() { d.message(recv, send, 200000) },
		"rdma write 4096": func() { d.rdma(via.OpRdmaWrite, send, 4096) },
		"rdma read 4096":  func() { d.rdma(via.OpRdmaRead, send, 4096) },
		"rdma write 3 MB": func() { d.rdma(via.OpRdmaWrite, send, 3<<20) },
		"rdma read 3 MB":  func() { d.rdma(via.OpRdmaRead, send, 3<<20) },
	}
}

func TestNoAllocations(t *testing.T) {
	d := newDuo(t)
	ops := d.operations()
	ops["sleep"] = func() {
		for !d.b.cq.Arm() {
			d.b.cq.Poll(d.done[:])
		}
		d.b.cq.Poll(d.done[:])
	}
	ops["poll into the stack"] = func() {
		var done [16]via.Completion
		d.b.cq.Poll(done[:])
	}
	for name, f := range ops {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestBellsOnlyForSleepers counts the system calls that wake.
func TestBellsOnlyForSleepers(t *testing.T) {
	d := newDuo(t)
	for name, f := range d.operations() {
		for range 100 {
			f()
		}
		if a, b := d.va.Stats().Doorbells, d.vb.Stats().Doorbells; a != 0 || b != 0 {
			t.Fatalf("%s: %d and %d doorbells to a peer that is awake", name, a, b)
		}
	}
	// A sleep is ended by one, however much is sent.
	const sleeps, each = 10, 5
	for range sleeps {
		for i := range each {
			check(t, d.vb.PostRecv(d.b.descriptor(i, via.OpRecv, 1<<20, 64)))
		}
		for !d.b.cq.Arm() {
			d.receive(d.b.cq, 0)
			d.b.cq.Poll(d.done[:])
		}
		for i := range each {
			check(t, d.va.PostSend(d.a.descriptor(i, via.OpSend, 1<<20, 64)))
		}
		d.receive(d.a.cq, each)
		d.receive(d.b.cq, each)
	}
	if n := d.va.Stats().Doorbells; n != sleeps {
		t.Errorf("%d doorbells for %d sleeps", n, sleeps)
	}
	if s := d.va.Stats(); s.RdmaReads == 0 || s.RdmaWrites == 0 {
		t.Errorf("%+v", s)
	}
}

// TestOneRecordPerPost: a 64-byte post is one record, copied once; staged posts
// are published together.
func TestOneRecordPerPost(t *testing.T) {
	d := newDuo(t)
	s := &d.a.onlyLink().sender
	for i := range 4 {
		check(t, d.vb.PostRecv(d.b.descriptor(i, via.OpRecv, 1<<20, 64)))
	}
	start, copied, records := s.out.tail, s.stats.BytesCopied, d.va.Stats().Records
	for i := range 4 {
		check(t, d.va.StageSend(d.a.descriptor(i, via.OpSend, 1<<20, 64)))
		if n := s.out.tail - start; n != uint64(i+1)*(recordHeader+64) {
			t.Errorf("%d posts write %d bytes to the ring", i+1, n)
		}
	}
	if n := d.va.Stats().Records - records; n != 4 {
		t.Errorf("%d records for 4 posts", n)
	}
	if n := s.stats.BytesCopied - copied; n != 4*64 {
		t.Errorf("%d bytes copied for 4 posts", n)
	}
	if seen := loadWord(s.local.mem, offTail); seen != start {
		t.Errorf("the peer sees %d bytes before the doorbell", seen-start)
	}
	d.va.Doorbell()
	if seen := loadWord(s.local.mem, offTail); seen != s.out.tail {
		t.Errorf("the peer sees %d bytes of %d", seen-start, s.out.tail-start)
	}
	d.receive(d.a.cq, 4)
	d.receive(d.b.cq, 4)
}

// TestNoSystemCalls runs the data path in a process whose kernel kills it for a
// system call that reads, writes or sends.
func TestNoSystemCalls(t *testing.T) {
	check(t, startRole(t, "forbidden", "work", t.TempDir()).wait())
	// The trap works: ringing a sleeper is a system call.
	err := startRole(t, "forbidden", "wake", t.TempDir()).wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSYS {
		t.Fatalf("the process that rings a sleeper ends with %v", err)
	}
}

// roleForbidden forbids itself system calls on this thread, then works, or
// wakes a sleeper.
func roleForbidden(tb *roleTB, args []string) error {
	tb.dir = args[1]
	d := newDuo(tb)
	ops := d.operations()
	for _, f := range ops {
		f()
	}
	if args[0] == "wake" {
		check(tb, d.vb.PostRecv(d.b.descriptor(9, via.OpRecv, 1<<20, 64)))
		for !d.b.cq.Arm() {
			d.b.cq.Poll(d.done[:])
		}
	}
	runtime.GC()
	debug.SetGCPercent(-1)
	runtime.LockOSThread() // the filter is this thread's, which ends with the process
	if err := forbid(syscall.SYS_READ, syscall.SYS_WRITE, syscall.SYS_READV, syscall.SYS_WRITEV,
		syscall.SYS_SENDTO, syscall.SYS_SENDMSG, syscall.SYS_RECVFROM, syscall.SYS_RECVMSG,
		syscall.SYS_EPOLL_CTL, syscall.SYS_IOCTL, syscall.SYS_POLL, syscall.SYS_PPOLL); err != nil {
		return fmt.Errorf("forbid system calls: %w", err)
	}
	for range 2000 {
		ops["send 64 bytes"]()
		ops["rdma write 4096"]()
		ops["rdma read 4096"]()
	}
	os.Exit(0) // what would be cleaned up needs system calls
	return nil
}
