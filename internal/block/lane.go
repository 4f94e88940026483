package block

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lane is a queue of a Disk with the memory for one call.
type lane struct {
	queue   Queue
	request Request
	reaped  [1]*Request
	poll    [1]unix.PollFd
	timeout unix.Timespec
}

// run runs one request to its end.
func (l *lane) run(op Op, flags Flags, p []byte, off, length int64) error {
	l.request = Request{Op: op, Flags: flags, Offset: off, Length: length, Data: p}
	if !l.queue.Submit(&l.request) {
		return describe(op, off, syscall.EBUSY)
	}
	l.queue.Kick()
	for l.queue.Reap(l.reaped[:]) == 0 {
		if d, ok := l.queue.Arm(); ok {
			if err := l.sleep(d); err != nil {
				// The device still owns the request: nothing but waiting is safe.
				time.Sleep(time.Millisecond)
			}
		}
	}
	err := l.request.Err
	l.request.Data = nil
	if err != nil {
		return describe(op, off, err)
	}
	return nil
}

// sleep waits for the queue, for d at most if d is not negative.
func (l *lane) sleep(d time.Duration) error {
	var timeout *unix.Timespec
	if d >= 0 {
		l.timeout = unix.NsecToTimespec(int64(d))
		timeout = &l.timeout
	}
	l.poll[0] = unix.PollFd{Fd: int32(l.queue.FD()), Events: unix.POLLIN}
	_, err := unix.Ppoll(l.poll[:], timeout, nil)
	if err == unix.EINTR {
		return nil
	}
	return err
}
