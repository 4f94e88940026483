package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/takeover"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/reserve"
	"github.com/viablk/viablk/via"
)

// targetHosts are the names of the target's host, one for each path.
var targetHosts = []string{"target", "target by another path"}

// targetSide is the target's host with the processes that serve the disk.
type targetSide struct {
	world   *World
	lives   int            // so far; after a takeover that failed a target has another one
	begun   int            // processes so far
	serving *targetProcess // that serves the disk, or did last
	other   *targetProcess // that takes over or was taken over, or was the last to; may be nil
}

// targetProcess is a process that serves the disk, or takes it over.
type targetProcess struct {
	side    *targetSide
	process *Process
	files   *descriptors
	disk    *disk
	ended   bool

	life    int
	told    *sched.Event  // to end; nil: it does not serve
	limit   time.Duration // of its drain
	restart time.Duration // after its end another one starts, unless it has a successor
	leaving departing
}

// departing is what a process has for its successor.
type departing struct {
	to   *takeover.Successor // nil: it has none
	kept []takeover.Item
}

// door is a listener with what the network knows of it.
type door struct {
	*via.Listener
	*listening
}

// alive reports whether the process has not ended.
func (x *targetProcess) alive() bool { return x != nil && !x.process.dead && !x.ended }

// inService reports whether the process serves, and has not been told to end.
func (x *targetProcess) inService() bool { return x.alive() && x.told != nil && !x.told.IsSet() }

// steady reports whether one process serves the disk, and there is no other.
func (t *targetSide) steady() bool {
	return t.serving.inService() && !t.serving.process.stopped && !t.other.alive()
}

// pick returns one of the processes.
func (t *targetSide) pick(f Fault) *targetProcess {
	if t.other.alive() && f.Pick&1 == 0 {
		return t.other
	}
	return t.serving
}

// gone reports whether no process is left.
func (t *targetSide) gone() bool {
	for _, x := range []*targetProcess{t.serving, t.other} {
		if x.alive() || x != nil && x.process.alive() > 0 {
			return false
		}
	}
	return true
}

// newProcess returns a process that does nothing yet.
func (t *targetSide) newProcess() *targetProcess {
	t.begun++
	p := t.world.scheduler.newProcess(fmt.Sprintf("target %d", t.begun))
	return &targetProcess{side: t, process: p, files: newDescriptors(p)}
}

// start starts a process that serves the disk, unless one is there.
func (t *targetSide) start() {
	if t.serving.alive() || t.other.alive() {
		return
	}
	t.serving = t.newProcess()
	t.serving.start(nil)
}

// start starts the process with what it goes on with.
func (x *targetProcess) start(from *takeover.Inheritance) {
	p, s := x.process, x.side.world.scheduler
	p.Go(func() {
		if err := takeover.Serve(from, x.serve); err != nil {
			s.fail("%s: %v", p.name, err)
		}
		x.ended = true
		x.files.closeAll()
		if x.leaving.to == nil {
			s.After(x.restart, x.side.start)
		}
	})
}

// serve serves until the process is told to end.
func (x *targetProcess) serve(from *takeover.Inheritance) (*takeover.Departure, error) {
	w, p := x.side.world, x.process
	x.told, x.leaving = nil, departing{}
	if err := from.Receive(); err != nil {
		return nil, err
	}
	x.side.lives++
	x.life = x.side.lives
	disk, err := x.open(from)
	if err != nil {
		return nil, err
	}
	x.disk = disk
	nic, err := via.OpenNic(w.network.newAdapter(p, targetHosts[0]), "")
	if err != nil {
		return nil, err
	}
	nic.ErrorCallback(func(via.AsyncError) {})
	reserved := reserve.New(disk, p)
	faces, err := x.listen(nic, target.Export{Name: "disk", Device: disk, Reservations: reserved})
	if err != nil {
		return nil, err
	}
	if err := from.Opened(); err != nil {
		return nil, err
	}
	x.begins(from)
	if err := x.untilEnd(faces, from); err != nil {
		return nil, err
	}
	_ = disk.Close() // fails if the disk does
	if clients := reserved.Clients(); len(clients) > 0 {
		return nil, fmt.Errorf("reservations remain: %v", clients)
	}
	if err := nic.Close(); err != nil || x.leaving.to == nil {
		return nil, err
	}
	return &takeover.Departure{Successor: x.leaving.to, Kept: x.leaving.kept, Log: w.logOf(p)}, nil
}

// face is a server with the listeners that it serves.
type face struct {
	*target.Server
	doors []*door
}

