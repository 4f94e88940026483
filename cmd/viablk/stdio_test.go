package main

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
)

// standard are copies of the two ends of a pair of sockets, at descriptors that
// stand for the standard ones, and the far end.
func standard(t *testing.T) (fds [3]int, far *os.File) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	fds[0] = ends[0]
	for i := range fds[1:] {
		if fds[i+1], err = unix.FcntlInt(uintptr(ends[0]), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	far = os.NewFile(uintptr(ends[1]), "far end")
	t.Cleanup(func() {
		far.Close()
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	return fds, far
}

// Output of the process after it has taken the connection does not reach the
// client, and the client sees the end when the connection is closed.
func TestTakeStdio(t *testing.T) {
	fds, far := standard(t)
	c, err := inheritStdio(fds[0], fds[1], fds[2])
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if _, err := unix.Write(fd, []byte("noise")); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Write([]byte("bytes")); err != nil {
		t.Error(err)
	}
	c.Close()
	if got, err := io.ReadAll(far); err != nil || string(got) != "bytes" {
		t.Errorf("the client got %q, %v", got, err)
	}
}

// Standard error that is something else is left alone.
func TestTakeStdioKeepsErrors(t *testing.T) {
	fds, far := standard(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c, err := inheritStdio(fds[0], fds[1], int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := w.WriteString("complaint"); err != nil {
		t.Error(err)
	}
	w.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != "complaint" {
		t.Errorf("got %q, %v", got, err)
	}
	_ = far
}

func TestTakeStdioRefuses(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fds, far := standard(t)
	other := int(far.Fd())
	for want, pair := range map[string][2]int{
		"not the same connection": {int(r.Fd()), fds[1]},
		"it is no socket":         {int(r.Fd()), int(w.Fd())}, // one pipe
		"with pipes":              {fds[0], other},            // two sockets
	} {
		c, err := inheritStdio(pair[0], pair[1], int(w.Fd()))
		var withCode *exit
		if !errors.As(err, &withCode) || withCode.code != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v, want %s", c, err, want)
		}
	}
}

func TestURIOfListener(t *testing.T) {
	for want, a := range map[string]net.Addr{
		"nbd://127.0.0.1:7/disk":          &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7},
		"nbd://[fe80::1%25eth0]/disk":     &net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0", Port: 10809},
		"nbd+unix:///disk?socket=/run/x":  &net.UnixAddr{Name: "/run/x", Net: "unix"},
		"nbd+unix:///disk?socket=%40name": &net.UnixAddr{Name: "@name", Net: "unix"},
		"nbd+vsock://2:7/disk":            nbd.VsockAddr{CID: nbd.VsockAny, Port: 7},
		"nbd+vsock://5/disk":              nbd.VsockAddr{CID: 5, Port: 10809},
	} {
		e := nbdListeners{endpoints: []endpoint{{uri: uriOf(a)}}}
		got := e.uris("disk")
		if len(got) != 1 || got[0] != want {
			t.Errorf("%q, want %s", got, want)
			continue
		}
		if _, err := config.ParseURI(got[0]); err != nil {
			t.Error(err)
		}
	}
	for _, a := range []net.Addr{&net.UnixAddr{Net: "unix"}, nbd.VsockAddr{CID: 5, Port: 1 << 20}} {
		if got := (&nbdListeners{endpoints: []endpoint{{uri: uriOf(a)}}}).uris("disk"); len(got) != 0 {
			t.Errorf("%v, which no URI names, has the URI %q", a, got)
		}
	}
}
