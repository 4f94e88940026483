package netns

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Device is the name of the network device at each end of a cable.
const Device = "veth0"

// The addresses of the hosts of a pair, invisible outside.
var (
	NearIPv4 = netip.MustParseAddr("10.0.0.1")
	FarIPv4  = netip.MustParseAddr("10.0.0.2")
	NearIPv6 = netip.MustParseAddr("fd00::1")
	FarIPv6  = netip.MustParseAddr("fd00::2")
)

// Limits of the MTU in bytes: the least of IPv6, the most of a veth device.
const (
	MinimumMTU = 1280
	MaximumMTU = 65535
)

// Pair is two hosts with a cable between them, a pair of veth devices. Both
// have an IPv4 and an IPv6 address, and one of the link: fe80::1 and fe80::2.
type Pair struct {
	Near, Far *Namespace
}

// NewPair makes a pair whose cable carries IP packets of at most mtu bytes. It
// needs ip of iproute2.
func NewPair(mtu int) (*Pair, error) {
	if mtu < MinimumMTU || mtu > MaximumMTU {
		return nil, fmt.Errorf("an MTU of %d bytes is not in %d to %d", mtu, MinimumMTU, MaximumMTU)
	}
	p := new(Pair)
	if err := p.make(mtu); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Pair) make(mtu int) error {
	var err error
	if p.Near, err = New(); err != nil {
		return err
	}
	if p.Far, err = New(); err != nil {
		return err
	}
	// The file of the other namespace is the command's number 3.
	cable := fmt.Sprintf("link add %s mtu %d type veth peer name %s mtu %d netns /proc/self/fd/3", Device, mtu, Device, mtu)
	if err := p.Near.ip(p.Far.File(), cable); err != nil {
		return err
	}
	if err := p.Near.addresses(NearIPv4, NearIPv6, netip.MustParseAddr("fe80::1")); err != nil {
		return err
	}
	if err := p.Far.addresses(FarIPv4, FarIPv6, netip.MustParseAddr("fe80::2")); err != nil {
		return err
	}
	return errors.Join(p.Near.AwaitLink(), p.Far.AwaitLink())
}

// linkTimeout is how long a link may take to come up.
const linkTimeout = 10 * time.Second

// AwaitLink waits until the device can send and receive. A device that was just
// brought up at both ends drops what it is given, for a second at most.
func (n *Namespace) AwaitLink() error {
	for deadline := time.Now().Add(linkTimeout); ; time.Sleep(time.Millisecond) {
		var flags net.Flags
		err := n.Do(func() error {
			i, err := net.InterfaceByName(Device)
			if err == nil {
				flags = i.Flags
			}
			return err
		})
		switch {
		case err != nil:
			return fmt.Errorf("ask for the state of %s: %w", Device, err)
		case flags&net.FlagRunning != 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%s does not come up within %v", Device, linkTimeout)
		}
	}
}

// Loopback brings the loopback device up: 127.0.0.1 and ::1. It needs ip of
// iproute2.
func (n *Namespace) Loopback() error { return n.ip(nil, "link set lo up") }

// addresses brings the devices up with addresses that are good at once, without
// duplicate address detection. They stay when a device goes down.
func (n *Namespace) addresses(all ...netip.Addr) error {
	err := n.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+Device+"/keep_addr_on_down", []byte("1"), 0)
	})
	if err != nil {
		return fmt.Errorf("set up %s: %w", Device, err)
	}
	lines := []string{"link set lo up", "link set " + Device + " addrgenmode none", "link set " + Device + " up"}
	for _, a := range all {
		line := fmt.Sprintf("addr add %v/24 dev %s", a, Device)
		if a.Is6() {
			line = fmt.Sprintf("addr add %v/64 dev %s nodad", a, Device)
		}
		lines = append(lines, line)
	}
	return n.ip(nil, lines...)
}

// ip runs commands of ip in the namespace; file, if not nil, is their number 3.
func (n *Namespace) ip(file *os.File, lines ...string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	err := n.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("ip: %w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	return nil
}

// Close ends both hosts.
func (p *Pair) Close() error {
	var errs []error
	for _, n := range []*Namespace{p.Near, p.Far} {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}
