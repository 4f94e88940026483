package backendtest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// disk is a small device in memory whose behaviour a test spoils.
type disk struct {
	info  block.Info
	bytes []byte
	run   func(*disk, *block.Request) error
	queue func(*disk, block.Queue) block.Queue
	mu    sync.Mutex
	n     int    // requests so far
	stale []byte // of a request before
	at    int64  // where that was
	parts int    // bytes that a request is served in; 0 is all
}

func (d *disk) Info() block.Info { return d.info }
func (d *disk) Close() error     { return nil }

func (d *disk) NewQueue(depth int) (block.Queue, error) {
	q, err := block.NewInlineQueue(depth, 16<<20, func(r *block.Request) error {
		for d.parts > 0 && len(r.Data) > d.parts {
			part := *r
			part.Data, r = r.Data[:d.parts], &block.Request{Op: r.Op, Offset: r.Offset + int64(d.parts), Data: r.Data[d.parts:]}
			d.mu.Lock()
			_ = d.serve(&part)
			d.mu.Unlock()
			runtime.Gosched()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.n++
		if d.run != nil {
			return d.run(d, r)
		}
		return d.serve(r)
	})
	if err == nil && d.queue != nil {
		q = d.queue(d, q)
	}
	return q, err
}

// serve is what a disk should do.
func (d *disk) serve(r *block.Request) error {
	switch r.Op {
	case block.Read:
		copy(r.Data, d.bytes[r.Offset:])
	case block.Write:
		copy(d.bytes[r.Offset:], r.Data)
	case block.Trim, block.WriteZeroes:
		clear(d.bytes[r.Offset : r.Offset+r.Length])
	}
	return nil
}

func newDisk(spoil func(*disk)) func(testing.TB) block.Device {
	return func(testing.TB) block.Device {
		d := &disk{bytes: make([]byte, 8<<20)}
		d.info = block.Info{
			Size: 8 << 20, MinimumBlock: 1, PreferredBlock: 4096, MaximumPayload: 8 << 20,
			Features: block.CanFlush | block.CanFUA | block.CanTrim | block.CanWriteZeroes | block.CanFastZero,
		}
		if spoil != nil {
			spoil(d)
		}
		return d
	}
}

// spoiled is a queue of which a test replaces methods.
type spoiled struct {
	block.Queue
	submit  func(block.Queue, *block.Request) bool
	reserve func(block.Queue, *block.Request) bool
	arm     func(block.Queue) (time.Duration, bool)
	fd      int
}

func (s *spoiled) Submit(r *block.Request) bool {
	if s.submit == nil {
		return s.Queue.Submit(r)
	}
	return s.submit(s.Queue, r)
}

func (s *spoiled) Reserve(r *block.Request) bool {
	if s.reserve == nil {
		return s.Queue.Reserve(r)
	}
	return s.reserve(s.Queue, r)
}

// spoiledMemory marks what a spoiled Reserve provides.
const spoiledMemory = 1 << 40

func (s *spoiled) Release(r *block.Request) {
	if r.Memory == spoiledMemory {
		r.Data, r.Memory = nil, 0
	}
	s.Queue.Release(r)
}

func (s *spoiled) Arm() (time.Duration, bool) {
	if s.arm == nil {
		return s.Queue.Arm()
	}
	return s.arm(s.Queue)
}

func (s *spoiled) FD() int { return s.fd }

// recorder is a testing.TB that remembers a failure instead of failing.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *recorder) Error(args ...any)                 { r.Errorf("%s", fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }

// try runs one case and returns what it complains about.
func try(t *testing.T, name string, open func(testing.TB) block.Device, options Options) []string {
	t.Helper()
	i := slices.IndexFunc(cases, func(c kitCase) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no case %q", name)
	}
	options.Timeout = 50 * time.Millisecond
	r := &recorder{TB: t}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		defer func() {
			for _, f := range slices.Backward(r.cleanups) {
				f()
			}
		}()
		cases[i].run(&kit{r, options, open})
	}()
	<-finished
	return r.failures
}

