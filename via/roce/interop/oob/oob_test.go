package oob_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/via/roce/interop/oob"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	clientLine   = "0000:000111:abcdef:00000000000000000000ffff0a000001\x00"
	serverLine   = "0000:000222:123456:fd770000000000000000000000000002\x00"
	extendedLine = "0007:000111:abcdef:00000000000000000000ffff0a000001:0000beef:0000700000001000\x00"
)

var (
	client = oob.End{QP: 0x111, PSN: 0xabcdef, GID: netip.MustParseAddr("10.0.0.1")}
	server = oob.End{QP: 0x222, PSN: 0x123456, GID: netip.MustParseAddr("fd77::2")}
	memory = oob.End{
		LID: 7, QP: 0x111, PSN: 0xabcdef, GID: netip.MustParseAddr("10.0.0.1"),
		Extended: true, Key: 0xbeef, Addr: 0x7000_0000_1000,
	}
)

func listen(t *testing.T, timeout time.Duration) *oob.Listener {
	t.Helper()
	l, err := oob.Listen("127.0.0.1:0", timeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Both ends receive each other's line, plain or extended, and Answer returns
// after Done.
func TestExchange(t *testing.T) {
	ctx := t.Context()
	l := listen(t, 0)
	theirs := server
	theirs.Key, theirs.Addr = 5, 6
	for _, mine := range []oob.End{client, memory} {
		result := make(chan error)
		go func() {
			x, err := oob.Dial(ctx, l.Addr().String(), mine)
			if err == nil {
				want := theirs
				if want.Extended = mine.Extended; !want.Extended {
					want.Key, want.Addr = 0, 0
				}
				if x.Peer != want {
					t.Errorf("the server is %+v, want %+v", x.Peer, want)
				}
				if err := x.Answer(ctx, mine); !errors.Is(err, oob.ErrOrder) {
					t.Errorf("the client answers: %v", err)
				}
				err = x.Done(ctx)
				if again := x.Done(ctx); !errors.Is(again, oob.ErrOrder) {
					t.Errorf("done twice: %v", again)
				}
			}
			result <- err
		}()
		x, err := l.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if x.Peer != mine {
			t.Errorf("the client is %+v, want %+v", x.Peer, mine)
		}
		if err := x.Done(ctx); !errors.Is(err, oob.ErrOrder) {
			t.Errorf("the server is done: %v", err)
		}
		if err := x.Answer(ctx, theirs); err != nil {
			t.Error(err)
		}
		if err := <-result; err != nil {
			t.Error(err)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

// talk plays the other end: it alternates between writing and expecting the
// given strings.
func talk(t *testing.T, conn net.Conn, steps ...string) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	for i, step := range steps {
		if i%2 == 0 {
			if _, err := io.WriteString(conn, step); err != nil {
				t.Error(err)
			}
			continue
		}
		b := make([]byte, len(step))
		if n, err := io.ReadFull(conn, b); err != nil || string(b) != step {
			t.Errorf("%q, %v, want %q", b[:n], err, step)
		}
	}
}

// Both ends exchange the bytes of ibv_rc_pingpong.
func TestPingpong(t *testing.T) {
	l := listen(t, 0)
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	talked := make(chan struct{})
	go func() {
		defer close(talked)
		talk(t, conn, clientLine, serverLine, "done\x00")
	}()
	x, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if x.Peer != client || x.RemoteAddr().String() != conn.LocalAddr().String() {
		t.Errorf("%+v", x.Peer)
	}
	if err := x.Answer(t.Context(), server); err != nil {
		t.Error(err)
	}
	<-talked

	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		conn, err := tcp.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		talk(t, conn, "", clientLine, serverLine, "done\x00")
	}()
	if x, err = oob.Dial(t.Context(), tcp.Addr().String(), client); err != nil {
		t.Fatal(err)
	}
	if x.Peer != server {
		t.Errorf("%+v", x.Peer)
	}
	if err := x.Done(t.Context()); err != nil {
		t.Error(err)
	}
	<-heard
}

// Both ends refuse malformed lines.
func TestMalformedLines(t *testing.T) {
	replace := func(old, new string) string { return strings.Replace(extendedLine, old, new, 1) }
	for name, line := range map[string]string{
		"upper case":           replace("abcdef", "ABCDEF"),
		"sign":                 replace("0007", "+007"),
		"space":                replace("0007", " 007"),
		"underscore":           replace("0000beef", "00_0beef"),
		"no digit":             replace("abcdef", "abcdeg"),
		"other separator":      replace("0007:", "0007;"),
		"no end":               replace("\x00", ":"),
		"queue pair 0":         replace("000111", "000000"),
		"queue pair 1":         replace("000111", "000001"),
		"unspecified address":  replace("00000000000000000000ffff0a000001", "00000000000000000000000000000000"),
		"unspecified IPv4":     replace("ffff0a000001", "ffff00000000"),
		"multicast":            replace("00000000000000000000ffff0a000001", "ff020000000000000000000000000001"),
		"odd digits":           replace("ffff0a000001", "ffff0a00000x"),
		"another end of plain": strings.TrimSuffix(clientLine, "\x00") + "\n" + strings.Repeat("0", 26),
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, time.Minute)
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, line); err != nil {
				t.Fatal(err)
			}
			conn.SetDeadline(time.Now().Add(10 * time.Second))
			if n, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the server answers: %d, %v", n, err)
			}

			mine := memory // the client expects the same form
			if _, err := dialTo(t, line, mine); !errors.Is(err, oob.ErrLine) {
				t.Errorf("the client: %v", err)
			}
		})
	}
}

