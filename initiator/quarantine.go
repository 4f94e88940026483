package initiator

import (
	"log/slog"
	"sync"

	"github.com/viablk/viablk/regcache"
)

// quarantine is the memory of a device that a target may still access although
// its connection has ended, see via.ErrStillAccessed: the process of a target
// on this host is stopped amid a copy, and finishes it when it continues.
// Nothing reuses this memory before the target is out of it, or dead.
//
//   - A pool is retired whole. The queue gets another one, unless too much is
//     in quarantine: then its requests wait. A request that reserved memory of
//     the retired pool moves to the other one before its next command: a late
//     copy would else change the data of a Read that was answered since.
//   - A request in memory of the caller's waits, even if it is to fail: with
//     its completion the memory is the caller's.
//   - Everything else is free with the connection: answered commands, and
//     receives, into which this end copies.
//
// Queues add pools; Status and all who add remove those that are free. Close
// unmaps the rest: a late copy then changes pages that are mapped at the target
// alone.
type quarantine struct {
	log   *slog.Logger
	host  string
	limit int64 // bytes in pools from which on no queue gets another pool

	mu sync.Mutex
	// +checklocks:mu
	pools []*regcache.Pool // without buffers that are out
	// +checklocks:mu
	status QuarantineStatus
}

// QuarantineStatus describes memory that a stopped target may still access.
type QuarantineStatus struct {
	Bytes    int64  `json:"bytes"`    // of pools
	Pools    int    `json:"pools"`    // that are not reused
	Requests int    `json:"requests"` // that wait, for the target may access their memory
	Total    uint64 `json:"total"`    // pools and requests, ever
}

// quarantinePools is the limit of a quarantine, in pools.
const quarantinePools = 8

// retire ends the use of a pool that its peer may be inside.
func (k *quarantine) retire(p *regcache.Pool, cause error) {
	p.Retire()
	k.count(cause, func(s *QuarantineStatus) {
		s.Pools++
		s.Bytes += int64(p.Stats().Size)
	})
}

// hold counts a request that waits for its memory.
func (k *quarantine) hold(cause error) {
	k.count(cause, func(s *QuarantineStatus) { s.Requests++ })
}

// count counts what is new in the quarantine, and logs the first.
func (k *quarantine) count(cause error, add func(*QuarantineStatus)) {
	k.mu.Lock()
	first := k.status.Pools+k.status.Requests == 0
	k.status.Total++
	add(&k.status)
	k.mu.Unlock()
	if first {
		k.log.Warn("the target may still access memory of a connection that has ended: it is in quarantine until the process continues or dies", "event", "memory_quarantined",
			"host", k.host, "error", cause)
	}
}

// release counts a request whose memory is free.
func (k *quarantine) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Requests--
}

// add takes a retired pool, when the last of its buffers is back.
func (k *quarantine) add(p *regcache.Pool) {
	k.mu.Lock()
	k.pools = append(k.pools, p)
	k.mu.Unlock()
	k.sweep()
}

// sweep unmaps the pools that no peer accesses any more.
func (k *quarantine) sweep() {
	k.unmap(func(p *regcache.Pool) bool { return !p.Memory().Accessed() })
}

// close unmaps all pools. Every queue is closed.
func (k *quarantine) close() { k.unmap(func(*regcache.Pool) bool { return true }) }

// unmap unmaps the pools that are free.
func (k *quarantine) unmap(free func(*regcache.Pool) bool) {
	k.mu.Lock()
	pools := k.pools
	k.pools = nil
	k.mu.Unlock()
	var kept []*regcache.Pool
	var bytes int64
	for _, p := range pools {
		if !free(p) {
			kept = append(kept, p)
			continue
		}
		bytes += int64(p.Stats().Size)
		if err := p.Close(); err != nil {
			k.log.Error("quarantined memory not unmapped", "event", "release_failed", "error", err)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pools = append(k.pools, kept...)
	k.status.Pools -= len(pools) - len(kept)
	k.status.Bytes -= bytes
}

// full reports whether no queue gets another pool.
func (k *quarantine) full() bool { return k.current().Bytes >= k.limit }

// current returns what is in quarantine now.
func (k *quarantine) current() QuarantineStatus {
	k.sweep()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}
