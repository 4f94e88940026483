package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/reserve"
	"github.com/viablk/viablk/via"
)

// targetHosts are the names of the target's host, one for each path.
var targetHosts = []string{"target", "target by another path"}

// targetSide is the target's host with the process that serves the disk.
type targetSide struct {
	world    *World
	process  *Process
	life     int // processes so far
	disk     *disk
	server   *target.Server
	reserved *reserve.Disk
	end      context.CancelFunc // of the service; nil: it has not begun
	draining bool
	ended    bool
}

// door is a listener with what the network knows of it.
type door struct {
	*via.Listener
	*listening
}

// start starts a process that serves the disk, unless one does.
func (t *targetSide) start() {
	if t.process != nil && !t.process.dead && !t.ended {
		return
	}
	w := t.world
	t.life++
	w.referee.drained.serves(t.life)
	t.ended, t.draining, t.server, t.end = false, false, nil, nil
	t.process = w.scheduler.newProcess(fmt.Sprintf("target %d", t.life))
	p := t.process
	p.Go(func() {
		if err := t.serve(p); err != nil {
			w.scheduler.fail("%s: %v", p.name, err)
		}
	})
}

// serve is the process.
func (t *targetSide) serve(p *Process) error {
	w := t.world
	nic, err := via.OpenNic(w.network.newAdapter(p, targetHosts[0]), "")
	if err != nil {
		return err
	}
	nic.ErrorCallback(func(via.AsyncError) {})
	t.disk = openDisk(p, w.medium, w.referee)
	t.reserved = reserve.New(t.disk, p)
	t.server, err = target.New(target.Config{
		NIC: nic, Exports: []target.Export{{Name: "disk", Device: t.disk, Reservations: t.reserved}},
		Depth: w.plan.Depth, InlineMax: w.plan.Inline, MaxIO: 64 << 10, PoolBytes: 128 << 10,
		KeepAlive: w.plan.Keepalive, BusyPoll: -1, Log: w.log(p), Scheduler: p, Random: w.ids,
	})
	if err != nil {
		return err
	}
	ctx, cancel := p.WithCancel(context.Background())
	var doors []*door
	for _, host := range targetHosts[:w.plan.Hosts] {
		l, err := t.server.Listen(host)
		if err != nil {
			return err
		}
		doors = append(doors, &door{l, w.network.hosts[host]})
	}
	t.end = cancel
	err = t.server.ServeRequests(ctx, func(ctx context.Context) (*via.ConnRequest, error) {
		for {
			waits := []*waiters{&scopeOf(ctx).waiting}
			for _, d := range doors {
				if d.offered > 0 {
					d.offered--
					return d.Wait(context.Background()) // at once
				}
				waits = append(waits, &d.arrived)
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			w.scheduler.block(-1, waits...)
		}
	})
	for _, d := range doors {
		err = errors.Join(err, d.Listener.Close())
	}
	if err != nil {
		return err
	}
	_ = t.disk.Close() // fails if the disk does
	if clients := t.reserved.Clients(); len(clients) > 0 {
		return fmt.Errorf("reservations remain: %v", clients)
	}
	if err := nic.Close(); err != nil {
		return err
	}
	t.ended = true
	return nil
}

// kill kills the process.
func (t *targetSide) kill() {
	if t.process != nil {
		t.process.resume()
		t.process.kill()
	}
}

// drainLimit is how long a target waits for its clients to leave.
const drainLimit = 2 * time.Second

// drain ends the process in order and starts another one later.
func (t *targetSide) drain(after time.Duration) {
	p, s := t.process, t.world.scheduler
	if p == nil || p.dead || t.draining || t.end == nil {
		return
	}
	t.draining = true
	server, end, life := t.server, t.end, t.life
	p.Go(func() {
		ctx, cancel := p.WithTimeout(context.Background(), drainLimit)
		defer cancel()
		if server.Drain(ctx) == nil { // else clients stayed
			t.world.referee.drained.endsInOrder(life)
		}
		end()
		for !t.ended && t.life == life {
			p.Wait(context.Background(), time.Millisecond)
		}
		if t.life == life { // else another fault has started the next one
			s.After(after, t.start)
		}
	})
}
