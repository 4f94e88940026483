package target

import (
	"errors"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
)

// connMapping is a connection's registrations of a mapped disk, for Reads whose
// data is in the page cache: RDMA sends it from there, without a copy.
//
// The file may be truncated, or its disk may fail, while its pages are read. So
// the mapping is used only for pages that are resident at that moment: they are
// within the file and need no disk. All other Reads go through the file, and
// get the file's errno. A truncation between the check and the copy is a fault
// of the worker, which ends this connection only (see guard). That requires
// that the worker itself copies: a provider whose posts do not copy gets no
// mapping.
type connMapping struct {
	disk    block.FileMapped
	cache   *regcache.Cache // the server's
	arena   *regcache.Arena
	policy  *regcache.CopyPolicy
	stats   MappingStats // except Choice
	refused error        // of the last failed registration
}

// mappingBudget is the default of Config.RegisterMax, in bytes.
const mappingBudget = 256 << 20

// openMapping returns the mapping of a disk, or nil if it has none. A failed
// registration is logged once and is no error: Reads use the pool.
func (t *handleTable) openMapping(x *exported) *connMapping {
	disk, ok := x.Device.(block.FileMapped)
	cfg := &t.server.cfg
	if !ok || cfg.CopyMode == regcache.CopyBounce || !cfg.NIC.Limits().PostsCopy {
		return nil
	}
	cache, mapped, logged, err := t.server.mappings.open(x, disk)
	if err != nil {
		if !logged {
			t.log.Warn("a mapped file is not registered: its reads are copied", "event", "registration_refused", "export", x.Name, "error", err)
		}
		return nil
	}
	return &connMapping{
		disk: disk, cache: cache, arena: mapped.arena,
		policy: regcache.NewCopyPolicy(cache, cfg.CopyMode, t.server.cost),
	}
}

// counts returns the counters of Reads.
func (w *connMapping) counts() MappingStats {
	s := w.stats
	s.Choice = w.policy.Stats()
	return s
}

// startMapped answers a Read from the mapping. It returns false if the data has
// to come through the queue. The policy decides only where both are possible.
func (x *executor) startMapped(r *request, alone bool) bool {
	w := r.handle.queue.mapping
	n := int(r.command.Length)
	data := w.disk.Mapping()[r.command.Offset:][:n:n]
	if w.cache.Reach(data) < n {
		w.stats.CrossesGranule++
		w.copied(n)
		return false
	}
	if !w.disk.Resident(int64(r.command.Offset), int64(n)) {
		w.stats.NotResident++
		w.copied(n)
		return false
	}
	choice := w.policy.Choose(data, x.carrier.Tag(), 0, regcache.Out)
	if choice.Zero {
		lease, err := w.cache.Acquire(data, x.carrier.Tag(), 0)
		if err == nil && !x.held.acquire(r) {
			lease.Release()
			w.copied(n)
			return false
		}
		if err == nil {
			r.lease = lease
			w.policy.Moved(n)
			x.timer.start(r, choice, alone)
			r.local = carrier.Span{Addr: lease.Addr(), Handle: lease.Handle(), Length: r.command.Length}
			r.handle.queue.counts.Count(block.Read, uint64(n))
			r.status, r.state = wire.StatusOK, awaitAnswer
			return true
		}
		w.refused = err
		w.policy.Refused()
		w.copied(n)
		return false
	}
	if !x.timer.start(r, choice, alone) {
		w.copied(n)
	}
	return false
}

// copied counts bytes that come through the pool, without a time.
func (w *connMapping) copied(n int) { w.policy.Copied(regcache.Choice{}, n, 0) }

// readTimer measures a Read of a mapped disk when the policy asks for it: the
// whole, until the completion of the answer, and the copy from the backend into
// the pool. A Read that is not alone on its connection is not measured, because
// it waits for others.
type readTimer struct {
	scheduler sched.Scheduler

	r      *request // nil if no Read is measured
	choice regcache.Choice
	began  time.Time
}

// start starts to measure a Read. It returns false if the Read is not measured.
func (m *readTimer) start(r *request, choice regcache.Choice, alone bool) bool {
	if !choice.Timed || !alone {
		return false
	}
	m.r, m.choice, m.began = r, choice, m.scheduler.Now()
	return true
}

// recordCopy records the copy time of a measured Read: the backend has its
// data.
func (m *readTimer) recordCopy(r *request) {
	if m.r == r {
		r.handle.queue.mapping.policy.Copied(m.choice, int(r.command.Length), m.scheduler.Now().Sub(m.began))
	}
}

// stop records the total time of a measured Read: its answer is sent.
func (m *readTimer) stop(r *request) {
	if m.r == r {
		r.handle.queue.mapping.policy.Finished(m.choice, m.scheduler.Now().Sub(m.began))
		m.r = nil
	}
}

// discard ends the measurement without a result: the Read is not alone, or
// failed.
func (m *readTimer) discard() {
	r := m.r
	m.r = nil
	if r != nil && (r.state == running || r.state == awaitMemory) {
		r.handle.queue.mapping.copied(int(r.command.Length))
	}
}

// errMappingFault ends a connection whose Read reached the end of a mapped
// file, or a page that its disk could not read, during a copy.
var errMappingFault = errors.New("the file behind an export was truncated, or failed, while it was read")

// inMapping reports whether an address is in the mapping of a disk.
func (t *handleTable) inMapping(addr uint64) bool {
	for _, q := range t.queues {
		if q.mapping != nil && q.mapping.arena.Contains(addr) {
			return true
		}
	}
	return false
}

// calibrate measures the NIC if a disk may be mapped. A NIC that registers
// nothing now may do so later.
func (s *Server) calibrate() error {
	mapped := func(e Export) bool { _, ok := e.Device.(block.FileMapped); return ok }
	if s.cfg.CopyMode != regcache.CopyAuto || !s.cfg.NIC.Limits().PostsCopy || !slices.ContainsFunc(s.cfg.Exports, mapped) {
		return nil
	}
	tag, err := s.cfg.NIC.CreatePtag()
	if err != nil {
		return err
	}
	s.cost, err = regcache.Calibrate(s.cfg.NIC, tag)
	if regcache.CannotRegister(err) {
		s.cfg.Log.Warn("what it costs to register is not known: reads of mapped files may be copied", "event", "calibration_failed", "error", err)
		err = nil
	}
	return errors.Join(err, s.cfg.NIC.DestroyPtag(tag))
}
