package backend

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/uring"
	"golang.org/x/sys/unix"
)

// bentRing is a ring of the kernel of which tests change what it says.
type bentRing struct {
	*uring.Ring
	closed *atomic.Int64
	submit func() error                                // if set, its error is that of Submit
	move   func(p []byte, off int64) []byte            // if set, what is moved of p
	result func(user uint64, result int) (instead int) // if set, a result
}

func (b *bentRing) part(p []byte, off int64) []byte {
	if b.move == nil {
		return p
	}
	return b.move(p, off)
}

func (b *bentRing) Read(p []byte, off int64, user uint64) bool {
	return b.Ring.Read(b.part(p, off), off, user)
}

func (b *bentRing) Write(p []byte, off int64, durable bool, user uint64) bool {
	return b.Ring.Write(b.part(p, off), off, durable, user)
}

func (b *bentRing) Submit() error {
	if b.submit != nil {
		if err := b.submit(); err != nil {
			return err
		}
	}
	return b.Ring.Submit()
}

func (b *bentRing) Next() (user uint64, result int, ok bool) {
	user, result, ok = b.Ring.Next()
	if ok && b.result != nil {
		result = b.result(user, result)
	}
	return user, result, ok
}

func (b *bentRing) Close() error {
	b.closed.Add(1)
	return b.Ring.Close()
}

// bentFile is a disk of 1 MiB, by direct I/O, with rings that tests bend.
type bentFile struct {
	*file
	opened, closed atomic.Int64
	err            error // of opening a ring
	bend           func(*bentRing)
}

