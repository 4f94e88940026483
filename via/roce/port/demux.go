package port

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/via/roce/wire"
)

// QueuedShard is the receiving half of a [Shard] without a socket: a [Demux]
// puts its packets into an inbox. The sending half embeds it.
type QueuedShard struct {
	counters
	icrcChecker
	inbox *inbox
}

// FD implements [Shard].
func (s *QueuedShard) FD() int { return s.inbox.fd }

// Receive implements [Shard].
func (s *QueuedShard) Receive(dst []Arrival) (int, error) {
	n, err := s.inbox.dequeue(dst)
	if err != nil {
		return 0, err
	}
	s.countReceived(dst[:n])
	return n, nil
}

// Intact implements [Shard].
func (s *QueuedShard) Intact(a *Arrival) bool {
	ok := s.intact(a)
	if !ok {
		s.badICRC.Add(1)
	}
	return ok
}

// CountSent counts system calls that sent packets.
func (s *QueuedShard) CountSent(calls, packets, bytes int) { s.countSent(calls, packets, bytes) }

// CountDropped counts packets that were not sent.
func (s *QueuedShard) CountDropped(packets int) { s.dropped.Add(uint64(packets)) }

// IsClosed reports whether the port is closed.
func (s *QueuedShard) IsClosed() bool { return s.inbox.isClosed() }

// Demux distributes the packets that a port receives to the shards of their
// queue pairs. It is for ports without a socket for each shard, and safe for
// concurrent use. The zero value has no shards.
type Demux struct {
	shards atomic.Pointer[[]*QueuedShard]

	mu sync.Mutex // serializes opening and closing
	// +checklocks:mu
	open []Shard // the complete shards, as callers see them
	// +checklocks:mu
	closed bool
}

// Shard opens a shard of a port at an address, or returns it if it is open.
// make adds the sending half.
func (d *Demux) Shard(i int, local netip.AddrPort, make func(*QueuedShard) Shard) (Shard, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if isOpen, err := checkShard(i, len(d.open), d.closed); err != nil {
		return nil, err
	} else if isOpen {
		return d.open[i], nil
	}
	q, err := newInbox()
	if err != nil {
		return nil, fmt.Errorf("port %v: shard %d: %w", local, i, err)
	}
	s := &QueuedShard{inbox: q, icrcChecker: icrcChecker{local: local}}
	d.open = append(d.open, make(s))
	shards := append((*d.all())[:i:i], s)
	d.shards.Store(&shards)
	return d.open[i], nil
}

// checkShard reports whether a shard is open, and why it cannot be opened.
func checkShard(i, open int, closed bool) (isOpen bool, err error) {
	switch {
	case closed:
		return false, net.ErrClosed
	case i < 0 || i >= Shards:
		return false, fmt.Errorf("shard %d: there are %d", i, Shards)
	case i > open:
		return false, fmt.Errorf("shard %d: shard %d is opened first", i, open)
	}
	return i < open, nil
}

// all returns the shards that are open.
func (d *Demux) all() *[]*QueuedShard {
	if shards := d.shards.Load(); shards != nil {
		return shards
	}
	return &noShards
}

var noShards []*QueuedShard

// shardFor returns the shard for a packet: shard 0 if the packet is too short
// to name a queue pair, nil if no shard is open.
func (d *Demux) shardFor(packet []byte) *QueuedShard {
	shards := *d.all()
	if len(shards) == 0 {
		return nil
	}
	i := 0
	if len(packet) >= wire.BTHSize {
		i = ShardOf(destQP(packet)) % len(shards)
	}
	return shards[i]
}

// Room implements [Port.ReceiveRoom].
func (d *Demux) Room() int { return inboxPackets }

// Deliver copies a packet to the inbox of its shard. Without one it is lost; if
// its length is invalid or the inbox is full, the shard counts it.
func (d *Demux) Deliver(from netip.AddrPort, id wire.Identification, packet []byte) {
	shard := d.shardFor(packet)
	switch {
	case shard == nil:
		return
	case len(packet) < wire.MinPacket || len(packet) > wire.MaxPacket:
		shard.malformed.Add(1)
		return
	}
	to := shard.inbox.reserve()
	if to == nil {
		shard.overrun.Add(1)
		return
	}
	to.from, to.identification, to.delay = from, id, 0
	to.size = copy(to.bytes[:], packet)
	shard.inbox.put(to)
}

// IsClosed reports whether Close was called.
func (d *Demux) IsClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// Close closes the shards.
func (d *Demux) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	var errs []error
	for _, s := range *d.all() {
		errs = append(errs, s.inbox.close())
	}
	return errors.Join(errs...)
}
