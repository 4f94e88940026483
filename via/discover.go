package via

import (
	"context"
	"fmt"
)

// DiscoveredHost is a host that a NIC may reach. Host is the Host part of an
// [Address] and untrusted: a hint for connecting. It guarantees neither that
// the host answers nor its identity.
type DiscoveredHost struct {
	Host string
	Hops int // at least 1
}

// Discoverer is the optional capability of an [Adapter] to find neighbours.
type Discoverer interface {
	// DiscoverHosts returns the hosts that are listened at within a number of
	// hops, at least 1, sorted by host, each once. It is safe for concurrent
	// use and may block until the context ends. The slice is the caller's.
	DiscoverHosts(ctx context.Context, hops int) ([]DiscoveredHost, error)
}

// Discover returns the hosts that the NIC may reach within a number of hops,
// its own included (VipQuerySystemManagementInfo, VIP_SMI_AUTODISCOVERY). Fewer
// than 1 hop is ErrInvalidParameter, a fabric without discovery
// ErrNotSupported, the context's end ErrTimeout.
func (n *NIC) Discover(ctx context.Context, hops int) ([]DiscoveredHost, error) {
	if hops < 1 {
		return nil, fmt.Errorf("discover neighbours: within %d hops: %w", hops, ErrInvalidParameter)
	}
	if err := n.usable(); err != nil {
		return nil, fmt.Errorf("discover neighbours: %w", err)
	}
	d, ok := n.agent.adapter.(Discoverer)
	if !ok {
		return nil, fmt.Errorf("discover neighbours: %s has no discovery: %w", n.name, ErrNotSupported)
	}
	found, err := d.DiscoverHosts(ctx, hops)
	if err != nil {
		return nil, fmt.Errorf("discover neighbours: %w", withCode(timeoutError(ctx, err), ErrResource))
	}
	return found, nil
}
