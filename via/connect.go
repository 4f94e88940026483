package via

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// The connect message: what both ends must agree on, carried by the provider.
const (
	helloMagic   = 0x4156 // "VA"
	helloVersion = 1
	helloFixed   = 16

	helloRdmaWrite = 1
	helloRdmaRead  = 2

	// MaxDiscriminatorLen bounds the discriminator, so that a connect message
	// fits the 56 bytes that RDMA CM leaves to consumers.
	MaxDiscriminatorLen = 40 // bytes
)

// Refusal reasons in a reply.
const (
	refuseReject  = 1
	refuseNoMatch = 2
	refuseInvalid = 3
)

func encodeHello(a ViAttributes, discriminator string) []byte {
	b := make([]byte, helloFixed+len(discriminator))
	binary.LittleEndian.PutUint16(b[0:], helloMagic)
	b[2] = helloVersion
	if a.EnableRdmaWrite {
		b[3] |= helloRdmaWrite
	}
	if a.EnableRdmaRead {
		b[3] |= helloRdmaRead
	}
	binary.LittleEndian.PutUint16(b[4:], uint16(a.Reliability))
	b[6] = byte(len(discriminator))
	binary.LittleEndian.PutUint32(b[8:], a.MaxTransferSize)
	binary.LittleEndian.PutUint32(b[12:], a.QoS)
	copy(b[helloFixed:], discriminator)
	return b
}

// decodeHello decodes a connect message from the peer.
func decodeHello(b []byte) (ViAttributes, string, error) {
	if len(b) < helloFixed || binary.LittleEndian.Uint16(b) != helloMagic || b[2] != helloVersion {
		return ViAttributes{}, "", fmt.Errorf("connect message of %d bytes is not ours: %w", len(b), ErrInvalidParameter)
	}
	n := int(b[6])
	if b[3]&^(helloRdmaWrite|helloRdmaRead) != 0 || b[7] != 0 || n > MaxDiscriminatorLen || len(b) != helloFixed+n {
		return ViAttributes{}, "", fmt.Errorf("malformed connect message: %w", ErrInvalidParameter)
	}
	return ViAttributes{
		Reliability:     ReliabilityLevel(binary.LittleEndian.Uint16(b[4:])),
		MaxTransferSize: binary.LittleEndian.Uint32(b[8:]),
		QoS:             binary.LittleEndian.Uint32(b[12:]),
		EnableRdmaWrite: b[3]&helloRdmaWrite != 0,
		EnableRdmaRead:  b[3]&helloRdmaRead != 0,
	}, string(b[helloFixed:]), nil
}

// hostListener is a provider's listener at one host address and the consumers'
// listeners there, by discriminator.
type hostListener struct {
	byName    map[string]*Listener // guarded by NIC.mu
	ready     chan struct{}        // closed when listening or err is set
	listening Listening
	err       error
}

// Listener receives the connection requests for one address.
type Listener struct {
	nic      *NIC
	addr     Address
	requests chan *ConnRequest
	closed   chan struct{}
	once     sync.Once
}

// listenBacklog is how many connection requests wait for an answer; more are
// refused.
const listenBacklog = 64

// Listen starts to accept connection requests at an address (the waiting part of
// VipConnectWait).
func (n *NIC) Listen(addr Address) (*Listener, error) {
	if len(addr.Discriminator) > MaxDiscriminatorLen {
		return nil, fmt.Errorf("listen: discriminator of %d bytes (limit %d): %w", len(addr.Discriminator), MaxDiscriminatorLen, ErrInvalidParameter)
	}
	l := &Listener{nic: n, addr: addr, requests: make(chan *ConnRequest, listenBacklog), closed: make(chan struct{})}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, fmt.Errorf("listen: nic is closed: %w", ErrInvalidParameter)
	}
	h := n.listeners[addr.Host]
	if h != nil {
		if h.byName[addr.Discriminator] != nil {
			n.mu.Unlock()
			return nil, fmt.Errorf("listen at %v: address in use: %w", addr, ErrResource)
		}
		h.byName[addr.Discriminator] = l
		n.mu.Unlock()
		<-h.ready // another call opens the host
		if h.err != nil {
			return nil, fmt.Errorf("listen at %v: %w", addr, h.err)
		}
		return l, nil
	}
	h = &hostListener{byName: map[string]*Listener{addr.Discriminator: l}, ready: make(chan struct{})}
	n.listeners[addr.Host] = h
	n.mu.Unlock()
	h.listening, h.err = n.adapter.Listen(addr.Host, func(in Incoming) { n.dispatch(h, in) })
	if h.err != nil {
		n.mu.Lock()
		delete(n.listeners, addr.Host)
		n.mu.Unlock()
	}
	close(h.ready)
	if h.err != nil {
		return nil, fmt.Errorf("listen at %v: %w", addr, h.err)
	}
	return l, nil
}

