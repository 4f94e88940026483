package regcache

import (
	"fmt"

	"github.com/viablk/viablk/via"
)

// Registrar is the part of a NIC that the cache uses; a [via.NIC] implements
// it. Its methods are called concurrently and may block.
type Registrar interface {
	// Limits returns what the NIC can register. It does not change.
	Limits() via.Limits

	// NewArena maps memory that can be registered.
	NewArena(size int) (*via.Arena, error)

	// RegisterMem registers a granule of such memory.
	RegisterMem(buf []byte, attrs via.MemAttributes) (*via.Memory, error)

	// DeregisterAll deregisters several granules at little more than the cost
	// of one. None of them stays registered, even after an error.
	DeregisterAll(list []*via.Memory) error

	// CreatePtag and DestroyPtag make and destroy the tag of revoked regions.
	CreatePtag() (via.Ptag, error)
	DestroyPtag(via.Ptag) error
}

// Access is what peers may do to leased memory. The zero Access permits local
// descriptors only. A lease has exactly the requested access, never more.
type Access uint8

// The bits of Access.
const (
	RemoteRead  Access = 1 << iota // peers may read
	RemoteWrite                    // peers may write
)

func (a Access) attributes(tag via.Ptag) via.MemAttributes {
	return via.MemAttributes{
		Ptag:            tag,
		EnableRdmaRead:  a&RemoteRead != 0,
		EnableRdmaWrite: a&RemoteWrite != 0,
	}
}

// Policy names the eviction policy of idle registrations.
type Policy string

// The policies.
const (
	// PolicyRistretto keeps the most frequently used registrations (TinyLFU).
	// It is the default without a calibration of the NIC: a ring of buffers a
	// little larger than the budget is the worst case of recency and the best
	// of frequency.
	PolicyRistretto Policy = "ristretto"

	// PolicyClock keeps the most recently used registrations, and admits one
	// new region in eight once it is full. It starts no goroutine.
	PolicyClock Policy = "clock"
)

// Sizes of a granule, the unit of registration.
const (
	DefaultGranule = 1 << 20
	HugeGranule    = 2 << 20 // p huge page
)

// defaultBudget is the budget in bytes if the configuration sets none.
const defaultBudget = 256 << 20

// Config configures a cache. The zero value is valid.
type Config struct {
	// Granule is the unit of registration in bytes: DefaultGranule or
	// HugeGranule. 0 means DefaultGranule.
	Granule int

	// MaxBytes is the hard limit of bytes registered at a time, including idle
	// registrations; memory registered for two tags counts twice. 0 means 256
	// MiB or half of what the NIC can register, whichever is less. A value
	// above the NIC's limit is reduced to it.
	MaxBytes int64

	// MaxRegions is the hard limit of registrations at a time. 0 means as many
	// as MaxBytes allows, at most half of what the NIC can register.
	MaxRegions int

	// Policy is the eviction policy. "" means PolicyRistretto, see SuitedTo.
	Policy Policy

	// InlineDeregister deregisters on the goroutine that releases the last
	// lease, and with PolicyClock on the goroutine of the miss that evicts, for
	// a NIC that does so within a microsecond or two. By default the reaper
	// deregisters, and Release never waits for the NIC.
	InlineDeregister bool

	newPolicy func(evict func(*region)) evictionPolicy // tests replace the policy
}

// Costs of waking a goroutine, in nanoseconds, on a machine whose processors
// all busy-poll: docs/decisions/0007-cheap-misses.md.
const (
	wakeTime   = 50e3 // each miss with PolicyRistretto wakes a goroutine
	inlineTime = 2e3  // limit of inline deregistration
)

// SuitedTo returns a copy whose Policy, if it was "", suits the NIC's costs. If
// registering and deregistering a granule takes less time than waking a
// goroutine, SuitedTo selects PolicyClock, and inline deregistration if that is
// cheap as well.
func (c Config) SuitedTo(cost *Calibration) Config {
	granule := c.Granule
	if granule == 0 {
		granule = DefaultGranule
	}
	down := cost.Deregister.At(granule)
	if c.Policy != "" || cost.Register.At(granule)+down >= wakeTime {
		return c
	}
	c.Policy = PolicyClock
	c.InlineDeregister = c.InlineDeregister || down < inlineTime
	return c
}

// Check returns the error that New would return for a NIC with these limits.
func (c Config) Check(limits via.Limits) error {
	_, err := c.withDefaults(limits)
	return err
}

// withDefaults returns a valid copy of c, or the reason why c is invalid.
func (c Config) withDefaults(limits via.Limits) (Config, error) {
	if c.Granule == 0 {
		c.Granule = DefaultGranule
	}
	if c.Granule != DefaultGranule && c.Granule != HugeGranule {
		return c, fmt.Errorf("registration cache: granule of %d bytes is neither %d nor %d: %w",
			c.Granule, DefaultGranule, HugeGranule, via.ErrInvalidParameter)
	}
	if c.MaxBytes < 0 || c.MaxRegions < 0 {
		return c, fmt.Errorf("registration cache: budget of %d bytes in %d regions: %w",
			c.MaxBytes, c.MaxRegions, via.ErrInvalidParameter)
	}
	if c.MaxBytes > 0 && c.MaxBytes < int64(c.Granule) {
		return c, fmt.Errorf("registration cache: a budget of %d bytes has no room for a granule of %d: %w",
			c.MaxBytes, c.Granule, via.ErrInvalidParameter)
	}
	switch c.Policy {
	case "":
		c.Policy = PolicyRistretto
	case PolicyRistretto, PolicyClock:
	default:
		return c, fmt.Errorf("registration cache: policy %q is unknown: %w", c.Policy, via.ErrInvalidParameter)
	}
	return c.within(limits)
}

// within returns a copy reduced to the NIC's limits. The error wraps
// ErrResource.
func (c Config) within(limits via.Limits) (Config, error) {
	if uint64(c.Granule) > limits.MaxRegisterBlockBytes {
		return c, fmt.Errorf("registration cache: granule of %d bytes: the nic registers at most %d at once: %w",
			c.Granule, limits.MaxRegisterBlockBytes, via.ErrResource)
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = int64(min(defaultBudget, limits.MaxRegisterBytes/2))
	}
	c.MaxBytes = int64(min(uint64(c.MaxBytes), limits.MaxRegisterBytes))
	if c.MaxRegions == 0 {
		c.MaxRegions = limits.MaxRegisterRegions / 2
	}
	c.MaxRegions = min(c.MaxRegions, limits.MaxRegisterRegions, int(c.MaxBytes/int64(c.Granule)))
	if c.MaxRegions == 0 {
		return c, fmt.Errorf("registration cache: the nic registers %d bytes in %d regions, and has no room for a granule of %d: %w",
			limits.MaxRegisterBytes, limits.MaxRegisterRegions, c.Granule, via.ErrResource)
	}
	return c, nil
}
