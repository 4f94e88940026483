package initiator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// Queue is a queue of a remote disk: a VIA connection with its slots and its
// bounce pool. It implements the device contract's Queue; one goroutine drives
// it.
//
// Each part has an owner, whose methods touch that part only; the Queue joins
// them. Other goroutines read what is below the line; a redialer, while it
// runs, has the carrier.
type Queue struct {
	device  *Device
	session *session // of the connection, or of the last one
	path    *path    // of the session; likewise
	carrier *carrier.Carrier
	export  uint16

	requests  requestTable // from Submit to Reap
	slots     slotTable    // commands and credits
	payload   payload      // memory
	poster    poster       // the doorbell
	keepalive keepalive    // silence of the target
	heard     uint64       // messages on the control connection, at the last interval
	reconnect reconnectState
	bell      sched.Bell // wakes an owner without a connection; nil without a reconnector
	failure   error      // the connection is lost; requests fail, or wait
	done      [64]via.Completion

	active                             bool // inFlight as the owner knows it
	moving                             bool // no command is sent, until it has another path
	armed                              bool // and not awake since
	iterations                         uint32
	sleeps, waitsForCredit, reconnects uint64
	credited                           uint64 // requests that are counted at a path
	// ────────
	index     uint16 // of the connection in its session
	written   writeCounter
	inFlight  atomic.Bool // a command is unanswered; see reconnector.awaitAnswers
	published publishedStats
}

// openQueue opens an I/O connection and allocates its memory, at the given try.
func openQueue(d *Device, s *session, index uint16, depth, try int) (*Queue, error) {
	cfg := &d.cfg
	p := s.pathFor(index)
	if p == nil {
		return nil, errLost
	}
	ctx, cancel := cfg.Scheduler.WithTimeout(context.Background(), cfg.attemptTime(try-1))
	defer cancel()
	commands := depth
	if cfg.Depth > 0 {
		commands = min(commands, cfg.Depth)
	}
	c, answer, err := p.connect(ctx, wire.RoleIO, index, commands)
	if err != nil {
		return nil, err
	}
	q := &Queue{
		device: d, carrier: c, index: index, export: s.export.Export,
		payload: payload{quarantine: &d.quarantine}, requests: newRequestTable(depth, d.ranges), poster: poster{carrier: c}, reconnect: reconnectState{over: d.reconnector == nil},
	}
	q.usePath(p)
	if err := q.equip(&answer, commands); err != nil {
		return nil, errors.Join(err, q.release())
	}
	return q, nil
}

// accept applies the login response to the queue.
func (q *Queue) accept(a *wire.LoginResponse, commands int) error {
	n := int(a.Credits)
	if n == 0 || n > commands || int(a.SlotCount) < n {
		return fmt.Errorf("the target grants %d credits and %d slots, asked for were %d", a.Credits, a.SlotCount, commands)
	}
	a.InlineMax = min(a.InlineMax, uint32(q.device.cfg.firstReceives()))
	if q.carrier.Sealed() {
		a.MaxIO = min(a.MaxIO, seal.MaxPayload)
		a.Features &^= wire.FeatureImmediate // which any peer of the fabric could send
	}
	if a.Digest != wire.DigestNone {
		a.Features &^= wire.FeatureImmediate // which has no checksum
	}
	l, err := newLimits(a, q.device.info.MinimumBlock)
	if err != nil {
		return err
	}
	q.payload.limits, q.poster.immediates = l, l.immediates
	q.slots.grant(n, a.SlotBase)
	q.keepalive = newKeepalive(q.device.cfg.Scheduler, time.Duration(a.KeepAliveMillis)*time.Millisecond, q.path.since)
	return nil
}

