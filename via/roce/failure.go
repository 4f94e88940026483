package roce

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
)

// A panic of a goroutine that owns a shard may leave the engine half changed,
// and all links of the shard share the engine: its table, its transmit queue,
// its stash. So all of them end with an error, and a new shard takes the place
// of the failed one, which no goroutine acquires again. As only a pass accesses
// the memory of works and regions, no peer reads or writes any through a failed
// shard.
//
// The new shard has the socket of the failed one: the kernel steers packets by
// the order in which sockets were opened. A socket holds nothing but packets,
// which the engine validates as any others, and Send starts empty.

// contain is deferred by what owns the shard, until it releases it.
func (g *engine) contain() {
	if value := recover(); value != nil {
		g.shard.fail(contain.Caught(value))
	}
}

// fail ends the links of a shard that the caller owns.
func (s *shard) fail(p *contain.Panic) {
	for _, b := range s.engine.bindings {
		unwatch(b.cq.fd, s.port.FD()) // it is the new shard's
		b.wake()
	}
	for _, b := range s.engine.table.buckets {
		if x := b.transport; x != nil && x.qp != nil {
			x.qp.Abandon() // or links of other shards to its host lack the room
		}
	}
	s.endpoint.replace(s)
	s.failure.Store(p)
	s.ownership.state.Store(shardFailed)
	p.Log(nil, "panic: the connections of a shard end", "address", s.endpoint.local, "shard", s.index)
}

// failed returns the error of a shard that has failed, or nil.
func (s *shard) failed() error {
	if p := s.failure.Load(); p != nil {
		return fmt.Errorf("shard %d of %v: %w", s.index, s.endpoint.local, p)
	}
	return nil
}

// asOwner calls do as the owner of the shard. It returns an error if the shard
// has failed, before the call or during it.
func (s *shard) asOwner(do func(g *engine)) error {
	if g := s.acquire(); g != nil {
		g.run(do)
	}
	return s.failed()
}

// run calls do and releases the shard.
func (g *engine) run(do func(g *engine)) {
	defer g.contain()
	do(g)
	g.release()
}

// replace puts a new shard in the place of a failed one.
func (e *endpoint) replace(s *shard) {
	next := newShard(e, s.index, s.port)
	e.mu.Lock()
	defer e.mu.Unlock()
	shards := slices.Clone(*e.shards.Load())
	shards[s.index-1] = next
	e.shards.Store(&shards)
	for _, a := range e.assigned {
		if a.shard == s {
			a.shard = next
		}
	}
	e.poller.interrupt() // so that the goroutine polls it if no consumer does
}

// reportFailure reports the end of the links whose shard has failed.
func (b *cqBinding) reportFailure(dst []via.Done) (n int) {
	err := b.shard.failed()
	if err == nil {
		return 0
	}
	for _, l := range b.members {
		if n == len(dst) {
			break
		}
		if l.bound.reports(b) && !l.failureReported {
			l.failureReported = true
			dst[n] = via.Done{Event: &via.Event{Owner: l.cfg.Owner, Code: via.AsyncConnectionLost, Broken: true, Cause: err}}
			n++
		}
	}
	return n
}

// hasFailure reports whether reportFailure has something to report.
func (b *cqBinding) hasFailure() bool {
	return slices.ContainsFunc(b.members, func(l *link) bool { return l.bound.reports(b) && !l.failureReported })
}

// errManagerFailed is the error of a call that the connection manager did not
// end.
var errManagerFailed = errors.New("the connection manager has failed")

// containManager is deferred by what changes the connection manager. After a
// panic another manager takes its place: it may be half changed. Handshakes in
// progress fail. Established links go on, as they need no manager until they
// end: then each end notices that the other one is gone by its timeout.
//
// +checklocks:e.mu
func (e *endpoint) containManager() {
	value := recover()
	if value == nil {
		return
	}
	p := contain.Caught(value)
	p.Log(nil, "panic: the handshakes of an address fail", "address", e.local)
	manager, err := e.newManager()
	if err != nil {
		return // it has the configuration of the first one, which was valid
	}
	e.manager = manager
	for s := range e.services {
		manager.Listen(s)
	}
	for id, c := range e.conns {
		c.peerDone = true
		if c.link == nil {
			delete(e.numbers, c.qpn)
		}
		select {
		case c.events <- cm.Event{Kind: cm.TimedOut, ID: id}:
		default: // the consumer no longer waits for events
		}
	}
	clear(e.conns)
}

// containRound is deferred by a round of the goroutine. After a panic outside
// of shards and manager it examines the shards anew. The pause bounds what a
// panic in each round costs.
func (e *endpoint) containRound() {
	value := recover()
	if value == nil {
		return
	}
	contain.Caught(value).Log(nil, "panic: the goroutine of an address starts again", "address", e.local)
	for i, c := range e.progress.shards {
		if !c.attended {
			unwatch(e.poller.epoll, (*e.shards.Load())[i].port.FD())
		}
	}
	e.progress = progressState{}
	time.Sleep(checkInterval)
}
