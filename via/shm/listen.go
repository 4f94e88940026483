package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/via"
)

// listening accepts connections at a socket.
type listening struct {
	adapter  *adapter
	l        *net.UnixListener
	incoming func(via.Incoming)

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	advert int // file descriptor, -1 for none
	// +checklocks:mu
	conns []*net.UnixConn // that have not sent a message yet, the oldest first
	wg    sync.WaitGroup  // accept loop and handshakes
}

// maxHandshakes bounds the connections that have not sent a message yet. One
// more closes the oldest: an honest requester sends as soon as it is connected,
// so silent connections do not lock it out.
const maxHandshakes = 256

// Listen listens at a socket path. A socket with a live listener is in use;
// a socket without one is replaced.
func (a *adapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	if err := checkPath(host); err != nil {
		return nil, err
	}
	l := a.opts.Sockets.claim(host)
	if l == nil {
		if err := clearStale(host); err != nil {
			return nil, err
		}
		var err error
		if l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: host, Net: "unixpacket"}); err != nil {
			return nil, fmt.Errorf("listen at socket %s: %w", host, err)
		}
	}
	mode := os.FileMode(0o600)
	if len(a.opts.AdmitUIDs) > 0 {
		mode = 0o666 // admit decides
	}
	if err := os.Chmod(host, mode); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("restrict socket %s: %w", host, err)
	}
	return a.serve(l, incoming), nil
}

// maxPath is the longest path of a socket, in bytes: the kernel's field has one
// more, for the terminating zero.
const maxPath = len(unix.RawSockaddrUnix{}.Path) - 1

// checkPath refuses a string that cannot be the path of a socket.
func checkPath(path string) error {
	switch {
	case path == "":
		return fmt.Errorf("no socket path: %w", via.ErrInvalidParameter)
	case len(path) > maxPath:
		return fmt.Errorf("socket path of %d bytes (limit %d): %w", len(path), maxPath, via.ErrInvalidParameter)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("socket path %q has a zero byte: %w", path, via.ErrInvalidParameter)
	}
	return nil
}

// serve starts to accept connections and advertises the listener.
func (a *adapter) serve(l *net.UnixListener, incoming func(via.Incoming)) *listening {
	s := &listening{adapter: a, l: l, incoming: incoming, advert: advertise(l)}
	a.opts.Sockets.add(s)
	s.wg.Add(1)
	go s.accept()
	return s
}

// clearStale removes a socket without a listener.
func clearStale(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return nil // no file, or bind reports the error
	}
	if st.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("listen at %s: the file is not a socket: %w", path, syscall.EADDRINUSE)
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
	for s.acceptNext() {
	}
}

// acceptNext accepts one connection. It returns false once the listener is
// closed. A panic costs this connection.
func (s *listening) acceptNext() (more bool) {
	var conn *net.UnixConn
	defer func() {
		if value := recover(); value != nil {
			contain.Caught(value).Log(nil, "panic: a connection is not accepted", "socket", s.l.Addr())
			s.discard(conn)
			more = true
		}
	}()
	var err error
	if conn, err = s.l.AcceptUnix(); err != nil {
		if errors.Is(err, net.ErrClosed) {
			return false
		}
		time.Sleep(acceptPause)
		return true
	}
	if s.track(conn) {
		go s.greet(conn)
	} else {
		_ = conn.Close()
	}
	return true
}

// acceptPause is the time until the next attempt if the process is out of file
// descriptors; others may close theirs.
const acceptPause = 10 * time.Millisecond

// discard closes the connection that a panic left, if there was one.
func (s *listening) discard(conn *net.UnixConn) {
	if conn == nil {
		time.Sleep(acceptPause) // if every attempt panics
		return
	}
	s.untrack(conn)
	_ = conn.Close()
}

// track adds a connection to conns and sets its deadline.
func (s *listening) track(conn *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if len(s.conns) >= maxHandshakes {
		_ = s.conns[0].SetDeadline(time.Unix(1, 0))
		s.conns = slices.Delete(s.conns, 0, 1)
	}
	_ = conn.SetDeadline(time.Now().Add(s.adapter.timeouts.handshake))
	s.conns = append(s.conns, conn)
	s.wg.Add(1)
	return true
}

func (s *listening) untrack(conn *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.conns, conn); i >= 0 {
		s.conns = slices.Delete(s.conns, i, i+1)
	}
}