// dispatch hands a request to the listener of its discriminator.
func (n *NIC) dispatch(h *hostListener, in Incoming) {
	attrs, name, err := decodeHello(in.Hello())
	if err != nil {
		_ = in.Refuse([]byte{refuseInvalid})
		return
	}
	if reason := n.enqueue(h, name, &ConnRequest{nic: n, in: in, attrs: attrs}); reason != 0 {
		_ = in.Refuse([]byte{reason})
	}
}

// enqueue gives a request to a listener, or returns why not. Under the lock no
// listener is given a request after it was closed and emptied.
func (n *NIC) enqueue(h *hostListener, name string, r *ConnRequest) byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := h.byName[name]
	if l == nil {
		return refuseNoMatch
	}
	r.addr = l.addr
	select {
	case l.requests <- r:
		return 0
	default:
		return refuseReject
	}
}

// Addr returns the listener's address.
func (l *Listener) Addr() Address { return l.addr }

// Wait returns the next connection request (VipConnectWait).
func (l *Listener) Wait(ctx context.Context) (*ConnRequest, error) {
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.closed:
		return nil, fmt.Errorf("wait for a connection: listener is closed: %w", ErrInvalidParameter)
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a connection: %w: %w", ErrTimeout, context.Cause(ctx))
	}
}

// Close stops the listener and refuses the requests that wait.
func (l *Listener) Close() error {
	var err error
	l.once.Do(func() {
		n := l.nic
		close(l.closed)
		n.mu.Lock()
		h := n.listeners[l.addr.Host]
		delete(h.byName, l.addr.Discriminator)
		last := len(h.byName) == 0
		if last {
			delete(n.listeners, l.addr.Host)
		}
		n.mu.Unlock()
		if last {
			err = h.listening.Close()
		}
		for {
			select {
			case r := <-l.requests:
				_ = r.Reject()
				continue
			default:
			}
			return
		}
	})
	return err
}

// ConnRequest is a peer's request to connect (a VIP_CONN_HANDLE). It is answered
// once, by Accept or Reject.
type ConnRequest struct {
	nic      *NIC
	in       Incoming
	attrs    ViAttributes
	addr     Address
	answered atomic.Bool
}

// Attributes returns the attributes of the peer's VI.
func (r *ConnRequest) Attributes() ViAttributes { return r.attrs }

// RemoteHost names the peer.
func (r *ConnRequest) RemoteHost() string { return r.in.RemoteHost() }

// Accept connects an idle VI to the requester (VipConnectAccept). If the
// attributes do not match, the requester is not told: the VI may be changed and
// Accept called again, or the request rejected.
func (r *ConnRequest) Accept(ctx context.Context, vi *VI) error {
	if vi.nic != r.nic {
		return fmt.Errorf("accept connection: vi of another nic: %w", ErrInvalidParameter)
	}
	if err := vi.match(r.attrs); err != nil {
		return fmt.Errorf("accept connection: %w", err)
	}
	if err := vi.begin(); err != nil {
		return fmt.Errorf("accept connection: %w", err)
	}
	if !r.answered.CompareAndSwap(false, true) {
		vi.state.Store(int32(StateIdle))
		return fmt.Errorf("accept connection: request is answered: %w", ErrInvalidParameter)
	}
	link, err := r.in.Accept(ctx, encodeHello(vi.attrs, ""), vi.linkConfig())
	if err != nil {
		vi.state.Store(int32(StateIdle))
		return fmt.Errorf("accept connection: %w", timeoutError(ctx, err))
	}
	vi.established(link)
	return nil
}

// Reject refuses the request (VipConnectReject).
func (r *ConnRequest) Reject() error {
	if !r.answered.CompareAndSwap(false, true) {
		return fmt.Errorf("reject connection: request is answered: %w", ErrInvalidParameter)
	}
	if err := r.in.Refuse([]byte{refuseReject}); err != nil {
		return fmt.Errorf("reject connection: %w", err)
	}
	return nil
}

