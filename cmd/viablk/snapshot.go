package main

import (
	"cmp"
	"net"
	"strings"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/metrics"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/nbdkernel"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
)

// newSnapshot translates the status of the process for package metrics. devices
// are those of the host that viablk attached.
func newSnapshot(p *processStatus, devices []nbdkernel.Connected, again *certificates, configured metrics.Reloads, draining bool) *metrics.Snapshot {
	s := &metrics.Snapshot{
		Version: p.Version, Revision: version().Revision, Started: p.Started, Draining: draining, Panics: p.Panics,
		Exports: p.exportMetrics(),
	}
	if p.NBD != nil {
		s.NBD = &metrics.NBD{Handshakes: p.NBD.Handshakes, Dropped: p.NBD.Dropped}
		s.Faces = append(s.Faces, p.nbdMetrics()...)
	}
	for i := range p.Targets {
		t := &p.Targets[i]
		s.Faces = append(s.Faces, viaMetrics(t))
		m := metrics.Target{Provider: t.Provider, Sessions: t.Sessions, Registrations: t.Registrations, Quarantined: t.Quarantined, DigestErrors: t.Stats.DigestErrors}
		if t.Copy != nil {
			m.Cache = cacheMetrics(t.Copy.Cache)
		}
		s.Targets = append(s.Targets, m)
	}
	for i := range p.Initiators {
		s.Remotes = append(s.Remotes, remoteMetrics(&p.Initiators[i], p.nameOf(i)))
	}
	if d := p.Device; d != nil {
		s.Devices = []metrics.Device{{Name: d.Path, Connections: d.Connections, Replaced: d.Replaced}}
	}
	s.DeviceStates = deviceStates(p.Device, devices)
	for i := range p.Network {
		s.Networks = append(s.Networks, networkMetrics(&p.Network[i]))
	}
	s.Certificates, s.Reloads = again.metrics()
	s.Configured = configured
	return s
}

// exportMetrics describes the disks of the process.
func (p *processStatus) exportMetrics() []metrics.Export {
	var all []metrics.Export
	place := make(map[string]int)
	for i, e := range p.Exports {
		x := metrics.Export{Name: e.Name, Size: e.Size, ReadOnly: e.ReadOnly, State: string(initiator.StateConnected)}
		if i < len(p.Initiators) { // in the order of the exports
			r := &p.Initiators[i]
			x.Backend, x.UUID, x.Size, x.State = backendOf(r), r.UUID, r.Size, string(r.State)
		}
		place[e.Name] = len(all)
		all = append(all, x)
	}
	for _, t := range p.Targets {
		for _, x := range t.Exports {
			if i, ok := place[x.Name]; ok {
				all[i].Size = x.Size // now
			}
		}
	}
	for _, d := range p.Disks {
		if i, ok := place[d.Name]; ok && i >= len(p.Initiators) {
			x := &all[i]
			x.Backend, x.UUID, x.CorruptBlocks, x.Scrub = d.Backend, d.UUID, d.CorruptBlocks, scrubMetrics(d.Scrub)
			x.State = string(cmp.Or(d.State, initiator.StateConnected))
		}
	}
	for _, l := range p.Limits {
		if i, ok := place[l.Export]; ok {
			all[i].Throttled, all[i].ThrottledSeconds = l.Throttled, l.Waited.Seconds()
		}
	}
	return all
}

// scrubMetrics describes the scrubs of a disk, nil of one without checksums.
func scrubMetrics(s *backend.ScrubStatus) *metrics.Scrub {
	if s == nil {
		return nil
	}
	m := &metrics.Scrub{Running: s.State == backend.ScrubRunning, Corrupt: s.Last.Corrupt, Unreadable: s.Last.Unreadable, Ended: s.Last.Ended}
	if m.Running {
		m.Progress = float64(s.Offset) / float64(s.Size)
	}
	return m
}

// nbdMetrics describes what NBD clients and the kernel did.
func (p *processStatus) nbdMetrics() []metrics.Face {
	by := p.byExport()
	faces := []metrics.Face{{Name: faceNBD, Accepted: p.NBD.Accepted, Refused: p.NBD.Refused, Admitted: p.NBD.Admitted, Limit: p.NBD.Limit}}
	for i := range p.Exports {
		e := &p.Exports[i]
		t := metrics.Traffic{Export: e.Name}
		c := new(nbd.ExportStatus) // of an export that no client has entered
		if x := by.entered[e.Name]; x != nil {
			c = x
		}
		t.Connections, t.Errors, t.BytesRead, t.BytesWritten = c.Connections, c.Errors, c.BytesRead, c.BytesWritten
		t.InFlight, t.Latency = by.inFlight[e.Name], c.Latency
		t.Requests = []metrics.Count{
			{Operation: "read", N: c.Reads},
			{Operation: "write", N: c.Writes},
			{Operation: "flush", N: c.Flushes},
			{Operation: "trim", N: c.Trims},
			{Operation: "write_zeroes", N: c.WriteZeroes},
			{Operation: "prefetch", N: c.Caches},
			{Operation: "block_status", N: c.BlockStatus},
			{Operation: "other", N: c.Others},
		}
		if e.face() == faceNBD {
			faces[0].Exports = append(faces[0].Exports, t)
		} else {
			faces = append(faces, metrics.Face{Name: faceDevice, Exports: []metrics.Traffic{t}})
		}
	}
	return faces
}

