package initiator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// path is the way of a session over one host address of its target: a control
// connection, and the connections of queues that name its number and epoch. A
// path that is lost does not return: one of a greater epoch takes its place.
type path struct {
	s     *session
	id    uint16
	host  string
	epoch uint32
	since time.Time // of the login

	quit   *sched.Event // routineControl is to end
	ended  *sched.Event // routineControl has ended
	lost   *sched.Event // a connection of the path is lost
	fenced *sched.Event // no request of the lost path executes any more

	heard  atomic.Uint64 // messages on the control connection
	queues atomic.Int64  // with a connection over the path
	active atomic.Int64  // of these, with commands in flight

	mu sync.Mutex
	// +checklocks:mu
	requests []*exchange // that routineControl has not sent, in order
	// +checklocks:mu
	bell sched.Bell // ends a sleep of routineControl; nil once closed
	// +checklocks:mu
	cause error
	// +checklocks:mu
	connections map[*via.VI]struct{} // all of the path, also I/O
}

// firstEpoch is that of the control connection that begins a session. Those of
// a greater epoch join it.
const firstEpoch = 1

// newPath returns a path of a session to a host, without a connection.
func (s *session) newPath(id uint16, host string, epoch uint32) *path {
	sch := s.cfg.Scheduler
	return &path{
		s: s, id: id, host: host, epoch: epoch,
		quit: sch.NewEvent(), ended: sch.NewEvent(), lost: sch.NewEvent(), fenced: sch.NewEvent(),
	}
}

// start connects the control connection, logs in and starts routineControl.
func (p *path) start(ctx context.Context) error {
	sch := p.s.cfg.Scheduler
	bell, err := sch.NewBell()
	if err != nil {
		return err
	}
	c, a, err := p.connect(ctx, wire.RoleControl, 0, 0)
	if err != nil {
		return errors.Join(err, bell.Close())
	}
	p.since = sch.Now()
	p.setBell(bell)
	interval := time.Duration(a.KeepAliveMillis) * time.Millisecond
	if err := p.s.addPath(p, &a); err != nil {
		return errors.Join(err, c.Close(), p.setBell(nil).Close())
	}
	sch.Go(func() { p.routineControl(c, bell, interval) })
	return nil
}

// exchange is a control request with its answer.
type exchange struct {
	ask      wire.Message
	answered *sched.Event
	answer   []byte // set before answered
}

// request sends a control request through routineControl and decodes the
// answer.
func (p *path) request(ctx context.Context, q, answer wire.Message) error {
	x := &exchange{ask: q, answered: p.s.cfg.Scheduler.NewEvent()}
	p.mu.Lock()
	p.requests = append(p.requests, x)
	p.mu.Unlock()
	p.wakeControl()
	p.s.cfg.Scheduler.Wait(ctx, -1, x.answered, p.ended)
	ended := p.ended.IsSet()
	switch {
	case x.answered.IsSet(): // perhaps before the path ended
		return decodeAnswer(x.answer, answer)
	case ended:
		return p.err()
	}
	p.mu.Lock()
	p.requests = slices.DeleteFunc(p.requests, func(other *exchange) bool { return other == x })
	p.mu.Unlock()
	return context.Cause(ctx)
}

// nextRequest takes a request from the list, or returns nil.
func (p *path) nextRequest() *exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.requests) == 0 {
		return nil
	}
	x := p.requests[0]
	p.requests = p.requests[1:]
	return x
}

// wakeControl wakes routineControl.
func (p *path) wakeControl() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bell != nil {
		p.bell.Ring()
	}
}

// setBell sets the bell that wakeControl rings, and returns the one before.
func (p *path) setBell(b sched.Bell) (old sched.Bell) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, p.bell = p.bell, b
	return old
}

// addConnection lets the control connection know of a connection.
func (p *path) addConnection(vi *via.VI) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.connections == nil {
		p.connections = make(map[*via.VI]struct{})
	}
	p.connections[vi] = struct{}{}
}

// removeConnection undoes addConnection.
func (p *path) removeConnection(vi *via.VI) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.connections, vi)
}

// life changes when a packet on any connection of the path shows that the
// target is alive: on a slow link, payload holds up the control connection.
func (p *path) life() (n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for vi := range p.connections {
		n += vi.Life()
	}
	return n
}

// err returns why the path ended.
func (p *path) err() error {
	if !p.ended.IsSet() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause == nil {
		return errSession
	}
	return p.cause
}

// up reports whether connections of the path are of use.
func (p *path) up() bool { return !p.lost.IsSet() && !p.ended.IsSet() }

// lose gives the path up because one of its connections is lost. A session
// without another path is lost with it.
func (p *path) lose() {
	p.lost.Set()
	if p.s.choose(p.id) == nil {
		p.s.lost.Set()
	}
}

// close ends routineControl and waits until it has released the control
// connection.
func (p *path) close() error {
	p.quit.Set()
	p.wakeControl()
	p.s.cfg.Scheduler.Wait(context.Background(), -1, p.ended)
	if b := p.setBell(nil); b != nil {
		return b.Close()
	}
	return nil
}
