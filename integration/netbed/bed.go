// Package netbed is a network for tests: two hosts, which are network
// namespaces, with a cable between them, and faults that are switched on and
// off.
//
//	A ── egress ── cable ── ingress ──────────── input ──────── B
//	     limit              corrupt, duplicate   lose, reorder
//
// A fault is one of the host at which packets arrive. It hits packets one by
// one, as on a real cable: segments that a socket left to the kernel are cut
// before they travel, unless Options.Whole. A [Middle] decides about each
// packet of UDP over IPv4; a [Sender] sends frames in the name of any host.
//
// Tests alone use the package. An error or a missing tool fails the test; its
// functions are called from the goroutine of the test. The kernel removes the
// namespaces when the test, or its process, ends.
package netbed

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/netns"
)

// Options are the properties of a cable.
type Options struct {
	MTU int // bytes of an IP packet; 0 is 1500

	// Whole lets segments that one call sends travel as one. Faults meet them
	// as one packet then.
	Whole bool
}

// Bed is the two hosts.
type Bed struct {
	A, B *Host

	pair *netns.Pair
	mtu  int
}

// Host is one end of the cable.
type Host struct {
	*netns.Namespace
	IPv4, IPv6 netip.Addr

	t    testing.TB
	peer *Host
}

// New makes a bed that ends with the test.
func New(t testing.TB, o Options) *Bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: run the tests in a container or a virtual machine")
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	pair, err := netns.NewPair(o.MTU)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &Bed{
		pair: pair, mtu: o.MTU,
		A: &Host{t: t, Namespace: pair.Near, IPv4: netns.NearIPv4, IPv6: netns.NearIPv6},
		B: &Host{t: t, Namespace: pair.Far, IPv4: netns.FarIPv4, IPv6: netns.FarIPv6},
	}
	b.A.peer, b.B.peer = b.B, b.A
	for _, h := range []*Host{b.A, b.B} {
		if !o.Whole {
			h.run("ip", "", "link", "set", "dev", netns.Device, "gso_max_segs", "1")
		}
	}
	return b
}

// packages are the Debian packages of the tools.
var packages = map[string]string{
	"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "iptables": "iptables", "ip6tables": "iptables",
}

// tool returns a command that is to run in a namespace.
func (h *Host) tool(name string, args ...string) *exec.Cmd {
	h.t.Helper()
	path, err := exec.LookPath(name)
	for _, folder := range []string{"/usr/sbin", "/sbin"} {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(folder, name))
		}
	}
	if err != nil {
		h.t.Fatalf("this test needs %s: install the Debian package %s", name, packages[name])
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	return cmd
}

// try runs a tool on the host, with text on its standard input, and returns its
// output.
func (h *Host) try(name, input string, args ...string) (string, error) {
	h.t.Helper()
	cmd := h.tool(name, args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
	err := h.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, input, complaint.String())
	}
	return out.String(), nil
}

// run is try for what must succeed.
func (h *Host) run(name, input string, args ...string) string {
	h.t.Helper()
	out, err := h.try(name, input, args...)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

// receiveBuffer is room for packets that arrive before the test reads, bytes.
const receiveBuffer = 4 << 20

// ListenUDP opens a socket with a large receive buffer at an address of the
// host, and a port that the system chooses if port is 0. The test closes it.
func (h *Host) ListenUDP(at netip.Addr, port uint16) *net.UDPConn {
	h.t.Helper()
	var c *net.UDPConn
	err := h.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, port)))
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	raw, err := c.SyscallConn()
	if err == nil {
		err = errors.Join(err, raw.Control(func(fd uintptr) {
			// An error would show: datagrams get lost.
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
		}))
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// index returns the index of the host's device.
func (h *Host) index() (int, error) {
	index := 0
	err := h.Do(func() error {
		i, err := net.InterfaceByName(netns.Device)
		if err == nil {
			index = i.Index
		}
		return err
	})
	return index, err
}

// Addr returns the address of the host in a family: 4 or 6.
func (h *Host) Addr(family int) netip.Addr {
	if family == 6 {
		return h.IPv6
	}
	return h.IPv4
}

// AddAddress gives the host one more address on the cable. Only a socket that
// is bound to it sends from it.
func (h *Host) AddAddress(a netip.Addr) {
	h.t.Helper()
	if a.Is6() {
		h.run("ip", "", "addr", "add", fmt.Sprintf("%v/64", a), "dev", netns.Device, "nodad", "preferred_lft", "0")
		return
	}
	h.run("ip", "", "addr", "add", fmt.Sprintf("%v/24", a), "dev", netns.Device)
}

// LocalNetwork makes all addresses of a network local to the host. The other
// host reaches them through it.
func (h *Host) LocalNetwork(network netip.Prefix, other *Host) {
	h.t.Helper()
	h.run("ip", "", "route", "add", "local", network.String(), "dev", "lo")
	other.run("ip", "", "route", "add", network.String(), "via", h.IPv4.String(), "dev", netns.Device)
}

// StartGroup starts a command on the host, in a process group of its own.
func (h *Host) StartGroup(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return h.Start(cmd)
}
