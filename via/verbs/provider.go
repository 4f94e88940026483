package verbs

import (
	"errors"
	"time"

	"github.com/viablk/viablk/via"
)

// Options configure the provider. The zero value is the default.
type Options struct {
	// A peer is gone if it acknowledges nothing for Retries+1 times Timeout, and what
	// the device adds. 0 is 500 ms, and 7, which is the most. Devices know times of
	// 4.096 µs times a power of two; the next one is taken.
	Timeout time.Duration
	Retries int
}

const (
	defaultTimeout = 500 * time.Millisecond
	mostRetries    = 7
)

// withDefaults returns a copy without zeros.
func (o Options) withDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Retries == 0 {
		o.Retries = mostRetries
	}
	o.Retries = min(o.Retries, mostRetries)
	return o
}

// What keeps a device from being used. Errors of Open wrap one of them, and say what to
// do.
var (
	// ErrNotBuilt is the answer of a build without the provider.
	ErrNotBuilt = errors.New("this viablk is built without RDMA verbs: install libibverbs-dev and librdmacm-dev, and build it with CGO_ENABLED=1 go build -tags verbs")

	// ErrNoDevice says that the host has no such RDMA device.
	ErrNoDevice = errors.New("no RDMA device")

	// ErrPortDown says that no port of the device is active.
	ErrPortDown = errors.New("port is down")

	// ErrMemoryLock says that the process may lock no more memory.
	ErrMemoryLock = errors.New("the limit of locked memory is reached")

	// ErrNoManager says that the kernel's RDMA connection manager is not there.
	ErrNoManager = errors.New("no RDMA connection manager")
)

// Device is an RDMA device of this host.
type Device struct {
	Name       string   // as the kernel has it, such as "mlx5_0"
	Port       int      // the first that is active, or else the first
	State      string   // of the port, such as "active"
	Link       string   // "Ethernet" or "InfiniBand"
	MTU        int      // path MTU of the port, bytes
	GUID       uint64   // of the node
	OnDemand   bool     // registered memory need not be locked
	Interfaces []string // network interfaces of the device
}

// New returns the provider.
func New(o Options) *Provider { return &Provider{options: o.withDefaults()} }

// Provider is the provider. It is safe for concurrent use.
type Provider struct {
	options Options
	tally   tally
}

// Name returns "verbs".
func (*Provider) Name() string { return "verbs" }

// Open opens a device by the kernel's name of it; "" is the first that has an active
// port. The errors wrap ErrNotBuilt, ErrNoDevice, ErrPortDown or ErrNoManager.
func (p *Provider) Open(device string) (via.Adapter, error) {
	a, err := p.open(device)
	if c, ok := a.(counted); ok && err == nil {
		p.tally.add(c)
	}
	return a, err
}

// Statistics returns what was done with each device that this provider has opened. The
// counters only grow.
func (p *Provider) Statistics() []Statistics { return p.tally.statistics() }
