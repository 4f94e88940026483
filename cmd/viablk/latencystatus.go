package main

import (
	"strconv"
	"time"

	"github.com/viablk/viablk/internal/latency"
)

// latencyHead names the columns of "viablk status -o latency".
var latencyHead = []string{"PID", "EXPORT", "FACE", "OP", "REQUESTS", "MEAN", "IN-BACKEND", "P50", "P99", "P99.9"}

// latencyRows returns a row for each export, face and operation that there was.
func (r *statusReport) latencyRows() [][]string {
	rows := [][]string{latencyHead}
	for i := range r.Processes {
		p := &r.Processes[i]
		known := p.latencies()
		for k := range p.Faces {
			f := &p.Faces[k]
			s := known[faceKey{f.Export, f.Face}]
			if s == nil {
				continue
			}
			for o := range latency.Operations {
				if d := &s.Requests[o]; d.Count > 0 {
					rows = append(rows, append([]string{processID(p.PID), f.Export, f.Face, latency.Names[o], strconv.FormatUint(d.Count, 10)},
						mean(d), mean(&s.Backend[o]), latency.Text(d.Quantile(0.5)), latency.Text(d.Quantile(0.99)), latency.Text(d.Quantile(0.999))))
				}
			}
		}
	}
	return rows
}

// mean formats the mean of a distribution.
func mean(d *latency.Distribution) string {
	if d.Count == 0 {
		return "-"
	}
	return latency.Text(d.Sum / time.Duration(d.Count))
}

// faceKey names an export as it is served in one way.
type faceKey struct{ export, face string }

// latencies returns how long requests took, of each export and face that had
// some.
func (p *processStatus) latencies() map[faceKey]*latency.Status {
	known := make(map[faceKey]*latency.Status)
	if p.NBD != nil {
		faces := make(map[string]string)
		for i := range p.Exports {
			faces[p.Exports[i].Name] = p.Exports[i].face()
		}
		for i := range p.NBD.Exports {
			x := &p.NBD.Exports[i]
			known[faceKey{x.Name, faces[x.Name]}] = x.Latency
		}
	}
	for i := range p.Targets {
		t := &p.Targets[i]
		for k := range t.Exports {
			known[faceKey{t.Exports[k].Name, "via+" + t.Provider}] = t.Exports[k].Latency
		}
	}
	return known
}
