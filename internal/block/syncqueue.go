package block

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// syncQueue is a queue of a Disk with the memory for one call.
type syncQueue struct {
	queue   Queue
	request Request
	reaped  [1]*Request
	poll    [1]unix.PollFd
	timeout unix.Timespec
}

// run runs one request to its end.
func (q *syncQueue) run(op Op, flags Flags, p []byte, off, length int64) error {
	q.request = Request{Op: op, Flags: flags, Offset: off, Length: length, Data: p, Extents: q.request.Extents}
	if !q.queue.Submit(&q.request) {
		return describe(op, off, syscall.EBUSY)
	}
	q.queue.Kick()
	for q.queue.Reap(q.reaped[:]) == 0 {
		if d, ok := q.queue.Arm(); ok {
			if err := q.sleep(d); err != nil {
				// The device still owns the request: only waiting is safe.
				time.Sleep(time.Millisecond)
			}
		}
	}
	err := q.request.Err
	q.request.Data = nil
	if err != nil {
		return describe(op, off, err)
	}
	return nil
}

// sleep waits for the queue, for d at most if d is not negative.
func (q *syncQueue) sleep(d time.Duration) error {
	var timeout *unix.Timespec
	if d >= 0 {
		q.timeout = unix.NsecToTimespec(int64(d))
		timeout = &q.timeout
	}
	q.poll[0] = unix.PollFd{Fd: int32(q.queue.FD()), Events: unix.POLLIN}
	_, err := unix.Ppoll(q.poll[:], timeout, nil)
	if err == unix.EINTR {
		return nil
	}
	return err
}
