package vipl

import (
	"context"

	"github.com/viablk/viablk/via"
)

// VipOpenNic opens a device of a provider; "" is the default one.
func VipOpenNic(provider via.Provider, deviceName string) (*via.NIC, Return) {
	nic, err := via.OpenNic(provider, deviceName)
	return nic, code(err)
}

// VipCloseNic closes a NIC of which no object remains but the addresses that
// VipConnectWait waited at: waits there are over then.
func VipCloseNic(nic *via.NIC) Return {
	mu.Lock()
	defer mu.Unlock()
	var waiting []waitAddress
	for at := range listening {
		if at.nic == nic {
			waiting = append(waiting, at)
		}
	}
	if nic.Objects() == (via.Objects{Addresses: len(waiting)}) {
		for _, at := range waiting {
			_ = listening[at].Close() // it is over either way
			delete(listening, at)
		}
	}
	return on(nic, nic.Close)
}

// VipQueryNic returns the NIC's attributes. ThreadSafe is false for every NIC.
func VipQueryNic(nic *via.NIC) (name string, limits via.Limits, r Return) {
	if nic.Closed() {
		return "", via.Limits{}, invalid
	}
	return nic.Name(), nic.Limits(), Success
}

// VipErrorCallback sets the handler of asynchronous errors; nil restores the
// default.
func VipErrorCallback(nic *via.NIC, data any, handler func(context any, e via.AsyncError)) Return {
	if nic.Closed() {
		return invalid
	}
	var bound func(via.AsyncError)
	if handler != nil {
		bound = func(e via.AsyncError) { handler(data, e) }
	}
	nic.ErrorCallback(bound)
	return Success
}

// SmiAutodiscovery is what can be queried (VIP_SMI_AUTODISCOVERY).
const SmiAutodiscovery uint32 = 1

// VipQuerySystemManagementInfo returns the hosts within a number of hops.
func VipQuerySystemManagementInfo(nic *via.NIC, infoType, hops uint32) ([]via.DiscoveredHost, Return) {
	if infoType != SmiAutodiscovery {
		return nil, invalid
	}
	return of(nic, func() ([]via.DiscoveredHost, error) { return nic.Discover(context.Background(), int(hops)) })
}

// VipNSInit gives the NIC a name service.
func VipNSInit(nic *via.NIC, service via.NameService) Return {
	return on(nic, func() error { return nic.InitNameService(service) })
}

// VipNSGetHostByName returns the host address of a name, the index'th from 0.
func VipNSGetHostByName(nic *via.NIC, name string, index uint32) (via.Address, Return) {
	return of(nic, func() (via.Address, error) {
		host, err := nic.HostByName(context.Background(), name, int(index))
		return via.Address{Host: host}, err
	})
}

// VipNSGetHostByAddr returns the name of a host address.
func VipNSGetHostByAddr(nic *via.NIC, addr *via.Address) (string, Return) {
	if addr == nil {
		return "", invalid
	}
	return of(nic, func() (string, error) { return nic.HostByAddr(context.Background(), addr.Host) })
}

// VipNSShutdown takes the NIC's name service away.
func VipNSShutdown(nic *via.NIC) Return { return on(nic, nic.ShutdownNameService) }

// VipCreatePtag creates a protection tag.
func VipCreatePtag(nic *via.NIC) (via.Ptag, Return) { return of(nic, nic.CreatePtag) }

// VipDestroyPtag destroys a tag that nothing carries.
func VipDestroyPtag(nic *via.NIC, tag via.Ptag) Return {
	return on(nic, func() error { return nic.DestroyPtag(tag) })
}

// VipRegisterMem registers memory, which is mapped and not of the Go heap.
func VipRegisterMem(nic *via.NIC, memory []byte, attrs *via.MemAttributes) (*via.Memory, Return) {
	if attrs == nil {
		return nil, invalid
	}
	return of(nic, func() (*via.Memory, error) { return nic.RegisterMem(memory, *attrs) })
}

// region returns the handle if it names a region of the NIC at the address.
func region(nic *via.NIC, address uint64, handle *via.Memory) *via.Memory {
	if nic == nil || handle == nil || handle.Addr() != address || nic.LookupMemory(handle.Handle()) != handle {
		return nil
	}
	return handle
}

// VipDeregisterMem withdraws a region.
func VipDeregisterMem(nic *via.NIC, address uint64, handle *via.Memory) Return {
	return on(region(nic, address, handle), handle.Deregister)
}

// VipSetMemAttributes changes a region's tag and access.
func VipSetMemAttributes(nic *via.NIC, address uint64, handle *via.Memory, attrs *via.MemAttributes) Return {
	if attrs == nil {
		return invalid
	}
	return on(region(nic, address, handle), func() error { return handle.SetAttributes(*attrs) })
}

// VipQueryMem returns a region's tag and access.
func VipQueryMem(nic *via.NIC, address uint64, handle *via.Memory) (via.MemAttributes, Return) {
	return of(region(nic, address, handle), func() (via.MemAttributes, error) { return handle.Attributes(), nil })
}
