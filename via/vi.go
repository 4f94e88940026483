package via

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
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
// goroutine at a time drives a VI and its completion queues; State may be
// called from anywhere.
type VI struct {
	// Context is the consumer's.
	Context any

	nic       *NIC
	link      Link
	state     atomic.Int32
	destroyed bool
	attempt   atomic.Pointer[attempt] // to connect, while pending
	_         [8]byte                 // the queues begin at a cache line

	send workQueue
	recv workQueue

	attrs        ViAttributes
	pendingError error // met while idle; reported by the next connect
	closeError   error // of a link that closed; reported by Disconnect
	last         LinkStats
	lively       atomic.Pointer[Lively] // the link, or the last one
}

// placed puts a VI at the beginning of a cache line: behind the word that the
// allocator keeps before objects of more than 512 bytes with pointers in them.
type placed struct {
	_  [56]byte
	vi VI
}

// ViConfig says what CreateVi needs beside attributes.
type ViConfig struct {
	// SendCQ and RecvCQ are where completions are announced; they may be the
	// same. A queue with none is polled itself, with SendDone and SendWait or
	// RecvDone and RecvWait: the work queue model of VIA.
	SendCQ, RecvCQ       *CQ
	SendDepth, RecvDepth int // descriptors
}

// CreateVi creates a VI in the Idle state (VipCreateVi). Attributes that the
// NIC does not have are ErrInvalidReliability, ErrInvalidMTU, ErrInvalidPtag or
// ErrInvalidRdmaRead; MaxTransferSize 0 is the NIC's limit. Beyond a limit it
// is ErrResource.
func (n *NIC) CreateVi(attrs ViAttributes, cfg ViConfig) (*VI, error) {
	if !n.made() {
		return nil, noObject("create vi")
	}
	vi := &new(placed).vi
	vi.nic = n
	if err := vi.create(attrs, cfg); err != nil {
		return nil, fmt.Errorf("create vi: %w", err)
	}
	return vi, nil
}

func (vi *VI) create(attrs ViAttributes, cfg ViConfig) error {
	n := vi.nic
	if err := n.checkAttributes(&attrs); err != nil {
		return err
	}
	if err := n.checkConfig(cfg); err != nil {
		return err
	}
	vi.attrs = attrs
	var private *CQ
	if cfg.SendCQ == nil || cfg.RecvCQ == nil {
		var err error
		if private, err = n.newCQ(cfg.SendDepth + cfg.RecvDepth); err != nil {
			return err
		}
		private.private = true
	}
	send, recv := cfg.SendCQ, cfg.RecvCQ
	if send == nil {
		send = private
	}
	if recv == nil {
		recv = private
	}
	if err := n.agent.addVi(vi, send, recv); err != nil {
		if private != nil {
			err = errors.Join(err, private.Destroy())
		}
		return err
	}
	n.agent.joinDrivers(send, recv)
	vi.send = newWorkQueue(vi, send, cfg.SendDepth, false)
	vi.recv = newWorkQueue(vi, recv, cfg.RecvDepth, true)
	for _, q := range []*workQueue{&vi.send, &vi.recv} {
		q.adopt()
	}
	return nil
}

// checkAttributes validates attributes and fills defaults.
func (n *NIC) checkAttributes(attrs *ViAttributes) error {
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
	return nil
}

// checkConfig validates queues and depths.
func (n *NIC) checkConfig(cfg ViConfig) error {
	for _, c := range []*CQ{cfg.SendCQ, cfg.RecvCQ} {
		if c != nil && c.nic != n {
			return fmt.Errorf("completion queue of another nic: %w", ErrInvalidParameter)
		}
	}
	limit := n.limits.MaxDescriptorsPerQueue
	if cfg.SendDepth < 1 || cfg.RecvDepth < 1 || cfg.SendDepth > limit || cfg.RecvDepth > limit {
		return fmt.Errorf("queue depths %d and %d (limit %d): %w", cfg.SendDepth, cfg.RecvDepth, limit, ErrInvalidParameter)
	}
	return nil
}

