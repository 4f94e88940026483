package nbd

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestListenerMovesOn: a client that connects while one process has closed a
// listener and the next does not accept yet is served by the next. The socket
// of a path goes with the last one.
func TestListenerMovesOn(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			l, err := Listen(t.Context(), network, address)
			if err != nil {
				t.Fatal(err)
			}
			address = l.Addr().String()
			for range 2 {
				fd, err := CopyListener(l)
				if err != nil {
					t.Fatal(err)
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				client, err := net.Dial(network, address)
				if err != nil {
					t.Fatal(err)
				}
				if l, err = AdoptListener(fd, true); err != nil {
					t.Fatal(err)
				}
				server, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				_ = server.Close()
				_ = client.Close()
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(address); network == "unix" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket is left: %v", err)
			}
			if c, err := net.Dial(network, address); err == nil {
				c.Close()
				t.Error("something listens still")
			}
		})
	}
}

// TestSocketMoves: a socket that moved on has another path, if no process
// listens there.
func TestSocketMoves(t *testing.T) {
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	before, err := Listen(t.Context(), "unix", at("a"))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := CopyListener(before)
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := AdoptSocket(fd, at("a"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := Listen(t.Context(), "unix", at("b"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := MoveSocket(t.Context(), l, at("b")); !errors.Is(err, ErrInUse) {
		t.Errorf("to a path that is served: %v", err)
	}
	for _, name := range []string{"a", "c"} {
		if err := MoveSocket(t.Context(), l, at(name)); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("unix", at(name))
		if err != nil {
			t.Fatal(err)
		}
		if pid := ListenerPID(c); pid != os.Getpid() {
			t.Errorf("process %d listens", pid)
		}
		_ = c.Close()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"a", "c"} {
		if _, err := os.Lstat(at(name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("socket %s is left: %v", name, err)
		}
	}
}

// TestGuestListenerStays: a listener that refuses users cannot move, as another
// process would admit them.
func TestGuestListenerStays(t *testing.T) {
	l, err := ListenForGuests(t.Context(), filepath.Join(t.TempDir(), "s"), []uint32{65534})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if fd, err := CopyListener(l); err == nil {
		t.Errorf("descriptor %d", fd)
	}
}