// Connect connects an idle VI to a listener (VipConnectRequest) and returns the
// attributes of the peer's VI. The context's deadline is the timeout.
func (vi *VI) Connect(ctx context.Context, remote Address) (ViAttributes, error) {
	if len(remote.Discriminator) > MaxDiscriminatorLen {
		return ViAttributes{}, fmt.Errorf("connect to %v: discriminator of %d bytes: %w", remote, len(remote.Discriminator), ErrInvalidParameter)
	}
	if err := vi.begin(); err != nil {
		return ViAttributes{}, fmt.Errorf("connect to %v: %w", remote, err)
	}
	link, reply, err := vi.nic.adapter.Connect(ctx, remote.Host, encodeHello(vi.attrs, remote.Discriminator), vi.linkConfig())
	if err != nil {
		vi.state.Store(int32(StateIdle))
		return ViAttributes{}, fmt.Errorf("connect to %v: %w", remote, connectError(ctx, err))
	}
	attrs, _, err := decodeHello(reply)
	if err == nil {
		err = vi.match(attrs)
	}
	if err != nil {
		_ = link.Close()
		vi.state.Store(int32(StateIdle))
		return ViAttributes{}, fmt.Errorf("connect to %v: answer: %w", remote, err)
	}
	vi.established(link)
	return attrs, nil
}

// connectError turns a provider's error into a return code.
func connectError(ctx context.Context, err error) error {
	var refused *Refused
	switch {
	case errors.As(err, &refused) && len(refused.Reply) > 0 && refused.Reply[0] == refuseNoMatch:
		return ErrNoMatch
	case errors.As(err, &refused):
		return ErrReject
	default:
		return timeoutError(ctx, err)
	}
}

// timeoutError makes the end of a context an ErrTimeout.
func timeoutError(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ErrTimeout) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return err
}

// match checks the attributes that must be equal at both ends.
func (vi *VI) match(peer ViAttributes) error {
	switch {
	case vi.attrs.Reliability != peer.Reliability:
		return ErrInvalidReliability
	case vi.attrs.MaxTransferSize != peer.MaxTransferSize:
		return ErrInvalidMTU
	case vi.attrs.QoS != peer.QoS:
		return ErrInvalidQoS
	}
	return nil
}

// begin moves an idle VI to the pending state.
func (vi *VI) begin() error {
	if vi.send.cq == nil {
		return fmt.Errorf("vi is destroyed: %w", ErrInvalidParameter)
	}
	if err := vi.pendingError; err != nil {
		vi.pendingError = nil
		return err
	}
	if !vi.state.CompareAndSwap(int32(StateIdle), int32(StatePending)) {
		return fmt.Errorf("vi is %v: %w", vi.State(), ErrInvalidState)
	}
	vi.nic.agent.Connects.Add(1)
	return nil
}

func (vi *VI) linkConfig() LinkConfig {
	cfg := LinkConfig{
		Owner: vi, Reliability: vi.attrs.Reliability, MaxTransferSize: vi.attrs.MaxTransferSize,
		Tag: vi.attrs.Ptag.id, RdmaWrite: vi.attrs.EnableRdmaWrite, RdmaRead: vi.attrs.EnableRdmaRead,
		SendDepth: int(vi.send.depth), RecvDepth: int(vi.recv.depth),
		SendCQ: vi.send.cq.adapter, RecvCQ: vi.recv.cq.adapter,
	}
	for i := vi.recv.head; i != vi.recv.tail; i++ {
		s := vi.recv.at(i)
		if s.failed != 0 {
			break // met when the receives before it are done
		}
		cfg.Receives = append(cfg.Receives, &s.work)
	}
	return cfg
}

// established takes over a new link.
func (vi *VI) established(link Link) {
	vi.link = link
	vi.last = LinkStats{}
	vi.state.Store(int32(StateConnected))
	q := &vi.recv
	for q.next != q.tail && q.at(q.next).failed == 0 {
		q.next++ // handed over in LinkConfig.Receives
	}
	q.advance()
}

// Disconnect ends the connection, or clears the error state, and leads back to
// Idle (VipDisconnect). Everything outstanding completes with StatusFlushed. The
// peer's VI enters its error state.
func (vi *VI) Disconnect() error {
	if vi.State() == StatePending {
		return fmt.Errorf("disconnect: a connect is under way, cancel its context: %w", ErrInvalidState)
	}
	if vi.send.cq == nil {
		return fmt.Errorf("disconnect: vi is destroyed: %w", ErrInvalidParameter)
	}
	vi.nic.agent.Disconnects.Add(1)
	vi.closeLink()
	vi.send.flush()
	vi.recv.flush()
	vi.state.Store(int32(StateIdle))
	return nil
}
