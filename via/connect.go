package via

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// attempt is a connection that is being established: while it lasts the VI is
// pending. The goroutine that claims it ends it: the one that requested the
// connection and has the result, or one that calls Disconnect meanwhile.
type attempt struct {
	ctx     context.Context // ends when Disconnect cancels
	cancel  context.CancelCauseFunc
	peer    *peerRequest // nil but for a peer-to-peer request
	claimed atomic.Bool
	ended   chan struct{} // closed when the VI is pending no more and handlers have run
}

// claim returns true for the first caller.
func (a *attempt) claim() bool { return a.claimed.CompareAndSwap(false, true) }

// errUnanswered is a refusal without a reason: the listener closed, or had no
// place left, before its owner answered the request.
var errUnanswered = fmt.Errorf("listener closed or was full, without an answer: %w", ErrReject)

// errCancelled is why an attempt ends before its time.
var errCancelled = fmt.Errorf("cancelled by disconnect: %w", ErrTimeout)

// ConnRequest is a peer's request to connect (a VIP_CONN_HANDLE). It is
// answered once, by Accept or Reject.
type ConnRequest struct {
	nic       *NIC
	in        Incoming
	attrs     ViAttributes
	addr      Address
	confirmed *ViAttributes // by Confirm; nil: none
	answered  atomic.Bool
}

// Attributes returns the attributes of the peer's VI.
func (r *ConnRequest) Attributes() ViAttributes {
	if r == nil {
		return ViAttributes{}
	}
	return r.attrs
}

// RemoteHost names the peer.
func (r *ConnRequest) RemoteHost() string {
	if r == nil || r.in == nil {
		return ""
	}
	return r.in.RemoteHost()
}

// Confirm answers the request before there is a VI, with the attributes that
// the VI of Accept will have, and returns when the requester has shown that it
// got the answer: a request in the name of another host costs its consumer
// neither VI nor memory. Accept or Reject follows, by the same goroutine. A
// fabric that cannot answer without a VI leaves that to Accept. The errors are
// those of Accept; unless they are of attributes, the request is over.
func (r *ConnRequest) Confirm(ctx context.Context, attrs ViAttributes) error {
	if err := r.confirm(ctx, attrs); err != nil {
		return fmt.Errorf("confirm connection: %w", err)
	}
	return nil
}

func (r *ConnRequest) confirm(ctx context.Context, attrs ViAttributes) error {
	if r == nil || r.in == nil {
		return fmt.Errorf("no request: %w", ErrInvalidParameter)
	}
	if r.confirmed != nil || r.answered.Load() {
		return fmt.Errorf("request is answered: %w", ErrInvalidParameter)
	}
	attrs.Ptag = Ptag{}
	if err := attrs.match(r.attrs); err != nil {
		return err
	}
	r.confirmed = &attrs
	in, ok := r.request().(Confirmer)
	if !ok {
		return nil
	}
	err := r.nic.agent.confirm(ctx, in, encodeHello(hello{attrs: attrs}), attrs.Reliability)
	if err != nil {
		r.answered.Store(true)
		return connectError(ctx, err)
	}
	return nil
}

// allows returns an error if other attributes were confirmed.
func (r *ConnRequest) allows(attrs ViAttributes) error {
	attrs.Ptag = Ptag{}
	if r.confirmed != nil && *r.confirmed != attrs {
		return fmt.Errorf("attributes differ from those confirmed: %w", ErrInvalidParameter)
	}
	return attrs.match(r.attrs)
}

// Accept connects an idle VI to the requester (VipConnectAccept). If the
// attributes do not match, the requester is not told: the VI may be changed and
// Accept called again, or the request rejected. That is ErrInvalidReliability,
// ErrInvalidMTU or ErrInvalidQoS. A VI that is not idle is ErrInvalidState, a
// requester that is gone ErrNotReachable, the end of the context ErrTimeout, an
// exhausted fabric ErrResource; errors of posts as in [VI.Connect].
func (r *ConnRequest) Accept(ctx context.Context, vi *VI) error {
	if err := r.accept(ctx, vi); err != nil {
		return fmt.Errorf("accept connection: %w", err)
	}
	return nil
}

func (r *ConnRequest) accept(ctx context.Context, vi *VI) error {
	if r == nil || r.in == nil || vi == nil || vi.nic != r.nic {
		return fmt.Errorf("no request, or no vi of its nic: %w", ErrInvalidParameter)
	}
	if err := r.allows(vi.attrs); err != nil {
		return err
	}
	a, err := vi.begin(ctx, nil)
	if err != nil {
		return err
	}
	if !r.answered.CompareAndSwap(false, true) {
		return vi.finish(a, nil, fmt.Errorf("request is answered: %w", ErrInvalidParameter))
	}
	link, err := vi.nic.agent.accept(a.ctx, r.in, encodeHello(hello{attrs: vi.attrs}), vi.linkConfig())
	if err != nil {
		return vi.finish(a, nil, connectError(a.ctx, err))
	}
	return vi.finish(a, link, nil)
}

