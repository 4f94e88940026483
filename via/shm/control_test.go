package shm

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func FuzzParseControl(f *testing.F) {
	for kind := range uint16(12) {
		f.Add(encoded(control{kind: kind, value: 7, size: 1 << 40, body: rawHello()}))
	}
	f.Add([]byte{})
	f.Add(make([]byte, controlHeader))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseControl(b)
		if err != nil {
			if !errors.Is(err, errMalformed) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if len(m.body) > maxBody || m.kind < controlHello || m.kind > controlMappedFlags {
			t.Fatalf("accepted kind %d with a body of %d bytes", m.kind, len(m.body))
		}
		again := encoded(m)
		if string(again) != string(b) || binary.LittleEndian.Uint32(b) != controlMagic {
			t.Fatalf("% x decodes and encodes to % x", b, again)
		}
	})
}

// A process without room for descriptors of the peer says so: the kernel drops
// them, which looks like a message that is too long.
func TestNoRoomForDescriptors(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ends[i] = c.(*net.UnixConn)
	}
	m, flags := control{kind: controlArena, fds: []int{0}}, control{kind: controlPassFlags, fds: []int{0}}
	if err := errors.Join(sendControl(ends[0], m), sendControl(ends[0], flags), sendControl(ends[0], m)); err != nil {
		t.Fatal(err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	_, got := receiveControl(ends[1])
	without, err := receiveControl(ends[1])
	if err != nil || without.kind != controlPassFlags || len(without.fds) != 0 {
		t.Errorf("a page of sleep flags, which a connection does not need, without room: %+v, %v", without, err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(got, unix.EMFILE) || errors.Is(got, errMalformed) {
		t.Errorf("without room: %v", got)
	}
	again, err := receiveControl(ends[1])
	if err != nil {
		t.Fatal(err)
	}
	closeAll(again.fds...)
}
