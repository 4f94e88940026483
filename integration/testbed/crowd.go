package testbed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ManyClients is how many clients a server of a crowd takes.
const ManyClients = 1000

// FilesOfBoth is how many descriptors a test and a server have at most, besides
// sockets.
const FilesOfBoth = 2000

// RaiseFiles makes sure that this process, and those it starts, may have so
// many open files.
func RaiseFiles(t testing.TB, n uint64) {
	t.Helper()
	var limit unix.Rlimit
	Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Cur >= n {
		return
	}
	limit.Cur, limit.Max = n, max(limit.Max, n)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatalf("this test needs %d open files: raise the limit (ulimit -Hn): %v", n, err)
	}
}

// Crowd is connections to one socket.
type Crowd struct {
	t     testing.TB
	Path  string
	Conns []net.Conn
}

// NewCrowd returns a crowd without connections; they are closed with the test.
func NewCrowd(t testing.TB, p *Process, export string) *Crowd {
	t.Helper()
	_, path, found := strings.Cut(p.URI(export, "nbd+unix"), "socket=")
	if !found {
		t.Fatalf("no socket in the URIs of %s", p)
	}
	return NewCrowdAt(t, path)
}

// NewCrowdAt is NewCrowd for any server's socket.
func NewCrowdAt(t testing.TB, path string) *Crowd {
	c := &Crowd{t: t, Path: path}
	t.Cleanup(c.disconnect)
	return c
}

func (c *Crowd) disconnect() {
	for _, conn := range c.Conns {
		conn.Close()
	}
	c.Conns = nil
}

// Join connects one more.
func (c *Crowd) Join() net.Conn {
	c.t.Helper()
	conn, err := net.Dial("unix", c.Path)
	for errors.Is(err, unix.EAGAIN) { // more wait than the listener's backlog has room for
		time.Sleep(time.Millisecond)
		conn, err = net.Dial("unix", c.Path)
	}
	Must(c.t, err)
	Must(c.t, conn.SetDeadline(time.Now().Add(WaitLimit)))
	c.Conns = append(c.Conns, conn)
	return conn
}

// The shortest handshake there is, and a READ of 4 KiB.
const (
	GreetingSize = 18
	exportSize   = 10
	readSize     = 4 << 10
)

// Negotiate negotiates up to transmission.
func Negotiate(conn net.Conn, export string) error {
	b := make([]byte, GreetingSize+exportSize)
	if _, err := io.ReadFull(conn, b[:GreetingSize]); err != nil {
		return err
	}
	option := append([]byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01"), 0, 0, 0, byte(len(export)))
	if _, err := conn.Write(append(option, export...)); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b[:exportSize])
	return err
}

// ReadFirst reads the first 4 KiB.
func ReadFirst(conn net.Conn) error {
	request := binary.BigEndian.AppendUint32(nil, 0x25609513)
	request = append(request, make([]byte, 20)...)
	request = binary.BigEndian.AppendUint32(request, readSize)
	if _, err := conn.Write(request); err != nil {
		return err
	}
	reply := make([]byte, 16+readSize)
	if _, err := io.ReadFull(conn, reply); err != nil {
		return err
	}
	if !bytes.HasPrefix(reply, []byte{0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0}) {
		return fmt.Errorf("reply % x", reply[:16])
	}
	return nil
}

// StartScaleServer starts a plain server with so many disks for a thousand
// clients.
func StartScaleServer(t testing.TB, disks int, spec string, more ...string) *Process {
	t.Helper()
	args := []string{
		"target", "--listen", "nbd+unix:///?socket=" + filepath.Join(Folder(t), "s"),
		"--admin", filepath.Join(Folder(t), "a"), "--nbd-connections", strconv.Itoa(ManyClients + 10),
	}
	for i := range disks {
		args = append(args, "--export", fmt.Sprintf("d%d=%s", i, spec))
	}
	return StartBinary(t, PlainProgram(t), append(args, more...)...)
}
