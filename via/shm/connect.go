package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/viablk/viablk/via"
)

// Connect requests a connection at a socket path.
func (a *adapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	if err := checkPath(host); err != nil {
		return nil, nil, err
	}
	d := net.Dialer{}
	c, err := d.DialContext(ctx, "unixpacket", host)
	if err != nil {
		return nil, nil, dialError(host, err)
	}
	conn := c.(*net.UnixConn)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	l, reply, err := a.request(conn, hello, cfg)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	if !stop() {
		// The deadline may hit after the handshake: the caller gave up.
		l.abandon()
		return nil, nil, fmt.Errorf("connect to %s: %w", host, context.Cause(ctx))
	}
	l.goLive()
	return l, reply, nil
}

// request runs the requester's side of the handshake.
func (a *adapter) request(conn *net.UnixConn, hello []byte, cfg via.LinkConfig) (*link, []byte, error) {
	own, err := newOffer(cfg)
	if err != nil {
		return nil, nil, err
	}
	if err := sendControl(conn, control{kind: controlHello, body: hello, fds: own.fds()}); err != nil {
		own.close()
		return nil, nil, lostError(err)
	}
	answer, err := receiveControl(conn)
	if err != nil {
		own.close()
		return nil, nil, fmt.Errorf("await the answer: %w", lostError(err))
	}
	switch answer.kind {
	case controlRefuse:
		own.close()
		return nil, nil, &via.Refused{Reply: answer.body}
	case controlAccept:
	default:
		own.close()
		closeAll(answer.fds...)
		return nil, nil, fmt.Errorf("%w: unexpected answer %d", errMalformed, answer.kind)
	}
	l, err := newLink(a, conn, own, answer, cfg)
	if err != nil {
		return nil, nil, err
	}
	if err := sendControl(conn, control{kind: controlReady}); err != nil {
		l.abandon()
		return nil, nil, lostError(err)
	}
	return l, answer.body, nil
}

// offer is what one end passes to the other in the handshake.
type offer struct {
	segment *segment
	bells   bells
}

func newOffer(cfg via.LinkConfig) (*offer, error) {
	s, err := newSegment()
	if err != nil {
		return nil, err
	}
	b, err := openBells(cfg.SendCQ == cfg.RecvCQ)
	if err != nil {
		s.close()
		return nil, err
	}
	return &offer{s, b}, nil
}

func (o *offer) fds() []int { return []int{o.segment.fd, o.bells.passedData, o.bells.passedSpace} }

func (o *offer) close() {
	o.bells.close()
	o.segment.close()
}

// newLink prepares one end of a connection. It owns the offer and the peer's file
// descriptors, also on error.
func newLink(a *adapter, conn *net.UnixConn, own *offer, peer control, cfg via.LinkConfig) (*link, error) {
	seg, err := attachSegment(peer.fds[0])
	if err == nil {
		err = errors.Join(checkBell(peer.fds[1]), checkBell(peer.fds[2]))
	}
	if err != nil {
		seg.close()
		own.close()
		closeAll(peer.fds[1:]...)
		return nil, err
	}
	l := &link{
		adapter: a, cfg: cfg, tag: cfg.Tag, conn: conn, own: own.segment, bells: own.bells, peer: seg,
		sendCQ: cfg.SendCQ.(*cq), recvCQ: cfg.RecvCQ.(*cq),
		out: newWriter(own.segment.ring()), in: reader{ring: seg.ring()},
		sq: newWorkRing(cfg.SendDepth), rq: newWorkRing(cfg.RecvDepth),
		dataFD: peer.fds[1], spaceFD: peer.fds[2],
		exposed: make(map[*via.Memory]struct{}),
		passed:  make(map[*arena]struct{}),
		done:    make(chan struct{}),
	}
	l.setLevel(a.patience.room)
	if err := a.add(l); err != nil {
		l.abandon()
		return nil, err
	}
	return l, nil
}

// setLevel prepares what the connection's reliability level needs.
func (l *link) setLevel(p time.Duration) {
	l.patience = p
	l.unreliable = l.cfg.Reliability == via.UnreliableDelivery
	l.reception = l.cfg.Reliability == via.ReliableReception
	if l.reception {
		l.ends = make([]uint64, len(l.sq.ring))
	}
	if l.cfg.Faults != nil {
		l.faulty = newFaultyWire(l.cfg.Faults)
		l.out.kept += faultyBytes
	}
}

// goLive ends the handshake: arenas travel from now on.
func (l *link) goLive() {
	l.own.seal()
	l.bells.seal()
	_ = l.conn.SetDeadline(time.Time{})
	go l.serveControl()
	l.adapter.goLive(l)
}

// Start binds the link to its queues and takes the receives.
func (l *link) Start(receives []*via.Work) error {
	for _, w := range receives {
		l.rq.push(w)
	}
	return l.bind()
}

// abandon releases a link that never started.
func (l *link) abandon() {
	l.adapter.remove(l)
	_ = l.conn.Close()
	closePair(l.dataFD, l.spaceFD)
	l.bells.close()
	l.peer.close()
	l.own.close()
}

// dialError tells a missing or dead socket from other failures.
func dialError(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens at socket %s: %w: %w", path, via.ErrNotReachable, err)
	default:
		return fmt.Errorf("dial socket %s: %w", path, err)
	}
}

// lostError tells a peer that went away during the handshake from other failures.
func lostError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("%w: %w", via.ErrNotReachable, err)
	}
	return err
}
