package nbd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/nbd/nbdtest"
	"golang.org/x/sys/unix"
)

func TestAnnounced(t *testing.T) {
	for _, c := range []struct {
		name  string
		env   map[string]string
		names []string
		err   string
	}{
		{"nothing", nil, nil, ""},
		{"no count", map[string]string{"LISTEN_PID": "7"}, nil, ""},
		{"another process", map[string]string{"LISTEN_PID": "8", "LISTEN_FDS": "many"}, nil, ""},
		{"one", map[string]string{"LISTEN_PID": "7", "LISTEN_FDS": "1"}, []string{"unknown"}, ""},
		{"none", map[string]string{"LISTEN_PID": "7", "LISTEN_FDS": "0"}, []string{}, ""},
		{
			"names",
			map[string]string{"LISTEN_PID": "7", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "disk.socket::x"},
			[]string{"disk.socket", "unknown", "x"},
			"",
		},
		{"names missing", map[string]string{"LISTEN_PID": "7", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "x"}, nil, "1 names for 2"},
		{"no number", map[string]string{"LISTEN_PID": "7", "LISTEN_FDS": "x"}, nil, `LISTEN_FDS="x"`},
		{"negative", map[string]string{"LISTEN_PID": "7", "LISTEN_FDS": "-1"}, nil, `LISTEN_FDS="-1"`},
		{"too many", map[string]string{"LISTEN_PID": "7", "LISTEN_FDS": "2147483647"}, nil, "not in 0…1024"},
		{"no process", map[string]string{"LISTEN_PID": "x", "LISTEN_FDS": "1"}, nil, `LISTEN_PID="x"`},
	} {
		names, err := activationNames(func(key string) string { return c.env[key] }, 7)
		if !slices.Equal(names, c.names) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v", c.name, names, err)
		}
	}
}

// The variables are unset for any process ID: a child may get our process ID
// some day.
func TestInheritedUnsetsVariables(t *testing.T) {
	for _, pid := range []string{"1", "x"} {
		t.Setenv("LISTEN_PID", pid)
		t.Setenv("LISTEN_FDS", "1")
		t.Setenv("LISTEN_FDNAMES", "disk")
		listeners, names, err := Inherited()
		if len(listeners) != 0 || len(names) != 0 || (err != nil) != (pid == "x") {
			t.Errorf("process %s: %v, %q, %v", pid, listeners, names, err)
		}
		for _, v := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
			if value, ok := os.LookupEnv(v); ok {
				t.Errorf("%s is still %q", v, value)
			}
		}
	}
}

// socketAt returns a socket of a kind, which the test closes, unless who gets
// it has.
func socketAt(t *testing.T, domain, kind int) int {
	t.Helper()
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestAdopt(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[1])
	for _, c := range []struct {
		name, err string
		fd        int
	}{
		{"pipe", "it is no socket", ends[0]},
		{"datagrams", "not a stream socket", socketAt(t, unix.AF_INET, unix.SOCK_DGRAM)},
		{"records", "not a stream socket", socketAt(t, unix.AF_UNIX, unix.SOCK_SEQPACKET)},
		{"no listener", "does not listen", socketAt(t, unix.AF_UNIX, unix.SOCK_STREAM)},
	} {
		if l, err := adopt(c.fd); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v", c.name, l, err)
		}
		if _, err := unix.FcntlInt(uintptr(c.fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
			t.Errorf("%s: the descriptor is left open: %v", c.name, err)
		}
	}
}

// A socket that was given belongs to who gave it: its file stays.
func TestAdoptedListenerServes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd := socketAt(t, unix.AF_UNIX, unix.SOCK_STREAM)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 5)); err != nil {
		t.Fatal(err)
	}
	l, err := adopt(fd)
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewExports(Export{Name: "disk", Device: newMemory(1 << 20)})
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Exports: table}
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), l) }()
	p := dial(t, l.Addr())
	p.greet(bothFlags)
	p.option(optGo, nbdtest.GoData("", infoBlockSize))
	p.infos(optGo)
	p.disconnect()
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket is gone: %v", err)
	}
}

// one is a server of one connection.
type one struct {
	*peer
	server *Server
	cancel context.CancelCauseFunc
	served chan error
}

func serveOne(t *testing.T, limits Limits) *one {
	t.Helper()
	table, err := NewExports(Export{Name: "disk", Device: newMemory(1 << 20)})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := pair(t)
	raw, err := ours.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := InheritedConn(int(raw.Fd()))
	if err = errors.Join(err, raw.Close(), ours.Close()); err != nil {
		t.Fatal(err)
	}
	o := &one{peer: newPeer(t, theirs), server: &Server{Exports: table, Limits: limits}, served: make(chan error, 1)}
	ctx, cancel := context.WithCancelCause(t.Context())
	o.cancel = cancel
	go func() { o.served <- o.server.ServeOne(ctx, conn) }()
	return o
}

func (o *one) wantServed(want error) {
	o.t.Helper()
	select {
	case err := <-o.served:
		if !errors.Is(err, want) {
			o.t.Errorf("got %v, want %v", err, want)
		}
	case <-time.After(testTimeout):
		o.t.Error("ServeOne does not return")
	}
}

func TestServeOne(t *testing.T) {
	errCut := errors.New("cut off")
	enter := func(o *one) {
		o.greet(bothFlags)
		o.option(optGo, nbdtest.GoData("disk"))
		o.infos(optGo)
	}
	for name, c := range map[string]struct {
		do   func(*one)
		want error
	}{
		"disconnect":           {func(o *one) { enter(o); o.disconnect() }, nil},
		"hang-up":              {func(o *one) { enter(o); o.Close() }, nil},
		"hang-up in handshake": {func(o *one) { o.greet(bothFlags); o.Close() }, nil},
		"abort":                {func(o *one) { o.greet(bothFlags); o.option(optAbort); o.wantReply(optAbort, repAck); o.wantEnd() }, nil},
		"broken protocol":      {func(o *one) { o.greet(bothFlags); o.put(make([]byte, 16)); o.wantEnd() }, errProtocol},
		"drain":                {func(o *one) { enter(o); o.server.Drain(context.Background()); o.wantEnd() }, nil},
		"cut off":              {func(o *one) { enter(o); o.cancel(errCut); o.wantEnd() }, errCut},
	} {
		t.Run(name, func(t *testing.T) {
			o := serveOne(t, Limits{Connections: -1}) // they are the accepted ones'
			c.do(o)
			o.wantServed(c.want)
		})
	}
	t.Run("drained", func(t *testing.T) {
		ours, theirs := pair(t)
		defer theirs.Close()
		s := new(Server)
		s.Drain(t.Context())
		if err := s.ServeOne(t.Context(), ours); !errors.Is(err, errDraining) {
			t.Error(err)
		}
	})
}

func TestInheritedConnRefuses(t *testing.T) {
	listening := socketAt(t, unix.AF_UNIX, unix.SOCK_STREAM)
	if err := errors.Join(unix.Bind(listening, &unix.SockaddrUnix{}), unix.Listen(listening, 1)); err != nil {
		t.Fatal(err)
	}
	for want, fd := range map[string]int{
		"the socket listens":  listening,
		"not a stream socket": socketAt(t, unix.AF_INET, unix.SOCK_DGRAM),
	} {
		if c, err := InheritedConn(fd); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v, want %s", c, err, want)
		}
		unix.Close(fd) // it is still ours
	}
}
