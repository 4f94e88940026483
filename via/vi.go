package via

import (
	"fmt"
	"sync/atomic"
)

// State is the state of a VI (VIA 1.0 §2.2).
//
//	        ConnectRequest, Accept           connected
//	Idle ───────────────────────▶ Pending ───────────────▶ Connected
//	 ▲ ◀───── refused, timeout ──────┘                          │
//	 ├───────────────── Disconnect ─────────────────────────────┤
//	 └───────────────── Disconnect ◀── Error ◀── error, lost ───┘
type State int32

// The states; the values are those of VIP_VI_STATE.
const (
	StateIdle      State = 0 // not connected; receives may be posted
	StateConnected State = 1 // data flows
	StatePending   State = 2 // a connection is being established
	StateError     State = 3 // broken; Disconnect leads back to Idle
)

// String returns the state's name.
func (s State) String() string {
	if s >= StateIdle && s <= StateError {
		return [...]string{"idle", "connected", "pending", "error"}[s]
	}
	return "invalid"
}

// VI is a virtual interface: an endpoint with a send and a receive queue. One
// goroutine at a time drives a VI and its completion queues; State and
// Attributes may be called from anywhere.
type VI struct {
	nic   *NIC
	attrs ViAttributes
	state atomic.Int32
	link  Link
	send  workQueue
	recv  workQueue

	pendingError error // met while idle; reported by the next connect
	last         LinkStats

	// Context is the consumer's.
	Context any
}

// ViConfig says what CreateVi needs beside attributes.
type ViConfig struct {
	SendCQ, RecvCQ       *CQ // may be the same
	SendDepth, RecvDepth int // descriptors
}

