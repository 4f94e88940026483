package initiator

import (
	"encoding/hex"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/regcache"
)

// QueueStats count the work of queues. The owner counts without atomics and
// publishes before it sleeps and every publishIterations iterations.
type QueueStats struct {
	block.Counts
	carrier.Traffic
	BytesBounced   uint64 `json:"bytes_bounced"` // copied between the caller's memory and the pool
	Errors         uint64 `json:"errors"`
	Sleeps         uint64 `json:"sleeps"` // each ends in a wake-up
	WaitsForMemory uint64 `json:"waits_for_memory"`
	WaitsForCredit uint64 `json:"waits_for_credit"`
	Reconnects     uint64 `json:"reconnects"` // connections that were restored

	// Choice counts the copy decisions for memory of the caller's.
	Choice regcache.ChoiceStats `json:"choice"`
}

// publishIterations is how many iterations of a busy queue pass between
// publications of its counters.
const publishIterations = 1024

func (s *QueueStats) add(o QueueStats) {
	s.Counts.Add(&o.Counts)
	s.Traffic.Add(&o.Traffic)
	s.BytesBounced += o.BytesBounced
	s.Errors += o.Errors
	s.Sleeps += o.Sleeps
	s.WaitsForMemory += o.WaitsForMemory
	s.WaitsForCredit += o.WaitsForCredit
	s.Reconnects += o.Reconnects
	s.Choice.Add(&o.Choice)
}

// publishedStats are the counters of a queue for other goroutines.
type publishedStats struct {
	mu sync.Mutex
	// +checklocks:mu
	stats QueueStats
	// +checklocks:mu
	write regcache.Boundary
	// +checklocks:mu
	read regcache.Boundary
	// +checklocks:mu
	generation uint64 // of keys; 0 in clear
}

// publish makes the owner's counters visible.
func (q *Queue) publish() {
	if q.reconnect.pending != nil {
		return // the connection is not the owner's
	}
	q.creditPath()
	stats := QueueStats{
		Counts: q.requests.counts, Traffic: q.carrier.Traffic(), BytesBounced: q.payload.bytesBounced, Errors: q.requests.errors,
		Sleeps: q.sleeps, WaitsForMemory: q.payload.waits, WaitsForCredit: q.waitsForCredit, Reconnects: q.reconnects,
	}
	var write, read regcache.Boundary
	if chooser := q.payload.chooser; chooser != nil {
		stats.Choice = chooser.Stats()
		write, read = chooser.Boundaries()
	}
	q.published.mu.Lock()
	defer q.published.mu.Unlock()
	q.published.stats, q.published.write, q.published.read = stats, write, read
	q.published.generation = q.carrier.Generation()
}

// State is what becomes of requests to an attached disk.
type State string

// The states. A disk that failed because the loss timeout passed is connected
// again when its target returns; otherwise it has failed for good.
const (
	StateConnected State = "connected" // the target answers them
	StateWaiting   State = "waiting"   // they wait for a lost target
	StateFailed    State = "failed"    // they fail with EIO
)

// Status describes an attached disk.
type Status struct {
	Export              string     `json:"export"`
	Description         string     `json:"description,omitempty"`
	UUID                string     `json:"uuid"`
	Size                int64      `json:"size"`
	ReadOnly            bool       `json:"read_only"`
	Provider            string     `json:"provider"`
	Target              string     `json:"target"` // its identity
	Session             string     `json:"session"`
	State               State      `json:"state"`
	Connected           bool       `json:"connected"`
	Error               string     `json:"error,omitempty"`                // why not
	DisconnectedSeconds float64    `json:"disconnected_seconds,omitempty"` // since the target was lost, while requests wait for it
	SessionLosses       uint64     `json:"session_losses"`                 // sessions that were lost
	InlineMax           uint32     `json:"inline_max"`                     // bytes
	MaxIO               uint32     `json:"max_io"`                         // bytes
	DataDigest          bool       `json:"data_digest"`                    // travels with payload
	Queues              int        `json:"queues"`
	Registrations       uint64     `json:"registrations"` // of memory, ever; steady state adds none
	Stats               QueueStats `json:"stats"`         // of all queues ever
	Copy                CopyStatus `json:"copy"`

	// Security is absent if the session is in clear.
	Security *SecurityStatus `json:"security,omitempty"`

	// Paths is absent if the target has one host.
	Paths []PathStatus `json:"paths,omitempty"`

	// Quarantine is absent if no memory has ever been in it.
	Quarantine *QuarantineStatus `json:"quarantine,omitempty"`
}

// CopyStatus describes how payload in memory of the caller's moves.
type CopyStatus struct {
	Mode        regcache.CopyMode     `json:"mode"`
	Off         string                `json:"off,omitempty"`         // why nothing is ever registered
	Calibration *regcache.Calibration `json:"calibration,omitempty"` // of the provider, at the start
	Write       regcache.Boundary     `json:"write_boundary"`        // bytes; of the queue that moved most
	Read        regcache.Boundary     `json:"read_boundary"`
	Cache       *regcache.Stats       `json:"cache,omitempty"` // absent if nothing is ever registered
}

// Status returns the disk's state and counters.
func (d *Device) Status() Status {
	s := d.session()
	st := Status{
		Export: d.export.Name, Description: d.export.Description, UUID: block.FormatUUID(d.export.ExportUUID),
		Size: d.Size(), ReadOnly: d.info.Features&block.ReadOnly != 0,
		Provider: s.cfg.NIC.Name(), Target: hex.EncodeToString(s.login.TargetID[:]), Session: hex.EncodeToString(s.id[:]),
		State: StateConnected, Connected: true, InlineMax: s.login.InlineMax, MaxIO: s.login.MaxIO, DataDigest: s.cfg.Digest,
		Registrations: s.cfg.NIC.Agent().Registrations.Load(),
	}
	if err := s.err(); err != nil {
		st.Connected, st.State, st.Error = false, StateFailed, err.Error()
		if d.reconnector != nil { // which has not seen it yet, or says more below
			st.State = StateWaiting
		}
	}
	if d.reconnector != nil {
		d.reconnector.addStatus(&st)
	}
	st.Copy, st.Security = d.memory.status(), s.security()
	if s.cfg.targets.several() {
		st.Paths = s.pathStatus()
	}
	if k := d.quarantine.current(); k.Total != 0 {
		st.Quarantine = &k
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	st.Stats.add(d.past)
	most := uint64(0)
	for _, q := range d.conns {
		if q == nil {
			continue
		}
		st.Queues++
		s, write, read := q.published.all()
		st.Stats.add(s)
		if st.Security != nil {
			st.Security.Generation = max(st.Security.Generation, q.published.latest())
		}
		if n := s.BytesRead + s.BytesWritten; n >= most {
			most, st.Copy.Write, st.Copy.Read = n, write, read
		}
	}
	return st
}

func (p *publishedStats) all() (s QueueStats, write, read regcache.Boundary) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats, p.write, p.read
}

// latest returns the generation of keys.
func (p *publishedStats) latest() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.generation
}

// status describes the memory; the boundaries are those of a new queue.
func (m *memory) status() CopyStatus {
	st := CopyStatus{Mode: m.mode, Off: m.off}
	if m.cache == nil {
		return st
	}
	s := m.cache.Stats()
	st.Cache = &s
	cost := m.cost
	st.Calibration = &cost
	st.Write, st.Read = m.chooser().Boundaries()
	return st
}
