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

// adapter is an open device. One goroutine handles the events of its
// connections and of the device.
type adapter struct {
	options Options
	device  *device
	channel *C.struct_rdma_event_channel
	wake    int           // eventfd: wakes the goroutine
	ended   chan struct{} // closed when the goroutine ends
	failed  atomic.Bool   // the device is gone

	mu        sync.Mutex
	closing   bool
	domains   map[uint32]*domain // by tag
	conns     map[*C.struct_rdma_cm_id]*cmConn
	listeners map[*C.struct_rdma_cm_id]*listening
	links     map[*link]struct{}
	queues    map[*cq]struct{}
	dropped   Counts // counters of closed queues
	serial    uint32
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
		domains:   make(map[uint32]*domain),
		conns:     make(map[*C.struct_rdma_cm_id]*cmConn),
		listeners: make(map[*C.struct_rdma_cm_id]*listening),
		links:     make(map[*link]struct{}),
		queues:    make(map[*cq]struct{}),
	}
	if err := a.prepare(); err != nil {
		a.release()
		return nil, err
	}
	go a.routineEvents()
	return a, nil
}

// prepare opens the event channel and the eventfd that the goroutine polls.
func (a *adapter) prepare() error {
	var err error
	if a.channel, err = C.rdma_create_event_channel(); a.channel == nil {
		return fmt.Errorf("%w: load the kernel module rdma_ucm: %w", ErrNoManager, err)
	}
	if a.wake, err = eventfd.New(); err != nil {
		return err
	}
	for _, fd := range []C.int{a.channel.fd, a.device.context.async_fd} {
		if err := unix.SetNonblock(int(fd), true); err != nil {
			return fmt.Errorf("set a file descriptor of RDMA device %s not to block: %w", a.device.name, err)
		}
	}
	return nil
}

// release closes the descriptors of prepare, and the device.
func (a *adapter) release() {
	if a.channel != nil {
		C.rdma_destroy_event_channel(a.channel)
	}
	_ = eventfd.Close(a.wake)
	_ = a.device.close()
}

// Close disconnects all peers, ends the goroutine, and closes the device.
func (a *adapter) Close() error {
	a.mu.Lock()
	a.closing = true
	a.mu.Unlock()
	eventfd.Ring(a.wake)
	<-a.ended
	a.mu.Lock()
	var errs []error
	for _, d := range a.domains { // of tags without users
		errs = append(errs, errno(C.ibv_dealloc_pd(d.pd)))
	}
	a.mu.Unlock()
	a.release()
	if a.failed.Load() {
		return nil // every call to a removed device fails
	}
	return errors.Join(errs...)
}

// minSegments is the number of segments that VIA guarantees. Works with more
// segments than the device supports use a bounce buffer.
const minSegments = 252

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
		MaxSegmentsPerDesc:     minSegments,
		MaxCQ:                  int(l.max_cq),
		MaxCQEntries:           1 << 20, // the device's queue grows with its links, see NewCQ
		MaxTransferSize:        min(uint32(l.max_message), 1<<30),
		NativeMTU:              uint32(l.mtu),
		MaxPtags:               min(int(l.max_pd), 1<<16),
		ReliabilityLevels:      via.ReliableDelivery | via.ReliableReception,
		RdmaReadLevels:         via.ReliableDelivery | via.ReliableReception,
		NamesRegions:           true,
		PinsMemory:             l.on_demand == 0,
	}
}

// usable returns an error if the device was removed.
func (a *adapter) usable() error {
	if a.failed.Load() {
		return fmt.Errorf("RDMA device %s is gone: %w", a.device.name, via.ErrDeviceFailed)
	}
	return nil
}

// refused wraps the error of a failed call to the device.
func (a *adapter) refused(doing string, err error) error {
	if failed := a.usable(); failed != nil {
		return failed
	}
	return fmt.Errorf("%s: %w: %w", doing, via.ErrResource, err)
}

// domain returns the protection domain of a tag and adds a user.
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

// releaseDomain removes a user of a tag's protection domain.
func (a *adapter) releaseDomain(tag uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.domains[tag]
	if d.users--; d.users == 0 {
		delete(a.domains, tag)
		_ = C.ibv_dealloc_pd(d.pd) // fails if the device was removed
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

// name and closed implement counted.
func (a *adapter) name() string { return a.device.name }

func (a *adapter) closed() bool {
	select {
	case <-a.ended: // the user agent has closed every queue
		return true
	default:
		return false
	}
}

// removeQueue adds the counters of a closed queue to dropped.
func (a *adapter) removeQueue(c *cq) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.queues[c]; ok {
		delete(a.queues, c)
		a.dropped.Add(c.counts.load())
	}
}
