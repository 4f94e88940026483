package initiator

import (
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/sched"
)

// A panic while messages of a target are handled costs what they are about. On
// a control connection that is the session, which the reconnector replaces. A
// queue may be half changed: its requests fail, and so do later ones, until its
// owner opens another. Other queues and devices go on.

// guard runs f, and returns its panic as an error, which it logs.
func (c *Config) guard(text string, f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = c.caught(value, text)
		}
	}()
	return f()
}

// caught logs and counts a panic, where value is what recover returned. With
// another scheduler than sched.Real panics propagate: it may unwind goroutines
// by them, and a simulation reports each as a bug.
func (c *Config) caught(value any, text string, args ...any) error {
	if c.Scheduler != sched.Real {
		panic(value)
	}
	p := contain.Caught(value)
	p.Log(c.Log, text, args...)
	return p
}

// contain is deferred by what drives the queue. When it returns, the target
// accesses no memory of the queue any more. If the connection cannot be ended
// for another panic, that is the caller's.
func (q *Queue) contain() {
	value := recover()
	if value == nil {
		return
	}
	cause := q.device.cfg.caught(value, "panic: the connection ends, and requests of its queue fail with EIO", "conn", q.index)
	q.reconnect.over = true
	q.fail(cause)
	q.requests.abandon()
}
