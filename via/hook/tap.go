package hook

import (
	"context"

	"github.com/viablk/viablk/via"
)

// tap is what a decorator adds. Calls about a link and its queues come from the
// goroutine that drives them, the others from any.
type tap interface {
	opened(a *adapter) error
	released(a *adapter)                      // after its Close
	usable(a *adapter) error                  // before anything is made; an error fails it
	register(a *adapter, m *via.Memory) error // before; an error fails it
	registered(a *adapter, m *via.Memory)
	updated(a *adapter, m *via.Memory)
	deregistered(a *adapter, m *via.Memory)
	queued(a *adapter, q *queue) error
	unqueued(q *queue)                              // before its Close
	connect(ctx context.Context, host string) error // before; an error fails it
	configure(cfg *via.LinkConfig)                  // before Connect and Accept
	linked(l *link)
	offer(l *link, w *via.Work) bool // before a post; false: no room
	posted(l *link, t *ticket, w *via.Work)
	refused(l *link, w *via.Work)
	rung(l *link)
	poll(q *queue, dst []via.Done) int
	arm(q *queue) bool
	closed(l *link)
}

// passive is a tap that adds nothing.
type passive struct{}

func (passive) opened(*adapter) error                 { return nil }
func (passive) released(*adapter)                     {}
func (passive) usable(*adapter) error                 { return nil }
func (passive) register(*adapter, *via.Memory) error  { return nil }
func (passive) registered(*adapter, *via.Memory)      {}
func (passive) updated(*adapter, *via.Memory)         {}
func (passive) deregistered(*adapter, *via.Memory)    {}
func (passive) queued(*adapter, *queue) error         { return nil }
func (passive) unqueued(*queue)                       {}
func (passive) connect(context.Context, string) error { return nil }
func (passive) configure(*via.LinkConfig)             {}
func (passive) linked(*link)                          {}
func (passive) offer(*link, *via.Work) bool           { return true }
func (passive) posted(*link, *ticket, *via.Work)      {}
func (passive) refused(*link, *via.Work)              {}
func (passive) rung(*link)                            {}
func (passive) poll(q *queue, dst []via.Done) int     { return q.AdapterCQ.Poll(dst) }
func (passive) arm(q *queue) bool                     { return q.AdapterCQ.Arm() }
func (passive) closed(*link)                          {}
