package simulation

import (
	"context"
	"slices"
	"time"
)

// scope is a context of the simulation. Contexts of the context package may lie
// between two scopes: they end with their parent at once, without a goroutine,
// because a scope has the method AfterFunc.
type scope struct {
	context.Context // the parent
	process         *Process
	deadline        time.Time
	timed           bool // has a deadline
	timer           *timer
	done            chan struct{}
	err             error
	waiting         waiters
	after           []*afterFunc
	unlink          func() bool // from the parent
}

// afterFunc is called when its scope ends.
type afterFunc struct{ call func() }

// scopeKey finds the nearest scope of a context.
type scopeKey struct{}

// scopeOf returns the nearest scope of a context, or nil.
func scopeOf(ctx context.Context) *scope {
	c, _ := ctx.Value(scopeKey{}).(*scope)
	return c
}

// newScope returns a context that ends with its parent.
func (p *Process) newScope(parent context.Context) *scope {
	c := &scope{Context: parent, process: p, done: make(chan struct{})}
	if above := scopeOf(parent); above != nil {
		c.unlink = above.AfterFunc(func() { c.end(above.err) })
	}
	return c
}

// end ends the context and what depends on it, once.
func (c *scope) end(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	close(c.done)
	s := c.process.scheduler
	s.timers.unset(c.timer)
	if c.unlink != nil {
		c.unlink()
	}
	after := c.after
	c.after = nil
	for _, f := range after {
		f.call()
	}
	c.waiting.wake(s)
}

// Deadline implements [context.Context], as do Done, Err and Value.
func (c *scope) Deadline() (time.Time, bool) {
	if c.timed {
		return c.deadline, true
	}
	return c.Context.Deadline()
}

// Done returns a channel that is closed when the context ends.
func (c *scope) Done() <-chan struct{} { return c.done }

// Err returns why the context has ended.
func (c *scope) Err() error { return c.err }

// Value finds the scope itself and what its parents have.
func (c *scope) Value(key any) any {
	if _, ok := key.(scopeKey); ok {
		return c
	}
	return c.Context.Value(key)
}

// AfterFunc calls f when the context ends, on the task that ends it. The
// context package finds this method.
func (c *scope) AfterFunc(f func()) (stop func() bool) {
	if c.err != nil {
		f()
		return func() bool { return false }
	}
	entry := &afterFunc{f}
	c.after = append(c.after, entry)
	return func() bool {
		i := slices.Index(c.after, entry)
		if i < 0 {
			return false
		}
		c.after = slices.Delete(c.after, i, i+1)
		return true
	}
}
