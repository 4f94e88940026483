package target

import (
	"errors"
	"slices"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// handle is an open export of the session on this connection.
type handle struct {
	opened *opened
	queue  *exportQueue
	busy   int // requests under way
}

// exportQueue is this connection's queue of an export. All handles of the export
// share it: however often a session opens an export, it costs one.
type exportQueue struct {
	export  *exported
	queue   block.Queue
	direct  *via.Memory // the disk itself, if it is memory; else nil
	windows *windows    // of a disk that is mapped; else nil
	ranges  *block.Ranges
	copies  bool // the provider's posts do
	active  int  // requests submitted
	handles int
}

// handle returns a handle that commands may use, or the status that refuses
// them. At the first command it finds the export and opens its queue.
func (c *conn) handle(number uint16) (*handle, wire.Status) {
	if int(number) < len(c.handles) && c.handles[number] != nil {
		h := c.handles[number]
		if h.opened.closed.Load() {
			return nil, wire.StatusNotFound
		}
		return h, wire.StatusOK
	}
	o := c.session.use(number)
	if o == nil {
		return nil, wire.StatusNotFound
	}
	q, err := c.exportQueue(o.export)
	if err != nil {
		c.session.unuse(o, c.server.exports)
		c.log.Error("export not opened", "export", o.export.Name, "error", err)
		return nil, wire.StatusOf(block.Errno(err))
	}
	q.handles++
	for int(number) >= len(c.handles) {
		c.handles = append(c.handles, nil)
	}
	c.handles[number] = &handle{opened: o, queue: q}
	return c.handles[number], wire.StatusOK
}

// exportQueue returns this connection's queue of an export.
func (c *conn) exportQueue(x *exported) (*exportQueue, error) {
	for _, q := range c.queues {
		if q.export == x {
			return q, nil
		}
	}
	q, err := c.openQueue(x)
	if err == nil {
		c.queues = append(c.queues, q)
	}
	return q, err
}

// openQueue opens a queue of an export. A disk that is memory is registered, for
// local use, so that data moves from and to it directly; if that is refused, data
// moves through the pool.
func (c *conn) openQueue(x *exported) (*exportQueue, error) {
	queue, err := block.NewQueueFor(x.Device, c.session.client(), len(c.requests))
	if err != nil {
		return nil, err
	}
	q := &exportQueue{export: x, queue: queue, copies: c.server.cfg.NIC.Limits().PostsCopy}
	if m, ok := x.Device.(block.Mapped); ok {
		q.ranges = m.Ranges()
		q.direct, err = c.server.cfg.NIC.RegisterMem(m.Memory(), via.MemAttributes{Ptag: c.carrier.Tag()})
		if err != nil && !x.copied.Swap(true) {
			c.log.Warn("a disk in memory is not registered: its data is copied", "export", x.Name, "error", err)
		}
	}
	q.windows = c.openWindows(x)
	if q.windows != nil {
		q.ranges = q.windows.disk.Ranges()
	}
	return q, nil
}

// close ends the queue; it waits for requests under way. What is registered of the
// disk stays registered until the connection ends, but without a lease.
func (q *exportQueue) close() error {
	err := q.queue.Close()
	if q.direct != nil {
		err = errors.Join(err, q.direct.Deregister())
	}
	return err
}

// dropClosed gives up the handles that the initiator closed and that no request
// uses any more.
func (c *conn) dropClosed() {
	for _, h := range c.handles {
		if h != nil && h.busy == 0 && h.opened.closed.Load() {
			c.drop(h)
		}
	}
}

// drop gives up a handle, and with the last of an export its queue.
func (c *conn) drop(h *handle) {
	c.handles[h.opened.response.Export] = nil
	q := h.queue
	if q.handles--; q.handles == 0 {
		c.retire(q)
		c.queues = slices.DeleteFunc(c.queues, func(x *exportQueue) bool { return x == q })
		if err := q.close(); err != nil {
			c.log.Error("export not released", "export", q.export.Name, "error", err)
		}
	}
	c.session.unuse(h.opened, c.server.exports)
}
