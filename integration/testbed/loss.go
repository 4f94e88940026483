package testbed

import (
	"github.com/viablk/viablk/integration/netbed"
)

// AtBothHosts makes a fault at each host.
func AtBothHosts(make func(h *netbed.Host) *netbed.Fault) func(*netbed.Bed) []*netbed.Fault {
	return func(b *netbed.Bed) []*netbed.Fault { return []*netbed.Fault{make(b.A), make(b.B)} }
}

// Losing loses packets at both hosts.
func Losing(p float64) func(*netbed.Bed) []*netbed.Fault {
	return AtBothHosts(func(h *netbed.Host) *netbed.Fault { return h.Lose(netbed.Datagrams, netbed.Randomly(p)) })
}
