package via

import "fmt"

// PostSend posts a Send, RDMA Write or RDMA Read and rings the doorbell
// (VipPostSend). A full queue is ErrResource.
func (vi *VI) PostSend(d *Descriptor) error {
	if !vi.made() {
		return ErrInvalidParameter
	}
	drv := vi.acquire()
	err := vi.post(&vi.send, d)
	if err == nil {
		vi.ring()
	}
	drv.release()
	return err
}

// StageSend posts a descriptor without ringing the doorbell: a later Doorbell
// serves the batch. In a state other than Connected the descriptor completes at
// once with StatusFlushed (VIA 1.0 §2.2).
func (vi *VI) StageSend(d *Descriptor) error {
	if !vi.made() {
		return ErrInvalidParameter
	}
	drv := vi.acquire()
	err := vi.post(&vi.send, d)
	drv.release()
	return err
}

// PostRecv posts a receive (VipPostRecv). It is legal in the Idle and Pending
// states, where the receive waits for the connection. A full queue is
// ErrResource.
func (vi *VI) PostRecv(d *Descriptor) error {
	if !vi.made() {
		return ErrInvalidParameter
	}
	drv := vi.acquire()
	err := vi.post(&vi.recv, d)
	drv.release()
	return err
}

// Doorbell makes what was staged visible to the peer.
func (vi *VI) Doorbell() {
	if !vi.made() {
		return
	}
	drv := vi.acquire()
	vi.ring()
	drv.release()
}

func (vi *VI) ring() {
	if vi.link != nil {
		vi.link.Doorbell()
	}
}

// post books a descriptor and hands it to the link, unless others wait already.
func (vi *VI) post(q *workQueue, d *Descriptor) error {
	if d == nil || d.mem == nil || d.mem.nic != vi.nic || vi.destroyed {
		return ErrInvalidParameter
	}
	if d.addr%DescriptorAlignment != 0 || !d.mem.live.Load() || d.mem.Tag() != vi.attrs.Ptag.id {
		vi.postError(d, AsyncPostDescriptor)
		return ErrInvalidParameter
	}
	if !q.push(d) {
		vi.postError(d, AsyncOverrun)
		return ErrResource
	}
	switch state := vi.State(); {
	case state == StateConnected:
		if q.next == q.tail-1 {
			q.advance()
		}
		if q.next != q.tail {
			q.spilled++
		}
	case state == StateError || !q.recv:
		q.flush() // and receives that wait since the attempt to connect failed
	}
	return nil
}

// postError reports a descriptor that could not be posted. Met while idle, it
// is reported by the next connect as well (VIA 1.0 §2.2).
func (vi *VI) postError(d *Descriptor, code AsyncCode) {
	vi.raise(AsyncError{Descriptor: d, Code: code})
	switch {
	case vi.State() == StateIdle && code == AsyncOverrun:
		vi.pendingError = fmt.Errorf("%v while idle: %w", code, ErrResource)
	case vi.State() == StateIdle:
		vi.pendingError = fmt.Errorf("%v while idle: %w", code, ErrInvalidParameter)
	default:
		vi.tolerates()
	}
}
