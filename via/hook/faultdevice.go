package hook

import (
	"fmt"
	"sync/atomic"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via"
	"golang.org/x/sys/unix"
)

var errDevice = fmt.Errorf("fault: %w", via.ErrDeviceFailed)

// deviceFaults is what a device keeps for Fault. Links belong to the goroutines
// that drive them: each of these cuts its own when it hears of the failure.
type deviceFaults struct {
	steps  atomic.Int64
	failed atomic.Bool
	bell   int // eventfd, readable from the failure on
}

// alarm wakes who sleeps on a completion queue when the device fails: an epoll
// of the inner queue's file descriptor and the device's bell.
type alarm struct {
	set, heard bool
	fd         int
}

// opened makes a device's bell.
func (t *faultTap) opened(a *adapter) error {
	if t.plan.FailNicAt == 0 {
		return nil
	}
	fd, err := eventfd.New()
	if err != nil {
		return fmt.Errorf("fault: %w: %w", via.ErrResource, err)
	}
	a.fault.bell = fd
	return nil
}

func (t *faultTap) released(a *adapter) {
	if t.plan.FailNicAt != 0 {
		_ = eventfd.Close(a.fault.bell)
	}
}

// usable fails what is made of a device that has failed.
func (t *faultTap) usable(a *adapter) error {
	if a.fault.failed.Load() {
		return errDevice
	}
	return nil
}

// queued sets a queue's alarm.
func (t *faultTap) queued(a *adapter, q *queue) error {
	if t.plan.FailNicAt == 0 {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fault: epoll: %w: %w", via.ErrResource, err)
	}
	for _, member := range []int{q.AdapterCQ.FD(), a.fault.bell} {
		if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, member, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("fault: epoll: %w: %w", via.ErrResource, err)
		}
	}
	q.hold.alarm = alarm{set: true, fd: fd}
	return nil
}

func (t *faultTap) unqueued(q *queue) {
	if q.hold.alarm.set {
		_ = unix.Close(q.hold.alarm.fd) // as above
	}
}

// deviceStep counts a step and returns whether the device has failed.
func (t *faultTap) deviceStep(a *adapter) bool {
	if t.plan.FailNicAt == 0 {
		return false
	}
	if a.fault.steps.Add(1) == int64(t.plan.FailNicAt) {
		t.injected.Add(1)
		a.fault.failed.Store(true)
		eventfd.Ring(a.fault.bell)
	}
	return a.fault.failed.Load()
}

// cutFailed cuts the links of a queue whose device has failed.
func (t *faultTap) cutFailed(q *queue) {
	if !q.adapter.fault.failed.Load() {
		return
	}
	if !q.hold.alarm.heard {
		q.hold.alarm.heard = true
		_ = unix.EpollCtl(q.hold.alarm.fd, unix.EPOLL_CTL_DEL, q.adapter.fault.bell, nil) // it is there
	}
	for _, l := range q.links {
		t.cut(l, via.AsyncCatastrophic, errDevice)
	}
}
