package backend

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// run runs one request on a queue of its own.
func run(t *testing.T, d block.Device, r *block.Request) error {
	t.Helper()
	q, err := d.NewQueue(1)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if !q.Submit(r) {
		t.Fatal("refused")
	}
	q.Kick()
	await(t, q)
	return r.Err
}

// await reaps one request, however long that takes.
func await(t *testing.T, q block.Queue) *block.Request {
	t.Helper()
	var dst [1]*block.Request
	for q.Reap(dst[:]) == 0 {
		if d, ok := q.Arm(); ok {
			wait := unix.NsecToTimespec(int64(d))
			timeout := &wait
			if d < 0 {
				timeout = nil
			}
			fds := []unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}
			if _, err := unix.Ppoll(fds, timeout, nil); err != nil && err != unix.EINTR {
				t.Fatal(err)
			}
		}
	}
	return dst[0]
}

func openForTest(t *testing.T, spec string) block.Device {
	t.Helper()
	d := mustOpen(t, spec, Options{})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestFaultRules(t *testing.T) {
	const ok, eio = syscall.Errno(0), syscall.EIO
	write := block.Request{Op: block.Write, Length: 512}
	durable := block.Request{Op: block.Write, Flags: block.FUA, Length: 512}
	read := block.Request{Op: block.Read, Length: 512}
	for _, c := range []struct {
		rules    string
		requests []block.Request
		want     []syscall.Errno
	}{
		{"write=EIO", []block.Request{write, read, write}, []syscall.Errno{eio, ok, eio}},
		{"write=EIO@2", []block.Request{write, read, write, write}, []syscall.Errno{ok, ok, eio, ok}},
		{"write=ENOSPC@2+", []block.Request{write, write, write}, []syscall.Errno{ok, syscall.ENOSPC, syscall.ENOSPC}},
		{"write=EIO@2-3", []block.Request{write, write, write, write}, []syscall.Errno{ok, eio, eio, ok}},
		{"fua=EIO", []block.Request{write, durable, read}, []syscall.Errno{ok, eio, ok}},
		{"any=EROFS", []block.Request{write, {Op: block.Flush}, read}, []syscall.Errno{syscall.EROFS, syscall.EROFS, syscall.EROFS}},
		{"trim=EIO,zero=ENOTSUP", []block.Request{{Op: block.Trim, Length: 512}, {Op: block.WriteZeroes, Length: 512}}, []syscall.Errno{eio, syscall.ENOTSUP}},
		{"write=EIO@1,write=ENOSPC@2", []block.Request{write, write, write}, []syscall.Errno{eio, syscall.ENOSPC, ok}},
		{"write=EIO@0%", []block.Request{write, write}, []syscall.Errno{ok, ok}},
		{"write=EIO@100%", []block.Request{write, write}, []syscall.Errno{eio, eio}},
	} {
		t.Run(c.rules, func(t *testing.T) {
			d := openForTest(t, "fault:"+c.rules+":memory:1M")
			for i := range c.requests {
				r := c.requests[i]
				if r.Op == block.Write || r.Op == block.Read {
					r.Data = make([]byte, r.Length)
				}
				if err := run(t, d, &r); block.Errno(err) != c.want[i] {
					t.Errorf("request %d: %v, want errno %d", i, err, c.want[i])
				}
			}
		})
	}
}

func TestFaultRateIsDeterministic(t *testing.T) {
	hits := func(rule string) (pattern []bool, n int) {
		faults, err := parseFaults(rule)
		if err != nil {
			t.Fatal(err)
		}
		for range 10000 {
			hit := faults[0].applies()
			pattern = append(pattern, hit)
			if hit {
				n++
			}
		}
		return pattern, n
	}
	first, n := hits("write=EIO@10%/7")
	if n < 850 || n > 1150 { // five standard deviations
		t.Errorf("%d of 10000 requests are hit, want about 1000", n)
	}
	again, _ := hits("write=EIO@10%/7")
	other, _ := hits("write=EIO@10%/8")
	same := func(a, b []bool) bool {
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return true
	}
	if !same(first, again) || same(first, other) {
		t.Error("the seed does not decide which requests are hit")
	}
}

func TestShortTransfersAreTornAndFail(t *testing.T) {
	d := openForTest(t, "fault:write=short@2,read=short@2:memory:1M")
	old, data := fill(8192, 1), fill(8192, 2)
	if err := run(t, d, &block.Request{Op: block.Write, Length: 8192, Data: old}); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, "short write", run(t, d, &block.Request{Op: block.Write, Length: 8192, Data: data}), syscall.EIO)
	got := make([]byte, 8192)
	if err := run(t, d, &block.Request{Op: block.Read, Length: 8192, Data: got}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:4096], data[:4096]) || !bytes.Equal(got[4096:], old[4096:]) {
		t.Error("a short write does not leave its first half")
	}
	clear(got)
	r := &block.Request{Op: block.Read, Length: 8192, Data: got}
	wantErrno(t, "short read", run(t, d, r), syscall.EIO)
	if len(r.Data) != 8192 || !bytes.Equal(got[:4096], data[:4096]) || !bytes.Equal(got[4096:], make([]byte, 4096)) {
		t.Error("a short read does not fill its first half")
	}
}

