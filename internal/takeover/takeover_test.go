package takeover

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns both ends of a connection.
func pair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return ends[0], ends[1]
}

// other starts a process that stands for a successor, and returns the end of
// the connection to it.
func other(t *testing.T, c *net.UnixConn) (*Successor, *exec.Cmd) {
	t.Helper()
	p := exec.Command("sleep", "60")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	fd, err := unix.PidfdOpen(p.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	return NewSuccessor(socket{c}, pidfd(fd)), p
}

// pipe returns the ends of a pipe.
func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return r, w
}

// TestTakeover: a successor gets every item, with its name and what it is open
// for, and the predecessor learns that it serves.
func TestTakeover(t *testing.T) {
	a, b := pair(t)
	s, p := other(t, a)
	r, w := pipe(t)
	result := make(chan error, 1)
	go func() {
		err := s.Committed()
		if err == nil {
			err = s.Give([]Item{{"reader", int(r.Fd())}, {"writer", int(w.Fd())}})
		}
		result <- err
	}()
	from := NewPredecessor(b)
	items, ended, err := from.Commit()
	if err != nil || ended || len(items) != 2 || items[0].Name != "reader" || items[1].Name != "writer" {
		t.Fatalf("%v, %v, %v", items, ended, err)
	}
	reader, writer := os.NewFile(uintptr(items[0].FD), "reader"), os.NewFile(uintptr(items[1].FD), "writer")
	if _, err := writer.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(reader, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{reader, writer} {
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s: flags %#x, %v: a child would have it", f.Name(), flags, err)
		}
		f.Close()
	}
	if err := from.Opened(); err != nil {
		t.Fatal(err)
	}
	from.Serving()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(p.Process.Pid, 0); err != nil {
		t.Errorf("the successor: %v", err)
	}
}

// TestSuccessorIsExpelled: a successor that does not do what it must has ended
// when the predecessor goes on.
func TestSuccessorIsExpelled(t *testing.T) {
	for name, does := range map[string]func(*net.UnixConn, *exec.Cmd){
		"it sends something else":                      func(c *net.UnixConn, _ *exec.Cmd) { _ = socket{c}.Send(Message{kind: serving, FD: -1}) },
		"it sends an item":                             func(c *net.UnixConn, _ *exec.Cmd) { _ = socket{c}.Send(Message{item, "", 0}) },
		"it closes the connection, and is there still": func(c *net.UnixConn, _ *exec.Cmd) { c.Close() },
		"it cannot, and ends": func(c *net.UnixConn, p *exec.Cmd) {
			NewPredecessor(c).Fail(errors.New("no memory"))
			_ = p.Process.Kill()
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			s, p := other(t, a)
			does(b, p)
			r, _ := pipe(t)
			if err := s.Give([]Item{{"reader", int(r.Fd())}}); err == nil {
				t.Fatal("it has taken over")
			}
			if err := p.Wait(); err == nil || p.ProcessState.Success() {
				t.Errorf("the successor: %v", err)
			}
		})
	}
}

// TestSuccessorEndsWhileItWaits: a predecessor that prepares for long sees that
// its successor has ended.
func TestSuccessorEndsWhileItWaits(t *testing.T) {
	a, _ := pair(t)
	s, p := other(t, a)
	if err := s.Waits(); err != nil {
		t.Fatal(err)
	}
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()
	if err := s.Waits(); err == nil || !strings.Contains(err.Error(), "the successor ended") {
		t.Errorf("%v", err)
	}
}

// TestPredecessorEnds: the end of the predecessor, whenever it comes, lets the
// successor go on with what it got.
func TestPredecessorEnds(t *testing.T) {
	r, _ := pipe(t)
	for n, sends := range [][]Message{
		{},
		{{item, "a", int(r.Fd())}},
		{{item, "a", int(r.Fd())}, {kind: last, FD: -1}},
	} {
		a, b := pair(t)
		for _, m := range sends {
			if err := (socket{a}).Send(m); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		p := NewPredecessor(b)
		items, ended, err := p.Commit()
		if err != nil || ended != (n < 2) || len(items) != min(n, 1) {
			t.Errorf("%d: %v, %v, %v", n, items, ended, err)
		}
		p.release(items)
		if err := p.Opened(); err != nil {
			t.Errorf("%d: %v", n, err)
		}
		p.Serving()
	}
}

// TestSuccessorClosesAtOnce: a successor that answers and closes the connection
// as soon as it may serve has taken over.
func TestSuccessorClosesAtOnce(t *testing.T) {
	for range 2000 {
		a, b := pair(t)
		unused, err := unix.Dup(0) // of a process that is not to be killed
		if err != nil {
			t.Fatal(err)
		}
		s := NewSuccessor(socket{a}, pidfd(unused))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p := NewPredecessor(b)
			if _, ended, err := p.Commit(); ended || err != nil {
				t.Errorf("%v, %v", ended, err)
			}
			if err := p.Opened(); err != nil {
				t.Error(err)
			}
			p.Serving()
		}()
		if err = s.Committed(); err == nil {
			err = s.Give(nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		<-ended
	}
}

// TestOthersAreNotAdmitted: a process does not take over from itself, and the
// connection stays its own.
func TestOthersAreNotAdmitted(t *testing.T) {
	a, b := pair(t)
	if s, _, err := Admit(a); !errors.Is(err, unix.EINVAL) {
		t.Errorf("%v, %v", s, err)
	}
	if err := (socket{a}).Send(Message{kind: commit, FD: -1}); err != nil {
		t.Error(err)
	}
	if err := expect(socket{b}, commit); err != nil {
		t.Error(err)
	}
}

// FuzzReceive: no bytes, with a descriptor or without, make receive crash, wait
// after the end, or keep a descriptor of a message that it refuses.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{'I', 1, 0, 'x'}, true)
	f.Add([]byte{'I', 1, 0, 'x'}, false)
	f.Add([]byte{'O', 0, 0}, true)
	f.Add([]byte{'C', 0, 0}, false)
	f.Add([]byte{'F', 0xff, 0xff, 'x'}, false)
	f.Add([]byte{'L'}, false)
	f.Fuzz(func(t *testing.T, b []byte, withFD bool) {
		if len(b) == 0 {
			return
		}
		x, y := pair(t)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var rights []byte
		if withFD {
			rights = unix.UnixRights(int(w.Fd()))
		}
		if _, _, err := x.WriteMsgUnix(b, rights, nil); err != nil {
			t.Fatal(err)
		}
		x.Close()
		w.Close()
		m, err := (socket{y}).Receive()
		if err == nil && (len(m.text) > maxText || (m.FD >= 0) != (m.kind == item)) {
			t.Errorf("%+v", m)
		}
		if err == nil && len(m.text) != int(binary.LittleEndian.Uint16(b[1:])) {
			t.Errorf("%d bytes of text", len(m.text))
		}
		if m.FD >= 0 {
			_ = unix.Close(m.FD)
		}
		y.Close()
		_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := r.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a descriptor is kept: %v", err)
		}
		r.Close()
	})
}
