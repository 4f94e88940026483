//go:build verbs && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/arena"
)

// adapter is an open device, with a goroutine that hears what becomes of its
// connections and of itself.
type adapter struct {
	options Options
	device  *device
	channel *C.struct_rdma_event_channel
	wake    int           // eventfd: the goroutine is to look at ended
	ended   chan struct{} // closed when the goroutine has
	failed  atomic.Bool   // the device is gone

	mu            sync.Mutex
	closing       bool
	domains       map[uint32]*domain // by tag
	conversations map[*C.struct_rdma_cm_id]*conversation
	listenings    map[*C.struct_rdma_cm_id]*listening
	links         map[*link]struct{}
	queues        map[*cq]struct{}
	dropped       Counts // of queues that are closed
	serial        uint32
}

// domain is the protection domain of a tag.
type domain struct {
	pd    *C.struct_ibv_pd
	users int
}

func (p *Provider) open(name string) (via.Adapter, error) {
	d, err := find(name)
	if err != nil {
		return nil, err
	}
	a := &adapter{
		options: p.options, device: d, wake: -1, ended: make(chan struct{}),
		domains:       make(map[uint32]*domain),
		conversations: make(map[*C.struct_rdma_cm_id]*conversation),
		listenings:    make(map[*C.struct_rdma_cm_id]*listening),
		links:         make(map[*link]struct{}),
		queues:        make(map[*cq]struct{}),
	}
	if err := a.prepare(); err != nil {
		a.release()
		return nil, err
	}
	go a.routineAttend()
	return a, nil
}

// prepare opens what the goroutine listens to.
func (a *adapter) prepare() error {
	var err error
	if a.channel, err = C.rdma_create_event_channel(); a.channel == nil {
		return fmt.Errorf("%w: load the kernel module rdma_ucm: %w", ErrNoManager, err)
	}
	if a.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("create eventfd: %w", err)
	}
	for _, fd := range []C.int{a.channel.fd, a.device.context.async_fd} {
		if err := unix.SetNonblock(int(fd), true); err != nil {
			return fmt.Errorf("set a file descriptor of RDMA device %s not to block: %w", a.device.name, err)
		}
	}
	return nil
}

// release gives back what prepare opened, and the device.
func (a *adapter) release() {
	if a.channel != nil {
		C.rdma_destroy_event_channel(a.channel)
	}
	if a.wake >= 0 {
		_ = unix.Close(a.wake)
	}
	_ = a.device.close()
}

// Close ends the goroutine, after peers have heard of what ended, and closes the
// device.
func (a *adapter) Close() error {
	a.mu.Lock()
	a.closing = true
	a.mu.Unlock()
	eventfd.Ring(a.wake)
	<-a.ended
	a.mu.Lock()
	var errs []error
	for _, d := range a.domains { // of tags that nobody has any more
		errs = append(errs, errno(C.ibv_dealloc_pd(d.pd)))
	}
	a.mu.Unlock()
	a.release()
	if a.failed.Load() {
		return nil // of a device that is gone everything fails
	}
	return errors.Join(errs...)
}

// leastSegments is what VIA promises a consumer. Works with more than the device
// takes go through memory of the link's.
const leastSegments = 252

// Limits returns the limits of the device.
func (a *adapter) Limits() via.Limits {
	l := &a.device.limits
	depth := min(int(l.max_qp_wr), int(l.max_cqe)/2, 1<<14)
	return via.Limits{
		MaxDiscriminatorLen:    via.MaxDiscriminatorLen,
		MaxRegisterBytes:       arena.MaxSize,
		MaxRegisterRegions:     int(l.max_mr),
		MaxRegisterBlockBytes:  min(uint64(l.max_mr_size), arena.MaxSize),
		MaxVI:                  int(l.max_qp),
		MaxDescriptorsPerQueue: depth,
		MaxSegmentsPerDesc:     leastSegments,
		MaxCQ:                  int(l.max_cq),
		MaxCQEntries:           1 << 20, // its own entries are as many as queues need, whatever is asked for
		MaxTransferSize:        min(uint32(l.max_message), 1<<30),
		NativeMTU:              uint32(l.mtu),
		MaxPtags:               min(int(l.max_pd), 1<<16),
		ReliabilityLevels:      via.ReliableDelivery | via.ReliableReception,
		RdmaReadLevels:         via.ReliableDelivery | via.ReliableReception,
		NamesRegions:           true,
	}
}

// usable returns the error of a device that is gone.
func (a *adapter) usable() error {
	if a.failed.Load() {
		return fmt.Errorf("RDMA device %s is gone: %w", a.device.name, via.ErrDeviceFailed)
	}
	return nil
}

// refused returns the error of a call to the device.
func (a *adapter) refused(doing string, err error) error {
	if failed := a.usable(); failed != nil {
		return failed
	}
	return fmt.Errorf("%s: %w: %w", doing, via.ErrResource, err)
}

// domain returns the protection domain of a tag, for one user more.
func (a *adapter) domain(tag uint32) (*C.struct_ibv_pd, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.domains[tag]
	if d == nil {
		pd, err := C.ibv_alloc_pd(a.device.context)
		if pd == nil {
			return nil, a.refused("allocate a protection domain", err)
		}
		d = &domain{pd: pd}
		a.domains[tag] = d
	}
	d.users++
	return d.pd, nil
}

// leaveDomain ends a use.
func (a *adapter) leaveDomain(tag uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.domains[tag]
	if d.users--; d.users == 0 {
		delete(a.domains, tag)
		_ = C.ibv_dealloc_pd(d.pd) // a device that is gone has none
	}
}

// Counts implements [Counter].
func (a *adapter) Counts() Counts {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.dropped
	for c := range a.queues {
		all.Add(c.counts.load())
	}
	return all
}

// name and closed are for the provider's statistics.
func (a *adapter) name() string { return a.device.name }

func (a *adapter) closed() bool {
	select {
	case <-a.ended: // the last queue went before
		return true
	default:
		return false
	}
}

// drop keeps the counters of a queue that is closed.
func (a *adapter) drop(c *cq) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.queues[c]; ok {
		delete(a.queues, c)
		a.dropped.Add(c.counts.load())
	}
}
