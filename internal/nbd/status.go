package nbd

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/latency"
)

// Counters are sums since the server started. They lag behind by less than 64
// batches of a busy connection and are exact when it is idle.
type Counters struct {
	Reads        uint64 `json:"reads"`         // requests answered, by command
	Writes       uint64 `json:"writes"`        //
	Flushes      uint64 `json:"flushes"`       //
	Trims        uint64 `json:"trims"`         //
	WriteZeroes  uint64 `json:"write_zeroes"`  //
	Caches       uint64 `json:"caches"`        //
	BlockStatus  uint64 `json:"block_status"`  //
	Others       uint64 `json:"others"`        // commands that the server does not have
	Errors       uint64 `json:"errors"`        // of these, answered with an error
	Waits        uint64 `json:"waits"`         // of these, that waited for memory or the queue
	BytesRead    uint64 `json:"bytes_read"`    // payload sent
	BytesWritten uint64 `json:"bytes_written"` // payload received and stored
	Receives     uint64 `json:"receives"`      // system calls that received something
	Sends        uint64 `json:"sends"`         // system calls that sent something
	Sleeps       uint64 `json:"sleeps"`        // times a connection went to sleep
	Yields       uint64 `json:"yields"`        // times it passed through the Go scheduler before
	Syscalls     uint64 `json:"syscalls"`      // system calls, with those that found nothing, and sleeps
	IdleReleases uint64 `json:"idle_releases"` // times an idle connection released its buffers
	BusyPolls    uint64 `json:"busy_polls"`    // busy-poll attempts
	PollHits     uint64 `json:"poll_hits"`     // attempts that found work
	BusyPollTime uint64 `json:"busy_poll_ns"`  // ns that the attempts took
}

// ExportStatus is what clients did on one export.
type ExportStatus struct {
	Name        string `json:"name"`
	Connections int    `json:"connections"` // now
	Counters

	// Latency is how long requests took; nil without any.
	Latency *latency.Status `json:"latency,omitempty"`
}

// ConnectionStatus is a connection that is open.
type ConnectionStatus struct {
	ID         string    `json:"id"`                 // 16 hexadecimal digits
	Client     string    `json:"client"`             // address, as far as it has one
	Identity   string    `json:"identity,omitempty"` // as the kernel or a certificate proves it
	Export     string    `json:"export,omitempty"`   // empty during the handshake too
	InExport   bool      `json:"in_export"`          // the handshake has ended
	Kernel     bool      `json:"kernel"`             // the client is the kernel, for a device
	Since      time.Time `json:"since"`
	LastActive time.Time `json:"last_active,omitzero"` // of the last request
	InFlight   int       `json:"in_flight"`            // requests in the disk
	Counters
}

// Status is a snapshot of a server.
type Status struct {
	Draining    bool               `json:"draining"`
	Accepted    uint64             `json:"accepted"`   // connections
	Refused     uint64             `json:"refused"`    // clients over a limit, or while draining
	Dropped     uint64             `json:"dropped"`    // handshakes closed for newer ones
	Panics      uint64             `json:"panics"`     // each ended one connection
	Handshakes  int                `json:"handshakes"` // now; they are among the connections
	Admitted    int                `json:"admitted"`   // connections that count towards the limit
	Limit       int                `json:"limit"`      // of admitted connections
	InFlight    int                `json:"in_flight"`  // requests in disks
	Total       Counters           `json:"total"`
	Exports     []ExportStatus     `json:"exports"`     // that were entered, by name
	Connections []ConnectionStatus `json:"connections"` // by age
}

// Status returns a snapshot.
func (s *Server) Status() Status {
	status, latencies := s.snapshot()
	status.Limit = s.effectiveLimits().Connections
	for i := range status.Exports {
		x := &status.Exports[i]
		x.Latency = latencies[x.Name].Read()
	}
	return status
}

