package via

import (
	"fmt"
	"time"
)

// SendDone takes the descriptor at the head of the send queue off the queue, if
// it is complete (VipSendDone). It returns ErrNotDone if it is not;
// ErrDescriptor with the descriptor if it completed in error, and without one
// if the queue is empty. It never blocks. A VI with a completion queue learns
// there which queue to ask.
func (vi *VI) SendDone() (*Descriptor, error) {
	if !vi.made() {
		return nil, ErrInvalidParameter
	}
	return vi.dequeueDone(&vi.send)
}

// RecvDone is SendDone for the receive queue (VipRecvDone).
func (vi *VI) RecvDone() (*Descriptor, error) {
	if !vi.made() {
		return nil, ErrInvalidParameter
	}
	return vi.dequeueDone(&vi.recv)
}

// SendWait is SendDone that sleeps until the head of the queue is complete
// (VipSendWait). It returns ErrTimeout after timeout; [Infinite] is none. A
// send queue with a completion queue is waited for there.
func (vi *VI) SendWait(timeout time.Duration) (*Descriptor, error) {
	if !vi.made() {
		return nil, noObject("wait for a send")
	}
	return vi.wait(&vi.send, timeout)
}

// RecvWait is SendWait for the receive queue (VipRecvWait).
func (vi *VI) RecvWait(timeout time.Duration) (*Descriptor, error) {
	if !vi.made() {
		return nil, noObject("wait for a receive")
	}
	return vi.wait(&vi.recv, timeout)
}

func (vi *VI) dequeueDone(q *workQueue) (*Descriptor, error) {
	drv := vi.acquire()
	defer q.cq.releaseDriver(drv)
	if vi.destroyed {
		return nil, ErrInvalidParameter
	}
	if q.emptied() {
		q.cq.progress(len(q.cq.done), nil)
	}
	switch {
	case q.empty():
		return nil, ErrDescriptor
	case q.emptied():
		return nil, ErrNotDone
	}
	p := q.pop()
	if p.status.Failed() {
		return p.desc, ErrDescriptor
	}
	return p.desc, nil
}

func (vi *VI) wait(q *workQueue, timeout time.Duration) (*Descriptor, error) {
	if !q.private {
		return nil, fmt.Errorf("wait: the work queue has a completion queue: %w", ErrInvalidParameter)
	}
	s := q.cq.sleeper(timeout)
	defer s.end()
	for {
		d, err := vi.dequeueDone(q)
		if err != ErrNotDone {
			return d, err
		}
		if err := s.sleep(); err != nil {
			return nil, fmt.Errorf("wait for a descriptor: %w", err)
		}
	}
}