// listen listens at the host by each path, with one server for all or for each.
func (x *targetProcess) listen(nic *via.NIC, export target.Export) (faces []*face, err error) {
	w, p := x.side.world, x.process
	cfg := target.Config{
		NIC: nic, Exports: []target.Export{export},
		Depth: w.plan.Depth, InlineMax: w.plan.Inline, MaxIO: 64 << 10, PoolBytes: 128 << 10,
		KeepAlive: w.plan.Keepalive, BusyPoll: -1, Log: w.log(p), Scheduler: p, Random: w.ids,
	}
	if w.plan.Servers > 1 {
		if cfg.Sessions, err = target.NewSessions(w.ids); err != nil {
			return nil, err
		}
	}
	for range w.plan.Servers {
		server, err := target.New(cfg)
		if err != nil {
			return nil, err
		}
		faces = append(faces, &face{Server: server})
	}
	for i, host := range targetHosts[:w.plan.Hosts] {
		f := faces[i%len(faces)]
		l, err := f.Listen(host)
		if err != nil {
			return nil, err
		}
		f.doors = append(f.doors, &door{l, w.network.hosts[host]})
	}
	return faces, nil
}

// begins notes that the process serves from now on.
func (x *targetProcess) begins(from *takeover.Inheritance) {
	t := x.side
	c := &t.world.counts
	switch {
	case from.Resumes():
		c.FailedTakeovers++
	case from.Ended():
		c.Orphans++
	case from != nil:
		c.Takeovers++
	}
	x.told = x.process.NewEvent()
	x.limit = drainLimit
	if t.serving != x {
		t.serving, t.other = x, t.serving
	}
	t.world.referee.drained.serves(x.life)
}

// untilEnd serves until the process is told to end and its clients have left.
func (x *targetProcess) untilEnd(faces []*face, from *takeover.Inheritance) (err error) {
	p := x.process
	ctx, cut := p.WithCancel(context.Background())
	ended, left := p.NewEvent(), len(faces)
	for _, f := range faces {
		p.Go(func() {
			err = errors.Join(err, f.ServeRequests(ctx, func(ctx context.Context) (*via.ConnRequest, error) { return x.nextRequest(ctx, f.doors) }))
			if left--; left == 0 {
				ended.Set()
			}
		})
	}
	from.Serving()
	from.Close()
	p.Wait(context.Background(), -1, x.told)
	if x.drain(faces) { // else clients stayed
		x.side.world.referee.drained.endsInOrder(x.life)
	}
	cut()
	if x.leaving.to == nil {
		p.Wait(context.Background(), -1, ended)
		return err
	}
	if p.Wait(context.Background(), endTimeout, ended); !ended.IsSet() {
		x.abandon()
	}
	return err
}

// drain drains all servers at the same time. It reports whether all clients
// have left.
func (x *targetProcess) drain(faces []*face) bool {
	p := x.process
	within, cancel := p.WithTimeout(context.Background(), x.limit)
	defer cancel()
	drained, left, empty := p.NewEvent(), len(faces), true
	for _, f := range faces {
		if x.leaving.to != nil {
			f.AnnounceSuccessor()
		}
	}
	for _, f := range faces {
		p.Go(func() {
			if f.Drain(within) != nil {
				empty = false
			}
			if left--; left == 0 {
				drained.Set()
			}
		})
	}
	p.Wait(context.Background(), -1, drained)
	return empty
}

// nextRequest waits for a request at a door. At the end of ctx the doors close.
func (x *targetProcess) nextRequest(ctx context.Context, doors []*door) (*via.ConnRequest, error) {
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
			for _, d := range doors {
				err = errors.Join(err, d.Listener.Close())
			}
			return nil, err
		}
		x.process.scheduler.block(-1, waits...)
	}
}

// endTimeout is how long a process that drained for a successor waits for
// requests that it has cut off, and exitTime how long its end takes at most.
const (
	endTimeout = 50 * time.Millisecond
	exitTime   = 200 * time.Millisecond
)

// abandon ends a process whose requests stay in the disk.
func (x *targetProcess) abandon() {
	w := x.side.world
	w.counts.Unfinished++
	_ = x.leaving.to.GiveUnfinished(x.leaving.kept) // it may have ended
	w.after(between(w.medium.random, 0, exitTime), func() {
		x.kill()
		w.after(exitTime, x.side.start)
	})
	w.scheduler.block(-1)
}

// kill kills the process.
func (x *targetProcess) kill() {
	if x != nil {
		x.process.resume()
		x.process.kill()
	}
}

// kill kills all processes of the host.
func (t *targetSide) kill() {
	t.serving.kill()
	t.other.kill()
}

// drainLimit is how long a target waits for its clients to leave.
const drainLimit = 2 * time.Second

// drain ends the process in order. Another one starts later.
func (t *targetSide) drain(after time.Duration) {
	if x := t.serving; x.inService() && !t.other.alive() {
		x.restart = after
		x.told.Set()
	}
}