func TestIgnoredFlushLosesData(t *testing.T) {
	for spec, durable := range map[string]bool{
		"volatile:memory:1M":                             true,
		"fault:flush=ignore:volatile:memory:1M":          false,
		"volatile:fault:flush=EIO@1:memory:1M":           false, // answered with an error
		"fault:write=ignore:volatile:memory:1M":          false,
		"volatile:volatile:memory:1M":                    true,
		"delay:any=1ms:volatile:delay:any=1ms:memory:1M": true,
	} {
		t.Run(spec, func(t *testing.T) {
			d := openForTest(t, spec)
			data := fill(64<<10, 3)
			if err := run(t, d, &block.Request{Op: block.Write, Length: 64 << 10, Data: data}); err != nil {
				t.Fatal(err)
			}
			flushed := run(t, d, &block.Request{Op: block.Flush}) == nil
			inner := d
			for {
				if w, ok := inner.(*wrapper); ok {
					inner = w.inner
					continue
				}
				break
			}
			if err := inner.(*Volatile).Crash(1); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(data))
			if err := run(t, d, &block.Request{Op: block.Read, Length: 64 << 10, Data: got}); err != nil {
				t.Fatal(err)
			}
			if kept := bytes.Equal(got, data); flushed && kept != durable || !flushed && durable {
				t.Errorf("flush answered %v, data kept %v, want %v", flushed, kept, durable)
			}
		})
	}
}

func TestCrashLosesSomeSectorsOnly(t *testing.T) {
	d := openForTest(t, "volatile:memory:1M").(*Volatile)
	disk := viewOf(t, d)
	if _, err := disk.WriteAt(fill(1<<20, 1), 0); err != nil {
		t.Fatal(err)
	}
	if err := disk.Sync(); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.WriteAt(fill(1<<19, 2), 1<<18); err != nil {
		t.Fatal(err)
	}
	if err := d.Crash(5); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1<<20)
	if _, err := disk.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	old, fresh := 0, 0
	for at := 0; at < len(got); at += sector {
		switch p := got[at : at+sector]; {
		case bytes.Equal(p, fill(sector, 1)):
			old++
		case bytes.Equal(p, fill(sector, 2)) && at >= 1<<18 && at < 1<<18+1<<19:
			fresh++
		default:
			t.Fatalf("the sector at %d is torn or misplaced", at)
		}
	}
	if fresh == 0 || old == 1<<20/sector {
		t.Errorf("%d sectors old, %d new: a crash loses some", old, fresh)
	}
}

func TestHangEndsWithItsFile(t *testing.T) {
	release := filepath.Join(t.TempDir(), "release")
	d := openForTest(t, "fault:write=hang@until="+release+":memory:1M")
	q, err := d.NewQueue(4)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	data := fill(512, 4)
	hung := &block.Request{Op: block.Write, Length: 512, Data: data}
	q.Submit(hung)
	read := &block.Request{Op: block.Read, Length: 512, Data: make([]byte, 512)}
	q.Submit(read)
	q.Kick()
	if got := await(t, q); got != read || !bytes.Equal(read.Data, make([]byte, 512)) {
		t.Fatal("a read waits for a write that hangs")
	}
	if d, ok := q.Arm(); !ok || d <= 0 || d > hangPoll {
		t.Errorf("Arm answers %v, %v while a request hangs", d, ok)
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := await(t, q); got != hung || hung.Err != nil {
		t.Fatalf("the released write answers %v", hung.Err)
	}
	if err := run(t, d, read); err != nil || !bytes.Equal(read.Data, data) {
		t.Error("the released write did not happen")
	}
}

func TestHungRequestsDoNotHoldClose(t *testing.T) {
	d := openForTest(t, "fault:any=hang:memory:1M")
	q, err := d.NewQueue(8)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		q.Submit(&block.Request{Op: block.Flush})
	}
	if q.Submit(&block.Request{Op: block.Flush}) {
		t.Error("requests that hang do not count")
	}
	q.Kick()
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

func TestDelayedWriteLandsLate(t *testing.T) {
	const delay = 30 * time.Millisecond
	d := openForTest(t, "delay:write=30ms:memory:1M")
	q, err := d.NewQueue(1)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	q.Submit(&block.Request{Op: block.Write, Length: 512, Data: fill(512, 6)})
	q.Kick()
	if wait, ok := q.Arm(); !ok || wait <= 0 || wait > delay {
		t.Errorf("Arm answers %v, %v while a request waits", wait, ok)
	}
	read := &block.Request{Op: block.Read, Length: 512, Data: make([]byte, 512)}
	if err := run(t, d, read); err != nil {
		t.Fatal(err)
	}
	if read.Data[0] == 6 && time.Since(start) < delay {
		t.Error("the write landed before its delay was over")
	}
	// As on a slow disk, a write in flight still lands when its client leaves.
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if spent := time.Since(start); spent < delay {
		t.Errorf("Close returned after %v with a write in flight for %v", spent, delay)
	}
	if err := run(t, d, read); err != nil || read.Data[0] != 6 {
		t.Error("the write never landed")
	}
}
