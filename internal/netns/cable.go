package netns

import (
	"errors"
	"fmt"
	"net/netip"
)

// SecondDevice is the name of the network device at each end of the second
// cable of a pair.
const SecondDevice = "veth1"

// The addresses of the hosts on the second cable.
var (
	NearSecond = netip.MustParseAddr("10.0.1.1")
	FarSecond  = netip.MustParseAddr("10.0.1.2")
)

// AddCable lays a second cable between the hosts, with a network of its own.
func (p *Pair) AddCable(mtu int) error {
	cable := fmt.Sprintf("link add %s mtu %d type veth peer name %s mtu %d netns /proc/self/fd/3", SecondDevice, mtu, SecondDevice, mtu)
	if err := p.Near.ip(p.Far.File(), cable); err != nil {
		return err
	}
	up := func(n *Namespace, a netip.Addr) error {
		return n.ip(nil, fmt.Sprintf("addr add %v/24 dev %s", a, SecondDevice), "link set "+SecondDevice+" up")
	}
	return errors.Join(up(p.Near, NearSecond), up(p.Far, FarSecond))
}