// snapshot returns the status without latencies, and those by export.
func (s *Server) snapshot() (Status, map[string]*latency.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	latencies := make(map[string]*latency.Set, len(s.exports))
	status := Status{
		Draining:   s.draining.Load(),
		Accepted:   s.accepted,
		Refused:    s.refused,
		Dropped:    s.dropped,
		Panics:     s.panics.Load(),
		Handshakes: s.admission.handshakes,
		Admitted:   s.admission.admitted,
		Exports:    []ExportStatus{},

		Connections: []ConnectionStatus{},
	}
	sums := make(map[*exportCounters]counterSet, len(s.exports))
	for c := range s.conns {
		var counts counterSet
		if c.published != nil {
			counts = c.published.load()
		}
		status.Connections = append(status.Connections, c.statusLocked(&counts))
		status.InFlight += int(c.inFlight.Load())
		if c.counters != nil {
			sum := sums[c.counters]
			sum.add(&counts)
			sums[c.counters] = sum
		}
	}
	s.forgetExportsLocked()
	total := s.forgotten
	for name, x := range s.exports {
		sum := sums[x]
		sum.add(&x.retired)
		total.add(&sum)
		status.Exports = append(status.Exports,
			ExportStatus{Name: name, Connections: x.connections, Counters: sum.counters()})
		latencies[name] = &x.latency
	}
	status.Total = total.counters()
	slices.SortFunc(status.Exports, func(a, b ExportStatus) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(status.Connections, func(a, b ConnectionStatus) int { return a.Since.Compare(b.Since) })
	return status, latencies
}

// statusLocked describes the connection. The caller holds Server.mu.
func (c *conn) statusLocked(counts *counterSet) ConnectionStatus {
	if c.counters != nil && c.name == "" {
		c.name = c.identity.String()
	}
	st := ConnectionStatus{
		ID: c.idText(), Client: c.remote, Identity: c.name, Export: c.export, InExport: c.counters != nil,
		Kernel: c.kernel, Since: c.since, InFlight: int(c.inFlight.Load()), Counters: counts.counters(),
	}
	if ns := c.active.Load(); ns != 0 {
		st.LastActive = time.Unix(0, ns)
	}
	return st
}

// idText returns the ID of the connection as text.
func (c *conn) idText() string { return fmt.Sprintf("%016x", c.id) }

// forgetExportsLocked forgets the exports that are none any more and have no
// connection, but for the sum of their counts.
//
// +checklocks:s.mu
func (s *Server) forgetExportsLocked() {
	if s.Exports == nil {
		return
	}
	for name, x := range s.exports {
		if x.connections > 0 {
			continue
		}
		if _, err := s.Exports.Export(name); err != nil {
			s.forgotten.add(&x.retired)
			delete(s.exports, name)
		}
	}
}

// exportCounters are what a server keeps of an export, guarded by Server.mu.
type exportCounters struct {
	connections int        // in the export now
	retired     counterSet // of connections that left

	latency latency.Set // has a lock of its own
}

// The counters by index.
const (
	countReads = iota
	countWrites
	countFlushes
	countTrims
	countWriteZeroes
	countCaches
	countStatuses
	countOthers
	countErrors
	countWaits
	countBytesRead
	countBytesWritten
	countReceives
	countSends
	countSleeps
	countYields
	countSyscalls
	countIdleReleases
	countBusyPolls
	countPollHits
	countBusyPollTime
	counterCount
)

// counterSet is a set of counters with one owner.
type counterSet [counterCount]uint64

func (t *counterSet) add(o *counterSet) {
	for i := range t {
		t[i] += o[i]
	}
}

// requests returns how many requests the counters are of.
func (t *counterSet) requests() (n uint64) {
	for _, of := range t[countReads : countOthers+1] {
		n += of
	}
	return n
}

// counters names the counts.
func (t *counterSet) counters() Counters {
	return Counters{
		Reads:        t[countReads],
		Writes:       t[countWrites],
		Flushes:      t[countFlushes],
		Trims:        t[countTrims],
		WriteZeroes:  t[countWriteZeroes],
		Caches:       t[countCaches],
		BlockStatus:  t[countStatuses],
		Others:       t[countOthers],
		Errors:       t[countErrors],
		Waits:        t[countWaits],
		BytesRead:    t[countBytesRead],
		BytesWritten: t[countBytesWritten],
		Receives:     t[countReceives],
		Sends:        t[countSends],
		Sleeps:       t[countSleeps],
		Yields:       t[countYields],
		Syscalls:     t[countSyscalls],
		IdleReleases: t[countIdleReleases],
		BusyPolls:    t[countBusyPolls],
		PollHits:     t[countPollHits],
		BusyPollTime: t[countBusyPollTime],
	}
}

// publishedCounters is a counter set that one goroutine writes and any may
// read. Its counters are not consistent with each other.
type publishedCounters [counterCount]atomic.Uint64

// store publishes t, and reports whether a request was counted. Only what
// changed is written: an atomic store costs more than the comparison.
func (p *publishedCounters) store(t *counterSet) (requests bool) {
	for i := range t {
		if p[i].Load() != t[i] {
			p[i].Store(t[i])
			requests = requests || i <= countOthers
		}
	}
	return requests
}

func (p *publishedCounters) load() (t counterSet) {
	for i := range p {
		t[i] = p[i].Load()
	}
	return t
}