// dialTo connects a client to a server that sends line and closes the
// connection.
func dialTo(t *testing.T, line string, mine oob.End) (*oob.Exchange, error) {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		if conn, err := tcp.Accept(); err == nil {
			io.ReadFull(conn, make([]byte, len(clientLine)))
			io.WriteString(conn, line)
			conn.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, conn)
			conn.Close()
		}
	}()
	x, err := oob.Dial(t.Context(), tcp.Addr().String(), mine)
	if x != nil {
		x.Close()
	}
	tcp.Close()
	<-said
	return x, err
}

func TestShortLines(t *testing.T) {
	for _, line := range []string{"", "0", clientLine[:51], extendedLine[:77]} {
		if _, err := dialTo(t, line, memory); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", line, err)
		}
	}
	if _, err := dialTo(t, clientLine, client); err != nil {
		t.Error(err)
	}
}

// Dial and Answer refuse invalid ends.
func TestInvalidEnds(t *testing.T) {
	l := listen(t, 0)
	for name, change := range map[string]func(*oob.End){
		"queue pair":  func(e *oob.End) { e.QP = 1 },
		"long number": func(e *oob.End) { e.QP = 1 << 24 },
		"PSN":         func(e *oob.End) { e.PSN = 1 << 24 },
		"no address":  func(e *oob.End) { e.GID = netip.Addr{} },
		"wildcard":    func(e *oob.End) { e.GID = netip.MustParseAddr("0.0.0.0") },
	} {
		bad := client
		change(&bad)
		if _, err := oob.Dial(t.Context(), l.Addr().String(), bad); !errors.Is(err, oob.ErrLine) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dialled := make(chan struct{})
	go func() {
		defer close(dialled)
		x, err := oob.Dial(t.Context(), l.Addr().String(), client)
		if err == nil {
			err = x.Done(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
	}()
	x, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Answer(t.Context(), oob.End{}); !errors.Is(err, oob.ErrLine) {
		t.Error(err)
	}
	if err := x.Answer(t.Context(), server); err != nil { // an error of the caller does not end the exchange
		t.Error(err)
	}
	<-dialled
}

// Answer fails if the client sends anything but "done".
func TestInvalidDone(t *testing.T) {
	for _, last := range []string{"dome\x00", "", "do"} {
		l := listen(t, 0)
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		said := make(chan struct{})
		go func() {
			defer close(said)
			talk(t, conn, clientLine, serverLine, last)
			conn.Close()
		}()
		x, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Answer(t.Context(), server); err == nil {
			t.Errorf("%q is done", last)
		}
		<-said
	}
}

// The listener closes silent clients, and those without an Accept, and serves
// others at the same time.
func TestSilentClients(t *testing.T) {
	l := listen(t, 100*time.Millisecond)
	for _, line := range []string{"", clientLine[:20], clientLine} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		talk(t, conn, line)
		if n, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%q: %d, %v", line, n, err)
		}
	}
}

// The listener refuses clients beyond maxExchanges, and serves new ones after
// some have ended.
func TestTooManyClients(t *testing.T) {
	l := listen(t, time.Minute)
	var conns []net.Conn
	for range 64 {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	late, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	late.SetDeadline(time.Now().Add(10 * time.Second))
	if n, err := late.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the 65th: %d, %v", n, err)
	}
	for _, conn := range conns {
		conn.Close()
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			x, err := oob.Dial(t.Context(), l.Addr().String(), client)
			if err != nil {
				continue // until the server has noticed
			}
			if err := x.Done(t.Context()); err != nil {
				t.Error(err)
			}
			return
		}
	}()
	x, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Answer(t.Context(), server); err != nil {
		t.Error(err)
	}
	<-served
}

// The context bounds every wait.
func TestContextCancel(t *testing.T) {
	l := listen(t, time.Minute)
	expired, cancel := context.WithCancel(t.Context())
	if conn, err := net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	} else {
		defer conn.Close()
		io.WriteString(conn, clientLine)
	}
	x, err := l.Accept(expired)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- x.Answer(expired, server) }() // Done is never called
	go func() {
		_, err := oob.Dial(expired, l.Addr().String(), client) // Answer is never called
		ended <- err
	}()
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if _, err := oob.Dial(expired, l.Addr().String(), client); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	again, stop := context.WithCancel(t.Context())
	stop()
	for range 2 { // the second Dial may have succeeded
		if x, err := l.Accept(again); err == nil {
			x.Close()
		} else if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestClosedListener(t *testing.T) {
	l, err := oob.Listen("127.0.0.1:0", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	talk(t, conn, clientLine)
	accepted := make(chan error)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	go func() {
		_, err := l.Accept(t.Context())
		accepted <- err
	}()
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := oob.Listen("nowhere:x", 0); err == nil {
		t.Error("there is no such address")
	}
}