func TestGoodDiskPasses(t *testing.T) {
	Run(t, newDisk(nil), Options{Broken: newDisk(breakWrites)})
}

func breakWrites(d *disk) {
	d.run = func(d *disk, r *block.Request) error {
		if r.Op == block.Write {
			return syscall.EIO
		}
		return d.serve(r)
	}
}

// onQueue spoils every queue of a disk.
func onQueue(s spoiled) func(*disk) {
	return func(d *disk) {
		d.queue = func(_ *disk, q block.Queue) block.Queue {
			mine := s
			mine.Queue = q
			if mine.fd == 0 {
				mine.fd = -1
			}
			return &mine
		}
	}
}

// badDisk is a disk that a case has to complain about.
type badDisk struct {
	name  string
	kase  string
	spoil func(*disk)
}

// badContent are disks that store something else.
var badContent = []badDisk{
	{"loses writes", "Model", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error {
			if r.Op == block.Write && d.n%7 == 0 {
				return nil
			}
			return d.serve(r)
		}
	}},
	{"misplaces writes", "Pipeline", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error {
			if r.Op == block.Write && d.n%40 == 0 {
				r.Offset ^= 4096
			}
			return d.serve(r)
		}
	}},
	{"misplaces writes", "Overlap", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error {
			if r.Op == block.Write && d.n > 100 {
				r.Offset ^= 4096
			}
			return d.serve(r)
		}
	}},
	{"tears blocks", "Atomic", func(d *disk) { d.parts = 512 }},
	{"goes back to an earlier write", "Atomic", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error {
			if r.Op != block.Write {
				return d.serve(r)
			}
			copy(d.bytes[d.at:], d.stale)
			d.stale, d.at = d.stale[:0], r.Offset
			if d.n%9 == 0 {
				d.stale = append(d.stale, d.bytes[r.Offset:][:r.Length]...)
			}
			return d.serve(r)
		}
	}},
	{"ignores zeroes", "Biggest", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error {
			if r.Op == block.WriteZeroes {
				return nil
			}
			return d.serve(r)
		}
	}},
	{"claims what it cannot", "Features", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error {
			if r.Flags&block.FUA != 0 {
				return syscall.EINVAL
			}
			return d.serve(r)
		}
	}},
	{"refuses fast zeroes too late", "Features", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error {
			_ = d.serve(r)
			if r.Flags&block.FastZero != 0 {
				return syscall.ENOTSUP
			}
			return nil
		}
	}},
}

// badAnswers are disks that describe or answer wrongly.
var badAnswers = []badDisk{
	{"takes data for a hole", "Status", func(d *disk) {
		d.info.Features |= block.CanStatus
		d.run = func(d *disk, r *block.Request) error {
			if r.Op == block.Status {
				r.AddExtent(r.Length, block.Hole|block.Zero)
			}
			return d.serve(r)
		}
	}},
	{"tells nothing", "Status", func(d *disk) { d.info.Features |= block.CanStatus }},
	{"tells of what was not asked", "Status", func(d *disk) {
		d.info.Features |= block.CanStatus
		d.run = func(d *disk, r *block.Request) error {
			if r.Op == block.Status {
				r.Extents = append(r.Extents, block.Extent{Length: r.Length + 1})
			}
			return d.serve(r)
		}
	}},
	{"clears what it prefetches", "Prefetch", func(d *disk) {
		d.info.Features |= block.CanPrefetch
		pattern(d.bytes, 1)
		d.run = func(d *disk, r *block.Request) error {
			if r.Op == block.Prefetch {
				clear(d.bytes[r.Offset : r.Offset+r.Length])
			}
			return d.serve(r)
		}
	}},
	{"has no block size", "Info", func(d *disk) { d.info.MinimumBlock = 0 }},
	{"changes its mind", "Info", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error { d.info.Size--; return d.serve(r) }
	}},
	{"fails flushes", "ReadOnly", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error {
			if r.Op == block.Flush {
				return syscall.EIO
			}
			return d.serve(r)
		}
	}},
	{"changes a request", "Fields", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error { err := d.serve(r); r.User = 0; return err }
	}},
	{"changes a payload", "Fields", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error {
			err := d.serve(r)
			if r.Op == block.Write {
				r.Data[0]++
			}
			return err
		}
	}},
	{"reads after Close", "Close", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error {
			if r.Op == block.Read {
				clear(d.stale)
				d.stale = r.Data
			}
			return d.serve(r)
		}
	}},
	{"allocates", "Allocations", func(d *disk) {
		d.run = func(d *disk, r *block.Request) error { d.stale = make([]byte, 100); return d.serve(r) }
	}},
}

