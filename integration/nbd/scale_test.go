package nbd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// The limits of many clients.
const (
	idleMemory   = 20 << 10 // bytes for each idle connection
	firstClients = 8
	stuckClients = 10_000
	stuckMemory  = 64 << 20 // bytes for all of them
)

// TestIdleConnections counts what a thousand idle clients of a thousand exports
// cost, before and after each has read something. The exports have no memory of
// their own: some kernels give a page to each hole that is read.
func TestIdleConnections(t *testing.T) {
	testbed.RaiseFiles(t, 4*testbed.ManyClients+testbed.FilesOfBoth)
	for name, row := range map[string]struct {
		spec  string
		disks int
	}{
		"null": {"null:1MiB", testbed.ManyClients},
		"file": {"file:" + testbed.SparseFile(t, 1<<20), 1}, // a file has one owner
	} {
		t.Run(name, func(t *testing.T) {
			disks := row.disks
			p := testbed.StartScaleServer(t, disks, row.spec)
			c := testbed.NewCrowd(t, p, "d0")
			for range firstClients { // what they cost together, all others share
				testbed.Must(t, testbed.Negotiate(c.Join(), "d0"))
			}
			for _, conn := range c.Conns {
				testbed.Must(t, testbed.ReadFirst(conn))
			}
			p.CollectGarbage()
			alone := p.Memory("VmRSS")
			for i := range testbed.ManyClients {
				testbed.Must(t, testbed.Negotiate(c.Join(), fmt.Sprintf("d%d", i%disks)))
			}
			check := func(what string) {
				t.Helper()
				testbed.Eventually(t, what+" under 20 KiB each", func() (any, bool) {
					p.CollectGarbage()
					each := (p.Memory("VmRSS") - alone) / testbed.ManyClients
					return fmt.Sprintf("%d bytes each, %d threads", each, p.Threads()), each <= idleMemory
				})
				t.Logf("%s: %d bytes each, %d threads", what, (p.Memory("VmRSS")-alone)/testbed.ManyClients, p.Threads())
			}
			check("idle clients")
			for _, conn := range c.Conns {
				testbed.Must(t, testbed.ReadFirst(conn))
			}
			check("clients that have read")
			testbed.Eventually(t, "threads of idle clients ending", func() (any, bool) {
				n := p.Threads()
				return n, n < testbed.ManyClients/10
			})
		})
	}
}

// TestStuckHandshakes holds ten thousand clients in their handshake: silent
// ones and ones that go on a byte at a time. The server closes them all before
// the deadline of their connections.
func TestStuckHandshakes(t *testing.T) {
	testbed.RaiseFiles(t, stuckClients+testbed.FilesOfBoth)
	p := testbed.StartScaleServer(t, 1, "memory:1MiB", "--nbd-handshakes", strconv.Itoa(stuckClients))
	c := testbed.NewCrowd(t, p, "d0")
	testbed.Must(t, testbed.Negotiate(c.Join(), "d0"))
	alone := p.Memory("VmRSS")
	for i := range stuckClients {
		conn := c.Join()
		if i%10 == 0 { // half of what it has to say
			_, err := conn.Write([]byte("\x00\x00\x00\x03IHAVEO"))
			testbed.Must(t, err)
		}
	}
	for _, conn := range c.Conns[1:] {
		_, err := io.ReadFull(conn, make([]byte, testbed.GreetingSize))
		testbed.Must(t, err)
	}
	if n := p.Memory("VmRSS") - alone; n > stuckMemory {
		t.Errorf("%d clients in the handshake have %d MiB", stuckClients, n>>20)
	} else {
		t.Logf("%d clients in the handshake have %d MiB, %d threads", stuckClients, n>>20, p.Threads())
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
			for i := 1; i < len(c.Conns); i += 100 {
				_, _ = c.Conns[i].Write([]byte{0})
			}
		}
	})
	for i, conn := range c.Conns[1:] {
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("client %d was not closed: %v", i, err)
		}
	}
	close(ended)
	slow.Wait()
	testbed.Must(t, testbed.ReadFirst(c.Conns[0]))
	testbed.Eventually(t, "no handshake being left", func() (any, bool) {
		n := p.Status().NBD.Handshakes
		return n, n == 0
	})
}

