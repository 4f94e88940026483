package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// Connect requests a connection at a socket path.
func (a *adapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
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
	l.start()
	return l, reply, nil
}

// request runs the requester's side of the handshake.
func (a *adapter) request(conn *net.UnixConn, hello []byte, cfg via.LinkConfig) (*link, []byte, error) {
	own, err := newSegment()
	if err != nil {
		return nil, nil, err
	}
	m := control{kind: controlHello, body: hello, fds: []int{own.fd, cfg.RecvCQ.FD(), cfg.SendCQ.FD()}}
	if err := sendControl(conn, m); err != nil {
		own.close()
		return nil, nil, err
	}
	answer, err := receiveControl(conn)
	if err != nil {
		own.close()
		return nil, nil, fmt.Errorf("await the answer: %w", err)
	}
	switch answer.kind {
	case controlRefuse:
		own.close()
		return nil, nil, &via.Refused{Reply: answer.body}
	case controlAccept:
	default:
		own.close()
		closeEvents(answer.fds...)
		return nil, nil, fmt.Errorf("unexpected answer %d", answer.kind)
	}
	l, err := newLink(a, conn, own, answer, cfg)
	if err != nil {
		own.close()
		return nil, nil, err
	}
	if err := sendControl(conn, control{kind: controlReady}); err != nil {
		l.abandon()
		return nil, nil, err
	}
	return l, answer.body, nil
}

// abandon releases a link that never started.
func (l *link) abandon() {
	_ = l.conn.Close()
	closeEvents(l.dataFD, l.spaceFD)
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

// listening accepts connections at a socket.
type listening struct {
	adapter  *adapter
	l        *net.UnixListener
	incoming func(via.Incoming)

	mu     sync.Mutex
	closed bool
	conns  map[*net.UnixConn]struct{} // handshakes under way
	wg     sync.WaitGroup             // accept loop and handshakes
}

// maxHandshakes bounds the connections whose handshake is under way.
const maxHandshakes = 256

// Listen listens at a socket path. A socket that somebody listens at is in use;
// one that nobody does is replaced.
func (a *adapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	if host == "" {
		return nil, fmt.Errorf("no socket path: %w", via.ErrInvalidParameter)
	}
	if err := clearStale(host); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: host, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("listen at socket %s: %w", host, err)
	}
	if err := os.Chmod(host, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("restrict socket %s: %w", host, err)
	}
	s := &listening{adapter: a, l: l, incoming: incoming, conns: make(map[*net.UnixConn]struct{})}
	s.wg.Add(1)
	go s.accept()
	return s, nil
}

// clearStale removes a socket that nobody listens at.
func clearStale(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return nil // nothing there, or bind will say what is wrong
	}
	if st.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("listen at %s: a file that is no socket is there: %w", path, syscall.EADDRINUSE)
	}
	for _, network := range []string{"unixpacket", "unix"} {
		c, err := net.DialTimeout(network, path, time.Second)
		if err == nil {
			_ = c.Close()
			return fmt.Errorf("listen at socket %s: a process listens there: %w", path, syscall.EADDRINUSE)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EPROTOTYPE) {
			return fmt.Errorf("listen at socket %s: %w: %w", path, syscall.EADDRINUSE, err)
		}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket %s: %w", path, err)
	}
	return nil
}

func (s *listening) accept() {
	defer s.wg.Done()
	for {
		conn, err := s.l.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of file descriptors; others may close theirs
			continue
		}
		if !s.track(conn) {
			_ = conn.Close()
			continue
		}
		go s.greet(conn)
	}
}

// track books a handshake.
func (s *listening) track(conn *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= maxHandshakes {
		return false
	}
	s.conns[conn] = struct{}{}
	s.wg.Add(1)
	return true
}

func (s *listening) untrack(conn *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

// greet receives a requester's first message and hands it on.
func (s *listening) greet(conn *net.UnixConn) {
	defer s.wg.Done()
	defer s.untrack(conn)
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	peer, err := s.admit(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	m, err := receiveControl(conn)
	if err != nil || m.kind != controlHello {
		closeEvents(m.fds...)
		_ = conn.Close()
		return
	}
	s.incoming(&incoming{adapter: s.adapter, conn: conn, hello: m, peer: peer})
}

// admit checks the user of the process at the other end.
func (s *listening) admit(conn *net.UnixConn) (string, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return "", err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return "", err
	}
	if credErr != nil {
		return "", fmt.Errorf("read peer credentials: %w", credErr)
	}
	if cred.Uid != 0 && cred.Uid != uint32(os.Geteuid()) && !slices.Contains(s.adapter.opts.AdmitUIDs, cred.Uid) {
		return "", fmt.Errorf("user %d is not admitted", cred.Uid)
	}
	return fmt.Sprintf("pid %d, uid %d", cred.Pid, cred.Uid), nil
}

// Close stops listening and waits for the handshakes under way.
func (s *listening) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.SetDeadline(time.Unix(1, 0))
	}
	s.mu.Unlock()
	err := s.l.Close()
	s.wg.Wait()
	return err
}

// incoming is a connection request.
type incoming struct {
	adapter *adapter
	conn    *net.UnixConn
	hello   control
	peer    string
}

// Hello returns the requester's connect message.
func (in *incoming) Hello() []byte { return in.hello.body }

// RemoteHost names the requesting process.
func (in *incoming) RemoteHost() string { return in.peer }

// Refuse answers no.
func (in *incoming) Refuse(reply []byte) error {
	_ = in.conn.SetDeadline(time.Now().Add(handshakeTimeout))
	err := sendControl(in.conn, control{kind: controlRefuse, body: reply})
	closeEvents(in.hello.fds...)
	return errors.Join(err, in.conn.Close())
}

// Accept answers yes and waits for the requester's confirmation.
func (in *incoming) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	conn := in.conn
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	own, err := newSegment()
	if err != nil {
		closeEvents(in.hello.fds...)
		_ = conn.Close()
		return nil, err
	}
	l, err := newLink(in.adapter, conn, own, in.hello, cfg)
	if err != nil {
		own.close()
		_ = conn.Close()
		return nil, err
	}
	m := control{kind: controlAccept, body: reply, fds: []int{own.fd, cfg.RecvCQ.FD(), cfg.SendCQ.FD()}}
	if err := sendControl(conn, m); err != nil {
		l.abandon()
		return nil, err
	}
	ready, err := receiveControl(conn)
	if err == nil && ready.kind != controlReady {
		closeEvents(ready.fds...)
		err = fmt.Errorf("unexpected control message %d", ready.kind)
	}
	if err != nil || !stop() {
		l.abandon()
		return nil, fmt.Errorf("await the requester's confirmation: %w", errors.Join(err, context.Cause(ctx)))
	}
	l.start()
	return l, nil
}