// greet receives a requester's first message and passes it to incoming. After a
// panic it refuses the request.
func (s *listening) greet(conn *net.UnixConn) {
	defer s.wg.Done()
	var in *incoming
	defer func() {
		if value := recover(); value != nil {
			contain.Caught(value).Log(nil, "panic: a connection is refused", "socket", s.l.Addr())
			if in != nil {
				_ = in.Refuse(nil)
			} else {
				s.discard(conn)
			}
		}
	}()
	var err error
	in, err = s.receiveHello(conn)
	s.untrack(conn)
	if err != nil {
		_ = conn.Close()
		return
	}
	s.incoming(in)
}

func (s *listening) receiveHello(conn *net.UnixConn) (*incoming, error) {
	cred, err := s.admit(conn)
	if err != nil {
		return nil, err
	}
	m, err := receiveControl(conn)
	if err != nil {
		return nil, err
	}
	if m.kind != controlHello {
		closeAll(m.fds...)
		return nil, fmt.Errorf("%w: kind %d, not a connect message", errMalformed, m.kind)
	}
	return &incoming{adapter: s.adapter, conn: conn, hello: m, peer: *cred}, nil
}

// admit checks the user of the process at the other end.
func (s *listening) admit(conn *net.UnixConn) (*unix.Ucred, error) {
	cred, err := credentials(conn)
	if err != nil {
		return nil, err
	}
	if !trusted(cred.Uid) && !slices.Contains(s.adapter.opts.AdmitUIDs, cred.Uid) {
		return nil, fmt.Errorf("user %d is not admitted", cred.Uid)
	}
	return cred, nil
}

// trusted reports whether a user may do what this process may.
func trusted(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// credentials returns who the process at the other end is.
func credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	if credErr != nil {
		return nil, fmt.Errorf("read peer credentials: %w", credErr)
	}
	return cred, nil
}

func describeProcess(cred *unix.Ucred) string {
	return fmt.Sprintf("pid %d, uid %d", cred.Pid, cred.Uid)
}

// processOf describes the process at the other end, for a message.
func processOf(conn *net.UnixConn) string {
	cred, err := credentials(conn)
	if err != nil {
		return "unknown process"
	}
	return describeProcess(cred)
}

// Close stops listening and waits for the handshakes in flight. Further calls
// return nil.
func (s *listening) Close() error {
	s.adapter.opts.Sockets.remove(s)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.wg.Wait()
		return nil
	}
	s.closed = true
	if s.advert >= 0 {
		_ = unix.Close(s.advert)
		s.advert = -1
	}
	for _, c := range s.conns {
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
	peer    unix.Ucred

	answered atomic.Bool // the file descriptors of hello have another owner
}

var errAnswered = fmt.Errorf("the request is answered: %w", via.ErrInvalidParameter)

// Hello returns the requester's connect message.
func (in *incoming) Hello() []byte { return in.hello.body }

// RemoteHost names the requesting process.
func (in *incoming) RemoteHost() string { return describeProcess(&in.peer) }

// Origin implements [via.Originator]: root and the user of this process have
// its rights, users of [Options.AdmitUIDs] have not.
func (in *incoming) Origin() string {
	if trusted(in.peer.Uid) {
		return ""
	}
	return fmt.Sprintf("user %d", in.peer.Uid)
}

// PeerUID implements [via.Credentialed].
func (in *incoming) PeerUID() uint32 { return in.peer.Uid }

// Refuse refuses the request.
func (in *incoming) Refuse(reply []byte) error {
	if in.answered.Swap(true) {
		return errAnswered
	}
	_ = in.conn.SetDeadline(time.Now().Add(in.adapter.timeouts.handshake))
	err := sendControl(in.conn, control{kind: controlRefuse, body: reply})
	closeAll(in.hello.fds...)
	return errors.Join(err, in.conn.Close())
}

// Accept accepts the request and waits for the requester's confirmation.
func (in *incoming) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	if in.answered.Swap(true) {
		return nil, errAnswered
	}
	conn := in.conn
	_ = conn.SetDeadline(time.Now().Add(in.adapter.timeouts.handshake))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	local, err := newOffer(cfg)
	if err != nil {
		closeAll(in.hello.fds...)
		_ = conn.Close()
		return nil, err
	}
	l, err := newLink(in.adapter, conn, local, in.hello, cfg)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	m := control{kind: controlAccept, value: controlShares, body: reply, fds: local.fds()}
	if err := sendControl(conn, m); err != nil {
		l.abandon()
		return nil, err
	}
	ready, err := receiveControl(conn)
	if err == nil && ready.kind != controlReady {
		closeAll(ready.fds...)
		err = fmt.Errorf("unexpected control message %d", ready.kind)
	}
	if err != nil || !stop() {
		l.abandon()
		return nil, fmt.Errorf("await the requester's confirmation: %w", errors.Join(err, context.Cause(ctx)))
	}
	l.goLive()
	return l, nil
}
