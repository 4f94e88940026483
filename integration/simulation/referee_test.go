package simulation

import (
	"errors"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// match is a referee with a device that writes.
type match struct {
	*Referee
	device *deviceRecord
}

func newMatch(t *testing.T) *match {
	m := &match{Referee: newReferee(newScheduler(newRunner(t), 1), 1)}
	m.disturbed = true // by a fault
	m.device = m.attach()
	return m
}

// attach attaches another device.
func (m *match) attach() *deviceRecord {
	d := m.opening(true, true)
	m.attached(d, false)
	return d
}

// begins begins a request of a device, a moment later.
func (m *match) begins(d *deviceRecord, op block.Op) *operation {
	m.scheduler.now += time.Microsecond
	q := &block.Request{Op: op}
	if op == block.Write {
		q.Data, q.Length = make([]byte, blockSize), blockSize
		newTag(0, d.number, 1).fill(q.Data)
	}
	o := new(operation)
	m.begin(o, d, q)
	return o
}

// answers ends a request, a moment later.
func (m *match) answers(o *operation) {
	m.scheduler.now += time.Microsecond
	m.end(o)
}

// TestFlushes: after a flush that failed a flush succeeds if and only if the
// disk has flushed all that its device was answered before, and never after
// another client preempted the device.
func TestFlushes(t *testing.T) {
	cases := map[string]struct {
		wrong bool
		play  func(*match)
	}{
		"executed before": {false, func(m *match) {
			m.answers(m.begins(m.device, block.Write))
			f := m.begins(m.device, block.Flush)
			m.flushing()
			m.lost(nil)
			m.answers(f)
		}},
		"executed after": {true, func(m *match) {
			m.answers(m.begins(m.device, block.Write))
			f := m.begins(m.device, block.Flush)
			m.lost(nil)
			m.answers(f)
		}},
		"begun before the write": {false, func(m *match) {
			f := m.begins(m.device, block.Flush)
			m.answers(m.begins(m.device, block.Write))
			m.lost(nil)
			m.answers(f)
		}},
		"begun after the loss": {true, func(m *match) {
			m.answers(m.begins(m.device, block.Write))
			m.lost(nil)
			m.answered = nil // as after a reboot
			m.answers(m.begins(m.device, block.Flush))
		}},
		"of a later device": {false, func(m *match) {
			m.answers(m.begins(m.device, block.Write))
			m.lost(nil)
			m.device.closed = true
			m.answers(m.begins(m.attach(), block.Flush))
		}},
		"of a device that came after its preemptor": {false, func(m *match) {
			d := m.opening(true, true)
			later := m.attach()
			m.attached(d, true) // its process was stopped
			m.answers(m.begins(later, block.Flush))
		}},
		"of a device that was preempted": {true, func(m *match) {
			m.scheduler.now++
			m.attached(m.opening(true, true), true)
			m.answers(m.begins(m.device, block.Flush))
		}},
		"refused with writes after the loss": {false, func(m *match) {
			m.lost(nil)
			m.answers(m.begins(m.device, block.Write))
			m.refused(m.device, errors.New("the verifier differs"))
		}},
		"refused without a write": {true, func(m *match) {
			m.lost(nil)
			m.refused(m.device, errors.New("the verifier differs"))
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := newMatch(t)
			c.play(m)
			if err := m.scheduler.failure; (err != nil) != c.wrong {
				t.Errorf("the referee says %v", err)
			}
		})
	}
}