func newBentFile(t testing.TB, bend func(*bentRing)) *bentFile {
	t.Helper()
	if err := uring.Probe(); err != nil {
		t.Fatalf("these tests need a kernel with io_uring: %v", err)
	}
	d, err := openFile(newFile(t, 1<<20), fileOptions{lock: true, direct: true, io: ioUring}, linux{})
	if err != nil {
		t.Fatal(err)
	}
	b := &bentFile{file: d.(*file), bend: bend}
	b.openRing = func(fd, depth int) (ring, error) {
		if b.err != nil {
			return nil, b.err
		}
		r, err := uring.New(fd, depth)
		if err != nil {
			return nil, err
		}
		b.opened.Add(1)
		bent := &bentRing{Ring: r, closed: &b.closed}
		if b.bend != nil {
			b.bend(bent)
		}
		return bent, nil
	}
	t.Cleanup(func() {
		if b.opened.Load() != b.closed.Load() {
			t.Errorf("%d rings are opened, %d closed", b.opened.Load(), b.closed.Load())
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// view is the file as a disk; it is closed before the file.
func (b *bentFile) view(t testing.TB) *block.Disk {
	t.Helper()
	disk, err := block.NewDisk(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	return disk
}

// aligned returns memory that direct I/O takes.
func aligned(t testing.TB, n int) []byte {
	t.Helper()
	p, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(p) })
	return p
}

// Requests complete although the ring does them in part, refuses them or
// returns them undone.
func TestPartialAndRefusedRingOperations(t *testing.T) {
	sometimes := func(n int, errno int) func(uint64, int) int {
		return func(_ uint64, result int) int {
			if rand.IntN(n) == 0 {
				return errno
			}
			return result
		}
	}
	for name, bend := range map[string]func(*bentRing){
		"all":       nil,
		"in parts":  func(b *bentRing) { b.move = func(p []byte, _ int64) []byte { return p[:max(4096, len(p)/2&^4095)] } },
		"EAGAIN":    func(b *bentRing) { b.result = sometimes(2, -int(syscall.EAGAIN)) },
		"EINTR":     func(b *bentRing) { b.result = sometimes(2, -int(syscall.EINTR)) },
		"ECANCELED": func(b *bentRing) { b.result = sometimes(1, -int(syscall.ECANCELED)) },
		"EOPNOTSUPP in the middle": func(b *bentRing) {
			b.move = func(p []byte, _ int64) []byte { return p[:max(4096, len(p)/2&^4095)] }
			b.result = sometimes(3, -int(syscall.EOPNOTSUPP))
		},
		"not submitted": func(b *bentRing) {
			b.submit = func() error {
				if rand.IntN(2) == 0 {
					return syscall.EAGAIN
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk := newBentFile(t, bend).view(t)
			model := make([]byte, 1<<20)
			p := aligned(t, 64<<10)
			for range 300 {
				n := (1 + rand.IntN(16)) * 4096
				off := int64(rand.IntN(240)) * 4096
				if rand.IntN(2) == 0 {
					for i := range p[:n] {
						p[i] = byte(rand.Uint32())
					}
					if _, err := disk.WriteAt(p[:n], off); err != nil {
						t.Fatal(err)
					}
					copy(model[off:], p[:n])
				} else if _, err := disk.ReadAt(p[:n], off); err != nil || !bytes.Equal(p[:n], model[off:][:n]) {
					t.Fatalf("read of %d at %d: %v, or wrong data", n, off, err)
				}
			}
		})
	}
}

// Errors are those of the disk, with what was being done, and end the request
// only.
func TestErrorsOfARing(t *testing.T) {
	var instead atomic.Int64
	instead.Store(1)
	f := newBentFile(t, func(b *bentRing) {
		b.result = func(_ uint64, result int) int {
			if v := instead.Load(); v <= 0 {
				return int(v)
			}
			return result
		}
	})
	disk, p := f.view(t), aligned(t, 8192)
	for _, row := range []struct {
		result      int
		read, write syscall.Errno
	}{
		{-int(syscall.EIO), syscall.EIO, syscall.EIO},
		{-int(syscall.ENOSPC), syscall.ENOSPC, syscall.ENOSPC},
		{0, syscall.EINVAL, syscall.EIO},
	} {
		instead.Store(int64(row.result))
		_, err := disk.ReadAt(p, 0)
		wantErrno(t, "read", err, row.read)
		_, err = disk.WriteAt(p, 0)
		wantErrno(t, "write", err, row.write)
	}
	instead.Store(1)
	if _, err := disk.WriteAt(p, 0); err != nil {
		t.Error(err)
	}
	if err := disk.Sync(); err != nil {
		t.Errorf("a flush after writes that failed, and promised nothing: %v", err)
	}
}

// A file that was truncated is not grown by a ring.
func TestRingOfATruncatedFile(t *testing.T) {
	f := newBentFile(t, nil)
	disk, p := f.view(t), aligned(t, 8192)
	if err := os.Truncate(f.path, 512<<10); err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{512<<10 - 4096, 512 << 10} {
		_, err := disk.ReadAt(p, off)
		wantErrno(t, "read behind the end", err, syscall.EINVAL)
		_, err = disk.WriteAt(p, off)
		wantErrno(t, "write behind the end", err, syscall.ENOSPC)
	}
	if st, err := os.Stat(f.path); err != nil || st.Size() != 512<<10 {
		t.Errorf("the file has %d bytes: %v", st.Size(), err)
	}
}

// Without a ring the executor does everything; a ring that was refused is asked
// for again when the queue has been idle.
func TestRefusedRing(t *testing.T) {
	f := newBentFile(t, nil)
	f.err = errors.New("refused")
	q, err := f.NewQueue(4)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	write := func(rings int64) {
		t.Helper()
		r := block.Request{Op: block.Write, Length: 4096}
		if !q.Reserve(&r) || !q.Submit(&r) {
			t.Fatal("refused")
		}
		q.Kick()
		finish(t, q, &r)
		q.Release(&r)
		if n := f.opened.Load(); r.Err != nil || n != rings {
			t.Errorf("%d rings, want %d: %v", n, rings, r.Err)
		}
	}
	write(0)
	f.err = nil
	write(0)
	q.(block.IdleReleaser).ReleaseIdle()
	write(1)
	write(1)
	q.(block.IdleReleaser).ReleaseIdle()
	if n := f.closed.Load(); n != 1 {
		t.Errorf("%d rings are closed of an idle queue", n)
	}
	write(2)
}

// finish waits for a request.
func finish(t testing.TB, q block.Queue, want *block.Request) {
	t.Helper()
	for done := [1]*block.Request{}; q.Reap(done[:]) == 0; {
		if d, ok := q.Arm(); ok {
			timeout := 20_000
			if d >= 0 {
				timeout = int(d.Milliseconds()) + 1
			}
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, timeout)
		}
	}
}

// A queue that is closed with requests in every state waits for the kernel, and
// holds no range afterwards.
func TestCloseWithRequestsInTheRing(t *testing.T) {
	f := newBentFile(t, nil)
	for _, kick := range []bool{false, true} {
		q, err := f.NewQueue(32)
		if err != nil {
			t.Fatal(err)
		}
		requests := make([]block.Request, 32)
		for i := range requests {
			r := &requests[i]
			*r = block.Request{Op: block.Write, Offset: int64(i%8) * 4096, Length: 4096}
			if i%2 == 0 {
				r.Op = block.Read
			}
			if !q.Reserve(r) || !q.Submit(r) {
				t.Fatal("refused")
			}
			if kick && i == 20 {
				q.Kick()
			}
		}
		for i := range requests {
			q.Release(&requests[i])
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		if err := q.Close(); err != nil {
			t.Errorf("closed again: %v", err)
		}
		if !f.ranges.TryAcquire(0, 1<<20, true) {
			t.Fatal("a range is held")
		}
		f.ranges.Release(0, 1<<20, true)
	}
}

// The thread that submitted may end before the kernel is done.
func TestCloseAfterTheThreadHasEnded(t *testing.T) {
	f := newBentFile(t, nil)
	q, err := f.NewQueue(64)
	if err != nil {
		t.Fatal(err)
	}
	requests := make([]block.Request, 64)
	ended := make(chan bool)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ok := true
		for i := range requests {
			r := &requests[i]
			*r = block.Request{Op: block.Write, Offset: int64(i) * 16384, Length: 16384}
			ok = ok && q.Reserve(r) && q.Submit(r)
		}
		q.Kick()
		ended <- ok
	}()
	if !<-ended {
		t.Fatal("refused")
	}
	for i := range requests {
		q.Release(&requests[i])
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if !f.ranges.TryAcquire(0, 1<<20, true) {
		t.Fatal("a range is held")
	}
	f.ranges.Release(0, 1<<20, true)
}

func TestOptionIO(t *testing.T) {
	path := newFile(t, 1<<20)
	for engine, ringed := range map[string]bool{"": true, "?io=auto": true, "?io=uring": true, "?io=threads": false} {
		d := mustOpen(t, "file:"+path+engine, Options{})
		q, err := d.NewQueue(1)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := q.(*ringQueue); ok != ringed {
			t.Errorf("%q: a ring is %v", engine, ok)
		}
		if err := errors.Join(q.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	}
	_, err := Open("file:"+path+"?io=aio", Options{})
	if !errors.Is(err, ErrUsage) {
		t.Errorf("io=aio: %v, want ErrUsage", err)
	}
}

// Where the kernel forbids rings, only who insists on them is refused.
func TestKernelWithoutRings(t *testing.T) {
	forbidden := fmt.Errorf("set an io_uring up: %w", syscall.EPERM)
	for engine, want := range map[string]error{ioAuto: nil, ioThreads: nil, ioUring: syscall.EPERM} {
		f := &file{path: "/disk"}
		err := f.chooseEngine(engine, func() error { return forbidden })
		if !errors.Is(err, want) || f.openRing != nil {
			t.Errorf("io=%s: %v, a ring: %v", engine, err, f.openRing != nil)
		}
		if want != nil && !strings.Contains(err.Error(), "io=threads") {
			t.Errorf("io=%s: %v: it does not say what to do", engine, err)
		}
	}
}
