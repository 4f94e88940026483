package integration

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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What many clients may cost.
const (
	manyClients     = 1000
	idleMemory      = 20 << 10 // bytes for each idle connection
	stuckClients    = 10_000
	stuckMemory     = 64 << 20 // bytes for all of them
	stuckLimit      = 10 * time.Second
	filesOfBoth     = 2000 // descriptors of the test and the server besides sockets
	scaleConnection = "nbd+unix"
)

// raiseFiles makes sure that this process, and those it starts, may have so many
// open files.
func raiseFiles(t testing.TB, n uint64) {
	t.Helper()
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Cur >= n {
		return
	}
	limit.Cur, limit.Max = n, max(limit.Max, n)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatalf("this test needs %d open files: raise the limit (ulimit -Hn): %v", n, err)
	}
}

// crowd is connections to one socket.
type crowd struct {
	t     testing.TB
	path  string
	conns []net.Conn
}

// newCrowd returns a crowd without connections; they are closed with the test.
func newCrowd(t testing.TB, p *process, export string) *crowd {
	t.Helper()
	_, path, found := strings.Cut(p.uri(export, scaleConnection), "socket=")
	if !found {
		t.Fatalf("no socket in the URIs of %s", p)
	}
	c := &crowd{t: t, path: path}
	t.Cleanup(c.leave)
	return c
}

func (c *crowd) leave() {
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// join connects one more.
func (c *crowd) join() net.Conn {
	c.t.Helper()
	conn, err := net.Dial("unix", c.path)
	for errors.Is(err, unix.EAGAIN) { // more wait than the listener's backlog has room for
		time.Sleep(time.Millisecond)
		conn, err = net.Dial("unix", c.path)
	}
	must(c.t, err)
	must(c.t, conn.SetDeadline(time.Now().Add(patience)))
	c.conns = append(c.conns, conn)
	return conn
}

// The shortest handshake there is, and a READ of 4 KiB.
const (
	greetingSize = 18
	exportSize   = 10
	readSize     = 4 << 10
)

// enter negotiates up to transmission.
func enter(conn net.Conn, export string) error {
	b := make([]byte, greetingSize+exportSize)
	if _, err := io.ReadFull(conn, b[:greetingSize]); err != nil {
		return err
	}
	option := append([]byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01"), 0, 0, 0, byte(len(export)))
	if _, err := conn.Write(append(option, export...)); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b[:exportSize])
	return err
}

// read reads the first 4 KiB.
func read(conn net.Conn) error {
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

// startCrowded starts a plain server with so many disks for a thousand clients.
func startCrowded(t testing.TB, disks int, spec string, more ...string) *process {
	t.Helper()
	args := []string{
		"target", "--listen", "nbd+unix:///?socket=" + filepath.Join(folder(t), "s"),
		"--admin", filepath.Join(folder(t), "a"), "--nbd-connections", strconv.Itoa(manyClients + 10),
	}
	for i := range disks {
		args = append(args, "--export", fmt.Sprintf("d%d=%s", i, spec))
	}
	return startBinary(t, plain(t), append(args, more...)...)
}

// TestIdleConnections counts what a thousand idle clients of a thousand exports
// cost, before and after each has read something.
func TestIdleConnections(t *testing.T) {
	raiseFiles(t, 4*manyClients+filesOfBoth)
	for name, row := range map[string]struct {
		spec  string
		disks int
	}{
		"memory": {"memory:1MiB", manyClients},
		"file":   {"file:" + sparseFile(t, 1<<20), 1}, // a file has one owner
	} {
		t.Run(name, func(t *testing.T) {
			disks := row.disks
			p := startCrowded(t, disks, row.spec)
			c := newCrowd(t, p, "d0")
			must(t, enter(c.join(), "d0"))
			must(t, read(c.conns[0]))
			alone := p.memory("VmRSS")
			for i := range manyClients {
				must(t, enter(c.join(), fmt.Sprintf("d%d", i%disks)))
			}
			check := func(what string) {
				t.Helper()
				eventually(t, what+" under 20 KiB each", func() (any, bool) {
					each := (p.memory("VmRSS") - alone) / manyClients
					return fmt.Sprintf("%d bytes each, %d threads", each, p.threads()), each <= idleMemory
				})
				t.Logf("%s: %d bytes each, %d threads", what, (p.memory("VmRSS")-alone)/manyClients, p.threads())
			}
			check("idle clients")
			for _, conn := range c.conns {
				must(t, read(conn))
			}
			check("clients that have read")
			eventually(t, "threads of idle clients ending", func() (any, bool) {
				n := p.threads()
				return n, n < manyClients/10
			})
		})
	}
}

// TestStuckHandshakes holds ten thousand clients in their handshake: silent ones and
// ones that go on a byte at a time. The server closes them all in time by itself.
func TestStuckHandshakes(t *testing.T) {
	raiseFiles(t, stuckClients+filesOfBoth)
	p := startCrowded(t, 1, "memory:1MiB", "--nbd-handshakes", strconv.Itoa(stuckClients))
	c := newCrowd(t, p, "d0")
	must(t, enter(c.join(), "d0"))
	alone := p.memory("VmRSS")
	for i := range stuckClients {
		conn := c.join()
		if i%10 == 0 { // half of what it has to say
			_, err := conn.Write([]byte("\x00\x00\x00\x03IHAVEO"))
			must(t, err)
		}
	}
	last := time.Now()
	for _, conn := range c.conns[1:] {
		_, err := io.ReadFull(conn, make([]byte, greetingSize))
		must(t, err)
	}
	if n := p.memory("VmRSS") - alone; n > stuckMemory {
		t.Errorf("%d clients in the handshake have %d MiB", stuckClients, n>>20)
	} else {
		t.Logf("%d clients in the handshake have %d MiB, %d threads", stuckClients, n>>20, p.threads())
	}
	var slow sync.WaitGroup
	ended := make(chan struct{})
	slow.Go(func() { // a byte now and then gains no time
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-ended:
				tick.Stop()
				return
			case <-tick.C:
			}
			for i := 1; i < len(c.conns); i += 100 {
				_, _ = c.conns[i].Write([]byte{0})
			}
		}
	})
	for i, conn := range c.conns[1:] {
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("client %d was not closed: %v", i, err)
		}
	}
	close(ended)
	slow.Wait()
	if took := time.Since(last); took > stuckLimit+stuckLimit/2 {
		t.Errorf("the last was closed after %v", took)
	}
	must(t, read(c.conns[0]))
	eventually(t, "no handshake being left", func() (any, bool) {
		n := p.status().NBD.Handshakes
		return n, n == 0
	})
}

