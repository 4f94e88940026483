package verbs

import (
	"errors"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/rdmahost"
)

// Options configure the provider. The zero value is the default.
type Options struct {
	// A connection breaks if its peer acknowledges nothing for Retries+1 times
	// Timeout, plus the device's own delays. The defaults are 500 ms and 7,
	// which is the maximum. Devices round Timeout up to 4.096 µs times a power
	// of two.
	Timeout time.Duration
	Retries int
}

// maxRetries is the largest retry count of a queue pair.
const maxRetries = 7

// withDefaults returns a copy without zeros.
func (o Options) withDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = rdmahost.DefaultTimeout
	}
	if o.Retries == 0 {
		o.Retries = maxRetries
	}
	o.Retries = min(o.Retries, maxRetries)
	return o
}

// Errors of Open wrap one of these and say what to do.
var (
	// ErrNotBuilt is the error of a build without the provider.
	ErrNotBuilt = errors.New("this viablk is built without RDMA verbs: install the package viablk-verbs, or build it with -tags verbs, libibverbs-dev and librdmacm-dev")

	// ErrNoDevice says that the host has no such RDMA device.
	ErrNoDevice = errors.New("no RDMA device")

	// ErrPortDown says that no port of the device is active.
	ErrPortDown = errors.New("port is down")

	// ErrMemoryLock says that the process may lock no more memory.
	ErrMemoryLock = errors.New("the limit of locked memory is reached")

	// ErrNoManager says that the kernel's RDMA connection manager is missing.
	ErrNoManager = errors.New("no RDMA connection manager")
)

// Device is an RDMA device of this host.
type Device struct {
	Name       string   // the kernel's name, such as "mlx5_0"
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
	options  Options
	counters counterSet
}

// Name returns "verbs".
func (*Provider) Name() string { return "verbs" }

// Open opens the device with the kernel's name; "" opens the first with an
// active port. Errors wrap ErrNotBuilt, ErrNoDevice, ErrPortDown or
// ErrNoManager.
func (p *Provider) Open(device string) (via.Adapter, error) {
	a, err := p.open(device)
	if c, ok := a.(counted); ok && err == nil {
		p.counters.add(c)
	}
	return a, err
}

// Statistics returns the counters of each device that this provider has opened.
// They never decrease.
func (p *Provider) Statistics() []Statistics { return p.counters.statistics() }
