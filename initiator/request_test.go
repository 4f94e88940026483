package initiator_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
)

// open opens a queue; it is closed with the test.
func open(t testing.TB, d *initiator.Device, depth int) *initiator.Queue {
	t.Helper()
	q, err := d.NewQueue(depth)
	must(t, err)
	t.Cleanup(func() { must(t, q.Close()) })
	return q.(*initiator.Queue)
}

// request makes a request with memory of its own.
func request(op block.Op, off, n int64) *block.Request {
	r := &block.Request{Op: op, Offset: off, Length: n}
	if op == block.Read || op == block.Write {
		r.Data = make([]byte, n)
	}
	if op == block.Status {
		r.Extents = make([]block.Extent, 0, 8)
	}
	return r
}

// submit hands requests to a queue and starts them.
func submit(t testing.TB, q block.Queue, rs ...*block.Request) {
	t.Helper()
	for _, r := range rs {
		if !q.Submit(r) {
			t.Fatal("the queue is full")
		}
	}
	q.Kick()
}

// reap waits for n requests, as an owner does.
func reap(q block.Queue, n int) ([]*block.Request, error) {
	got := make([]*block.Request, 0, n)
	buf := make([]*block.Request, n)
	for deadline := time.Now().Add(testTimeout); len(got) < n; {
		k := q.Reap(buf[:n-len(got)])
		got = append(got, buf[:k]...)
		if k > 0 {
			continue
		}
		if time.Now().After(deadline) {
			return got, fmt.Errorf("%d of %d requests came back in %v", len(got), n, testTimeout)
		}
		if err := nap(q); err != nil {
			return got, err
		}
	}
	return got, nil
}

// nap sleeps as Arm says, a second at most.
func nap(q block.Queue) error {
	d, ok := q.Arm()
	if !ok {
		return nil
	}
	if d < 0 || d > time.Second {
		d = time.Second
	}
	timeout := unix.NsecToTimespec(int64(d))
	_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, &timeout, nil)
	if err == unix.EINTR {
		err = nil
	}
	return err
}

// wantAll waits for requests and checks their errno.
func wantAll(t testing.TB, q block.Queue, n int, want syscall.Errno) {
	t.Helper()
	rs, err := reap(q, n)
	must(t, err)
	for _, r := range rs {
		if got := block.Errno(r.Err); got != want {
			t.Errorf("%v of %d bytes: errno %d (%v), want %d", r.Op, r.Length, got, r.Err, want)
		}
	}
}