// Reject refuses the request (VipConnectReject). A request is answered once.
func (r *ConnRequest) Reject() error { return r.reject(refuseReject) }

// RejectFor is Reject with a reason of the consumer's, which Connect returns as
// a [RejectError] at the requester. 0 is no reason.
func (r *ConnRequest) RejectFor(reason byte) error { return r.reject(refuseReject, reason) }

func (r *ConnRequest) reject(reply ...byte) error {
	if r == nil || r.in == nil {
		return noObject("reject connection")
	}
	if !r.answered.CompareAndSwap(false, true) {
		return fmt.Errorf("reject connection: request is answered: %w", ErrInvalidParameter)
	}
	if err := r.nic.agent.refuse(r.in, reply...); err != nil {
		return fmt.Errorf("reject connection: %w", err)
	}
	return nil
}

// Connect connects an idle VI to a listener (VipConnectRequest) and returns the
// attributes of the peer's VI. The context's deadline is the timeout. It
// returns ErrTimeout, ErrReject, ErrNoMatch without a listener at the
// discriminator, ErrNotReachable without one at the host, ErrInvalidState
// unless the VI is idle, ErrInvalidReliability, ErrInvalidMTU or ErrInvalidQoS
// for attributes that differ, and ErrResource. It also returns an error of a
// post since the VI is idle, once: ErrInvalidParameter for an invalid
// descriptor, ErrResource for a full queue.
func (vi *VI) Connect(ctx context.Context, remote Address) (ViAttributes, error) {
	if !vi.made() {
		return ViAttributes{}, noObject("connect")
	}
	attrs, err := vi.connect(ctx, remote)
	if err != nil {
		return ViAttributes{}, fmt.Errorf("connect to %v: %w", remote, err)
	}
	return attrs, nil
}

func (vi *VI) connect(ctx context.Context, remote Address) (ViAttributes, error) {
	if err := remote.check(); err != nil {
		return ViAttributes{}, err
	}
	a, err := vi.begin(ctx, nil)
	if err != nil {
		return ViAttributes{}, err
	}
	link, attrs, err := vi.request(a.ctx, remote.Host, hello{attrs: vi.attrs, discriminator: remote.Discriminator})
	return attrs, vi.finish(a, link, err)
}

// request asks the peer and checks its answer.
func (vi *VI) request(ctx context.Context, host string, h hello) (Link, ViAttributes, error) {
	link, reply, err := vi.nic.agent.connect(ctx, host, encodeHello(h), vi.linkConfig())
	if err != nil {
		return nil, ViAttributes{}, connectError(ctx, err)
	}
	answer, err := decodeHello(reply)
	if err == nil {
		err = vi.attrs.match(answer.attrs)
	}
	if err != nil {
		return nil, ViAttributes{}, fmt.Errorf("answer: %w", errors.Join(err, vi.nic.agent.disconnect(link)))
	}
	return link, answer.attrs, nil
}

// connectError gives an adapter's error a return code.
func connectError(ctx context.Context, err error) error {
	var refused *Refused
	if errors.As(err, &refused) {
		if zero(refused.Reply) { // the fabric fills the field of no reply
			return errUnanswered
		}
		switch code := Error(refused.Reply[0]); {
		case code == refuseNoMatch:
			return ErrNoMatch
		case code == ErrInvalidReliability, code == ErrInvalidMTU, code == ErrInvalidQoS:
			return code
		case code == refuseReject && len(refused.Reply) > 1 && refused.Reply[1] != 0:
			return &RejectError{Reason: refused.Reply[1]}
		default:
			return ErrReject
		}
	}
	return withCode(timeoutError(ctx, err), ErrNotReachable)
}

// timeoutError makes the end of a context an ErrTimeout. A socket may meet the
// deadline a moment before the context does.
func timeoutError(ctx context.Context, err error) error {
	late := ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	if late && !errors.Is(err, ErrTimeout) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return err
}

// match checks the attributes that must be equal at both ends.
func (a *ViAttributes) match(peer ViAttributes) error {
	switch {
	case a.Reliability != peer.Reliability:
		return ErrInvalidReliability
	case a.MaxTransferSize != peer.MaxTransferSize:
		return ErrInvalidMTU
	case a.QoS != peer.QoS:
		return ErrInvalidQoS
	}
	return nil
}