// equip allocates the memory of the queue. The queue registers nothing after
// it.
func (q *Queue) equip(a *wire.LoginResponse, commands int) error {
	if err := q.accept(a, commands); err != nil {
		return err
	}
	if q.device.reconnector != nil {
		var err error
		if q.bell, err = q.device.cfg.Scheduler.NewBell(); err != nil {
			return err
		}
	}
	n := len(q.slots.slots)
	data, head := max(int(q.payload.limits.inline), loginData), wire.MaxHeader
	if q.carrier.Sealed() {
		tags := seal.TagsSize(q.payload.limits.maxIO)
		data, head = max(data, tags), head+max(int(q.payload.limits.inline), tags)
		for i := range q.slots.slots {
			q.slots.slots[i].protection = new(protection)
		}
	}
	if err := q.carrier.AddReceives(n+reservedReceives, data); err != nil {
		return err
	}
	if err := q.carrier.AddSends(n+reservedSends, head); err != nil {
		return err
	}
	return q.payload.equip(&q.device.cfg, &q.device.memory, q.carrier.Tag())
}

// FD returns the file descriptor to sleep on after Arm. That of the carrier is
// the redialer's while the queue has no connection.
func (q *Queue) FD() int {
	if q.failure != nil && q.bell != nil {
		return q.bell.FD()
	}
	return q.carrier.FD()
}

// FDVersion implements [block.Reopener]: a connection that is restored has
// another completion queue.
func (q *Queue) FDVersion() uint64 { return q.reconnects }

// Arm prepares the queue for the owner's sleep.
func (q *Queue) Arm() (time.Duration, bool) { return q.arm((*carrier.Carrier).Arm) }

// ArmEdge implements [block.EdgeArmer].
func (q *Queue) ArmEdge() (d time.Duration, edges, ok bool) {
	d, ok = q.arm((*carrier.Carrier).ArmEdge)
	return d, q.failure == nil && q.carrier.Edges(), ok
}

// Source implements [block.Sharer].
func (q *Queue) Source() loop.Source {
	if q.failure != nil {
		return nil
	}
	return q.carrier
}

func (q *Queue) arm(carrierArm func(*carrier.Carrier) bool) (time.Duration, bool) {
	q.publish()
	if q.failure != nil {
		return q.armDisconnected()
	}
	q.Kick() // commands that a Release resumed
	o := q.requests.overlaps
	if !q.requests.finished.Empty() || o.granted.Load() != 0 {
		return 0, false
	}
	if q.poster.leaving && !q.slots.busy() {
		return q.payload.poll(o.poll(-1), q.requests.held), true
	}
	d, ok := q.keepalive.wait()
	if !ok || !carrierArm(q.carrier) {
		return 0, false
	}
	q.sleeps++
	q.armed = true
	return q.payload.poll(o.poll(d), q.requests.held), true
}

// disarm ends the sleep of an armed queue.
func (q *Queue) disarm() {
	if q.armed {
		q.armed = false
		q.carrier.Disarm()
	}
}

// Kick rings the doorbell for the staged commands.
func (q *Queue) Kick() { q.poster.kick() }

// Reap returns completed requests and drives the queue.
func (q *Queue) Reap(dst []*block.Request) int {
	q.drive()
	return q.requests.reap(dst)
}

// drive handles what has arrived.
func (q *Queue) drive() {
	defer q.contain()
	if len(q.payload.detained) != 0 {
		q.releaseDetained()
	}
	if q.failure != nil && !q.reconnect.over {
		q.pollReconnect()
	}
	if q.failure != nil {
		q.admit()
		return
	}
	q.progress() // also of one that is back: it may hold ranges now that it waited for
}

// fail ends the connection. When it returns, the target accesses no memory of
// the queue any more but what is in quarantine, and every request fails with
// EIO or waits: for a reconnect, or for its memory.
func (q *Queue) fail(err error) {
	if q.failure != nil {
		return
	}
	q.armed = false // the carrier is the redialer's from here on
	q.failure, q.poster.staged = err, false
	q.quarantine(q.carrier.Disconnect())
	q.requests.overlaps.setBell(q.bell)
	level, busy := q.device.cfg.lossLevel(), q.requests.inFlight()
	if busy == 0 || err == errMoves {
		level = slog.LevelDebug // no request waits; a lost session logs why
	}
	q.device.cfg.Log.Log(context.Background(), level, "connection lost", "event", "connection_lost", "conn", q.index, "requests", busy, "error", err)
	q.payload.releaseAll(q.slots.slots)
	q.setActive(false)
	q.path.queues.Add(-1)
	if q.poster.leaving {
		q.reconnect.over = true
	}
	if q.reconnect.over {
		q.requests.abandon()
		return
	}
	q.requests.requeue()
	if q.path.removeConnection(q.carrier.VI()); err != errMoves {
		q.path.lose()
	}
	q.reconnect.begin(&redialer{
		device: q.device, carrier: q.carrier, bell: q.bell, lost: q.path, moving: q.moving && err == errMoves, index: q.index,
		slots: len(q.slots.slots), limits: q.payload.limits, kept: q.slots.kept(),
	}, q.device.cfg.LossTimeout)
}

