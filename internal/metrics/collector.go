package metrics

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/viablk/viablk/internal/latency"
)

// MaximumExports is how many exports have series each. With more, only those
// that the caller selected have, of which it selects no more than this.
const MaximumExports = 256

// maximumDevices is how many devices have series each: the first.
const maximumDevices = 256

// Others is the export, or device, that stands for all without series of their
// own. An export of that name is one of them.
const Others = "*"

// maximumLabel bounds the name of an export in a label, in bytes.
const maximumLabel = 200

// collector turns a snapshot into metrics.
type collector struct {
	selected map[string]bool // exports that have series in any case
	snapshot *Snapshot       // guarded by Page.mu
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, f := range families {
		to <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	s := c.snapshot
	all := &series{values: make(map[seriesKey]float64), durations: make(map[seriesKey]*latency.Distribution), each: len(s.Exports) <= MaximumExports, selected: c.selected}
	all.addProcess(s)
	for i := range s.Exports {
		all.addExport(&s.Exports[i])
	}
	for i := range s.Faces {
		all.addFace(&s.Faces[i])
	}
	if s.NBD != nil {
		all.add(handshakes, float64(s.NBD.Handshakes))
		all.count(displaced, s.NBD.Dropped)
	}
	for i := range s.Targets {
		all.addTarget(&s.Targets[i])
	}
	for i := range s.Remotes {
		all.addRemote(&s.Remotes[i])
	}
	all.addHost(s)
	for _, k := range all.order {
		n := strings.Count(k.labels, separator)
		labels := strings.SplitN(k.labels, separator, n+1)[:n]
		if d := all.durations[k]; d != nil {
			to <- &durations{k.family, labels, s.Started, d}
			continue
		}
		to <- prometheus.MustNewConstMetric(k.family.desc, k.family.kind, all.values[k], labels...)
	}
}

// separator ends a label value in a key. It is no valid UTF-8, and so in no
// label.
const separator = "\xff"

// seriesKey names a series.
type seriesKey struct {
	family *family
	labels string // values, each with a separator behind it
}

// series sums samples by series: names of exports may become one label, and
// several parts of a process may have one face.
type series struct {
	values    map[seriesKey]float64
	durations map[seriesKey]*latency.Distribution
	order     []seriesKey
	each      bool // all exports have series
	selected  map[string]bool
}

// newKey returns the key of a family with the label values.
func newKey(f *family, labels []string) seriesKey {
	var b strings.Builder
	for _, l := range labels {
		b.WriteString(strings.ToValidUTF8(l, "\ufffd"))
		b.WriteString(separator)
	}
	return seriesKey{f, b.String()}
}

// observe adds to a histogram, unless there is nothing to add.
func (s *series) observe(f *family, d *latency.Distribution, labels ...string) {
	if d.Count == 0 {
		return
	}
	k := newKey(f, labels)
	sum := s.durations[k]
	if sum == nil {
		s.order = append(s.order, k)
		sum = new(latency.Distribution)
		s.durations[k] = sum
	}
	sum.Merge(d)
}

// add adds to the series of a family with the label values.
func (s *series) add(f *family, value float64, labels ...string) {
	k := newKey(f, labels)
	if _, there := s.values[k]; !there {
		s.order = append(s.order, k)
	}
	s.values[k] += value
}

// count adds a counter.
func (s *series) count(f *family, n uint64, labels ...string) { s.add(f, float64(n), labels...) }

// label returns the label of an export.
func (s *series) label(export string) string {
	if !s.each && !s.selected[export] {
		return Others
	}
	if len(export) <= maximumLabel {
		return export
	}
	h := fnv.New64a()
	h.Write([]byte(export))
	return fmt.Sprintf("%s...%016x", strings.ToValidUTF8(export[:maximumLabel-20], ""), h.Sum64())
}

func (s *series) addProcess(p *Snapshot) {
	s.add(up, 1)
	s.add(buildInfo, 1, p.Version, p.Revision)
	s.add(started, seconds(p.Started))
	s.add(draining, truth(p.Draining))
	s.count(panics, p.Panics)
}

func (s *series) addExport(x *Export) {
	name := s.label(x.Name)
	s.add(exportSize, float64(x.Size), name)
	if name != Others {
		s.add(exportReadOnly, truth(x.ReadOnly), name)
		s.add(exportInfo, 1, name, x.Backend, x.UUID)
	}
	for _, state := range States {
		s.add(diskState, truth(state == x.State), name, state)
	}
	s.count(throttled, x.Throttled, name)
	s.add(throttledSeconds, x.ThrottledSeconds, name)
	if x.CorruptBlocks != nil {
		s.count(corruptBlocks, *x.CorruptBlocks, name)
	}
	if x.Scrub != nil {
		s.addScrub(x.Scrub, name)
	}
}

func (s *series) addScrub(x *Scrub, name string) {
	s.add(scrubRunning, truth(x.Running), name)
	s.add(scrubCorrupt, float64(x.Corrupt), name)
	s.add(scrubUnreadable, float64(x.Unreadable), name)
	if name == Others {
		return // times and ratios have no sum
	}
	s.add(scrubProgress, x.Progress, name)
	ended := 0.0
	if !x.Ended.IsZero() {
		ended = seconds(x.Ended)
	}
	s.add(scrubEnd, ended, name)
}

func (s *series) addFace(f *Face) {
	s.count(accepted, f.Accepted, f.Name)
	s.count(refused, f.Refused, f.Name)
	if f.Limit > 0 {
		s.add(admitted, float64(f.Admitted), f.Name)
		s.add(limit, float64(f.Limit), f.Name)
	}
	for _, w := range f.Waits {
		s.count(waits, w.N, f.Name, w.Reason)
	}
	for i := range f.Exports {
		t := &f.Exports[i]
		name := s.label(t.Export)
		s.add(connections, float64(t.Connections), f.Name, name)
		s.add(inFlight, float64(t.InFlight), f.Name, name)
		for _, c := range t.Requests {
			s.count(requests, c.N, f.Name, name, c.Operation)
		}
		s.count(failures, t.Errors, f.Name, name)
		s.count(transferred, t.BytesRead, f.Name, name, "read")
		s.count(transferred, t.BytesWritten, f.Name, name, "written")
		for o, op := range latency.Names {
			if t.Latency != nil {
				s.observe(requestTime, &t.Latency.Requests[o], f.Name, name, op)
				s.observe(backendTime, &t.Latency.Backend[o], f.Name, name, op)
			}
		}
	}
}

func (s *series) addTarget(t *Target) {
	s.add(sessions, float64(t.Sessions), t.Provider)
	s.count(registrations, t.Registrations, t.Provider)
	s.count(quarantined, t.Quarantined, t.Provider)
	s.count(digestErrors, t.DigestErrors, t.Provider)
	s.addCache(&t.Cache)
}

func (s *series) addRemote(r *Remote) {
	name := s.label(r.Export)
	s.add(targetConnected, truth(r.Connected), name, r.Provider)
	s.count(targetLosses, r.Losses, name, r.Provider)
	s.count(targetDigest, r.DigestErrors, name, r.Provider)
	s.add(targetAway, r.DisconnectedSeconds, name, r.Provider)
	s.add(targetQuarantine, float64(r.QuarantinedBytes), name, r.Provider)
	for _, p := range r.Paths {
		s.add(targetPath, truth(p.Up), name, r.Provider, p.Host)
	}
	for _, w := range r.Waits {
		s.count(targetWaits, w.N, name, r.Provider, w.Reason)
	}
	s.count(registrations, r.Registrations, r.Provider)
	s.addCache(&r.Cache)
}

func (s *series) addCache(c *Cache) {
	s.count(cacheHits, c.Hits)
	s.count(cacheMisses, c.Misses)
	s.count(cacheEvictions, c.Evictions)
	s.count(cacheRefusals, c.Refusals)
	s.add(registeredBytes, float64(c.Bytes))
}

// addHost adds devices, networks, certificates and the configuration.
func (s *series) addHost(p *Snapshot) {
	for _, d := range p.Devices {
		s.add(deviceConnections, float64(d.Connections), d.Name)
		s.count(deviceReplaced, d.Replaced, d.Name)
	}
	for i, d := range p.DeviceStates {
		name := d.Name
		if i >= maximumDevices {
			name = Others
		}
		for _, state := range DeviceStates {
			s.add(deviceState, truth(state == d.State), name, state)
		}
	}
	for i := range p.Networks {
		n := &p.Networks[i]
		s.count(packets, n.PacketsSent, n.Local, "sent")
		s.count(packets, n.PacketsReceived, n.Local, "received")
		s.count(packetsResent, n.PacketsRetransmitted, n.Local)
		s.count(packetBytes, n.BytesSent, n.Local, "sent")
		s.count(packetBytes, n.BytesReceived, n.Local, "received")
		s.count(managerSent, n.ManagerSent, n.Local)
		s.count(managerResent, n.ManagerRetransmits, n.Local)
		for _, d := range n.Dropped {
			s.count(packetDrops, d.N, n.Local, d.Reason)
		}
	}
	for _, c := range p.Certificates {
		k := seriesKey{certificateEnd, c.File + separator}
		if until := seconds(c.Until); s.values[k] == 0 || until < s.values[k] { // of several folders the first to end
			s.add(certificateEnd, until-s.values[k], c.File)
		}
	}
	s.addReloads(certificateReads, certificateReadAt, &p.Reloads)
	s.addReloads(configurationReads, configurationReadAt, &p.Configured)
}

func (s *series) addReloads(total, last *family, r *Reloads) {
	s.count(total, r.Succeeded, "success")
	s.count(total, r.Failed, "failure")
	if !r.Last.IsZero() {
		s.add(last, seconds(r.Last))
	}
}

// truth is a boolean as a sample.
func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// seconds is a time as a sample.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