// badQueues returns disks whose queues break the rules.
func badQueues(t *testing.T) []badDisk {
	shared := make([]byte, 16<<20)
	share := func(_ block.Queue, r *block.Request) bool {
		r.Data, r.Memory = shared[:r.Length:r.Length], spoiledMemory
		return true
	}
	return []badDisk{
		{"takes too few", "Depth", onQueue(spoiled{submit: func(q block.Queue, r *block.Request) bool {
			return r.User != 7 && q.Submit(r)
		}})},
		{"shares memory", "Reserve", onQueue(spoiled{reserve: share})},
		{"shares memory of queues", "Isolation", onQueue(spoiled{reserve: share})},
		{"is never asleep", "Quiet", onQueue(spoiled{arm: func(block.Queue) (time.Duration, bool) { return 0, false }})},
		{"is always readable", "Quiet", onQueue(spoiled{fd: readable(t)})},
		{"loses wake-ups", "Sleep", func(d *disk) {
			d.queue = func(_ *disk, q block.Queue) block.Queue { return &forgetful{Queue: q, fd: unreadable(t)} }
		}},
	}
}

func TestFaultyDisksAreDetected(t *testing.T) {
	for _, bad := range slices.Concat(badContent, badAnswers, badQueues(t)) {
		t.Run(bad.name+"/"+bad.kase, func(t *testing.T) {
			failures := try(t, bad.kase, newDisk(bad.spoil), Options{})
			if len(failures) == 0 {
				t.Fatalf("the case %s does not notice a disk that %s", bad.kase, bad.name)
			}
			t.Log(failures[0])
		})
	}
}

func TestDiskIgnoringFlushIsDetected(t *testing.T) {
	crash := func(_ testing.TB, d block.Device) { clear(d.(*disk).bytes) }
	if failures := try(t, "Flush", newDisk(nil), Options{Crash: crash}); len(failures) == 0 {
		t.Error("the case Flush does not notice a disk that keeps nothing")
	}
}

func TestDiskThatHidesErrorsIsFound(t *testing.T) {
	if failures := try(t, "Errors", newDisk(nil), Options{Broken: newDisk(nil)}); len(failures) == 0 {
		t.Error("the case Errors does not notice a disk that answers success")
	}
}

// forgetful returns requests only to an owner that slept, and wakes none.
type forgetful struct {
	block.Queue
	fd int
}

func (f *forgetful) FD() int                    { return f.fd }
func (f *forgetful) Reap([]*block.Request) int  { return 0 }
func (f *forgetful) Arm() (time.Duration, bool) { return -1, true }

// readable returns a file descriptor that always is readable; unreadable one
// that never is.
func readable(t *testing.T) int   { return pipe(t, true) }
func unreadable(t *testing.T) int { return pipe(t, false) }

func pipe(t *testing.T, written bool) int {
	t.Helper()
	var ends [2]int
	if err := syscall.Pipe(ends[:]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Close(ends[0])
		_ = syscall.Close(ends[1])
	})
	if written {
		if _, err := syscall.Write(ends[1], []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	return ends[0]
}
