package simulation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/viablk/viablk/via"
)

// adapter is the network device of a process, and the [via.Provider] that opens
// it.
type adapter struct {
	network *network
	process *Process
	host    string
	regions map[uint32]*via.Memory // by handle
	links   []*link                // that are not closed
	left    []*link                // closed ones, whose peers were inside a copy
	arenas  []*arena               // that are mapped
}

// newAdapter returns the device of a process at a host.
func (n *network) newAdapter(p *Process, host string) *adapter {
	a := &adapter{network: n, process: p, host: host, regions: make(map[uint32]*via.Memory)}
	n.adapters = append(n.adapters, a)
	p.onKill = append(p.onKill, a.die)
	return a
}

// Name implements [via.Provider], as does Open.
func (a *adapter) Name() string { return "simulation" }

// Open returns the device.
func (a *adapter) Open(string) (via.Adapter, error) { return a, nil }

// Limits implements [via.Adapter], as do the other methods below.
func (a *adapter) Limits() via.Limits {
	return via.Limits{
		MaxDiscriminatorLen:    via.MaxDiscriminatorLen,
		MaxRegisterBytes:       1 << 40,
		MaxRegisterRegions:     1 << 16,
		MaxRegisterBlockBytes:  1 << 32,
		MaxVI:                  1 << 12,
		MaxDescriptorsPerQueue: 1 << 12,
		MaxSegmentsPerDesc:     252,
		MaxCQ:                  1 << 12,
		MaxCQEntries:           1 << 20,
		MaxTransferSize:        64 << 20,
		NativeMTU:              64 << 20,
		MaxPtags:               1 << 12,
		ReliabilityLevels:      via.ReliableDelivery,
		RdmaReadLevels:         via.ReliableDelivery,
	}
}

// Register makes a region known.
func (a *adapter) Register(m *via.Memory) error {
	a.regions[m.Handle()] = m
	a.network.regions++
	return nil
}

// Update has nothing to wait for: attributes of a region in use never change.
func (a *adapter) Update(*via.Memory) error { return nil }

// accessTimeout is how long a withdrawal waits for a peer inside a copy.
const accessTimeout = 2 * time.Second

// Deregister withdraws a region and waits for copies in progress.
func (a *adapter) Deregister(m *via.Memory) error {
	if _, ok := a.regions[m.Handle()]; ok {
		delete(a.regions, m.Handle())
		a.network.regions--
	} else {
		a.network.scheduler.fail("%s: region %#x is deregistered twice", a.process.name, m.Handle())
	}
	return a.await(func() *link { return a.inside(m, a.links, a.left) })
}

// Accessed reports whether a peer is inside a copy to or from a region that was
// withdrawn from it.
func (a *adapter) Accessed(m *via.Memory) bool {
	if _, ok := a.regions[m.Handle()]; ok {
		return a.inside(m, a.left) != nil
	}
	return a.inside(m, a.links, a.left) != nil
}

// inside returns a link whose peer is inside a copy to or from a region.
func (a *adapter) inside(m *via.Memory, lists ...[]*link) *link {
	for _, list := range lists {
		for _, l := range list {
			if t := l.peer.active; t != nil && t.memory == m && t.running {
				return l
			}
		}
	}
	return nil
}

// await waits until no peer is inside a copy.
func (a *adapter) await(inside func() *link) error {
	s := a.network.scheduler
	for end := s.now + accessTimeout; ; {
		l := inside()
		switch {
		case l == nil:
			return nil
		case a.process.dead || s.now >= end:
			return via.ErrStillAccessed
		}
		s.block(end-s.now, &l.peer.outside)
	}
}

// NewCQ creates a completion queue.
func (a *adapter) NewCQ(int) (via.AdapterCQ, error) {
	return &queue{file: a.network.scheduler.newFile(a.process)}, nil
}

// Listen starts to accept requests at a host name.
func (a *adapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	if l := a.network.hosts[host]; l != nil {
		return nil, fmt.Errorf("host %q is listened at: %w", host, via.ErrResource)
	}
	l := &listening{adapter: a, host: host, incoming: incoming}
	a.network.hosts[host] = l
	return l, nil
}

// Connect requests a connection.
func (a *adapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	return a.connect(ctx, host, hello, cfg)
}

// Close ends the device.
func (a *adapter) Close() error {
	if len(a.links) > 0 || len(a.regions) > 0 {
		a.network.scheduler.fail("%s: %d links and %d regions remain", a.process.name, len(a.links), len(a.regions))
	}
	return nil
}

// die is the end of a process that was killed.
func (a *adapter) die() {
	n := a.network
	for _, host := range slices.Sorted(maps.Keys(n.hosts)) {
		if l := n.hosts[host]; l.adapter == a {
			delete(n.hosts, host)
			l.refuseAll()
		}
	}
	for len(a.links) > 0 {
		a.links[0].die()
	}
	for _, l := range a.left {
		l.abort()
	}
	n.regions -= len(a.regions)
	clear(a.regions)
	for len(a.arenas) > 0 {
		a.arenas[len(a.arenas)-1].unmap()
	}
}
