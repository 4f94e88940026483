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
	if err := checkListener(conn, host); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	l, reply, err := a.request(conn, hello, cfg)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	if !stop() {
		// ctx may end after the handshake.
		l.abandon()
		return nil, nil, fmt.Errorf("connect to %s: %w", host, context.Cause(ctx))
	}
	l.goLive()
	return l, reply, nil
}

// request runs the requester's side of the handshake.
func (a *adapter) request(conn *net.UnixConn, hello []byte, cfg via.LinkConfig) (*link, []byte, error) {
	local, err := newOffer(cfg)
	if err != nil {
		return nil, nil, err
	}
	if err := sendControl(conn, control{kind: controlHello, value: controlShares, body: hello, fds: local.fds()}); err != nil {
		local.close()
		return nil, nil, lostError(err)
	}
	answer, err := receiveControl(conn)
	if err != nil {
		local.close()
		if errors.Is(err, io.EOF) {
			return nil, nil, fmt.Errorf("%w: the peer closed the connection without an answer: its log says why", via.ErrNotReachable)
		}
		return nil, nil, fmt.Errorf("await the answer: %w", lostError(err))
	}
	switch answer.kind {
	case controlRefuse:
		local.close()
		return nil, nil, &via.Refused{Reply: answer.body}
	case controlAccept:
	default:
		local.close()
		closeAll(answer.fds...)
		return nil, nil, fmt.Errorf("%w: unexpected answer %d", errMalformed, answer.kind)
	}
	l, err := newLink(a, conn, local, answer, cfg)
	if err != nil {
		return nil, nil, err
	}
	if err := sendControl(conn, control{kind: controlReady}); err != nil {
		l.abandon()
		return nil, nil, lostError(err)
	}
	return l, answer.body, nil
}

// offer is the segment and the bells that one end passes in the handshake.
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

// newLink prepares one end of a connection. It owns the offer and the peer's
// file descriptors, also on error.
func newLink(a *adapter, conn *net.UnixConn, local *offer, peer control, cfg via.LinkConfig) (*link, error) {
	seg, err := attachSegment(peer.fds[0])
	if err == nil {
		err = errors.Join(checkBell(peer.fds[1]), checkBell(peer.fds[2]))
	}
	if err != nil {
		seg.close()
		local.close()
		closeAll(peer.fds[1:]...)
		return nil, err
	}
	l := makeLink(a, wire{
		conn: conn, local: local.segment, peer: seg,
		bells: local.bells, peerData: peer.fds[1], peerSpace: peer.fds[2], peerShares: peer.value&controlShares != 0,
	}, cfg, a.timeouts.room)
	if err := a.add(l); err != nil {
		l.abandon()
		return nil, err
	}
	return l, nil
}

// dialError marks a missing or dead socket as via.ErrNotReachable.
func dialError(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no process listens at socket %s: %w: %w", path, via.ErrNotReachable, err)
	default:
		return fmt.Errorf("dial socket %s: %w", path, err)
	}
}

// lostError marks the loss of the peer during the handshake as
// via.ErrNotReachable.
func lostError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("%w: %w", via.ErrNotReachable, err)
	}
	return err
}
