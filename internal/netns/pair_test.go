package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newPair makes a pair that ends with the test.
func newPair(t *testing.T, mtu int) *Pair {
	t.Helper()
	p, err := NewPair(mtu)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// listen opens a UDP socket in a namespace.
func listen(t *testing.T, n *Namespace, at netip.Addr) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	if err := n.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// A datagram as long as the cable allows arrives, in both directions and both
// families.
func TestCableCarriesItsMTU(t *testing.T) {
	for _, mtu := range []int{MinimumMTU, 1500, 4500, 9000, MaximumMTU} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			p := newPair(t, mtu)
			for _, c := range []struct {
				near, far netip.Addr
				headers   int
			}{{NearIPv4, FarIPv4, 28}, {NearIPv6, FarIPv6, 48}} {
				near, far := listen(t, p.Near, c.near), listen(t, p.Far, c.far)
				for _, way := range [][2]*net.UDPConn{{near, far}, {far, near}} {
					message := make([]byte, mtu-c.headers)
					if _, err := way[0].WriteToUDPAddrPort(message, way[1].LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
						t.Fatal(err)
					}
					n, from, err := way[1].ReadFromUDPAddrPort(make([]byte, MaximumMTU))
					if err != nil || n != len(message) || from != way[0].LocalAddr().(*net.UDPAddr).AddrPort() {
						t.Errorf("%d bytes from %v and %v, want %d from %v", n, from, err, len(message), way[0].LocalAddr())
					}
				}
			}
		})
	}
}

func TestPairRefusesMTU(t *testing.T) {
	for _, mtu := range []int{-1, 0, MinimumMTU - 1, MaximumMTU + 1} {
		if p, err := NewPair(mtu); err == nil {
			p.Close()
			t.Errorf("an MTU of %d is accepted", mtu)
		}
	}
}

// namespaceOf returns the namespace that a link names.
func namespaceOf(t *testing.T, link string) string {
	t.Helper()
	name, err := os.Readlink(link)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// The thread of a namespace is in it, and no other is: not while functions run
// in several, and not afterwards.
func TestOnlyItsThreadIsInside(t *testing.T) {
	outside := namespaceOf(t, "/proc/self/ns/net")
	for range 20 {
		p := newPair(t, 1500)
		var names [2]string
		for i, n := range []*Namespace{p.Near, p.Far} {
			if err := n.Do(func() (err error) {
				names[i], err = os.Readlink("/proc/thread-self/ns/net")
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		if names[0] == names[1] || names[0] == outside || names[1] == outside {
			t.Fatalf("namespaces %v, outside %s", names, outside)
		}
		again, err := Of(p.Far.File())
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Do(func() error {
			got, err := os.Readlink("/proc/thread-self/ns/net")
			if got != names[1] {
				t.Errorf("entered %s, want %s", got, names[1])
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(again.Close(), p.Close()); err != nil {
			t.Fatal(err)
		}
	}
	inside := func() (n int) {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range tasks {
			// A thread that ends meanwhile has no namespace.
			if name, err := os.Readlink("/proc/self/task/" + e.Name() + "/ns/net"); err == nil && name != outside {
				n++
			}
		}
		return n
	}
	for deadline := time.Now().Add(30 * time.Second); inside() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d threads stay in a namespace", inside())
		}
	}
}

// A program in a namespace ends with it.
func TestCloseKillsWhatRunsInside(t *testing.T) {
	n, err := New()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if outside, inside := namespaceOf(t, "/proc/self/ns/net"), namespaceOf(t, fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)); outside == inside {
		t.Error("the process is not in the namespace")
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // the state says it
	if s := cmd.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGKILL {
		t.Errorf("the process ended with %v", cmd.ProcessState)
	}
	if err := n.Do(func() error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed namespace runs a function: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

func TestFailureOfIPIsTold(t *testing.T) {
	p := newPair(t, 1500)
	err := p.Near.ip(nil, "link set nothing up")
	if err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("the error is %v", err)
	}
	if err := p.Near.Do(func() error { return os.ErrInvalid }); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("the error is %v", err)
	}
}
