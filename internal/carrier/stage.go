package carrier

import "github.com/viablk/viablk/via"

// Post posts a receive again after its message was used.
func (c *Carrier) Post(r *Receive) error {
	d := r.desc
	d.Reset(via.OpRecv)
	if c.sealable {
		c.openSegment(r)
		return c.vi.PostRecv(d)
	}
	d.AddSegment(r.headAddr, r.handle, HeadSize)
	if len(r.Data) > 0 {
		d.AddSegment(r.dataAddr, r.handle, uint32(len(r.Data)))
	}
	return c.vi.PostRecv(d)
}

// Arrived returns the receive of a completion.
func (c *Carrier) Arrived(e *via.Completion) *Receive { return &c.receives[e.Descriptor.User] }

// Sent returns the send of a completion.
func (c *Carrier) Sent(e *via.Completion) *Send { return &c.sends[e.Descriptor.User] }

// Index tells receives apart.
func (r *Receive) Index() uint32 { return uint32(r.desc.User) }

// Receive returns the receive of an index.
func (c *Carrier) Receive(index uint32) *Receive { return &c.receives[index] }

// AcquireSend returns a send, or returns nil while all are in flight.
func (c *Carrier) AcquireSend() *Send {
	k := len(c.free)
	if k == 0 {
		return nil
	}
	s := &c.sends[c.free[k-1]]
	c.free = c.free[:k-1]
	return s
}

// AcquireLargeSend returns a send whose head has room for n bytes, or returns
// nil. It is for control messages: it searches.
func (c *Carrier) AcquireLargeSend(n int) *Send {
	for i, index := range c.free {
		if s := &c.sends[index]; len(s.Head) >= n {
			c.free = append(c.free[:i], c.free[i+1:]...)
			return s
		}
	}
	return nil
}

// FreeSends returns how many sends AcquireSend could return.
func (c *Carrier) FreeSends() int { return len(c.free) }

// Idle reports whether no send is in flight.
func (c *Carrier) Idle() bool { return len(c.free) == len(c.sends) }

// FreeSend gives a send back.
func (c *Carrier) FreeSend(s *Send) { c.free = append(c.free, s.index) }

// StageMessage stages a Send of the first n bytes of the head and, if it has a
// length, a payload. A sealed message has its payload in the head.
func (c *Carrier) StageMessage(s *Send, n int, payload Span) error {
	if c.sealer != nil {
		return c.stageSealed(s, n, payload)
	}
	d := s.desc
	d.Reset(via.OpSend)
	d.AddSegment(s.headAddr, s.handle, uint32(n))
	if payload.Length > 0 {
		d.AddSegment(payload.Addr, payload.Handle, payload.Length)
	}
	return c.vi.StageSend(d)
}

// StageImmediate stages an empty Send with immediate data.
func (c *Carrier) StageImmediate(s *Send, immediate uint32) error {
	if c.sealer != nil {
		return errInClear
	}
	d := s.desc
	d.Reset(via.OpSend)
	d.SetImmediate(immediate)
	return c.vi.StageSend(d)
}

// StageWrite stages an RDMA Write of local memory to the peer's.
func (c *Carrier) StageWrite(s *Send, local Span, addr uint64, handle uint32) error {
	s.write(local, addr, handle)
	return c.vi.StageSend(s.desc)
}

// StageWriteImmediate stages an RDMA Write that ends with immediate data: it
// consumes a receive of the peer.
func (c *Carrier) StageWriteImmediate(s *Send, local Span, addr uint64, handle, immediate uint32) error {
	if c.sealer != nil {
		return errInClear
	}
	s.write(local, addr, handle)
	s.desc.SetImmediate(immediate)
	return c.vi.StageSend(s.desc)
}

func (s *Send) write(local Span, addr uint64, handle uint32) {
	s.desc.Reset(via.OpRdmaWrite)
	s.desc.SetRemote(addr, handle)
	s.desc.AddSegment(local.Addr, local.Handle, local.Length)
}

// StageRead stages an RDMA Read of the peer's memory into local memory.
func (c *Carrier) StageRead(s *Send, local Span, addr uint64, handle uint32) error {
	d := s.desc
	d.Reset(via.OpRdmaRead)
	d.SetRemote(addr, handle)
	d.AddSegment(local.Addr, local.Handle, local.Length)
	return c.vi.StageSend(d)
}