// made reports whether CreateVi made the VI.
func (vi *VI) made() bool { return vi != nil && vi.nic != nil }

// NIC returns the VI's NIC.
func (vi *VI) NIC() *NIC {
	if vi == nil {
		return nil
	}
	return vi.nic
}

// State returns the state (VipQueryVi).
func (vi *VI) State() State {
	if vi == nil {
		return StateIdle
	}
	return State(vi.state.Load())
}

// Attributes returns the attributes (VipQueryVi).
func (vi *VI) Attributes() ViAttributes {
	if vi == nil {
		return ViAttributes{}
	}
	return vi.attrs
}

// Destroyed reports whether there is no such VI, or none any more: State and
// Attributes then say nothing.
func (vi *VI) Destroyed() bool {
	if !vi.made() {
		return true
	}
	drv := vi.acquire()
	defer drv.release()
	return vi.destroyed
}

// SetAttributes changes the attributes of an idle VI (VipSetViAttributes). On
// an error they stay as they were. A VI that is not idle is ErrInvalidState;
// the others are those of [NIC.CreateVi].
func (vi *VI) SetAttributes(attrs ViAttributes) error {
	if !vi.made() {
		return noObject("set vi attributes")
	}
	drv := vi.acquire()
	defer drv.release()
	if err := vi.setAttributes(attrs); err != nil {
		return fmt.Errorf("set vi attributes: %w", err)
	}
	return nil
}

func (vi *VI) setAttributes(attrs ViAttributes) error {
	if vi.destroyed {
		return fmt.Errorf("vi is destroyed: %w", ErrInvalidParameter)
	}
	if s := vi.State(); s != StateIdle {
		return fmt.Errorf("vi is %v: %w", s, ErrInvalidState)
	}
	if err := vi.nic.checkAttributes(&attrs); err != nil {
		return err
	}
	if err := vi.nic.agent.retag(vi, attrs.Ptag); err != nil {
		return err
	}
	vi.attrs = attrs
	return nil
}

// QueuesEmpty reports whether the send and the receive queue hold no
// descriptor, posted or complete (VipQueryVi).
func (vi *VI) QueuesEmpty() (send, recv bool) {
	if !vi.made() {
		return true, true
	}
	drv := vi.acquire()
	defer drv.release()
	return vi.send.empty(), vi.recv.empty()
}

// Stats returns the counters of the present connection or of the last.
func (vi *VI) Stats() LinkStats {
	if !vi.made() {
		return LinkStats{}
	}
	drv := vi.acquire()
	defer drv.release()
	if vi.link != nil {
		vi.last = vi.link.Stats()
	}
	return vi.last
}

// Life returns a number that changes when the peer of the connection shows that
// it is alive, also in the middle of a transfer. It is constant where the
// fabric tells of no more than what completes. Any goroutine may call it.
func (vi *VI) Life() uint64 {
	if vi == nil {
		return 0
	}
	if l := vi.lively.Load(); l != nil {
		return (*l).Life()
	}
	return 0
}

// KeepAlive changes what the peer's Life returns, without a message that would
// wake the peer. It returns false where the fabric cannot do that. Any
// goroutine may call it.
func (vi *VI) KeepAlive() bool {
	if vi == nil {
		return false
	}
	l := vi.lively.Load()
	if l == nil {
		return false
	}
	q, ok := (*l).(QuietLink)
	return ok && q.KeepAlive()
}

// AnswerTime returns how long an answer of the peer may take by the round trips
// that the fabric measured, or 0 where it measures none. Any goroutine may call
// it.
func (vi *VI) AnswerTime() time.Duration {
	if vi == nil {
		return 0
	}
	if l := vi.lively.Load(); l != nil {
		return (*l).AnswerTime()
	}
	return 0
}

// QueueStats count the posts of a VI that waited for its link.
type QueueStats struct {
	Spilled uint64 // posts that waited for the link to have room
	Refills uint64 // times waiting posts were handed to the link
}

