package target

import (
	"errors"
	"log/slog"
	"slices"
	"syscall"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/latency"
	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target/reserve"
	"github.com/viablk/viablk/via"
)

// handle is an open export of the session on this connection.
type handle struct {
	opened *opened
	queue  *exportQueue
	busy   int // requests in flight
}

// exportQueue is this connection's queue of an export. All handles of the
// export share it: a session that opens an export several times needs one
// queue.
type exportQueue struct {
	export  *exported
	queue   block.Queue
	file    loop.File    // of the queue
	disk    block.Mapped // if it is memory that is registered; else nil
	direct  *via.Memory  // that memory
	mapping *connMapping // of a disk that is mapped; else nil
	ranges  *block.Ranges
	copies  bool // the provider copies when a work request is posted
	active  int  // requests submitted
	busy    int  // requests in flight
	age     *reserve.Age
	handles int
	counts  ExportCounts // of the requests through this queue

	recorder *latency.Recorder // of the export; nil once the queue is retired
}

// handleTable owns the exports that a connection uses, and their queues.
type handleTable struct {
	conn      *conn
	server    *Server
	published *publishedStats
	log       *slog.Logger
	carrier   *carrier.Carrier
	stopwatch *latency.Stopwatch
	login     login
	slots     int // of the connection

	handles     []*handle // by export handle; nil where not in use
	queues      []*exportQueue
	closedStats MappingStats // of closed queues
	closed      block.Counts // of closed queues
}

// check checks a command against its export, once, and prepares the request of
// the backend.
func (t *handleTable) check(r *request) wire.Status {
	cmd := &r.command
	h, status := t.find(cmd.Export)
	if status != wire.StatusOK {
		return status
	}
	r.handle = h
	h.busy++
	h.queue.busy++
	op, flags := opOf[cmd.Opcode], blockFlags(cmd.Flags)
	info := h.opened.info
	info.Size = h.opened.size.Load()
	if e := info.Check(op, flags, cmd.Offset, uint64(cmd.Length)); e != 0 {
		return wire.StatusOf(e)
	}
	if op == block.Write || op == block.Trim || op == block.WriteZeroes {
		if err := t.beforeWrite(h); err != nil {
			t.log.Error("write refused", "event", "write_refused", "error", err)
			if block.Errno(err) == syscall.ESHUTDOWN {
				return wire.StatusShutdown // the initiator goes to the successor
			}
			return wire.StatusIO
		}
	}
	r.block = block.Request{
		Op: op, Flags: flags, Offset: int64(cmd.Offset), Length: int64(cmd.Length), User: uint64(r.index),
	}
	return wire.StatusOK
}

// beforeWrite makes the client the writer of the disk, which the first write
// stores. That counts as a request in the disk: a file system may block it.
func (t *handleTable) beforeWrite(h *handle) error {
	q := h.queue
	if q.active > 0 || h.opened.hold.Wrote() {
		return h.opened.hold.BeforeWrite()
	}
	q.age.Set(t.stopwatch.Now())
	defer q.age.Set(0)
	return h.opened.hold.BeforeWrite()
}

// finished ends the use of a handle by an answered request.
func (t *handleTable) finished(r *request) {
	h := r.handle
	if h == nil {
		return
	}
	r.handle = nil
	h.queue.busy--
	if h.busy--; h.busy == 0 && h.opened.closed.Load() {
		t.closeHandle(h)
	}
}

// opOf maps the wire's operations to the device's.
var opOf = [...]block.Op{
	wire.OpRead: block.Read, wire.OpWrite: block.Write, wire.OpFlush: block.Flush,
	wire.OpTrim: block.Trim, wire.OpWriteZeroes: block.WriteZeroes,
	wire.OpPrefetch: block.Prefetch, wire.OpBlockStatus: block.Status,
}

func blockFlags(f wire.CommandFlags) (b block.Flags) {
	if f&wire.FlagFUA != 0 {
		b |= block.FUA
	}
	if f&wire.FlagNoHole != 0 {
		b |= block.NoHole
	}
	if f&wire.FlagFastZero != 0 {
		b |= block.FastZero
	}
	return b
}