// viaMetrics describes what initiators did.
func viaMetrics(t *target.Status) metrics.Face {
	f := metrics.Face{
		Name: "via+" + t.Provider, Accepted: t.Accepted, Refused: t.Refused, Admitted: t.Connections, Limit: t.Limit,
		Waits: []metrics.Wait{
			{Reason: "memory", N: t.Stats.WaitsForMemory}, {Reason: "send", N: t.Stats.WaitsForSends}, {Reason: "range", N: t.Stats.RangesTaken},
		},
	}
	for i := range t.Exports {
		x := &t.Exports[i]
		f.Exports = append(f.Exports, metrics.Traffic{
			Export: x.Name, Connections: x.Connections, InFlight: x.InFlight, Requests: blockMetrics(&x.Stats.Counts), Errors: x.Stats.Errors,
			BytesRead: x.Stats.BytesRead, BytesWritten: x.Stats.BytesWritten, Latency: x.Latency,
		})
	}
	return f
}

// blockMetrics returns counts by operation.
func blockMetrics(c *block.Counts) []metrics.Count {
	return []metrics.Count{
		{Operation: "read", N: c.Reads},
		{Operation: "write", N: c.Writes},
		{Operation: "flush", N: c.Flushes},
		{Operation: "trim", N: c.Trims},
		{Operation: "write_zeroes", N: c.WriteZeroes},
		{Operation: "prefetch", N: c.Prefetches},
		{Operation: "block_status", N: c.Statuses},
	}
}

// remoteMetrics describes the remote disk of an export.
func remoteMetrics(i *initiator.Status, export string) metrics.Remote {
	r := metrics.Remote{
		Export: export, Provider: i.Provider, Connected: i.Connected, Losses: i.SessionLosses, DigestErrors: i.Stats.DigestErrors,
		DisconnectedSeconds: i.DisconnectedSeconds, Registrations: i.Registrations, Cache: cacheMetrics(i.Copy.Cache),
		Waits: []metrics.Wait{{Reason: "memory", N: i.Stats.WaitsForMemory}, {Reason: "credit", N: i.Stats.WaitsForCredit}},
	}
	for _, p := range i.Paths {
		r.Paths = append(r.Paths, metrics.Path{Host: p.Host, Up: p.State == initiator.PathUp})
	}
	if i.Quarantine != nil {
		r.QuarantinedBytes = i.Quarantine.Bytes
	}
	return r
}

// cacheMetrics describes a cache of registrations, which may be nil.
func cacheMetrics(c *regcache.Stats) metrics.Cache {
	if c == nil {
		return metrics.Cache{}
	}
	return metrics.Cache{Hits: c.Hits, Misses: c.Misses, Evictions: c.Evicted, Refusals: c.Refused, Bytes: c.Bytes}
}

// deviceStates returns the states of devices that viablk attached, and that of
// the process's own, which is not among them once it is detached.
func deviceStates(served *deviceStatus, devices []nbdkernel.Connected) []metrics.DeviceState {
	var all []metrics.DeviceState
	found := served == nil
	for _, d := range devices {
		found = found || d.Node.String() == served.Path
		all = append(all, metrics.DeviceState{Name: d.Node.String(), State: serverState(d.Server)})
	}
	if !found {
		all = append(all, metrics.DeviceState{Name: served.Path, State: stateDetached})
	}
	return all
}

// networkMetrics describes a UDP address, without its port: that of an
// initiator is another one in each process.
func networkMetrics(n *networkReport) metrics.Network {
	host, _, _ := net.SplitHostPort(n.Local) // a report has a port
	return metrics.Network{
		Local: host, PacketsSent: n.Sent, PacketsReceived: n.Received, PacketsRetransmitted: n.Retransmitted, BytesSent: n.BytesSent, BytesReceived: n.BytesReceived,
		ManagerSent: n.Manager.Sent, ManagerRetransmits: n.Manager.Retransmitted,
		Dropped: []metrics.Wait{
			{Reason: "send_buffer", N: n.Dropped},
			{Reason: "receive_buffer", N: n.Overrun},
			{Reason: "malformed", N: n.Malformed},
			{Reason: "bad_icrc", N: n.BadICRC},
			{Reason: "unknown", N: n.Unknown},
			{Reason: "bad_source", N: n.BadSource},
			{Reason: "refused", N: n.Refused},
			{Reason: "queue_full", N: n.QueueFull},
		},
	}
}

// The faces besides via+PROVIDER.
const (
	faceNBD    = "nbd"
	faceDevice = "device"
)

// face returns how NBD serves the export: to clients, or to the kernel alone.
func (e *exportStatus) face() string {
	for _, u := range e.URIs {
		if strings.HasPrefix(u, "nbd") {
			return faceNBD
		}
	}
	if e.Device != "" {
		return faceDevice
	}
	return faceNBD
}
