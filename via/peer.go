package via

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Peer-to-peer connection: both ends ask, at the same time or not, and exactly
// one connection comes of it when each names the other. The addresses decide
// which end listens and which calls, so that requests never cross: the
// end with the greater local address listens.

// Pauses between the calls of the end that calls, while the other is not there.
const (
	firstPause = time.Millisecond
	lastPause  = 50 * time.Millisecond
)

// peerRequest is a pending peer-to-peer request.
type peerRequest struct {
	cancel context.CancelFunc
	found  chan *ConnRequest // holds one: what the end that listens was asked
	ended  chan struct{}     // closed when there is a result
	result peerResult
}

// peerResult is the result of a peerRequest, for the claimer of the attempt.
type peerResult struct {
	link  Link // not started; nil with an error
	attrs ViAttributes
	err   error
}

// end ends the request.
func (p *peerRequest) end(r peerResult) {
	p.result = r
	p.cancel()
	close(p.ended)
}

// PeerRequest begins to connect an idle VI to a peer that does the same with
// the addresses exchanged (VipConnectPeerRequest). It does not wait: the VI is
// pending until PeerDone or PeerWait returns the result. Disconnect cancels. A
// timeout of 0 is ErrInvalidParameter; [Infinite] is none. Equal addresses are
// invalid too. A VI that is not idle is ErrInvalidState; errors of posts as in
// [VI.Connect].
func (vi *VI) PeerRequest(local, remote Address, timeout time.Duration) error {
	if !vi.made() {
		return noObject("peer request")
	}
	if err := vi.peerRequest(local, remote, timeout); err != nil {
		return fmt.Errorf("peer request from %v to %v: %w", local, remote, err)
	}
	return nil
}

func (vi *VI) peerRequest(local, remote Address, timeout time.Duration) error {
	switch {
	case timeout == 0:
		return fmt.Errorf("no time: %w", ErrInvalidParameter)
	case local == remote:
		return fmt.Errorf("both ends have one address: %w", ErrInvalidParameter)
	}
	if err := errors.Join(local.check(), remote.check()); err != nil {
		return err
	}
	p := &peerRequest{found: make(chan *ConnRequest, 1), ended: make(chan struct{})}
	ctx := context.Background()
	p.cancel = func() {}
	if timeout > 0 {
		ctx, p.cancel = context.WithTimeout(ctx, timeout)
	}
	a, err := vi.begin(ctx, p)
	if err != nil {
		p.cancel()
		return err
	}
	if local.less(remote) {
		go p.routineCall(a.ctx, vi, remote.Host, digest(local, remote))
		return nil
	}
	s := service{name: digest(remote, local), peer: true}
	host, err := vi.nic.agent.addWaiter(vi.nic, local.Host, s, p)
	if err != nil {
		p.end(peerResult{err: err})
		if !a.claim() {
			<-a.ended
			return errCancelled
		}
		return vi.conclude(a, nil, err)
	}
	go p.routineListen(a.ctx, vi, host, s)
	return nil
}

// less orders addresses.
func (a Address) less(b Address) bool {
	if a.Host != b.Host {
		return a.Host < b.Host
	}
	return a.Discriminator < b.Discriminator
}

// digest names a pair of addresses, the caller's first, in the size of a
// discriminator.
func digest(caller, listener Address) string {
	h := sha256.New()
	for _, s := range []string{caller.Host, caller.Discriminator, listener.Host, listener.Discriminator} {
		var n [4]byte
		binary.LittleEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return string(h.Sum(nil))
}

func (p *peerRequest) offer(r *ConnRequest) byte {
	select {
	case p.found <- r:
		return 0
	default:
		return refuseReject
	}
}

// routineCall calls the peer until it is there.
func (p *peerRequest) routineCall(ctx context.Context, vi *VI, host, name string) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		link, attrs, err := vi.request(ctx, host, hello{attrs: vi.attrs, discriminator: name, peer: true})
		if !peerAbsent(err) {
			p.end(peerResult{link, attrs, err})
			return
		}
		select {
		case <-ctx.Done():
			p.end(peerResult{err: fmt.Errorf("%w: %w", ErrTimeout, err)})
			return
		case <-time.After(pause):
		}
	}
}

