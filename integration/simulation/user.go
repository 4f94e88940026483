package simulation

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/sched"
)

// user is a task that drives a queue of a device.
type user struct {
	client  *client
	process *Process
	device  *initiator.Device
	record  *deviceRecord
	quota   *int // requests that the users of the device may still make
	queue   block.Queue
	// reserves says that the queue provides the memory of all requests, and none
	// otherwise. It provides that of some, mixed, if all of them fit its memory:
	// else one that has memory may wait for the range of one that has none, and
	// the other way round.
	reserves bool
	mixed    bool
	flights  []*flight
	flying   int
	kept     *flight       // has no memory yet
	next     time.Duration // when a request that is ready is submitted; never: none
	ended    *sched.Event
}

// flight is the place of a request.
type flight struct {
	request   block.Request
	operation operation
	local     []byte // memory of the client's
	busy      bool
	ready     bool          // has its payload
	from      time.Duration // when it may be submitted
}

// run makes requests until there are enough, or the device is lost.
func (u *user) run() {
	defer u.ended.Set()
	c, p := u.client, u.process
	if c.random.IntN(2) == 0 {
		p.Wait(context.Background(), between(c.random, 0, 10*time.Millisecond))
	}
	for {
		q, err := u.device.NewQueue(c.Depth)
		if err == nil {
			u.queue = q
			break
		}
		if u.device.Err() != nil || *u.quota <= 0 {
			return
		}
		p.Wait(context.Background(), retry)
	}
	u.reserves = c.random.IntN(2) == 0
	u.mixed = 2*c.Depth*c.Longest*blockSize <= c.world.plan.Pool && c.random.IntN(2) == 0
	u.flights = make([]*flight, c.Depth)
	for i := range u.flights {
		u.flights[i] = new(flight)
		if u.mixed || !u.reserves {
			u.flights[i].local = p.scheduler.runner.memory.get(c.Longest * blockSize)
		}
	}
	var done [16]*block.Request
	for {
		u.submit()
		n := u.queue.Reap(done[:])
		for _, r := range done[:n] {
			u.finish(u.flights[r.User])
		}
		switch {
		case n > 0:
			if c.Idle > 0 && c.random.IntN(16) == 0 {
				p.Wait(context.Background(), between(c.random, 0, c.Idle))
			}
			continue
		case u.flying == 0 && (*u.quota <= 0 || u.device.Err() != nil):
		case c.random.IntN(c.Leaves) == 0: // leaves with requests in flight
			*u.quota = 0
		default:
			if d, ok := u.queue.Arm(); ok {
				if u.next != never {
					if left := max(u.next-p.scheduler.now, 0); d < 0 || left < d {
						d = left
					}
				}
				_ = p.Poll([]unix.PollFd{{Fd: int32(u.queue.FD()), Events: unix.POLLIN}}, d)
			} else {
				p.spins()
			}
			continue
		}
		break
	}
	for _, f := range u.flights {
		if f.ready {
			u.queue.Release(&f.request)
		}
	}
	c.bounded("close a queue", u.queue.Close)
	for _, f := range u.flights {
		p.scheduler.runner.memory.put(f.local)
	}
}

// submit fills the queue.
func (u *user) submit() {
	u.next = never
	for i, f := range u.flights {
		if *u.quota <= 0 || u.device.Err() != nil {
			break
		}
		if f.busy {
			continue
		}
		if !f.ready && (u.kept != nil && u.kept != f || !u.prepare(f)) {
			continue // others may be ready, and free memory
		}
		if f.ready = f.from > u.process.scheduler.now; f.ready {
			u.next = min(u.next, f.from)
			continue
		}
		f.request.User = uint64(i)
		u.client.world.referee.begin(&f.operation, u.record, &f.request)
		if !u.queue.Submit(&f.request) {
			u.process.scheduler.fail("%s: a queue of depth %d takes no request beside %d", u.process.name, u.client.Depth, u.flying)
			return
		}
		f.busy = true
		u.flying++
		*u.quota--
		u.client.left--
		u.client.world.progress()
	}
	u.queue.Kick()
}

// prepare chooses a request. It returns false if there is no memory for it.
func (u *user) prepare(f *flight) bool {
	c := u.client
	r := c.random
	q := &f.request
	if u.kept != f {
		length := 1 + r.IntN(c.Longest)
		*q = block.Request{Op: block.Read, Length: int64(min(length, c.world.plan.Blocks)) * blockSize}
		switch k := r.IntN(100); {
		case c.ReadOnly || k < 40:
		case k < 88:
			q.Op = block.Write
		case k < 92:
			q.Op = block.WriteZeroes
		case k < 94:
			q.Op = block.Trim
		default:
			q.Op, q.Length = block.Flush, 0
		}
		if q.Length > 0 {
			q.Offset = blockSize * r.Int64N(int64(c.world.plan.Blocks)-q.Length/blockSize+1)
		}
		if q.Op != block.Read && q.Op != block.Flush && r.IntN(8) == 0 {
			q.Flags = block.FUA
		}
	}
	u.kept, f.from = nil, 0
	if u.mixed {
		u.reserves = r.IntN(2) == 0
	}
	if q.Op != block.Read && q.Op != block.Write {
		return true
	}
	if !u.reserves {
		q.Data = f.local[:q.Length]
	} else if !u.queue.Reserve(q) {
		u.kept = f
		return false
	}
	if q.Op == block.Write {
		if r.IntN(16) == 0 { // payload lies there for some time
			f.from = u.process.scheduler.now + between(r, 0, [...]time.Duration{time.Millisecond, 4 * time.Second}[r.IntN(8)/7])
		}
		for at := int64(0); at < q.Length; at += blockSize {
			c.writes++
			newTag((q.Offset+at)/blockSize, u.record.number, c.writes).fill(q.Data[at:])
		}
	}
	return true
}

// finish takes an answer.
func (u *user) finish(f *flight) {
	u.client.world.referee.end(&f.operation)
	u.queue.Release(&f.request)
	f.request.Data = nil
	f.busy = false
	u.flying--
}
