package testbed

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// FreePort is a TCP port of the loopback interface that was free just now:
// nbdkit and qemu-nbd do not say which one they took. The kernel gives it to no
// outgoing connection.
func FreePort(t testing.TB) string {
	t.Helper()
	const first, ports = 20_000, 10_000
	for range ports {
		port := strconv.Itoa(first + (os.Getpid()*100+int(nextPort.Add(1)))%ports)
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			Must(t, l.Close())
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// nextPort is the next candidate of FreePort.
var nextPort atomic.Uint32

// WaitForPort waits until a process listens, without connecting: a server may
// take that for its only client.
func WaitForPort(t testing.TB, port string) {
	t.Helper()
	var n int
	_, err := fmt.Sscan(port, &n)
	Must(t, err)
	listening := fmt.Sprintf(":%04X 00000000:0000 0A ", n)
	Eventually(t, "a listener at port "+port, func() (any, bool) {
		table, err := os.ReadFile("/proc/net/tcp")
		Must(t, err)
		return string(table), strings.Contains(string(table), listening)
	})
}

// AddressOf returns where a URI points to.
func AddressOf(t testing.TB, uri string) (network, address string) {
	t.Helper()
	u, err := url.Parse(uri)
	Must(t, err)
	if path := u.Query().Get("socket"); path != "" {
		return "unix", filepath.Clean(path)
	}
	return "tcp", u.Host
}

// WaitLimit bounds how long a test waits for an expected event: only a failure
// takes that long.
const WaitLimit = 2 * time.Minute

// WaitForSocket waits until a process of this network namespace listens at a
// socket, which exists a moment before, without connecting.
func WaitForSocket(t testing.TB, path string) {
	t.Helper()
	Eventually(t, "a listener at "+path, func() (any, bool) {
		table, err := os.ReadFile("/proc/net/unix")
		Must(t, err)
		for line := range strings.Lines(string(table)) {
			column := strings.Fields(line) // the flags of a listener, and the path
			if len(column) == 8 && column[3] == "00010000" && column[7] == path {
				return line, true
			}
		}
		return nil, false
	})
}

// Pauses between two questions of Eventually: the longer it has waited, the
// less often it asks.
const (
	shortestPause = time.Millisecond
	longestPause  = 50 * time.Millisecond
)

// Eventually asks until the answer is yes, and fails with the last value seen
// if it never is.
func Eventually(t testing.TB, what string, ask func() (seen any, done bool)) {
	t.Helper()
	for began := time.Now(); ; {
		seen, done := ask()
		if done {
			return
		}
		waited := time.Since(began)
		if waited > WaitLimit {
			t.Fatalf("%s: not within %v; at last %v", what, WaitLimit, seen)
		}
		time.Sleep(min(max(waited/8, shortestPause), longestPause))
	}
}
