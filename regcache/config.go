package regcache

import (
	"fmt"

	"github.com/viablk/viablk/via"
)

// Registrar is what the cache needs of a NIC; a [via.NIC] is one. Its methods
// are called concurrently and may block.
type Registrar interface {
	// Limits returns what the NIC can register. It does not change.
	Limits() via.Limits

	// NewArena maps memory that can be registered.
	NewArena(size int) (*via.Arena, error)

	// RegisterMem registers a granule of such memory.
	RegisterMem(buf []byte, attrs via.MemAttributes) (*via.Memory, error)

	// DeregisterAll deregisters several granules at the price of little more than one.
	// None of them stays registered, whatever the error.
	DeregisterAll(list []*via.Memory) error

	// CreatePtag and DestroyPtag make and end the tag of what is revoked.
	CreatePtag() (via.Ptag, error)
	DestroyPtag(via.Ptag) error
}

// Access is what peers may do to leased memory. The zero Access is none: the
// memory can be used in local descriptors only. A lease has exactly the access
// that was asked for, never more.
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

// Policy names the adviser on which idle registrations stay.
type Policy string

// The policies.
const (
	// PolicyRistretto keeps what is used often (TinyLFU). It is the default where nothing is known of the NIC:
	// rings of buffers a little larger than the budget are the worst case of
	// recency and the best of frequency.
	PolicyRistretto Policy = "ristretto"

	// PolicyClock keeps what was used lately, and admits one newcomer in eight
	// once it is full. It starts no goroutine.
	PolicyClock Policy = "clock"
)

// Sizes of a granule, the unit of registration.
const (
	DefaultGranule = 1 << 20
	HugeGranule    = 2 << 20 // a huge page
)

// defaultBudget is the budget in bytes where the configuration names none.
const defaultBudget = 256 << 20

// Config configures a cache. The zero value is a good one.
type Config struct {
	// Granule is the size in bytes of the pieces that are registered:
	// DefaultGranule or HugeGranule. 0 means DefaultGranule.
	Granule int

	// MaxBytes is the hard limit of bytes registered at a time, idle
	// registrations included; memory registered twice, for two tags, counts
	// twice. 0 means 256 MiB or half of what the NIC can register, whichever is
	// less. More than the NIC can register is cut down to that.
	MaxBytes int64

	// MaxRegions is the hard limit of registrations at a time. 0 means what
	// MaxBytes allows, or half of what the NIC can register.
	MaxRegions int

	// Policy is the adviser. "" means PolicyRistretto, see SuitedTo.
	Policy Policy

	// InlineDeregister deregisters on the goroutine that releases the last
	// lease, and with PolicyClock on the one whose miss took the place, for a NIC that
	// does so within a microsecond or two. By default the reaper does, and Release never
	// waits for the NIC.
	InlineDeregister bool

	adviser func(evict func(*region)) adviser // tests replace the policy
}

// What it costs to have a goroutine do something, in nanoseconds, on a machine whose
// processors are all in use by loops that spin: docs/decisions/0007-cheap-misses.md.
const (
	wakeTime   = 50e3 // with PolicyRistretto each miss wakes one
	inlineTime = 2e3  // the most that a miss or a Release deregisters for itself
)

// SuitedTo returns a copy whose Policy, if it was "", suits what a NIC takes: where a
// granule is registered and deregistered in less time than it takes to wake a goroutine
// for advice, the clock decides, and what deregisters that quickly does so at once.
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

// Check returns what New would find wrong with the configuration, for a NIC with these
// limits.
func (c Config) Check(limits via.Limits) error {
	_, err := c.withDefaults(limits)
	return err
}

// withDefaults returns a valid copy of c, or what is wrong with c.
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

// within returns a copy that the NIC can bear. The error wraps ErrResource.
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
