package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

const (
	heading = "Num       RefCount Protocol Flags    Type St Inode Path\n"
	serverA = "0000000017c4bae0: 00000002 00000000 00010000 0005 01 4038056 /run/viablk/a.sock\n"
	advertA = "00000000889c4562: 00000002 00000000 00000000 0002 01 4038057 @viablk-shm:4038056\n"
	serverB = "00000000dd7ab5e0: 00000002 00000000 00010000 0005 01  1593 /my disks/b\n"
	advertB = "00000000889c4563: 00000002 00000000 00000000 0002 01  1700 @viablk-shm:1593\n"
	// A connection waiting to be accepted, one accepted, and an unnamed pair.
	others = "00000000e67ed0ea: 00000003 00000000 00000000 0005 02     0 /run/viablk/a.sock\n" +
		"00000000e67ed0eb: 00000003 00000000 00000000 0005 03 4038060 /run/viablk/a.sock\n" +
		"000000000af77fba: 00000003 00000000 00000000 0001 03  1594\n" +
		"0000000049c40c79: 00000003 00000000 00000000 0001 03  1595\n"
)

func TestParseSockets(t *testing.T) {
	for _, c := range []struct {
		name, table string
		want        []string
	}{
		{"empty", "", nil},
		{"heading", heading, nil},
		{"advertised", heading + serverA + others + advertA, []string{"/run/viablk/a.sock"}},
		{"sorted", heading + advertA + serverA + serverB + advertB, []string{"/my disks/b", "/run/viablk/a.sock"}},
		{"not advertised", heading + serverA + serverB + advertB, []string{"/my disks/b"}},
		{"advertised by the dead", heading + advertA + others, nil},
		{"twice", serverA + serverA + advertA + advertA, []string{"/run/viablk/a.sock"}},
		{"last line is cut", serverB + advertB + serverA[:60], []string{"/my disks/b"}},
		{"advertisement is cut", serverA + strings.TrimSuffix(advertA, "6\n"), nil},
		{"a connection advertised", others + strings.Replace(advertA, "4038056", "4038060", 1), nil},
		{"a stream socket", strings.Replace(serverA, "0005", "0001", 1) + advertA, nil},
		{"does not listen", strings.Replace(serverA, "00010000", "00000000", 1) + advertA, nil},
		{"advertisement of another type", serverA + strings.Replace(advertA, "0002 01", "0001 01", 1), nil},
		{"advertisement is connected", serverA + strings.Replace(advertA, "0002 01", "0002 03", 1), nil},
		{"advertisement is a file", serverA + strings.Replace(advertA, "@", "/", 1), nil},
		{"negative inode", serverA + strings.Replace(advertA, ":4038056", ":-4038056", 1), nil},
		{"more behind the inode", serverA + strings.Replace(advertA, ":4038056", ":4038056 ", 1), nil},
		{"inode wraps", strings.Replace(serverB, " 1593", "18446744073709551615", 1) +
			strings.Replace(advertB, ":1593", ":18446744073709551615", 1) +
			serverA + strings.Replace(advertA, ":4038056", ":18446744073713589672", 1), []string{"/my disks/b"}},
		{"relative path", strings.Replace(serverA, "/run", "run", 1) + advertA, nil},
		{"abstract name", strings.Replace(serverA, "/run", "@/run", 1) + advertA, nil},
		{"blanks in front of a path", strings.Replace(serverA, "/run", "  /run", 1) + advertA, nil},
		{"blanks behind a path", strings.Replace(serverA, ".sock", ".sock  ", 1) + advertA, []string{"/run/viablk/a.sock  "}},
		{"escape sequence", strings.Replace(serverA, "/run", "/\x1b[2J", 1) + advertA, nil},
		{"not utf-8", strings.Replace(serverA, "/run", "/\xff", 1) + advertA, nil},
		{"path of another script", strings.Replace(serverA, "/run", "/кат", 1) + advertA, []string{"/кат/viablk/a.sock"}},
		// A name with line ends forges lines, which can only add.
		{
			"forged lines", "1: 2 0 00000000 0002 01 3 @x\n" + strings.Replace(serverA, "/run", "/evil", 1) + serverA + advertA,
			[]string{"/evil/viablk/a.sock", "/run/viablk/a.sock"},
		},
		{"forged columns", "a b c 00010000 0005 01 +4038056 /x\nz: 0 0 00010000 0005 01 /x\n" + serverA + advertA, []string{"/run/viablk/a.sock"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseSockets(strings.NewReader(c.table), maxSocketTable)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("paths %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestParseSocketsIsBounded(t *testing.T) {
	table := heading + serverA + advertA
	if got, err := parseSockets(strings.NewReader(table), int64(len(table))); err != nil || len(got) != 1 {
		t.Errorf("at the limit: %q, %v", got, err)
	}
	for name, limit := range map[string]int64{
		table: int64(len(table)) - 1,
		heading + strings.Repeat("x", maxSocketLine+1): maxSocketTable,
	} {
		if got, err := parseSockets(strings.NewReader(name), limit); got != nil || !errors.Is(err, via.ErrResource) {
			t.Errorf("beyond the limit: %q, %v", got, err)
		}
	}
}

func FuzzParseSockets(f *testing.F) {
	f.Fuzz(func(t *testing.T, table []byte) {
		got, err := parseSockets(bytes.NewReader(table), math.MaxInt32)
		if err != nil {
			if got != nil || !errors.Is(err, via.ErrResource) {
				t.Fatalf("paths %q, error %v", got, err)
			}
			return
		}
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Fatalf("paths %q are not sorted or not unique", got)
		}
		for _, path := range got {
			if !advertisable(path) || !bytes.Contains(table, []byte(path)) {
				t.Fatalf("path %q", path)
			}
		}
		// Sockets of other processes hide no path.
		more, err := parseSockets(strings.NewReader(heading+serverB+advertB+string(table)), math.MaxInt32)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range append(got, "/my disks/b") {
			if !slices.Contains(more, path) {
				t.Fatalf("with other sockets beside it, %q is gone from %q", path, more)
			}
		}
	})
}

// finds reports whether a fresh device discovers a path.
func finds(t *testing.T, path string) bool {
	t.Helper()
	a, err := New(Options{}).Open("")
	check(t, err)
	defer func() { check(t, a.Close()) }()
	found, err := a.(via.Discoverer).DiscoverHosts(context.Background(), 1)
	check(t, err)
	return slices.Contains(found, via.DiscoveredHost{Host: path, Hops: 1})
}

func listenAt(t *testing.T, path string) via.Listening {
	t.Helper()
	l, err := (&adapter{timeouts: timeouts{handshake: time.Second}}).Listen(path, func(in via.Incoming) { _ = in.Refuse(nil) })
	check(t, err)
	return l
}

// refuses checks that a listener answers at a path.
func refuses(t *testing.T, path string) {
	t.Helper()
	q, err := newCQ(4)
	check(t, err)
	defer func() { check(t, q.Close()) }()
	_, _, err = (&adapter{}).Connect(context.Background(), path, rawHello(), via.LinkConfig{SendCQ: q, RecvCQ: q, SendDepth: 1, RecvDepth: 1})
	if !errors.Is(err, via.ErrReject) {
		t.Errorf("connect to %s: %v, want a refusal", path, err)
	}
}

// Only paths that survive the table are advertised; all are listened at.
func TestAdvertisedPaths(t *testing.T) {
	watchLeaks(t)
	dir := t.TempDir()
	t.Chdir(dir)
	for _, c := range []struct {
		path  string
		found bool
	}{
		{filepath.Join(dir, "plain"), true},
		{filepath.Join(dir, " a blank "), true},
		{filepath.Join(dir, "ä"), true},
		{"relative", false},
		{filepath.Join(dir, "line\nend"), false},
		{filepath.Join(dir, "\x1b[1m"), false},
		{filepath.Join(dir, "\xff"), false},
	} {
		before := len(openFiles(t))
		l := listenAt(t, c.path)
		if got := finds(t, c.path); got != c.found {
			t.Errorf("%q found: %t", c.path, got)
		}
		if advertised := len(openFiles(t)) == before+2; advertised != c.found {
			t.Errorf("%q advertised: %t", c.path, advertised)
		}
		refuses(t, c.path)
		check(t, l.Close())
		if finds(t, c.path) {
			t.Errorf("%q found after the end", c.path)
		}
	}
}

// A process that binds the name first does not stop a listener. As the name is
// the whole advertisement, that process advertises the listener.
func TestNameIsTaken(t *testing.T) {
	watchLeaks(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	check(t, err)
	other := advertise(l)
	if other < 0 {
		t.Fatal("the name is not free")
	}
	s := (&adapter{timeouts: timeouts{handshake: time.Second}}).serve(l, func(in via.Incoming) { _ = in.Refuse(nil) })
	if s.advert != -1 {
		t.Errorf("advertised by file descriptor %d under a name that is taken", s.advert)
	}
	refuses(t, path)
	if !finds(t, path) {
		t.Error("not found while another socket has the name")
	}
	check(t, unix.Close(other))
	if finds(t, path) {
		t.Error("found without an advertisement")
	}
	check(t, s.Close())
}

// An advertisement has the listening socket's number, queues no messages, and
// is not inherited by programs that the process starts.
func TestAdvertisement(t *testing.T) {
	watchLeaks(t)
	path := filepath.Join(t.TempDir(), "s")
	s := listenAt(t, path).(*listening)
	name, err := unix.Getsockname(s.advert)
	check(t, err)
	flags, err := unix.FcntlInt(uintptr(s.advert), unix.F_GETFD, 0)
	check(t, err)
	if flags&unix.FD_CLOEXEC == 0 {
		t.Error("the advertisement is inherited")
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name.(*unix.SockaddrUnix).Name, Net: "unixgram"})
	check(t, err)
	if _, err := c.Write([]byte("hello")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("a message to an advertisement: %v", err)
	}
	check(t, c.Close())
	check(t, s.Close())
}

// roleAdvertise listens until it is killed.
func roleAdvertise(tb *roleTB, args []string) error {
	a, err := New(Options{}).Open("")
	check(tb, err)
	_, err = a.Listen(args[0], func(in via.Incoming) { _ = in.Refuse(nil) })
	check(tb, err)
	fmt.Println("listening")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// A listener whose socket file was removed is still advertised but cannot be
// reached; the advertisement of a process ends with it.
func TestDiscoveryOfAnotherProcess(t *testing.T) {
	watchLeaks(t)
	path := filepath.Join(t.TempDir(), "s")
	child := startRole(t, "advertise", path)
	if got := child.line(); got != "listening" {
		t.Fatalf("the child says %q", got)
	}
	if !finds(t, path) {
		t.Error("another process's listener is not found")
	}
	check(t, os.Remove(path))
	if !finds(t, path) {
		t.Error("the kernel's table forgot a socket with its file")
	}
	child.signal(syscall.SIGKILL)
	_ = child.wait()
	if finds(t, path) {
		t.Error("a dead process is found")
	}
}
