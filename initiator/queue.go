package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// Queue is a queue of a remote disk: a VIA connection with its slots and its
// bounce pool. It implements the device contract's Queue; one goroutine drives it.
type Queue struct {
	device  *Device
	session *session // that the connection belongs to, or did
	carrier *carrier.Carrier
	pool    *regcache.Pool
	index   uint16 // of the connection in its session
	depth   int

	export uint16
	inline uint32 // bytes of payload that go inside a message
	maxIO  uint32 // bytes of one command
	block  int64  // commands of one request end on multiples of it
	base   uint16 // first slot

	chooser *regcache.Chooser
	chunk   int64 // bytes that a copy is cut into
	most    int64 // bytes of the pool

	ops       []op // requests under way
	freeOps   []uint16
	slots     []slot
	freeSlots []uint16
	credits   int    // slots that the target has
	waiting   opFifo // requests that are not wholly cut into commands yet
	finished  requestFifo
	held      int  // requests submitted and not reaped
	alone     bool // the request submitted last has had the queue for itself
	timed     timed
	staged    bool // something waits for the doorbell

	reserved     []regcache.Slot // pool memory of requests that reserved it
	freeReserved []uint32

	failure error // the connection is gone; requests fail, or wait
	absence absence
	gone    bool          // there will be no connection any more
	written atomic.Uint64 // writes that were answered; see Device.dirty
	beat    beat
	done    [64]via.Completion

	stats     QueueStats
	turns     uint32
	published publishedStats
}

// openQueue connects an I/O connection and equips it.
func openQueue(d *Device, s *session, index uint16, depth int) (*Queue, error) {
	cfg := &d.cfg
	ctx, cancel := context.WithTimeout(context.Background(), cfg.Timeout)
	defer cancel()
	commands := depth
	if cfg.Depth > 0 {
		commands = min(commands, cfg.Depth)
	}
	c, answer, err := s.connect(ctx, wire.RoleIO, index, commands)
	if err != nil {
		return nil, err
	}
	q := &Queue{device: d, session: s, carrier: c, index: index, depth: depth, export: s.export.Export}
	if err := q.equip(&answer, commands); err != nil {
		return nil, errors.Join(err, q.release())
	}
	return q, nil
}

// accept takes over what the target grants the connection.
func (q *Queue) accept(a *wire.LoginResponse, commands int) error {
	n := int(a.Credits)
	if n == 0 || n > commands || int(a.SlotCount) < n {
		return fmt.Errorf("the target grants %d credits and %d slots, asked for were %d", a.Credits, a.SlotCount, commands)
	}
	// A command ends on a block, and what goes inside a message is one command.
	q.maxIO = a.MaxIO &^ (max(q.device.info.MinimumBlock, 1) - 1)
	q.inline, q.base = min(a.InlineMax, q.maxIO), a.SlotBase
	if q.maxIO < 4096 {
		return fmt.Errorf("the target takes %d bytes a command, for blocks of %d", a.MaxIO, q.device.info.MinimumBlock)
	}
	if a.DataModes&wire.ModesPull == 0 {
		return errors.New("the target can not read by rdma; writes above the inline maximum need it")
	}
	if q.slots == nil {
		q.slots = make([]slot, n)
	}
	q.credits, q.freeSlots = n, q.freeSlots[:0]
	for i := len(q.slots) - 1; i >= 0; i-- {
		sl := &q.slots[i]
		*sl = slot{seq: sl.seq, held: sl.held, receive: sl.receive}
		if !sl.held {
			q.freeSlot(uint16(i))
		}
	}
	q.beat = newBeat(time.Duration(a.HeartbeatMillis) * time.Millisecond)
	return nil
}

// cheapCopy is up to which size a copy costs no more than a lease, in bytes.
const cheapCopy = 4 << 10

// equip gives the queue its memory. Nothing is registered after it.
func (q *Queue) equip(a *wire.LoginResponse, commands int) error {
	if err := q.accept(a, commands); err != nil {
		return err
	}
	n := len(q.slots)
	if err := q.carrier.AddReceives(n+spareReceives, max(int(q.inline), loginData)); err != nil {
		return err
	}
	if err := q.carrier.AddSends(n+spareSends, wire.MaxHeader); err != nil {
		return err
	}
	cfg := &q.device.cfg
	pool, err := regcache.NewPool(cfg.NIC, cfg.PoolBytes, via.MemAttributes{
		Ptag: q.carrier.Tag(), EnableRdmaWrite: true, EnableRdmaRead: true,
	})
	if err != nil {
		return err
	}
	q.pool = pool
	q.chooser = q.device.memory.chooser()
	q.chooser.Inline(regcache.In, int(q.inline)) // which asks for no memory at all
	q.chooser.Inline(regcache.Out, int(min(q.inline, cheapCopy)))
	q.block = max(int64(q.device.info.MinimumBlock), block.AtomicUnit)
	q.chunk, q.most = max(int64(cfg.Chunk)&^(q.block-1), q.block), int64(cfg.PoolBytes)
	if q.chunk > q.most {
		return fmt.Errorf("bounce memory of %d bytes, for blocks of %d", q.most, q.block)
	}
	q.ops = make([]op, q.depth)
	for i := q.depth - 1; i >= 0; i-- {
		q.freeOps = append(q.freeOps, uint16(i))
	}
	q.waiting, q.finished = newOpFifo(q.depth), newRequestFifo(q.depth)
	return nil
}

