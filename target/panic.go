package target

import (
	"fmt"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
)

// guard runs a part of the worker and reports whether it returned. A panic of
// the part ends this connection only. So does a fault in a mapping, which the
// worker gets as a panic, see connMapping. Panics in state that connections
// share do not come here, see [contain.Shared].
//
// With another scheduler than sched.Real panics propagate: it may unwind
// goroutines by them, and a simulation reports each as a bug.
func (w *worker) guard(part func()) (ok bool) {
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		if fault, ok := cause.(interface{ Addr() uintptr }); ok && w.exports.inMapping(uint64(fault.Addr())) {
			w.fail(fmt.Errorf("%w: address %#x", errMappingFault, fault.Addr()))
			return
		}
		if w.conn.server.cfg.Scheduler != sched.Real {
			panic(cause)
		}
		w.panicked(contain.Caught(cause))
	}()
	part()
	return true
}

// panicked ends the connection because of a panic.
func (w *worker) panicked(p *contain.Panic) {
	w.fail(p)
	w.conn.server.panics.Add(1)
	p.Log(w.log, "panic: the connection ends")
}

// release ends the connection and frees its resources in the order of their
// users: the peer stops accessing memory first, then the backends. The
// connection leaves its session when none of its requests can touch a disk.
func (w *worker) release() {
	if w.handshake != nil {
		w.handshake.Close()
	}
	if h := w.rekey.handshake; h != nil {
		h.Close()
	}
	if r := w.authenticated; r != nil && w.login.session == nil {
		w.forgetKeys(r)
	}
	if w.login.session != nil && w.login.role == wire.RoleControl {
		w.endPath()
	}
	quiet := w.quiesce()
	w.stopDiskCalls()
	if quiet {
		w.free()
	} else {
		w.quarantine()
	}
	w.step(func() error {
		if bell := w.conn.signals.setBell(nil); bell != nil {
			return bell.Close()
		}
		return nil
	})
}

// step runs a step of the release and reports whether it returned. A panic in
// one step keeps no other from being tried.
func (w *worker) step(f func() error) bool {
	return w.guard(func() {
		if err := f(); err != nil {
			w.log.Error("connection not released", "event", "release_failed", "error", err)
		}
	})
}

// quiesce stops the transfers and the backends of the connection. It returns
// false if one of them panicked instead: it may still access memory then.
func (w *worker) quiesce() bool {
	requests := w.receive.requests
	if w.carrier != nil {
		// The peer is inside no memory: the target exposes none.
		if !w.step(w.carrier.Disconnect) {
			return false
		}
		w.guard(w.publish)
	}
	for i := range requests {
		w.execute.held.release(&requests[i])
		requests[i].lease.Release()
	}
	w.exports.retireAll()
	if w.carrier != nil {
		w.step(func() error { return w.conn.server.mappings.invalidate(w.carrier.Tag()) })
	}
	ok := true
	for _, q := range w.exports.queues {
		ok = w.step(func() error { return q.close() }) && ok
	}
	return ok
}

// free frees the memory of a connection that nothing accesses any more, and
// leaves the session.
func (w *worker) free() {
	w.step(func() error {
		requests := w.receive.requests
		for i := range requests {
			w.execute.releaseMemory(&requests[i])
		}
		return w.execute.close()
	})
	if w.carrier != nil {
		w.step(w.carrier.Close)
	}
	if session := w.login.session; session != nil {
		w.exports.releaseAll()
		w.conn.server.sessions.remove(session, &w.login, w.conn.server.exports)
	}
}

// quarantine keeps the memory of a connection that a backend or the provider
// may still access, and the exports of its session, until the process ends: a
// late write would hit the next writer. An initiator that returns finds its
// exports in use.
func (w *worker) quarantine() {
	w.conn.server.quarantined.Add(1)
	w.log.Error("connection in quarantine: its memory, and the exports of its session, stay in use until the target ends", "event", "connection_quarantined")
	if session := w.login.session; session != nil {
		session.stopControls(nil)
	}
}
