package shm

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/internal/memfd"
	"github.com/viablk/viablk/via"
)

// ended reads messages until the other side has closed the connection.
func ended(tb testing.TB, c *net.UnixConn) {
	tb.Helper()
	check(tb, c.SetReadDeadline(time.Now().Add(time.Minute)))
	var b [512]byte
	for {
		_, err := c.Read(b[:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			tb.Fatal("the connection was kept")
		}
		if err != nil {
			return
		}
	}
}

// sendRaw sends bytes and n file descriptors of an open file.
func sendRaw(tb testing.TB, c *net.UnixConn, b []byte, n int) {
	tb.Helper()
	var oob []byte
	if n > 0 {
		fds := make([]int, n)
		for i := range fds {
			fds[i] = 1
		}
		oob = unix.UnixRights(fds...)
	}
	raw, err := c.SyscallConn()
	check(tb, err)
	var sent error
	check(tb, raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_NOSIGNAL)
		return sent != unix.EAGAIN
	}))
	check(tb, sent)
}

func encoded(m control) []byte {
	b, _ := m.encode()
	return b
}

func TestHostileHello(t *testing.T) {
	hello := encoded(control{kind: controlHello, body: rawHello()})
	patched := func(off int, v ...byte) []byte {
		b := append([]byte(nil), hello...)
		copy(b[off:], v)
		return b
	}
	long := encoded(control{kind: controlHello, body: make([]byte, maxBody+1)})
	for name, m := range map[string]struct {
		bytes []byte
		fds   int
	}{
		"empty with files":      {nil, 3}, // reads as the end of the connection
		"one byte":              {[]byte{1}, 0},
		"one byte with files":   {[]byte{1}, 3},
		"short":                 {hello[:controlHeader-1], 3},
		"wrong magic":           {patched(0, 0), 3},
		"kind 0":                {patched(4, 0), 3},
		"unknown kind":          {patched(4, 99), 3},
		"accept first":          {patched(4, controlAccept), 3},
		"refuse first":          {patched(4, controlRefuse), 0},
		"ready first":           {patched(4, controlReady), 0},
		"arena first":           {patched(4, controlArena), 1},
		"drop first":            {patched(4, controlDrop), 0},
		"body too short":        {hello[:len(hello)-1], 3},
		"body too long":         {append(hello[:len(hello):len(hello)], 0), 3},
		"longer than any":       {long, 3},
		"a packet of 64 KiB":    {make([]byte, 64<<10), 0},
		"no file":               {hello, 0},
		"one file":              {hello, 1},
		"two files":             {hello, 2},
		"four files":            {hello, 4},
		"as many files as can":  {hello, 253},
		"garbage":               {[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), 0},
		"connect message wrong": {encoded(control{kind: controlHello, body: []byte("nonsense")}), 3},
		"unknown name":          {encoded(control{kind: controlHello, body: append(rawHello()[:16:16], 'x')}), 3},
	} {
		t.Run(name, func(t *testing.T) {
			b := attack(t)
			c := dialRaw(t, b.listener.Addr().Host)
			sendRaw(t, c, m.bytes, m.fds)
			ended(t, c)
			check(t, c.Close())
			b.keeps()
		})
	}
}

// TestHostileSegment: Accept validates the files of a hello.
func TestHostileSegment(t *testing.T) {
	rawMemfd := func(t *testing.T, size int64, flags, seals int) int {
		fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
		check(t, err)
		check(t, unix.Ftruncate(fd, size))
		if seals != 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			check(t, err)
		}
		return fd
	}
	open := func(t *testing.T, path string) int {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		check(t, err)
		return fd
	}
	socket := func(t *testing.T, domain, kind int) int {
		fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
		check(t, err)
		return fd
	}
	pipe := func(t *testing.T) int {
		var fds [2]int
		check(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
		check(t, unix.Close(fds[0]))
		return fds[1]
	}
	const huge = 2 << 20
	for name, forge := range map[string]struct {
		at int // which of the three
		fd func(t *testing.T) int
	}{
		"unsealed":            {0, func(t *testing.T) int { return rawMemfd(t, segmentSize, 0, 0) }},
		"may shrink":          {0, func(t *testing.T) int { return rawMemfd(t, segmentSize, 0, unix.F_SEAL_GROW|unix.F_SEAL_SEAL) }},
		"seals may be added":  {0, func(t *testing.T) int { return rawMemfd(t, segmentSize, 0, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK) }},
		"a page short":        {0, func(t *testing.T) int { return rawMemfd(t, segmentSize-4096, 0, memfd.SizeSeals) }},
		"empty":               {0, func(t *testing.T) int { return rawMemfd(t, 0, 0, memfd.SizeSeals) }},
		"too long":            {0, func(t *testing.T) int { return rawMemfd(t, segmentSize+1, 0, memfd.SizeSeals) }},
		"zeroes":              {0, func(t *testing.T) int { return rawMemfd(t, segmentSize, 0, memfd.SizeSeals) }},
		"of huge pages":       {0, func(t *testing.T) int { return rawMemfd(t, huge, unix.MFD_HUGETLB, memfd.SizeSeals) }},
		"/dev/zero":           {0, func(t *testing.T) int { return open(t, "/dev/zero") }},
		"a pipe":              {0, pipe},
		"a socket":            {0, func(t *testing.T) int { return socket(t, unix.AF_UNIX, unix.SOCK_STREAM) }},
		"bell: an eventfd":    {1, func(t *testing.T) int { fd, err := eventfd.New(); check(t, err); return fd }},
		"bell: a pipe":        {1, pipe},
		"bell: a file":        {2, func(t *testing.T) int { return open(t, "/dev/null") }},
		"bell: datagrams":     {2, func(t *testing.T) int { return socket(t, unix.AF_UNIX, unix.SOCK_DGRAM) }},
		"bell: another net":   {1, func(t *testing.T) int { return socket(t, unix.AF_INET, unix.SOCK_STREAM) }},
		"space bell: a memfd": {2, func(t *testing.T) int { return rawMemfd(t, 4096, 0, 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := attack(t)
			o := newRawOffer(t)
			fds := o.fds()
			fake := forge.fd(t)
			fds[forge.at] = fake
			c := dialRaw(t, b.listener.Addr().Host)
			check(t, sendControl(c, control{kind: controlHello, body: rawHello(), fds: fds}))
			check(t, sendControl(c, control{kind: controlReady}))
			check(t, unix.Close(fake))
			vi := b.newVI()
			if err := acceptNext(t, b.listener, vi); err == nil {
				t.Fatal("accepted")
			}
			if vi.State() != via.StateIdle {
				t.Errorf("the vi is %v", vi.State())
			}
			ended(t, c)
			closeRaw(o)
			b.keeps()
		})
	}
}

func acceptNext(t *testing.T, l *via.Listener, vi *via.VI) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := l.Wait(ctx)
	check(t, err)
	return r.Accept(ctx, vi)
}

