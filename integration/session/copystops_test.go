package session

import (
	"bytes"
	"context"
	"flag"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/via"
)

var copyStops = flag.Int("session.copystops", 1, "stops of a target amid a copy, in each direction")

const (
	stopsOfTarget = 25 // a target has about so many, and runs beside the others

	copyBytes   = 1 << 20 // of a request
	copyDepth   = 16
	copyDisk    = copyDepth * copyBytes
	bytesBefore = 0x11 // payload of the requests that fail
	bytesAfter  = 0x22 // and of those that come later
)

// stoppedTarget is a target whose process is stopped while it copies, and the
// device that loses it.
type stoppedTarget struct {
	t       testing.TB
	nic     *via.NIC
	host    string
	process *testbed.Process
	copies  copies // of its program
	op      block.Op
	tries   int // to stop it
}

// mostTries is how often the target continues at once because a stop met no
// copy. The next stop then lasts wherever it is.
const mostTries = 400

// TestTargetStoppedInsideCopies stops a target amid its copies, to the memory
// of reads and from that of writes, until requests fail, and lets it continue
// when the initiator has other requests. It finishes its copy: neither do these
// requests get bytes of the failed ones, nor the disk bytes of these requests.
// Stops that meet no copy are made up for, up to twenty for one that does.
func TestTargetStoppedInsideCopies(t *testing.T) {
	for name, op := range map[string]block.Op{"reads": block.Read, "writes": block.Write} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum struct{ stops, hits, tries atomic.Int64 }
			t.Cleanup(func() {
				t.Logf("%d stops, %d of them amid a copy, in %d tries", sum.stops.Load(), sum.hits.Load(), sum.tries.Load())
			})
			targets := 1 + *copyStops/stopsOfTarget
			for i := range targets {
				t.Run(strconv.Itoa(i), func(t *testing.T) {
					t.Parallel()
					s := newStoppedTarget(t, op)
					want := (*copyStops + targets - 1) / targets
					stops, hits := s.run(want)
					if hits < want {
						t.Errorf("%d stops, %d of them amid a copy, want %d", stops, hits, want)
					}
					sum.stops.Add(int64(stops))
					sum.hits.Add(int64(hits))
					sum.tries.Add(int64(s.tries))
				})
			}
		})
	}
}

// newStoppedTarget starts a target.
func newStoppedTarget(t *testing.T, op block.Op) *stoppedTarget {
	t.Helper()
	program := testbed.PlainProgram(t)
	s := &stoppedTarget{t: t, nic: openShm(t), op: op, copies: copiesOf(t, program), host: filepath.Join(testbed.Folder(t), "v")}
	s.process = testbed.StartBinary(t, program, "target", "--admin", filepath.Join(testbed.Folder(t), "a"),
		"--listen", "via+shm:///?socket="+s.host, "--export", "disk=memory:16MiB", "--keepalive", "70ms")
	t.Cleanup(func() { testbed.Must(t, s.nic.Close()) })
	return s
}

// run stops the target until so many stops have met a copy.
func (s *stoppedTarget) run(want int) (stops, hits int) {
	s.t.Helper()
	for ; hits < want && stops < 20*want; stops++ {
		if s.attempt(stops) {
			hits++
		}
	}
	return stops, hits
}

// attach attaches the disk as soon as no session of before has it. Its requests
// wait for a lost target for a time.
func (s *stoppedTarget) attach(loss time.Duration) *initiator.Device {
	s.t.Helper()
	var d *initiator.Device
	testbed.Eventually(s.t, "the end of the former session", func() (any, bool) {
		var err error
		d, err = initiator.Dial(context.Background(), initiator.Config{NIC: s.nic, Host: s.host, LossTimeout: loss})
		return err, err == nil
	})
	return d
}