// Err returns why the queue has no connection, or nil.
func (q *Queue) Err() error { return q.failure }

// Abort drops the requests that were not sent, and logs out: the target drops
// the commands that it has not begun, and answers all. A request of several
// commands of which some were dropped fails with EIO.
func (q *Queue) Abort() {
	if q.failure != nil {
		q.requests.abandon() // the target may have executed them
		return
	}
	q.requests.discardUnsent()
	q.poster.logOut()
}

// closePoll is the longest sleep of Close.
const closePoll = 50 * time.Millisecond

// Close aborts, ends the connection and releases the queue. The target has
// executed or dropped every command by then, unless it did not answer within
// Config.Timeout; it cannot access the memory of requests any more. Close
// returns within Config.Timeout, and the time in which the NIC ends a
// connection.
//
// An error that wraps via.ErrStillAccessed says that the target is stopped amid
// a copy, and that the memory of requests in flight must not be used again.
// Memory of Reserve is not affected.
func (q *Queue) Close() error {
	q.requests.waiting.Clear()
	q.requests.overlaps.end()
	scheduler := q.device.cfg.Scheduler
	polls := []unix.PollFd{{Fd: int32(q.carrier.FD()), Events: unix.POLLIN}}
	if q.failure == nil {
		q.poster.logOut()
	}
	until := scheduler.Now().Add(q.device.cfg.Timeout)
	for q.failure == nil && q.slots.busy() && scheduler.Now().Before(until) {
		q.drive()
		if q.failure == nil && q.slots.busy() && q.carrier.Arm() {
			_ = scheduler.Poll(polls, closePoll)
		}
	}
	q.quarantine(q.reconnect.stop())
	q.quarantine(q.carrier.Disconnect())
	err := q.awaitDetained(until)
	q.requests.overlaps.releaseAll()
	q.publish()
	err = errors.Join(err, q.release())
	q.device.forget(q) // last: without queues the device has no region of theirs
	return err
}

// release frees the queue's memory and the connection.
func (q *Queue) release() error {
	q.path.removeConnection(q.carrier.VI())
	if q.failure == nil {
		q.path.queues.Add(-1)
		q.setActive(false)
	}
	var err error
	if q.payload.pool != nil {
		err = errors.Join(q.payload.close(q.slots.slots), q.device.memory.invalidateTag(q.carrier.Tag()))
	}
	if q.bell != nil {
		err = errors.Join(err, q.bell.Close())
	}
	return errors.Join(err, q.carrier.Close())
}

// Reserve provides memory that payload leaves without a further copy.
func (q *Queue) Reserve(r *block.Request) bool { return q.payload.reserve(r) }

// Release frees the memory that Reserve provided. A receive that held data is
// posted again, so that there is one for every command in flight.
func (q *Queue) Release(r *block.Request) {
	m := r.Memory
	if m == 0 {
		return
	}
	r.Memory, r.Data = 0, nil
	i := uint32(m & reservedIndex)
	switch {
	case m&reservedPool != 0:
		q.payload.release(i)
	case m&reservedHeld != 0:
		receive, ok := q.slots.releaseHeld(uint16(i), q.failure == nil)
		if !ok {
			return
		}
		if err := q.carrier.Post(q.carrier.Receive(receive)); err != nil {
			q.fail(err)
			return
		}
		q.slots.release(uint16(i))
	default:
		return
	}
	q.resume()
}
