package via

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// NameService translates between names of hosts and the Host part of an
// [Address], which is the provider's: a socket path, an IP address. Its methods
// are called from several goroutines at a time and may block until the context
// ends. Package via checks none of the addresses.
type NameService interface {
	// AddressesOf returns the addresses of a name, the preferred one first. The
	// slice is the caller's. A name without addresses is an error.
	AddressesOf(ctx context.Context, name string) ([]string, error)

	// NameOf returns the name of an address. An address without one is an
	// error.
	NameOf(ctx context.Context, host string) (string, error)
}

// nameService is a NIC's name service; the zero value has none.
type nameService struct{ current atomic.Pointer[NameService] }

// InitNameService gives the NIC a name service (VipNSInit). It returns
// ErrInvalidParameter for nil and ErrNameService while the NIC has one.
func (n *NIC) InitNameService(ns NameService) error {
	if ns == nil {
		return fmt.Errorf("init name service: nil: %w", ErrInvalidParameter)
	}
	if err := n.usable(); err != nil {
		return fmt.Errorf("init name service: %w", err)
	}
	if !n.names.current.CompareAndSwap(nil, &ns) {
		return fmt.Errorf("init name service: already initialised: %w", ErrNameService)
	}
	return nil
}

// ShutdownNameService removes the NIC's name service (VipNSShutdown). Queries
// in progress end with the service that they began with. It returns
// ErrNameService if there is none. Closing the NIC needs no shutdown before.
func (n *NIC) ShutdownNameService() error {
	if err := n.usable(); err != nil {
		return fmt.Errorf("shut name service down: %w", err)
	}
	if n.names.current.Swap(nil) == nil {
		return fmt.Errorf("shut name service down: not initialised: %w", ErrNameService)
	}
	return nil
}

// HostByName returns an address of a name (VipNSGetHostByName): the index'th,
// from 0, of those that the name service knows. An unknown name, an index
// behind the last address and a NIC without a name service are ErrNameService.
func (n *NIC) HostByName(ctx context.Context, name string, index int) (string, error) {
	ns, err := n.nameService()
	if err != nil {
		return "", fmt.Errorf("host by name %q: %w", name, err)
	}
	hosts, err := ns.AddressesOf(ctx, name)
	if err != nil {
		return "", fmt.Errorf("host by name %q: %w", name, nameError(err))
	}
	if index < 0 || index >= len(hosts) {
		return "", fmt.Errorf("host by name %q: index %d of %d addresses: %w", name, index, len(hosts), ErrNameService)
	}
	return hosts[index], nil
}

// HostByAddr returns the name of an address (VipNSGetHostByAddr). An unknown
// address and a NIC without a name service are ErrNameService.
func (n *NIC) HostByAddr(ctx context.Context, host string) (string, error) {
	ns, err := n.nameService()
	if err != nil {
		return "", fmt.Errorf("host by address %q: %w", host, err)
	}
	name, err := ns.NameOf(ctx, host)
	if err != nil {
		return "", fmt.Errorf("host by address %q: %w", host, nameError(err))
	}
	return name, nil
}

// nameService returns the service of an open NIC.
func (n *NIC) nameService() (NameService, error) {
	if err := n.usable(); err != nil {
		return nil, err
	}
	ns := n.names.current.Load()
	if ns == nil {
		return nil, fmt.Errorf("name service not initialised: %w", ErrNameService)
	}
	return *ns, nil
}

// nameError makes an error of a name service an ErrNameService.
func nameError(err error) error {
	if errors.Is(err, ErrNameService) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNameService, err)
}

// usable refuses a closed NIC, and a failed one.
func (n *NIC) usable() error {
	if !n.made() {
		return fmt.Errorf("no such nic: %w", ErrInvalidParameter)
	}
	n.agent.mu.Lock()
	defer n.agent.mu.Unlock()
	return n.agent.usableLocked()
}