// peerAbsent reports whether err says that the peer does not take part in an
// attempt, so that another one may meet it.
func peerAbsent(err error) bool {
	var fabric *FabricError
	var system *defaultCode
	return errors.Is(err, ErrNoMatch) || errors.Is(err, errUnanswered) ||
		errors.Is(err, ErrNotReachable) && !errors.As(err, &fabric) && !errors.As(err, &system)
}

// routineListen waits for the peer's call and answers it. A caller that gives a
// call up before it hears the answer calls again, and so may one whose call
// timed out before this request does.
func (p *peerRequest) routineListen(ctx context.Context, vi *VI, host *hostListener, s service) {
	result := peerResult{err: ErrTimeout}
	for again := true; again; {
		select {
		case r := <-p.found: // answered first: a listener that closes refuses what is not
			result = answerPeer(ctx, vi, r)
			again = peerAbsent(result.err) || ctx.Err() == nil && errors.Is(result.err, ErrTimeout)
		case <-ctx.Done():
			again = false
		}
	}
	err := vi.nic.agent.removeWaiter(host, s)
	select {
	case late := <-p.found: // it came while the listener closed
		_ = late.Reject()
	default:
	}
	if result.err != nil {
		result.err = errors.Join(result.err, err)
	}
	p.end(result)
}

// answerPeer accepts a peer's call, or refuses it so that both ends fail alike.
func answerPeer(ctx context.Context, vi *VI, r *ConnRequest) peerResult {
	if err := vi.attrs.match(r.attrs); err != nil {
		var code Error
		errors.As(err, &code)
		_ = vi.nic.agent.refuse(r.in, byte(code)) // the caller may be gone
		return peerResult{err: err}
	}
	link, err := vi.nic.agent.accept(ctx, r.in, encodeHello(hello{attrs: vi.attrs}), vi.linkConfig())
	if err != nil {
		return peerResult{err: connectError(ctx, err)}
	}
	return peerResult{link: link, attrs: r.attrs}
}

// PeerDone returns the result of a PeerRequest: the attributes of the peer's
// VI, now connected; an error, the VI is idle then; or ErrNotDone
// (VipConnectPeerDone). Without a pending request it is ErrInvalidState. The
// errors are ErrTimeout, ErrReject, ErrNotReachable, and ErrInvalidReliability,
// ErrInvalidMTU or ErrInvalidQoS for attributes that differ, at both ends.
func (vi *VI) PeerDone() (ViAttributes, error) {
	a, err := vi.peerAttempt()
	if err != nil {
		return ViAttributes{}, err
	}
	select {
	case <-a.peer.ended:
		return vi.peerEnded(a)
	default:
		return ViAttributes{}, ErrNotDone
	}
}

// PeerWait is PeerDone that waits (VipConnectPeerWait), as long as the
// request's timeout lets it.
func (vi *VI) PeerWait() (ViAttributes, error) {
	a, err := vi.peerAttempt()
	if err != nil {
		return ViAttributes{}, err
	}
	<-a.peer.ended
	return vi.peerEnded(a)
}

func (vi *VI) peerAttempt() (*attempt, error) {
	if vi.Destroyed() {
		return nil, noObject("peer request")
	}
	a := vi.attempt.Load()
	if a == nil || a.peer == nil {
		return nil, fmt.Errorf("peer request: none is pending: %w", ErrInvalidState)
	}
	return a, nil
}

// peerEnded ends the attempt with the result that is there, unless Disconnect
// is about to.
func (vi *VI) peerEnded(a *attempt) (ViAttributes, error) {
	r := &a.peer.result
	err := errCancelled
	if a.claim() {
		err = vi.conclude(a, r.link, r.err)
	} else {
		<-a.ended
	}
	if err != nil {
		return ViAttributes{}, fmt.Errorf("peer request: %w", err)
	}
	return r.attrs, nil
}