// TestNbdinfoAmongFlood has nbdinfo ask a server which others connect to by the
// thousands, and stay.
func TestNbdinfoAmongFlood(t *testing.T) {
	requires(t, "nbdinfo")
	p := startCrowded(t, 1, "memory:1MiB", "--nbd-connections", "2")
	path := newCrowd(t, p, "d0").path
	var flood sync.WaitGroup
	var stop atomic.Bool
	defer flood.Wait()
	defer stop.Store(true)
	for range 2 {
		flood.Go(func() {
			var held [1000]net.Conn
			for i := 0; !stop.Load(); i = (i + 1) % len(held) {
				if held[i] != nil {
					held[i].Close()
				}
				held[i], _ = net.Dial("unix", path)
				time.Sleep(200 * time.Microsecond) // else the backlog is full, and nobody gets in
			}
			for _, conn := range held {
				if conn != nil {
					conn.Close()
				}
			}
		})
	}
	eventually(t, "handshakes being dropped", func() (any, bool) {
		n := p.status().NBD.Dropped
		return n, n > 0
	})
	for range 10 {
		began := time.Now()
		run(t, "nbdinfo", "--size", p.uri("d0", scaleConnection))
		t.Logf("nbdinfo took %v", time.Since(began))
	}
	if lines := strings.Count(p.stderr.String(), "handshake dropped"); lines > 60 {
		t.Errorf("%d lines of log", lines)
	}
}

// TestServerOutOfFiles has more clients than the server has descriptors: those in
// transmission stay, and others hear at once that there is no room.
func TestServerOutOfFiles(t *testing.T) {
	requires(t, "prlimit")
	p := startBinary(t, locate("prlimit"), "--nofile=64:64", plain(t), "target", "--export", "d0=memory:1MiB",
		"--listen", "nbd+unix:///?socket="+filepath.Join(folder(t), "s"), "--admin", "none")
	c := newCrowd(t, p, "d0")
	var inside []net.Conn
	for {
		conn := c.join()
		if err := enter(conn, "d0"); err != nil {
			break // it is the server's limit: the test has no other
		}
		if inside = append(inside, conn); len(inside) > 64 {
			t.Fatal("the server has more clients than descriptors")
		}
	}
	for range 20 {
		if err := enter(c.join(), "d0"); errors.Is(err, unix.ETIMEDOUT) {
			t.Fatal("a client was left waiting")
		}
	}
	if len(inside) < 10 {
		t.Errorf("%d clients got in", len(inside))
	}
	for i, conn := range inside {
		if err := read(conn); err != nil {
			t.Errorf("client %d of %d: %v", i, len(inside), err)
		}
	}
	// With room there is service again.
	for _, conn := range inside[:5] {
		conn.Close()
	}
	eventually(t, "another client getting in", func() (any, bool) {
		err := enter(c.join(), "d0")
		return err, err == nil
	})
}

// TestShutdownWhileNegotiating ends a server with clients in every state of their
// handshake, which must not delay it.
func TestShutdownWhileNegotiating(t *testing.T) {
	p := startCrowded(t, 1, "memory:1MiB")
	c := newCrowd(t, p, "d0")
	handshake := []byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07\x00\x00\x00\x08\x00\x00\x00\x02d0\x00\x00")
	for n := range len(handshake) + 1 {
		_, err := c.join().Write(handshake[:n])
		must(t, err)
	}
	eventually(t, "the handshakes being under way", func() (any, bool) {
		n := len(p.status().NBD.Connections)
		return n, n == len(handshake)+1
	})
	p.stop()
	for i, conn := range c.conns {
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("client %d was not closed: %v", i, err)
		}
	}
}

// TestIdleCost prints what a client pays for a thousand idle ones: requests for each
// second alone, and among them.
func TestIdleCost(t *testing.T) {
	onDemand(t)
	requires(t, "fio")
	raiseFiles(t, 4*manyClients+filesOfBoth)
	single, many := startCrowded(t, 1, "memory:64MiB"), startCrowded(t, manyClients, "memory:64MiB")
	c := newCrowd(t, many, "d0")
	for i := range manyClients {
		conn := c.join()
		must(t, enter(conn, fmt.Sprintf("d%d", i)))
		must(t, read(conn))
	}
	b := &comparison{
		ours:     []contender{{"among idle clients", many.uri("d0", scaleConnection)}},
		controls: []contender{{"alone", single.uri("d0", scaleConnection)}},
		size:     "64M",
	}
	b.fill(t)
	b.run(t, "randread 4k 1;randread 4k 32;randwrite 4k 32;read 128k 16")
}
