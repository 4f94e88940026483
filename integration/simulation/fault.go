package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"
)

// Kind is what a fault is.
type Kind int

// The faults.
const (
	KillTarget  Kind = iota // killed, and another process serves the disk
	Reboot                  // the target's machine, with the disk's cache
	Replace                 // killed, and another disk is served under the name
	Drain                   // the target ends in order, and another one begins
	Takeover                // another one takes over from the target
	StopTarget              // stopped, and continues
	CatchTarget             // likewise, inside its next copy
	KillClient              // killed, and begins again
	StopClient              // stopped, and continues
	CatchClient             // likewise, inside its next copy
	Cut                     // nothing passes between a client and the target, on one path
	Flap                    // likewise, again and again
	Break                   // the connections of a client
	BreakOne                // one connection of a client
	Stuck                   // the disk answers nothing
	Full                    // writes find no room
	Broken                  // the disk fails requests
	kinds
)

var kindNames = [kinds]string{
	"kill target", "reboot target", "replace disk", "drain target", "take over", "stop target", "stop target inside a copy",
	"kill client", "stop client", "stop client inside a copy", "cut", "flapping path", "break connections", "break a connection",
	"stuck disk", "full disk", "failing disk",
}

// String names the kind.
func (k Kind) String() string { return kindNames[k] }

// Fault is something that happens to a part of a run.
type Fault struct {
	Kind   Kind
	After  int           // it happens when so many requests have begun,
	Delay  time.Duration // and this time has passed
	Lasts  time.Duration
	Client int
	Pick   uint32 // of connections
}

// String describes the fault.
func (f Fault) String() string {
	switch f.Kind {
	case KillClient, StopClient, CatchClient, Cut, Flap, Break, BreakOne:
		return fmt.Sprintf("%v after %d requests for %v: %v, client %d", f.Delay, f.After, f.Lasts, f.Kind, f.Client)
	}
	return fmt.Sprintf("%v after %d requests for %v: %v", f.Delay, f.After, f.Lasts, f.Kind)
}

// swarm returns the kinds of faults of a run: few, each of which then happens
// often, all, or none. Faults of all kinds together hide each other: few
// requests come as far as most bugs.
func swarm(r *rand.Rand, shared bool) []Kind {
	var some []Kind
	switch r.IntN(8) {
	case 0:
	case 1:
		for k := range kinds {
			some = append(some, k)
		}
	case 2, 3:
		return append(some, Break, BreakOne) // requests in flight are sent twice
	case 4:
		if shared {
			some = append(some, CatchTarget, CatchTarget) // memory of others is in use
		}
		fallthrough
	default:
		for range 1 + r.IntN(3) {
			some = append(some, Kind(r.IntN(int(kinds))))
		}
	}
	return some
}

// most is how often at most faults happen that end devices for good.
const most = 3

// faults returns the faults of a run with about so many requests, in the order
// in which they happen.
func faults(r *rand.Rand, clients, requests int, shared bool) []Fault {
	some := swarm(r, shared)
	if len(some) == 0 {
		return nil
	}
	var list []Fault
	thousands := max(requests/1000, 1)
	within := [...]int{30, 250, 1000}[r.IntN(3)] * thousands
	span := [...]time.Duration{time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}
	ends := 0
	for range [...]int{1, 2, 4, 8, 16}[r.IntN(5)] * thousands {
		f := Fault{
			Kind: some[r.IntN(len(some))], After: r.IntN(within), Delay: between(r, 0, span[r.IntN(2)]),
			Lasts: between(r, 0, span[r.IntN(4)]), Client: r.IntN(clients), Pick: r.Uint32(),
		}
		if k := len(list); k > 0 && r.IntN(3) == 0 { // during the one before, or soon after it
			f.After, f.Delay = list[k-1].After, list[k-1].Delay+between(r, 0, span[r.IntN(3)])
		}
		if (f.Kind == Cut || f.Kind == Flap) && shared {
			f.Kind = CatchTarget
		}
		if f.Kind == Replace || f.Kind == Broken {
			if ends++; ends > most {
				f.Kind = KillTarget
			}
		}
		if f.Kind == CatchTarget || f.Kind == CatchClient {
			f.Lasts = [...]time.Duration{f.Lasts, between(r, 2*time.Second, 6*time.Second)}[r.IntN(2)]
		}
		list = append(list, f)
	}
	slices.SortStableFunc(list, func(a, b Fault) int { return a.After - b.After })
	return list
}

// progress records that a request begins, and lets what depends on it happen.
func (w *World) progress() {
	w.begun++
	for len(w.faults) > 0 && w.faults[0].After <= w.begun {
		f := w.faults[0]
		w.faults = w.faults[1:]
		w.after(f.Delay, func() { w.inflict(f) })
	}
	for _, c := range w.clients {
		if c.process == nil && c.Begins <= w.begun {
			c.start()
		}
	}
}