// find returns a handle that commands may use, or the status that refuses them.
// At the first command it finds the export and opens its queue.
func (t *handleTable) find(number uint16) (*handle, wire.Status) {
	if int(number) < len(t.handles) && t.handles[number] != nil {
		h := t.handles[number]
		if h.opened.closed.Load() {
			return nil, wire.StatusNotFound
		}
		return h, wire.StatusOK
	}
	o := t.login.session.acquire(number)
	if o == nil {
		return nil, wire.StatusNotFound
	}
	h := &handle{opened: o}
	defer func() {
		if h.queue == nil { // not opened, or a panic
			t.login.session.release(o, t.server.exports)
		}
	}()
	q, err := t.exportQueue(t.server.exports.counterpart(o.export))
	if err != nil {
		t.log.Error("export not opened", "event", "export_refused", "export", o.export.Name, "error", err)
		return nil, wire.StatusOf(block.Errno(err))
	}
	q.handles++
	for int(number) >= len(t.handles) {
		t.handles = append(t.handles, nil)
	}
	h.queue, t.handles[number] = q, h
	return h, wire.StatusOK
}

// exportQueue returns this connection's queue of an export.
func (t *handleTable) exportQueue(x *exported) (*exportQueue, error) {
	for _, q := range t.queues {
		if q.export == x {
			return q, nil
		}
	}
	return t.openQueue(x)
}

// client names the initiator to limits: its session, or of those without the
// rights of the target, which may have any number of sessions, the identity or
// else the host.
func (t *handleTable) client() string {
	switch key := t.login.identity.Key(); {
	case t.conn.origin == "":
		return t.login.session.clientName()
	case key != "":
		return key
	}
	return "host " + t.conn.origin
}

// openQueue opens a queue of an export. A disk that is memory is registered,
// for local use, so that data moves from and to it directly. If that is
// refused, data moves through the pool, and if the NIC pins memory: it would
// not see that the disk gives pages back. The table has the queue from its
// first moment, so that it is closed whatever happens.
func (t *handleTable) openQueue(x *exported) (*exportQueue, error) {
	queue, err := block.NewQueueFor(x.Device, t.client(), t.slots)
	if err != nil {
		return nil, err
	}
	q := &exportQueue{export: x, queue: queue, age: x.Reservations.AddAge(t.server.exports.clock), copies: t.server.cfg.NIC.Limits().PostsCopy}
	q.recorder = x.latency.Acquire()
	t.queues = append(t.queues, q)
	if t.carrier.Sealed() || t.login.digest {
		return q, nil // payload is opened and sealed, or checked, in the pool
	}
	if m, ok := x.Device.(block.Mapped); ok && !t.server.cfg.NIC.Limits().PinsMemory {
		q.ranges = m.Ranges()
		if q.direct, err = t.server.cfg.NIC.RegisterMem(m.Memory(), via.MemAttributes{Ptag: t.carrier.Tag()}); err == nil {
			q.disk = m
		} else if !x.copied.Swap(true) {
			t.log.Warn("a disk in memory is not registered: its data is copied", "event", "registration_refused", "export", x.Name, "error", err)
		}
	}
	q.mapping = t.openMapping(x)
	if q.mapping != nil {
		q.ranges = q.mapping.disk.Ranges()
	}
	return q, nil
}

// close ends the queue; it waits for requests in flight. The registrations of
// the disk stay until the connection ends, but without a lease.
func (q *exportQueue) close() error {
	err := q.queue.Close()
	q.export.Reservations.RemoveAge(q.age)
	if q.direct != nil {
		err = errors.Join(err, q.direct.Deregister())
	}
	return err
}

// closeUnused closes the handles that the initiator closed and that no
// request uses.
func (t *handleTable) closeUnused() {
	for _, h := range t.handles {
		if h != nil && h.busy == 0 && h.opened.closed.Load() {
			t.closeHandle(h)
		}
	}
}

// closeHandle closes a handle, and with the last one of an export its queue.
func (t *handleTable) closeHandle(h *handle) {
	t.handles[h.opened.response.Export] = nil
	q := h.queue
	if q.handles--; q.handles == 0 {
		t.retire(q)
		if err := q.close(); err != nil {
			t.log.Error("export not released", "event", "release_failed", "export", q.export.Name, "error", err)
		}
		t.queues = slices.DeleteFunc(t.queues, func(x *exportQueue) bool { return x == q })
	}
	t.login.session.release(h.opened, t.server.exports)
}

// retireAll ends the mappings of all queues.
func (t *handleTable) retireAll() {
	for _, q := range t.queues {
		t.retire(q)
	}
}

// releaseAll returns the handles to the session.
func (t *handleTable) releaseAll() {
	for _, h := range t.handles {
		if h != nil {
			t.login.session.release(h.opened, t.server.exports)
		}
	}
}