// TestRequesterVanishes closes the connection at every step of the handshake.
func TestRequesterVanishes(t *testing.T) {
	hello := func(t *testing.T, c *net.UnixConn) {
		o := newRawOffer(t)
		check(t, sendControl(c, control{kind: controlHello, body: rawHello(), fds: o.fds()}))
		closeRaw(o)
	}
	t.Run("before the connect message", func(t *testing.T) {
		b := attack(t)
		check(t, dialRaw(t, b.listener.Addr().Host).Close())
		b.keeps()
	})
	t.Run("before the answer", func(t *testing.T) {
		b := attack(t)
		c := dialRaw(t, b.listener.Addr().Host)
		hello(t, c)
		check(t, c.Close())
		if err := acceptNext(t, b.listener, b.newVI()); err == nil {
			t.Fatal("accepted")
		}
		b.keeps()
	})
	t.Run("instead of the confirmation", func(t *testing.T) {
		b := attack(t)
		c := dialRaw(t, b.listener.Addr().Host)
		hello(t, c)
		check(t, c.CloseWrite())
		if err := acceptNext(t, b.listener, b.newVI()); err == nil {
			t.Fatal("accepted")
		}
		ended(t, c)
		b.keeps()
	})
	t.Run("another message for the confirmation", func(t *testing.T) {
		b := attack(t)
		c := dialRaw(t, b.listener.Addr().Host)
		hello(t, c)
		sendRaw(t, c, encoded(control{kind: controlArena, value: 1, size: 4096}), 1)
		if err := acceptNext(t, b.listener, b.newVI()); err == nil {
			t.Fatal("accepted")
		}
		ended(t, c)
		b.keeps()
	})
	t.Run("while it waits to be answered", func(t *testing.T) {
		b := attack(t)
		c := dialRaw(t, b.listener.Addr().Host)
		hello(t, c) // no call of Wait; the listener's Close refuses
		b.keeps()
	})
	t.Run("after the confirmation", func(t *testing.T) {
		b := attack(t)
		check(t, b.peer.conn.Close())
		b.loses()
	})
}

// TestSilentRequester: a requester that sends nothing, or stops halfway, times
// out and does not delay other requesters meanwhile.
func TestSilentRequester(t *testing.T) {
	p := testTimeouts
	p.handshake = 500 * time.Millisecond
	b := attackFor(t, p)
	silent := dialRaw(t, b.listener.Addr().Host)
	b.keeps()
	ended(t, silent)
	o := newRawOffer(t)
	half := dialRaw(t, b.listener.Addr().Host)
	check(t, sendControl(half, control{kind: controlHello, body: rawHello(), fds: o.fds()}))
	if err := acceptNext(t, b.listener, b.newVI()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("accept a requester that does not confirm: %v", err)
	}
	ended(t, half)
	closeRaw(o)
	b.keeps()
}

// TestHalfOpenConnections: more than maxHandshakes silent connections do not
// lock out a requester.
func TestHalfOpenConnections(t *testing.T) {
	p := testTimeouts
	p.handshake = time.Hour
	b := attackFor(t, p)
	const more = 44
	var conns []*net.UnixConn
	for range maxHandshakes + more {
		conns = append(conns, dialRaw(t, b.listener.Addr().Host))
	}
	for _, c := range conns[:more] {
		ended(t, c)
	}
	again := newHealthy(t, b.station, b.listener)
	again.check()
	b.keeps()
	b.disconnect(again.a)
	b.far(again)
	for _, c := range conns {
		check(t, c.Close())
	}
	b.keeps()
}

// far waits until the far end of a connection breaks whose near end is closed.
func (b *attacked) far(h *healthy) {
	until(b.tb, "the far end to break", func() bool { return h.b.State() == via.StateError }, h.far)
}

// TestListenerCloseHurries: silent requesters do not delay Close.
func TestListenerCloseHurries(t *testing.T) {
	watchLeaks(t)
	p := testTimeouts
	p.handshake = time.Hour
	s := newStation(t, p)
	l := s.listen()
	for range 20 {
		dialRaw(t, l.Addr().Host)
	}
	check(t, l.Close())
	if _, err := net.Dial("unixpacket", l.Addr().Host); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("dial after close: %v", err)
	}
}
