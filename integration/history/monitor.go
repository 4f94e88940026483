package history

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Anomaly is operations of a block that no order explains: as few as prove it.
type Anomaly struct {
	Block      int64
	Reason     string
	Operations []Operation

	// Behind is how many operations the monitor had when it was found.
	Behind int
}

// Error implements error.
func (a *Anomaly) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "block %d is not linearizable: %s", a.Block, a.Reason)
	for _, o := range a.Operations {
		fmt.Fprintf(&b, "\n\tclient %d: %v, from %v to ", o.Client, o, time.Duration(o.Call))
		if end := o.end(); end == never {
			b.WriteString("any time")
		} else {
			b.WriteString(time.Duration(end).String())
		}
	}
	return b.String()
}

// History is the operations as a history, to check again or to save.
func (a *Anomaly) History() *History {
	h := New()
	h.Add(a.Operations...)
	return h
}

// reported is how many anomalies a monitor keeps.
const reported = 100

// Monitor checks operations as they come, in memory that does not grow with
// their number. It is safe for concurrent use.
type Monitor struct {
	began time.Time

	mu sync.Mutex
	// +checklocks:mu
	calls map[int]int64 // of the requests in flight, by client
	// +checklocks:mu
	blocks map[int64]*zones
	// +checklocks:mu
	operations int
	// +checklocks:mu
	lost int // writes
	// +checklocks:mu
	anomalies int
	// +checklocks:mu
	found []*Anomaly
}

// NewMonitor begins a history of a new disk.
func NewMonitor() *Monitor {
	return &Monitor{began: time.Now(), calls: make(map[int]int64), blocks: make(map[int64]*zones)}
}

// Now implements [Recorder].
func (m *Monitor) Now() int64 { return int64(time.Since(m.began)) }

// Begin implements [Recorder].
func (m *Monitor) Begin(client int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[client] = m.Now()
	return m.calls[client]
}

// End implements [Recorder].
func (m *Monitor) End(client int, operations ...Operation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.calls, client)
	m.operations += len(operations)
	for _, o := range operations {
		if o.Lost {
			m.lost++
		}
		z := m.blocks[o.Block]
		if z == nil {
			z = newZones()
			m.blocks[o.Block] = z
		}
		m.report(o.Block, z.add(o))
		if z.due() {
			m.report(o.Block, z.check(m.horizon()))
		}
	}
}

// horizon is the time behind which all operations begin that are to come.
//
// +checklocks:m.mu
func (m *Monitor) horizon() int64 {
	from := m.Now()
	for _, call := range m.calls {
		from = min(from, call)
	}
	return from
}

// report counts anomalies and keeps the first of them.
//
// +checklocks:m.mu
func (m *Monitor) report(block int64, found []anomaly) {
	for _, a := range found {
		if m.anomalies++; len(m.found) < reported {
			x := &Anomaly{Block: block, Reason: a.reason, Behind: m.operations}
			for _, c := range a.clusters {
				x.Operations = append(x.Operations, c.proof()...)
			}
			m.found = append(m.found, x)
		}
	}
}

// ExpireLost says that writes that are lost so far can no longer take effect:
// the clients that sent them have lost the disk for good.
func (m *Monitor) ExpireLost() {
	m.mu.Lock()
	defer m.mu.Unlock()
	until := m.Now()
	for _, z := range m.blocks {
		z.expireLost(until)
	}
}

// Counts are the operations that a monitor checked.
type Counts struct {
	Operations, Lost, Anomalies int
}

// Counts returns what the monitor counted so far. Anomalies may be behind.
func (m *Monitor) Counts() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Counts{m.operations, m.lost, m.anomalies}
}

// Finish checks what is left, with no request in flight, and returns the first
// anomalies.
func (m *Monitor) Finish() []*Anomaly {
	m.mu.Lock()
	defer m.mu.Unlock()
	for block, z := range m.blocks {
		m.report(block, z.check(never))
	}
	return m.found
}