// TestNbdinfoAmongFlood has nbdinfo ask a server which others connect to by the
// thousands, and stay.
func TestNbdinfoAmongFlood(t *testing.T) {
	testbed.Requires(t, "nbdinfo")
	began := time.Now()
	p := testbed.StartScaleServer(t, 1, "memory:1MiB", "--nbd-connections", "2")
	path := testbed.NewCrowd(t, p, "d0").Path
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
				time.Sleep(200 * time.Microsecond) // else the backlog is full, and no client gets in
			}
			for _, conn := range held {
				if conn != nil {
					conn.Close()
				}
			}
		})
	}
	testbed.Eventually(t, "handshakes being dropped", func() (any, bool) {
		n := p.Status().NBD.Dropped
		return n, n > 0
	})
	for range 10 {
		testbed.Run(t, "nbdinfo", "--size", p.URI("d0", "nbd+unix"))
	}
	if lines, most := strings.Count(p.Stderr.String(), "handshake dropped"), 1+int(time.Since(began)/time.Second); lines > most {
		t.Errorf("%d lines of log, more than %d", lines, most)
	}
}

// TestServerOutOfFiles has more clients than the server has descriptors: those
// in transmission stay, and others hear at once that there is no room. A client
// takes several, and which of them is missing depends on the limit. Clients
// come one after the other, or several at a time, which take what is there from
// each other.
func TestServerOutOfFiles(t *testing.T) {
	testbed.Requires(t, "prlimit")
	for limit := 61; limit <= 64; limit++ {
		for _, together := range []int{1, 8} {
			t.Run(fmt.Sprintf("%d files, %d clients at a time", limit, together), func(t *testing.T) { runOutOfFiles(t, limit, together) })
		}
	}
}

func runOutOfFiles(t *testing.T, limit, together int) {
	p := testbed.StartBinary(t, testbed.Locate("prlimit"), fmt.Sprintf("--nofile=%d", limit), testbed.PlainProgram(t), "target", "--export", "d0=memory:1MiB",
		"--listen", "nbd+unix:///?socket="+filepath.Join(testbed.Folder(t), "s"), "--admin", "none")
	c := testbed.NewCrowd(t, p, "d0")
	// join has clients come, and returns those that got in.
	join := func() (inside []net.Conn) {
		t.Helper()
		conns, errs := make([]net.Conn, together), make([]error, together)
		var all sync.WaitGroup
		for i := range conns {
			conns[i] = c.Join()
		}
		for i, conn := range conns {
			all.Go(func() { errs[i] = testbed.Negotiate(conn, "d0") })
		}
		all.Wait()
		for i, err := range errs {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("a client was left waiting\n%s", p.Stacks())
			} else if err == nil {
				inside = append(inside, conns[i])
			}
		}
		return inside
	}
	var inside []net.Conn
	for {
		more := join()
		if inside = append(inside, more...); len(more) < together {
			break // it is the server's limit: the test has no other
		}
		if len(inside) > limit {
			t.Fatal("the server has more clients than descriptors")
		}
	}
	for range 20 {
		inside = append(inside, join()...)
	}
	if text := p.Stderr.String(); !strings.Contains(text, "no file descriptor left: raise the limit of open files") || strings.Contains(text, "too many handshakes") {
		t.Errorf("the log does not say why clients are refused:\n%s", text)
	}
	if len(inside) < 10 {
		t.Errorf("%d clients got in", len(inside))
	}
	for i, conn := range inside {
		if err := testbed.ReadFirst(conn); err != nil {
			t.Errorf("client %d of %d: %v", i, len(inside), err)
		}
	}
	// With room there is service again.
	for _, conn := range inside[:5] {
		conn.Close()
	}
	testbed.Eventually(t, "another client getting in", func() (any, bool) {
		err := testbed.Negotiate(c.Join(), "d0")
		return err, err == nil
	})
}

// TestShutdownWhileNegotiating ends a server with clients in every state of
// their handshake, which must not delay it.
func TestShutdownWhileNegotiating(t *testing.T) {
	p := testbed.StartScaleServer(t, 1, "memory:1MiB")
	c := testbed.NewCrowd(t, p, "d0")
	handshake := []byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07\x00\x00\x00\x08\x00\x00\x00\x02d0\x00\x00")
	for n := range len(handshake) + 1 {
		_, err := c.Join().Write(handshake[:n])
		testbed.Must(t, err)
	}
	testbed.Eventually(t, "the handshakes in progress", func() (any, bool) {
		n := len(p.Status().NBD.Connections)
		return n, n == len(handshake)+1
	})
	p.Stop()
	for i, conn := range c.Conns {
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("client %d was not closed: %v", i, err)
		}
	}
}
