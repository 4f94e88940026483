package nemesis

import (
	"syscall"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// fault is something that happens to the disk, and what makes it good.
type fault struct {
	name  string
	kills int // of processes
	do    func()
}

// period is how long a fault lasts.
type period struct{ least, most time.Duration }

// A brief fault is over before the peers have noticed; after a long one they
// have given each other up.
var (
	brief = period{0, 30 * time.Millisecond}
	long  = period{300 * time.Millisecond, 600 * time.Millisecond}
)

// pass lets a period pass.
func (r *run) pass(p period) {
	time.Sleep(p.least + time.Duration(r.random.Int64N(int64(p.most-p.least))))
}

// deck is the faults of the setup. Each happens once, in any order, then again.
func (r *run) deck() []fault {
	all := []fault{
		{"initiator killed", 1, r.replaceAttach},
		{"initiator stopped briefly", 0, func() { r.pause(r.attach, brief) }},
		{"initiator stopped", 0, func() { r.pause(r.attach, long) }},
		{"target stopped briefly", 0, func() { r.pause(r.target, brief) }},
		{"target stopped", 0, func() { r.pause(r.target, long) }},
		{"initiator killed while the target is stopped", 1, func() {
			r.target.Signal(syscall.SIGSTOP)
			r.crashAttach()
			r.pass(long)
			r.target.Signal(syscall.SIGCONT)
			r.attachAgain()
		}},
	}
	if r.Memory {
		all = append(all, fault{"initiator killed", 1, r.replaceAttach}, fault{"initiator killed", 1, r.replaceAttach})
	} else {
		all = append(all, r.lethal()...)
	}
	for _, n := range r.Network {
		during := func(p period) func() {
			return func() {
				end := n.Begin()
				defer end()
				r.pass(p)
			}
		}
		all = append(all, fault{n.Name + " briefly", 0, during(brief)}, fault{n.Name, 0, during(long)})
	}
	return all
}

// lethal is the faults that end the target.
func (r *run) lethal() []fault {
	killed := fault{"target killed", 1, func() {
		r.crashTarget()
		r.startTarget()
	}}
	drained := fault{"target drained", 0, func() {
		r.target.Stop()
		r.startTarget()
	}}
	return []fault{
		killed, killed, killed, killed, drained, drained,
		{"target killed while it returns", 2, func() {
			r.crashTarget()
			r.startTarget()
			r.pass(brief)
			r.crashTarget()
			r.startTarget()
		}},
		{"target killed while it is stopped", 1, func() {
			r.target.Signal(syscall.SIGSTOP)
			r.pass(long)
			r.crashTarget()
			r.startTarget()
		}},
		{"target and initiator killed", 2, func() {
			r.crashTarget()
			r.crashAttach()
			r.startTarget()
			r.attachAgain()
		}},
	}
}

// replaceAttach kills the initiator and starts another one.
func (r *run) replaceAttach() {
	r.crashAttach()
	r.attachAgain()
}

// pause stops a process for a time.
func (r *run) pause(p *testbed.Process, time period) {
	p.Signal(syscall.SIGSTOP)
	defer p.Signal(syscall.SIGCONT)
	r.pass(time)
}