// begin moves an idle VI to the pending state.
func (vi *VI) begin(ctx context.Context, peer *peerRequest) (*attempt, error) {
	drv := vi.acquire()
	defer drv.release()
	if vi.destroyed {
		return nil, fmt.Errorf("vi is destroyed: %w", ErrInvalidParameter)
	}
	if vi.nic.agent.failed.Load() {
		return nil, fmt.Errorf("nic has failed: %w", ErrResource)
	}
	if s := vi.State(); s != StateIdle {
		return nil, fmt.Errorf("vi is %v: %w", s, ErrInvalidState)
	}
	if err := vi.pendingError; err != nil {
		vi.pendingError = nil
		return nil, err
	}
	a := &attempt{peer: peer, ended: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	vi.attempt.Store(a)
	vi.state.CompareAndSwap(int32(StateIdle), int32(StatePending)) // unless the NIC fails now
	return a, nil
}

// finish ends an attempt whose caller waited for the link, or for the error.
func (vi *VI) finish(a *attempt, link Link, err error) error {
	if !a.claim() {
		vi.discardAttempt(a, link)
		return errCancelled
	}
	return vi.conclude(a, link, err)
}

// discardAttempt ends an attempt that Disconnect cancelled: the VI is idle, its
// receives are flushed.
func (vi *VI) discardAttempt(a *attempt, link Link) {
	defer close(a.ended)
	drv := vi.acquire()
	defer drv.release()
	if link != nil {
		vi.discardLink(link)
	}
	vi.recv.flush()
	vi.state.Store(int32(StateIdle))
	vi.forget(a)
}

// conclude ends an attempt with its result: the VI is connected; idle again; or
// broken if the fabric failed, not the peer (VIA 1.0 §2.2). A new link
// starts with the receives that were posted while the VI was idle or pending.
func (vi *VI) conclude(a *attempt, link Link, err error) error {
	defer close(a.ended)
	drv := vi.acquire()
	defer drv.release()
	defer vi.forget(a)
	if err == nil {
		if err = link.Start(vi.recv.waiting()); err != nil {
			err = &FabricError{fmt.Errorf("start: %w", err)}
		}
	}
	to := StateConnected
	var fabric *FabricError
	switch {
	case errors.As(err, &fabric):
		to = StateError
	case err != nil:
		to = StateIdle
	}
	if !vi.state.CompareAndSwap(int32(StatePending), int32(to)) && err == nil {
		err = fmt.Errorf("nic has failed: %w", ErrResource)
	}
	if err != nil {
		if link != nil {
			vi.discardLink(link)
		}
		return err
	}
	vi.link, vi.last = link, LinkStats{}
	if l, ok := link.(Lively); ok {
		vi.lively.Store(&l)
	}
	vi.recv.advance() // receives after one that fails its checks
	return nil
}

// forget clears the attempt: a handler that runs next may disconnect.
func (vi *VI) forget(a *attempt) {
	vi.attempt.Store(nil)
	a.cancel(nil)
}

func (vi *VI) linkConfig() LinkConfig {
	return LinkConfig{
		Owner: vi, Reliability: vi.attrs.Reliability, MaxTransferSize: vi.attrs.MaxTransferSize,
		Tag: vi.attrs.Ptag.id, RdmaWrite: vi.attrs.EnableRdmaWrite, RdmaRead: vi.attrs.EnableRdmaRead,
		SendDepth: int(vi.send.width), RecvDepth: int(vi.recv.width),
		SendCQ: vi.send.cq.adapter, RecvCQ: vi.recv.cq.adapter,
	}
}

// waiting loads the receives that a new link begins with, up to one that fails
// its checks, which completes in error once those before it are done.
func (q *workQueue) waiting() []*Work {
	var works []*Work
	for q.next != q.tail {
		w := q.work(q.next)
		if q.at(q.next).desc.load(w, q) != 0 {
			break
		}
		works = append(works, w)
		q.next++
	}
	return works
}

// Disconnect ends the connection or an attempt to connect, or clears the error
// state, and leads back to Idle (VipDisconnect). Everything outstanding
// completes with StatusFlushed. The peer's VI enters its error state.
//
// An error that wraps ErrStillAccessed says that the VI is idle, and that the
// peer may be inside a copy to or from one of the regions of the connection's
// tag, for instance because its process is stopped. Disconnect has waited for
// it by then. The consumer reuses none of this memory while [Memory.Accessed]
// says so. The error tells of all connections since the last Disconnect.
//
// While another goroutine is in Connect, Accept or PeerWait, Disconnect may be
// called beside it: that returns ErrTimeout, and the VI is idle. If it was
// faster, the VI is connected and the rule of one goroutine holds for this
// Disconnect.
func (vi *VI) Disconnect() error {
	if !vi.made() {
		return noObject("disconnect")
	}
	if a := vi.attempt.Load(); a != nil {
		if a.claim() {
			a.cancel(errCancelled)
			if p := a.peer; p != nil {
				<-p.ended
				vi.discardAttempt(a, p.result.link)
			}
			<-a.ended
			drv := vi.acquire()
			defer drv.release()
			return vi.disconnected()
		}
		<-a.ended
	}
	drv := vi.acquire()
	defer drv.release()
	if vi.destroyed {
		return fmt.Errorf("disconnect: vi is destroyed: %w", ErrInvalidParameter)
	}
	vi.closeLink()
	vi.send.flush()
	vi.recv.flush()
	vi.state.Store(int32(StateIdle))
	return vi.disconnected()
}