// CreateVi creates a VI in the Idle state (VipCreateVi).
func (n *NIC) CreateVi(attrs ViAttributes, cfg ViConfig) (*VI, error) {
	if err := n.checkVi(&attrs, cfg); err != nil {
		return nil, fmt.Errorf("create vi: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	use := n.ptagUseLocked(attrs.Ptag)
	switch {
	case n.closed:
		return nil, fmt.Errorf("create vi: nic is closed: %w", ErrInvalidParameter)
	case use == nil:
		return nil, fmt.Errorf("create vi: %w", ErrInvalidPtag)
	case n.vis >= n.limits.MaxVI:
		return nil, fmt.Errorf("create vi: %d exist: %w", n.vis, ErrResource)
	}
	if cfg.SendCQ.entries == 0 || cfg.RecvCQ.entries == 0 {
		return nil, fmt.Errorf("create vi: completion queue is destroyed: %w", ErrInvalidParameter)
	}
	use.count++
	n.vis++
	cfg.SendCQ.bound++
	cfg.RecvCQ.bound++
	vi := &VI{nic: n, attrs: attrs}
	vi.send = newWorkQueue(vi, cfg.SendCQ, cfg.SendDepth, false)
	vi.recv = newWorkQueue(vi, cfg.RecvCQ, cfg.RecvDepth, true)
	return vi, nil
}

// checkVi validates attributes and fills defaults.
func (n *NIC) checkVi(attrs *ViAttributes, cfg ViConfig) error {
	l := &n.limits
	switch attrs.Reliability {
	case UnreliableDelivery, ReliableDelivery, ReliableReception:
	default:
		return ErrInvalidReliability
	}
	if l.ReliabilityLevels&attrs.Reliability == 0 {
		return ErrInvalidReliability
	}
	if attrs.MaxTransferSize == 0 {
		attrs.MaxTransferSize = l.MaxTransferSize
	}
	if attrs.MaxTransferSize > l.MaxTransferSize {
		return ErrInvalidMTU
	}
	if attrs.EnableRdmaRead && l.RdmaReadLevels&attrs.Reliability == 0 {
		return ErrInvalidRdmaRead
	}
	if cfg.SendCQ == nil || cfg.RecvCQ == nil || cfg.SendCQ.nic != n || cfg.RecvCQ.nic != n {
		return fmt.Errorf("completion queue of another nic or none: %w", ErrInvalidParameter)
	}
	if cfg.SendDepth < 1 || cfg.RecvDepth < 1 || cfg.SendDepth > l.MaxDescriptorsPerQueue || cfg.RecvDepth > l.MaxDescriptorsPerQueue {
		return fmt.Errorf("queue depths %d and %d (limit %d): %w", cfg.SendDepth, cfg.RecvDepth, l.MaxDescriptorsPerQueue, ErrInvalidParameter)
	}
	return nil
}

// NIC returns the VI's NIC.
func (vi *VI) NIC() *NIC { return vi.nic }

// State returns the state (VipQueryVi).
func (vi *VI) State() State { return State(vi.state.Load()) }

// Attributes returns the attributes (VipQueryVi).
func (vi *VI) Attributes() ViAttributes { return vi.attrs }

// QueuesEmpty reports whether the send and the receive queue hold no descriptor
// (VipQueryVi).
func (vi *VI) QueuesEmpty() (send, recv bool) { return vi.send.empty(), vi.recv.empty() }

// Stats returns the counters of the present connection or of the last.
func (vi *VI) Stats() LinkStats {
	if vi.link != nil {
		vi.last = vi.link.Stats()
	}
	return vi.last
}

// Destroy destroys an idle VI with empty queues (VipDestroyVi): everything posted
// has completed and the completions have been polled.
func (vi *VI) Destroy() error {
	if s := vi.State(); s != StateIdle {
		return fmt.Errorf("destroy vi in state %v: %w", s, ErrResource)
	}
	if !vi.send.empty() || !vi.recv.empty() || vi.send.untaken+vi.recv.untaken != 0 {
		return fmt.Errorf("destroy vi: descriptors are posted or not taken off its queues: %w", ErrResource)
	}
	n := vi.nic
	n.mu.Lock()
	defer n.mu.Unlock()
	use := n.ptagUseLocked(vi.attrs.Ptag)
	if use == nil || vi.send.cq == nil {
		return fmt.Errorf("destroy vi: already destroyed: %w", ErrInvalidParameter)
	}
	use.count--
	n.vis--
	vi.send.cq.bound--
	vi.recv.cq.bound--
	vi.send.cq, vi.recv.cq = nil, nil
	return nil
}

// queue returns the receive or the send queue.
func (vi *VI) queue(recv bool) *workQueue {
	if recv {
		return &vi.recv
	}
	return &vi.send
}

// PostSend posts a Send, RDMA Write or RDMA Read and rings the doorbell
// (VipPostSend).
func (vi *VI) PostSend(d *Descriptor) error {
	err := vi.StageSend(d)
	if err == nil {
		vi.Doorbell()
	}
	return err
}

// StageSend posts a descriptor without ringing the doorbell: a later Doorbell
// serves the batch. In a state other than Connected the descriptor completes at
// once with StatusFlushed (VIA 1.0 §2.2).
func (vi *VI) StageSend(d *Descriptor) error { return vi.post(&vi.send, d) }

// PostRecv posts a receive (VipPostRecv). It is legal in the Idle and Pending
// states, where the receive waits for the connection.
func (vi *VI) PostRecv(d *Descriptor) error { return vi.post(&vi.recv, d) }

func (vi *VI) post(q *workQueue, d *Descriptor) error {
	if d == nil || d.mem == nil || d.mem.nic != vi.nic || q.cq == nil {
		return ErrInvalidParameter
	}
	if d.addr%DescriptorAlignment != 0 || !d.mem.live.Load() || d.mem.Tag() != vi.attrs.Ptag.id {
		vi.postError(d, AsyncPostDescriptor)
		return ErrInvalidParameter
	}
	state := vi.State()
	s := q.push(d)
	if s == nil {
		vi.postError(d, AsyncOverrun)
		return ErrResource
	}
	switch {
	case state == StateConnected:
		if q.next == q.tail-1 || s.failed != 0 {
			q.advance()
		}
	case state == StateError || !q.recv:
		q.next = q.tail
		q.finish(s, StatusFlushed, 0, 0)
	}
	return nil
}

// postError reports a descriptor that could not be posted.
func (vi *VI) postError(d *Descriptor, code AsyncCode) {
	vi.nic.raise(AsyncError{VI: vi, Descriptor: d, Code: code})
	switch {
	case vi.State() == StateIdle && code == AsyncOverrun:
		vi.pendingError = fmt.Errorf("%v while idle: %w", code, ErrResource)
	case vi.State() == StateIdle:
		vi.pendingError = fmt.Errorf("%v while idle: %w", code, ErrInvalidParameter)
	case vi.State() == StateConnected && vi.attrs.Reliability != UnreliableDelivery:
		vi.breakLink(code, nil, true)
	}
}

// Doorbell makes what was staged visible to the peer.
func (vi *VI) Doorbell() {
	if vi.link != nil {
		vi.link.Doorbell()
	}
}

// localError completes a descriptor that failed its checks; it is at the head.
func (vi *VI) localError(q *workQueue, s *slot) {
	q.finish(s, s.failed, 0, 0)
	if vi.attrs.Reliability == UnreliableDelivery {
		q.advance()
		return
	}
	vi.breakLink(AsyncConnectionLost, nil, true)
}

// linkEvent handles a provider's event.
func (vi *VI) linkEvent(d *Done) {
	if vi.link == nil {
		return
	}
	if d.Broken {
		vi.breakLink(d.Event, d.Cause, false)
		return
	}
	vi.nic.raise(AsyncError{VI: vi, Code: d.Event, Cause: d.Cause})
	vi.resume(&vi.send)
}

// resume hands the link what waited for room or a fence. The consumer rang when
// it posted; what the link gets only now needs a doorbell of its own.
func (vi *VI) resume(q *workQueue) {
	if q.next == q.tail {
		return
	}
	before := q.next
	q.advance()
	if q.next != before {
		vi.Doorbell()
	}
}

// breakLink moves a connected VI to the error state: the link is closed, and
// everything outstanding completes flushed. quiet suppresses the callback where
// a descriptor carries the error already.
func (vi *VI) breakLink(code AsyncCode, cause error, quiet bool) {
	if !vi.state.CompareAndSwap(int32(StateConnected), int32(StateError)) {
		return
	}
	vi.closeLink()
	vi.send.flush()
	vi.recv.flush()
	if !quiet {
		vi.nic.raise(AsyncError{VI: vi, Code: code, Cause: cause})
	}
}

// closeLink closes the link and keeps its counters.
func (vi *VI) closeLink() {
	if vi.link == nil {
		return
	}
	vi.last = vi.link.Stats()
	_ = vi.link.Close() // the connection is given up; there is nobody to tell
	vi.link = nil
}