// open attaches the disk without a loss timeout and opens a queue, again if a
// busy machine was silent for too long between the two.
func (s *stoppedTarget) open() (d *initiator.Device, q block.Queue) {
	s.t.Helper()
	testbed.Eventually(s.t, "a queue", func() (any, bool) {
		d = s.attach(0)
		var err error
		if q, err = d.NewQueue(copyDepth); err != nil {
			testbed.Must(s.t, d.Close())
		}
		return err, err == nil
	})
	return d, q
}

// reserve returns requests for the whole disk in memory of the queue's.
func (s *stoppedTarget) reserve(q block.Queue, op block.Op, payload byte) []*block.Request {
	s.t.Helper()
	requests := make([]*block.Request, copyDepth)
	for i := range requests {
		r := &block.Request{Op: op, Offset: int64(i) * copyBytes, Length: copyBytes}
		if !q.Reserve(r) {
			s.t.Fatal("no memory for a request")
		}
		if op == block.Write {
			copy(r.Data, bytes.Repeat([]byte{payload}, copyBytes))
		}
		requests[i] = r
	}
	return requests
}

// attempt stops the target and lets it continue. It reports whether the target
// was amid a copy.
func (s *stoppedTarget) attempt(n int) (hit bool) {
	s.t.Helper()
	d, q := s.open()
	failed := s.reserve(q, s.op, bytesBefore)
	s.lose(q, failed, 10+n*37%100)
	<-d.Done()
	if k := d.Status().Quarantine; k != nil {
		hit = k.Pools > 0
	}
	for _, r := range failed {
		q.Release(r)
	}
	later := s.reserve(q, block.Write, bytesAfter)
	s.process.Signal(syscall.SIGCONT)
	next := s.attach(time.Minute) // a busy machine may be silent for too long
	for i, r := range later {
		if foreign := copyBytes - bytes.Count(r.Data, []byte{bytesAfter}); foreign != 0 {
			s.t.Errorf("stop %d: request %d has %d bytes of another one", n, i, foreign)
		}
		q.Release(r)
	}
	disk := make([]byte, copyDisk)
	_, err := next.ReadAt(disk, 0)
	testbed.Must(s.t, err)
	if foreign := bytes.Count(disk, []byte{bytesAfter}); foreign != 0 {
		s.t.Errorf("stop %d: the disk has %d bytes of requests that were never submitted", n, foreign)
	}
	if k := d.Status().Quarantine; k != nil && k.Pools != 0 {
		s.t.Errorf("stop %d: %d pools are in quarantine, and the target is out", n, k.Pools)
	}
	testbed.Must(s.t, q.Close())
	testbed.Must(s.t, d.Close())
	testbed.Must(s.t, next.Close())
	return hit
}

// lose stops the target after some answers, amid a copy, and waits until all
// requests have failed. A stop that meets none ends at once, and another one
// follows some answers later.
func (s *stoppedTarget) lose(q block.Queue, requests []*block.Request, answers int) {
	s.t.Helper()
	submit := func(r *block.Request) {
		if !q.Submit(r) {
			s.t.Fatal("the queue is full")
		}
	}
	for _, r := range requests {
		submit(r)
	}
	q.Kick()
	done := make([]*block.Request, copyDepth)
	stopped, tries := false, 0
	for failed := 0; failed < len(requests); {
		k := q.Reap(done)
		for _, r := range done[:k] {
			answers--
			if r.Err != nil {
				failed++
			} else {
				submit(r)
			}
		}
		q.Kick()
		if answers <= 0 && !stopped {
			tries++
			if stopped = s.copies.stopInside(s.t, s.process); !stopped && tries == mostTries {
				s.process.Signal(syscall.SIGSTOP)
				stopped = true
			}
			answers = 1 + tries%7
		}
		if k > 0 {
			continue
		}
		if sleep, ok := q.Arm(); ok {
			if sleep < 0 || sleep > time.Second {
				sleep = time.Second
			}
			limit := unix.NsecToTimespec(int64(sleep))
			_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, &limit, nil)
		}
	}
	s.tries += tries
}
