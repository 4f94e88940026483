package vipl

import "github.com/viablk/viablk/via"

// VipPostSend posts a Send, RDMA Write or RDMA Read that lies in a region.
func VipPostSend(vi *via.VI, d *via.Descriptor, handle *via.Memory) Return {
	if d == nil || handle == nil || d.Memory() != handle {
		return invalid
	}
	return on(vi, func() error { return vi.PostSend(d) })
}

// VipPostRecv posts a receive that lies in a region.
func VipPostRecv(vi *via.VI, d *via.Descriptor, handle *via.Memory) Return {
	if d == nil || handle == nil || d.Memory() != handle {
		return invalid
	}
	return on(vi, func() error { return vi.PostRecv(d) })
}

// VipSendDone takes the descriptor at the head of the send queue.
func VipSendDone(vi *via.VI) (*via.Descriptor, Return) { return of(vi, vi.SendDone) }

// VipRecvDone takes the descriptor at the head of the receive queue.
func VipRecvDone(vi *via.VI) (*via.Descriptor, Return) { return of(vi, vi.RecvDone) }

// VipSendWait is VipSendDone that waits.
func VipSendWait(vi *via.VI, timeout uint32) (*via.Descriptor, Return) {
	return of(vi, func() (*via.Descriptor, error) { return vi.SendWait(duration(timeout)) })
}

// VipRecvWait is VipRecvDone that waits.
func VipRecvWait(vi *via.VI, timeout uint32) (*via.Descriptor, Return) {
	return of(vi, func() (*via.Descriptor, error) { return vi.RecvWait(duration(timeout)) })
}

// DescriptorHandler is called with a descriptor that is complete.
type DescriptorHandler func(context any, nic *via.NIC, vi *via.VI, d *via.Descriptor)

// VipSendNotify calls a handler with the next complete descriptor, once.
func VipSendNotify(vi *via.VI, context any, handler DescriptorHandler) Return {
	if vi == nil || handler == nil {
		return invalid
	}
	return code(vi.SendNotify(func(vi *via.VI, d *via.Descriptor) { handler(context, vi.NIC(), vi, d) }))
}

// VipRecvNotify calls a handler with the next complete descriptor, once.
func VipRecvNotify(vi *via.VI, context any, handler DescriptorHandler) Return {
	if vi == nil || handler == nil {
		return invalid
	}
	return code(vi.RecvNotify(func(vi *via.VI, d *via.Descriptor) { handler(context, vi.NIC(), vi, d) }))
}

// VipCreateCQ creates a completion queue.
func VipCreateCQ(nic *via.NIC, entryCount int) (*via.CQ, Return) {
	return of(nic, func() (*via.CQ, error) { return nic.CreateCQ(entryCount) })
}

// VipDestroyCQ destroys a completion queue to which no VI is bound.
func VipDestroyCQ(cq *via.CQ) Return { return on(cq, cq.Destroy) }

// VipResizeCQ changes the number of entries.
func VipResizeCQ(cq *via.CQ, entryCount int) Return {
	return on(cq, func() error { return cq.Resize(entryCount) })
}

// VipCQDone takes an entry: which queue of which VI has a complete descriptor.
func VipCQDone(cq *via.CQ) (vi *via.VI, recvQueue bool, r Return) {
	r = on(cq, func() (err error) { vi, recvQueue, err = cq.Done(); return err })
	return vi, recvQueue, r
}

// VipCQWait is VipCQDone that waits.
func VipCQWait(cq *via.CQ, timeout uint32) (vi *via.VI, recvQueue bool, r Return) {
	r = on(cq, func() (err error) { vi, recvQueue, err = cq.Wait(duration(timeout)); return err })
	return vi, recvQueue, r
}

// EntryHandler is called with an entry of a completion queue.
type EntryHandler func(context any, nic *via.NIC, vi *via.VI, recvQueue bool)

// VipCQNotify calls a handler with the next entry, once.
func VipCQNotify(cq *via.CQ, context any, handler EntryHandler) Return {
	if cq == nil || handler == nil {
		return invalid
	}
	return code(cq.Notify(func(vi *via.VI, recv bool) { handler(context, vi.NIC(), vi, recv) }))
}
