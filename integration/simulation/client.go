package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/via"
)

// client is an initiator's host with its process.
type client struct {
	Client
	world    *World
	number   int
	host     string
	random   *rand.Rand
	process  *Process
	adapter  *adapter
	life     int
	left     int // requests to make
	attempts int // to attach the disk, that failed in a row
	device   *deviceRecord
	writes   uint64
}

// closeLimit is how long a Close may take: the target may be away, and the
// client waits for it a bounded time.
const closeLimit = 30 * time.Second

func newClient(w *World, number int, c Client) *client {
	return &client{
		Client: c, world: w, number: number, host: fmt.Sprintf("client%d", number), left: c.Requests,
		random: rand.New(rand.NewPCG(w.plan.Seed, 100+uint64(number))),
	}
}

// start starts the process.
func (c *client) start() {
	if c.process != nil && !c.process.dead {
		return
	}
	w := c.world
	c.life++
	c.process = w.scheduler.newProcess(fmt.Sprintf("client %d.%d", c.number, c.life))
	c.adapter = w.network.newAdapter(c.process, c.host)
	p := c.process
	p.Go(func() {
		nic, err := via.OpenNic(c.adapter, "")
		if err == nil {
			nic.ErrorCallback(func(via.AsyncError) {})
			for c.left > 0 {
				c.session(p, nic)
			}
			err = nic.Close()
		}
		if err != nil {
			w.scheduler.fail("%s: %v", p.name, err)
		}
	})
}

// log returns the log of the client's process.
func (c *client) log(p *Process) *slog.Logger {
	o := &observer{world: c.world, client: c}
	if l := c.world.log(p); l != nil {
		o.next = l.Handler()
	}
	return slog.New(o)
}

// kill kills the process.
func (c *client) kill() {
	if c.process == nil || c.process.dead {
		return
	}
	c.process.resume()
	c.process.kill()
	if c.device != nil {
		c.device.closed = true
	}
}

// retry is the time between two attempts to attach the disk; from one to the
// next it doubles, up to so many times.
const (
	retry   = 20 * time.Millisecond
	doubles = 4
)

// session attaches the disk, uses it, and leaves.
func (c *client) session(p *Process, nic *via.NIC) {
	w := c.world
	if c.Preempts {
		w.referee.preempting(c.Alone)
	}
	c.device = w.referee.opening(!c.ReadOnly, c.Timeout == initiator.Forever)
	c.device.alone, c.device.reopens, c.device.preempts = c.Alone, c.Reopens, c.Preempts
	conflict := initiator.ConflictFail
	if c.Reopens {
		conflict = initiator.ConflictReopen
	}
	d, err := initiator.Dial(context.Background(), initiator.Config{
		NIC: nic, Host: targetHosts[0], OtherHosts: targetHosts[1:w.plan.Hosts], PathPolicy: c.Policy, Export: "disk", ReadOnly: c.ReadOnly, Exclusive: c.Alone, Preempt: c.Preempts, OnConflict: conflict,
		Timeout: 3 * time.Second, LossTimeout: c.Timeout, ReconnectDelay: 200 * time.Millisecond,
		CopyMode: "bounce", PoolBytes: w.plan.Pool, Chunk: 8 << 10, Digest: c.Digest,
		Scheduler: p, Random: w.ids, Log: c.log(p),
	})
	if err != nil {
		c.device.closed = true
		if l := w.log(p); l != nil {
			l.Info("not attached", "error", err)
		}
		p.Wait(context.Background(), retry<<min(c.attempts, doubles))
		c.attempts++
		return
	}
	c.attempts = 0
	w.referee.attached(c.device, c.Preempts)
	quota := min(c.left, c.Session)
	running := make([]*user, c.Queues)
	for i := range running {
		running[i] = &user{client: c, process: p, device: d, record: c.device, quota: &quota, ended: p.NewEvent()}
		p.Go(running[i].run)
	}
	for _, u := range running {
		p.Wait(context.Background(), -1, u.ended)
	}
	if err := d.Err(); err != nil {
		w.referee.refused(c.device, err)
	}
	c.device.leaving = true
	c.bounded("close the device", d.Close)
	c.device.closed = true
	c.device = nil
}

// bounded calls a Close and checks that it ends in time.
func (c *client) bounded(what string, f func() error) {
	s := c.world.scheduler
	before := s.now
	if err := f(); err != nil && !c.world.referee.disturbed {
		s.fail("client %d: %s: %v", c.number, what, err)
	}
	if spent := s.now - before; spent > closeLimit {
		s.fail("client %d: %s took %v", c.number, what, spent)
	}
}