// FD returns the file descriptor to sleep on.
func (q *Queue) FD() int { return q.carrier.FD() }

// Arm prepares the owner's sleep.
func (q *Queue) Arm() (time.Duration, bool) {
	q.publish()
	q.Kick() // what a Release let go on
	if !q.finished.empty() {
		return 0, false
	}
	if q.failure != nil {
		if q.waits() && q.held != 0 {
			return returnLook, true
		}
		return -1, true
	}
	d, ok := q.beat.wait()
	if !ok || !q.carrier.Arm() {
		return 0, false
	}
	q.stats.Sleeps++
	return d, true
}

// Kick starts what was submitted.
func (q *Queue) Kick() {
	if q.staged {
		q.staged = false
		q.carrier.Doorbell()
	}
}

// Reap takes finished requests and lets the queue make progress.
func (q *Queue) Reap(dst []*block.Request) int {
	if q.failure == nil {
		q.progress()
	} else if q.device.keeper != nil && !q.gone {
		q.look()
	}
	n := q.finished.pop(dst)
	q.held -= n
	return n
}

// fail ends the connection: when it has returned the target touches no memory of
// the queue any more, and every request fails with EIO, or waits for another one.
func (q *Queue) fail(err error) {
	if q.failure != nil {
		return
	}
	q.failure, q.staged = err, false
	q.carrier.Disconnect()
	level, busy := q.device.cfg.lossLevel(), len(q.ops)-len(q.freeOps)
	if busy == 0 {
		level = slog.LevelDebug // nobody waits; the session says why, if it ended too
	}
	q.device.cfg.Log.Log(context.Background(), level, "connection lost", "conn", q.index, "requests", busy, "error", err)
	for i := range q.slots {
		q.dropOwn(&q.slots[i].own)
	}
	if q.device.keeper != nil {
		q.depart()
		return
	}
	q.abandon()
}

// abandon fails all requests.
func (q *Queue) abandon() {
	for i := range q.ops {
		if o := &q.ops[i]; o.request != nil {
			o.err = syscall.EIO
			q.finish(uint16(i))
		}
	}
	q.waiting.clear()
}

// Err returns why the queue has no connection, or nil.
func (q *Queue) Err() error { return q.failure }

// Close ends the connection and releases everything. What was sent is executed by then,
// unless the target does not answer for as long as to connect may take; it can not touch
// the memory of requests any more. What was not sent is forgotten.
func (q *Queue) Close() error {
	q.linger()
	q.stay()
	q.logout()
	q.carrier.Disconnect()
	q.publish()
	q.device.forget(q)
	return q.release()
}

// lingerLook is how long linger sleeps at most.
const lingerLook = 50 * time.Millisecond

// linger waits for the answers to what is under way, so that nothing of it is executed
// later; a target that does not answer is not waited for longer than to connect may
// take.
func (q *Queue) linger() {
	q.waiting.clear() // what is not under way never will be
	for until := time.Now().Add(q.device.cfg.Timeout); q.failure == nil && q.busy() && time.Now().Before(until); {
		q.progress()
		if q.failure == nil && q.busy() && q.carrier.Arm() {
			sleepOn(q.carrier.FD(), lingerLook)
		}
	}
}

// busy reports whether a command has no answer.
func (q *Queue) busy() bool {
	for i := range q.slots {
		if q.slots[i].busy {
			return true
		}
	}
	return false
}

// logout says goodbye, so that the target does not take the end for a failure.
// The answer is not awaited: the disconnect that follows needs none.
func (q *Queue) logout() {
	if q.failure == nil && !q.busy() {
		_ = sendControl(q.carrier, &wire.Logout{ID: 1, PathEpoch: pathEpoch})
		q.carrier.Doorbell()
	}
}

func (q *Queue) release() error {
	var err error
	if q.pool != nil {
		for i := range q.slots {
			q.dropOwn(&q.slots[i].own)
		}
		for i := range q.reserved {
			if q.reserved[i].Data != nil {
				q.pool.Put(q.reserved[i])
			}
		}
		err = errors.Join(q.pool.Close(), q.device.memory.withdraw(q.carrier.Tag()))
	}
	return errors.Join(err, q.carrier.Close())
}
