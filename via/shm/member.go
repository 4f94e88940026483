package shm

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/internal/eventfd"
)

// member is the place of a link in one of its queues.
type member struct {
	cq        *cq
	link      *link
	watchedAt int // in cq.watched, -1 outside it; the driver of cq owns it
	// +checklocks:cq.binding
	asked bool // the peer was asked for a ready log
	// +checklocks:cq.alerts.mu
	alerted bool // cq.alerts holds it
}

// alert makes the driver of the queue look at the link. Any goroutine may call
// it.
func (m *member) alert() {
	m.cq.alerts.add(m)
	eventfd.Ring(m.cq.wake)
}

// alerts is the list of links whose control agents changed state that the data
// path has to apply.
type alerts struct {
	some atomic.Bool
	mu   sync.Mutex
	// +checklocks:mu
	members []*member // each once
}

// add adds a link that is or will be bound to the queue.
//
// m.cq.alerts is a.
// +checklocksignore
func (a *alerts) add(m *member) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !m.alerted {
		m.alerted = true
		a.members = append(a.members, m)
		a.some.Store(true)
	}
}

// pop returns a link, or nil.
//
// m.cq.alerts is a for each member of a.
// +checklocksignore
func (a *alerts) pop() *link {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := len(a.members) - 1
	if last < 0 {
		a.some.Store(false)
		return nil
	}
	m := a.members[last]
	a.members[last] = nil
	a.members = a.members[:last]
	m.alerted = false
	return m.link
}

func (a *alerts) remove(m *member) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.members = slices.DeleteFunc(a.members, func(o *member) bool { return o == m })
}
