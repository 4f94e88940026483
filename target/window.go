package target

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
)

// windows are a connection's registrations of a mapped disk, for Reads whose data
// is in the page cache: RDMA takes it from there, without a copy.
//
// Nobody keeps the file from being truncated, or its disk from failing, while its
// pages are read. So data is taken from the mapping only if it is resident at that
// moment, which neither is behind the file's end nor waits for a disk; all else goes
// through the file, and gets the file's errno. What happens in the moment between
// the look and the copy is a fault of the worker, which ends the connection and
// nothing else (see guard). That needs the copy to be the worker's own: a provider
// whose posts do not copy gets no windows.
type windows struct {
	disk    block.Windowed
	cache   *regcache.Cache // the server's
	arena   *regcache.Arena
	chooser *regcache.Chooser
	stats   WindowStats // but for Choice
	refused error       // why the last one was not registered that should have been
}

// windowBudget is how much of mapped disks a server registers, in bytes, unless
// Config says otherwise.
const windowBudget = 256 << 20

// openWindows returns the windows of a disk, or nil if it has none. That a NIC or
// the system does not register is said once, and no reason to fail: the pool is there.
func (c *conn) openWindows(x *exported) *windows {
	disk, ok := x.Device.(block.Windowed)
	cfg := &c.server.cfg
	if !ok || cfg.CopyMode == regcache.CopyBounce || !cfg.NIC.Limits().PostsCopy {
		return nil
	}
	cache, mapped, told, err := c.server.mappings.open(x, disk)
	if err != nil {
		if !told {
			c.log.Warn("a mapped file is not registered: its reads are copied", "export", x.Name, "error", err)
		}
		return nil
	}
	return &windows{
		disk: disk, cache: cache, arena: mapped.arena,
		chooser: regcache.NewChooser(cache, cfg.CopyMode, c.server.cost),
	}
}

// counts returns what became of Reads.
func (w *windows) counts() WindowStats {
	s := w.stats
	s.Choice = w.chooser.Stats()
	return s
}

// startWindow answers a Read from the mapping. It returns false if the data has to
// come through the queue. Which way is chosen only for what could go both.
func (c *conn) startWindow(r *request) bool {
	w := r.handle.queue.windows
	n := int(r.command.Length)
	data := w.disk.Mapping()[r.command.Offset:][:n:n]
	if w.cache.Reach(data) < n {
		w.stats.Spanning++
		w.copied(n)
		return false
	}
	if !w.disk.Resident(int64(r.command.Offset), int64(n)) {
		w.stats.Absent++
		w.copied(n)
		return false
	}
	choice := w.chooser.Choose(data, c.carrier.Tag(), 0, regcache.Out)
	if choice.Zero {
		lease, err := w.cache.Acquire(data, c.carrier.Tag(), 0)
		if err == nil && !c.hold(r) {
			lease.Release()
			w.copied(n)
			return false
		}
		if err == nil {
			w.chooser.Moved(n)
			c.take(r, choice)
			r.lease = lease
			r.local = carrier.Span{Addr: lease.Addr(), Handle: lease.Handle(), Length: r.command.Length}
			c.stats.Count(block.Read, uint64(n))
			c.settle(r, wire.StatusOK)
			return true
		}
		w.refused = err
		w.chooser.Refused()
		w.copied(n)
		return false
	}
	if !c.take(r, choice) {
		w.copied(n)
	}
	return false
}

// copied counts bytes that come through the pool, and says nothing of their time.
func (w *windows) copied(n int) { w.chooser.Copied(regcache.Choice{}, n, 0) }

// stopwatch takes the time of a Read of a mapped disk, as often as the chooser wants
// to know: of the whole, from here to the completion of the answer, and of the copy,
// from the backend into the pool. A Read that is not alone on its connection tells
// neither, for what it waits for is others.
type stopwatch struct {
	r      *request // nil if no time is taken
	choice regcache.Choice
	began  time.Time
}

// take takes the time of a Read that begins. It returns false if it does not.
func (c *conn) take(r *request, choice regcache.Choice) bool {
	if !choice.Timed || c.busy > 1 {
		return false
	}
	c.watch = stopwatch{r, choice, time.Now()}
	return true
}

// fetched says that the backend has the data of a Read whose time may be taken.
func (c *conn) fetched(r *request) {
	if c.watch.r == r {
		r.handle.queue.windows.chooser.Copied(c.watch.choice, int(r.command.Length), time.Since(c.watch.began))
	}
}

// answered says that the answer of a request is out.
func (c *conn) answered(r *request) {
	if c.watch.r == r {
		r.handle.queue.windows.chooser.Finished(c.watch.choice, time.Since(c.watch.began))
		c.watch.r = nil
	}
}

// disturbed ends the taking of time: the Read is not alone, or failed.
func (c *conn) disturbed() {
	r := c.watch.r
	c.watch.r = nil
	if r != nil && (r.state == running || r.state == awaitMemory) {
		r.handle.queue.windows.copied(int(r.command.Length))
	}
}

// errWindowGone is why a connection ends whose Read met the end of a mapped file, or
// a page that its disk could not read, in the middle of a copy.
var errWindowGone = errors.New("the file behind an export was truncated, or failed, while it was read")

// guard runs the worker's loop. With panics instead of signals for faults, which
// routineServe asks for, a fault in a window is the end of this connection. Every
// other panic goes on.
func (c *conn) guard(loop func()) {
	defer func() {
		if cause := recover(); cause != nil {
			fault, ok := cause.(interface{ Addr() uintptr })
			if !ok || !c.inWindow(uint64(fault.Addr())) {
				panic(cause)
			}
			c.fail(fmt.Errorf("%w: address %#x", errWindowGone, fault.Addr()))
		}
	}()
	loop()
}

// inWindow reports whether an address is in the mapping of a disk.
func (c *conn) inWindow(addr uint64) bool {
	for _, q := range c.queues {
		if q.windows != nil && q.windows.arena.Contains(addr) {
			return true
		}
	}
	return false
}

// calibrate measures the NIC if a disk may have windows. A NIC that registers nothing
// now may do so later.
func (s *Server) calibrate() error {
	mapped := func(e Export) bool { _, ok := e.Device.(block.Windowed); return ok }
	if s.cfg.CopyMode != regcache.CopyAuto || !s.cfg.NIC.Limits().PostsCopy || !slices.ContainsFunc(s.cfg.Exports, mapped) {
		return nil
	}
	tag, err := s.cfg.NIC.CreatePtag()
	if err != nil {
		return err
	}
	s.cost, err = regcache.Calibrate(s.cfg.NIC, tag)
	if regcache.CannotRegister(err) {
		s.cfg.Log.Warn("what it costs to register is not known: reads of mapped files may be copied", "error", err)
		err = nil
	}
	return errors.Join(err, s.cfg.NIC.DestroyPtag(tag))
}