// after calls f later. The run does not end before.
func (w *World) after(d time.Duration, f func()) {
	w.pending++
	w.scheduler.After(d, func() {
		w.pending--
		f()
	})
}

// inflict lets a fault happen, and its end be planned.
func (w *World) inflict(f Fault) {
	w.referee.disturbed = true
	switch f.Kind {
	case KillClient, StopClient, CatchClient, Break, BreakOne:
		if w.clients[f.Client].process == nil {
			return // not begun
		}
	}
	s, t := w.scheduler, &w.target
	later := func(end func()) { w.after(f.Lasts, end) }
	switch f.Kind {
	case KillTarget:
		t.pick(f).kill()
		later(t.start)
	case Reboot:
		t.kill()
		w.medium.reboot()
		w.referee.rebooted(w.medium)
		later(t.start)
	case Replace:
		t.kill()
		w.medium = w.medium.copyOf(uint64(f.Pick))
		w.referee.replaced(w.medium)
		later(t.start)
	case Drain:
		t.drain(f.Lasts)
	case Takeover:
		t.startSuccessor(f)
	case StopTarget:
		w.stop(t.pick(f).process, f.Lasts)
	case CatchTarget:
		w.catch(t.pick(f).process, f.Lasts)
	case KillClient:
		c := w.clients[f.Client]
		c.kill()
		later(c.start)
	case StopClient:
		w.stop(w.clients[f.Client].process, f.Lasts)
	case CatchClient:
		w.catch(w.clients[f.Client].process, f.Lasts)
	case Cut:
		w.cut(f, f.Lasts)
	case Flap:
		for at := time.Duration(0); at < max(f.Lasts, flapInterval); at += flapInterval {
			w.after(at, func() { w.cut(f, flapInterval/2) })
		}
	case Break, BreakOne:
		w.breakLinks(w.clients[f.Client].adapter, f)
	case Stuck:
		w.medium.stuck = s.now + f.Lasts
	case Full:
		m := w.medium
		m.full, w.referee.wasFull = true, true
		later(func() { m.full = false })
	case Broken:
		m := w.medium
		m.failed, w.referee.hasFailed = syscall.EIO, true
		later(func() { m.failed = 0 })
	}
}

// flapInterval is from one cut of a flapping path to the next.
const flapInterval = 100 * time.Millisecond

// cut cuts a path of a client for a time.
func (w *World) cut(f Fault, d time.Duration) {
	host := targetHosts[int(f.Pick)%w.plan.Hosts]
	if p := w.network.path(host, w.clients[f.Client].host); !p.cut {
		p.cut = true
		w.after(d, p.mend)
	}
}

// pathFaults adds cuts of paths, some of which hold messages up for long.
func pathFaults(r *rand.Rand, clients, requests int, list []Fault) []Fault {
	for range 1 + r.IntN([...]int{8, 8, 32}[r.IntN(3)]) {
		list = append(list, Fault{
			Kind: [...]Kind{Cut, Cut, Cut, Flap, BreakOne}[r.IntN(5)], After: r.IntN(max(requests, 1)), Delay: between(r, 0, 20*time.Millisecond),
			Lasts:  [...]time.Duration{between(r, 0, time.Second), between(r, 500*time.Millisecond, 3*time.Second), 10 * time.Second}[r.IntN(3)],
			Client: r.IntN(clients), Pick: r.Uint32(),
		})
	}
	slices.SortStableFunc(list, func(a, b Fault) int { return a.After - b.After })
	return list
}

// takeovers adds takeovers: to faults of other kinds, or alone.
func takeovers(r *rand.Rand, p *Plan, requests int) {
	if r.IntN(3) != 0 {
		return
	}
	if r.IntN(2) == 0 {
		p.Faults = nil
	}
	for range 1 + r.IntN(4) {
		p.Faults = append(p.Faults, Fault{
			Kind: Takeover, After: r.IntN(max(requests, 1)), Delay: between(r, 0, 20*time.Millisecond),
			Lasts: [...]time.Duration{5 * time.Millisecond, 100 * time.Millisecond, drainLimit}[r.IntN(3)], Pick: r.Uint32(),
		})
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return a.After - b.After })
}

// stop stops a process for a time.
func (w *World) stop(p *Process, d time.Duration) {
	if p == nil || p.dead || p.stopped {
		return
	}
	p.pause()
	w.after(d, p.resume)
}

// catch stops a process inside its next copy.
func (w *World) catch(p *Process, d time.Duration) {
	w.network.catch = p
	w.network.caught = func() { w.stop(p, d) }
}

// breakLinks breaks connections of a client. The ends notice independently.
func (w *World) breakLinks(a *adapter, f Fault) {
	links := a.links
	if f.Kind == BreakOne && len(links) > 0 {
		i := int(f.Pick) % len(links)
		links = links[i : i+1]
	}
	for _, l := range links {
		for _, end := range [2]*link{l, l.peer} {
			w.scheduler.After(between(w.network.random, 0, 20*time.Millisecond), func() { end.lose(errCut) })
		}
	}
}