// SendQueueStats returns the counters of the send queue. Receives never wait.
func (vi *VI) SendQueueStats() QueueStats {
	if !vi.made() {
		return QueueStats{}
	}
	drv := vi.acquire()
	defer drv.release()
	return QueueStats{Spilled: vi.send.spilled, Refills: vi.send.refills}
}

// Destroy destroys an idle VI with empty queues (VipDestroyVi): everything
// posted has completed and the completions are dequeued. Otherwise it is
// ErrResource. Completed descriptors count until they are dequeued, except
// those that a full completion queue lost.
func (vi *VI) Destroy() error {
	if !vi.made() {
		return noObject("destroy vi")
	}
	drv := vi.acquire()
	defer drv.release()
	if vi.destroyed {
		return fmt.Errorf("destroy vi: already destroyed: %w", ErrInvalidParameter)
	}
	if s := vi.State(); s != StateIdle {
		return fmt.Errorf("destroy vi in state %v: %w", s, ErrResource)
	}
	for _, q := range []*workQueue{&vi.send, &vi.recv} {
		if q.tail != q.head || q.head-q.taken > q.lost {
			return fmt.Errorf("destroy vi: descriptors are posted or not taken off its queues: %w", ErrResource)
		}
	}
	if err := vi.nic.agent.removeVi(vi); err != nil {
		return fmt.Errorf("destroy vi: %w", err)
	}
	vi.destroyed = true
	for _, q := range []*workQueue{&vi.send, &vi.recv} {
		q.notifications = nil
		if !q.private {
			q.cq.purge(vi)
		}
	}
	return vi.destroyPrivateCQ()
}

// destroyPrivateCQ destroys the VI's private completion queue, if it has one.
func (vi *VI) destroyPrivateCQ() error {
	for _, c := range []*CQ{vi.send.cq, vi.recv.cq} {
		if c.private {
			return c.destroy()
		}
	}
	return nil
}

// acquire acquires the driver of the VI's completion queues.
func (vi *VI) acquire() *driver { return vi.send.cq.acquire() }

// raise reports an asynchronous error, with no lock held.
func (vi *VI) raise(e AsyncError) {
	e.VI = vi
	vi.send.cq.driver.Load().deferCall(func() { vi.nic.raise(e) })
}

// linkEvent handles a provider's event.
func (vi *VI) linkEvent(e *Event) {
	if e.Code == AsyncCatastrophic { // of the device, even if the link is closed
		if vi.nic.agent.fail() {
			vi.send.cq.driver.Load().deferCall(func() { vi.nic.raise(AsyncError{Code: e.Code, Cause: e.Cause}) })
		}
		vi.breakLink(e.Code, e.Cause, true)
		return
	}
	if vi.link == nil {
		return
	}
	if e.Broken {
		vi.breakLink(e.Code, e.Cause, false)
		return
	}
	vi.raise(AsyncError{Code: e.Code, Cause: e.Cause})
	vi.send.refill()
}

// tolerates reports whether the VI stays connected after an error of one of its
// descriptors, and breaks the connection if not.
func (vi *VI) tolerates() bool {
	if vi.attrs.Reliability == UnreliableDelivery {
		return true
	}
	vi.breakLink(AsyncConnectionLost, nil, true)
	return false
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
		vi.raise(AsyncError{Code: code, Cause: cause})
	}
}

// closeLink closes the link and keeps its counters, and the error for
// Disconnect.
func (vi *VI) closeLink() {
	if vi.link == nil {
		return
	}
	vi.last = vi.link.Stats()
	vi.discardLink(vi.link)
	vi.link = nil
}

// discardLink closes a link, of which the VI knows or not, and keeps the error
// for Disconnect.
func (vi *VI) discardLink(l Link) {
	vi.closeError = errors.Join(vi.closeError, vi.nic.agent.disconnect(l))
}

// disconnected returns the error of Disconnect, once.
func (vi *VI) disconnected() error {
	err := vi.closeError
	if vi.closeError = nil; err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	return nil
}
