package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
)

// faceStatus is an export as it is served in one way: a row of "viablk status".
type faceStatus struct {
	Export         string  `json:"export"`
	Face           string  `json:"face"`  // nbd, device, or via+PROVIDER
	State          string  `json:"state"` // connected, waiting, failed or draining
	WaitingSeconds float64 `json:"waiting_seconds,omitempty"`
	Reason         string  `json:"reason,omitempty"`     // why it is not connected
	Quarantine     string  `json:"quarantine,omitempty"` // what a target that is gone may still access

	Paths []initiator.PathStatus `json:"paths,omitempty"` // of a target with several hosts

	Size        int64 `json:"size"` // bytes
	Connections int   `json:"connections"`
	InFlight    int   `json:"in_flight"` // requests

	target.ExportCounts // of all connections ever

	Throttled uint64   `json:"throttled"`          // requests that waited for limits, over any face
	Security  string   `json:"security,omitempty"` // cipher of sessions over VIA
	Places    []string `json:"places"`             // device and URIs
}

// stateDraining is the state of an export whose server lets requests finish and
// takes no new clients. The other states are those of the initiator; a disk of
// the target's own is always connected, unless it is one of another server.
const stateDraining = "draining"

// faces returns the exports of the process by the ways in which it serves them.
func (p *processStatus) faces() []faceStatus {
	x := p.byExport()
	return slices.Concat(p.overNBD(x), p.overVIA(x))
}

// byExport finds what a status has of an export: there may be thousands.
type byExport struct {
	served    map[string]*exportStatus
	entered   map[string]*nbd.ExportStatus // by NBD clients
	inFlight  map[string]int               // requests of NBD clients
	throttled map[string]uint64            // requests, over any face
	disks     map[string]*diskStatus       // of another server
}

// byExport indexes the status.
func (p *processStatus) byExport() byExport {
	x := byExport{make(map[string]*exportStatus), make(map[string]*nbd.ExportStatus), make(map[string]int), make(map[string]uint64), make(map[string]*diskStatus)}
	for i := range p.Exports {
		x.served[p.Exports[i].Name] = &p.Exports[i]
	}
	if p.NBD != nil {
		for i := range p.NBD.Exports {
			x.entered[p.NBD.Exports[i].Name] = &p.NBD.Exports[i]
		}
		for i := range p.NBD.Connections {
			if c := &p.NBD.Connections[i]; c.InExport {
				x.inFlight[c.Export] += c.InFlight
			}
		}
	}
	for _, l := range p.Limits {
		x.throttled[l.Export] = l.Throttled
	}
	for i := range p.Disks {
		if d := &p.Disks[i]; d.State != "" {
			x.disks[d.Name] = d
		}
	}
	return x
}

// overNBD returns the exports as NBD clients and the kernel see them.
func (p *processStatus) overNBD(x byExport) []faceStatus {
	if p.NBD == nil {
		return nil
	}
	var faces []faceStatus
	for i, e := range p.Exports {
		f := faceStatus{
			Export: e.Name, Size: e.Size, Face: e.face(), State: string(initiator.StateConnected),
			Throttled: x.throttled[e.Name], Places: []string{},
		}
		for _, u := range e.URIs {
			if strings.HasPrefix(u, "nbd") {
				f.Places = append(f.Places, u)
			}
		}
		if e.Device != "" {
			f.Places = append([]string{e.Device}, f.Places...)
		}
		if i < len(p.Initiators) { // in the order of the exports
			f.addInitiator(&p.Initiators[i])
		} else {
			f.addDisk(x.disks[e.Name])
		}
		if p.NBD.Draining {
			f.State = stateDraining
		}
		if c := x.entered[e.Name]; c != nil {
			f.Connections, f.InFlight = c.Connections, x.inFlight[e.Name]
			f.ExportCounts = target.ExportCounts{Counts: countsOf(&c.Counters), Errors: c.Errors, Waits: c.Waits}
		}
		faces = append(faces, f)
	}
	return faces
}

// countsOf names the requests of NBD clients as those over VIA.
func countsOf(c *nbd.Counters) block.Counts {
	return block.Counts{
		Reads: c.Reads, Writes: c.Writes, Flushes: c.Flushes, Trims: c.Trims, WriteZeroes: c.WriteZeroes,
		Statuses: c.BlockStatus, Prefetches: c.Caches, BytesRead: c.BytesRead, BytesWritten: c.BytesWritten,
	}
}

// addDisk adds the state of a disk of another server, which may be nil.
func (f *faceStatus) addDisk(d *diskStatus) {
	if d != nil {
		f.State, f.Reason, f.WaitingSeconds = string(d.State), d.Reason, d.WaitingSeconds
	}
}

// addInitiator adds the state of the remote disk behind the export.
func (f *faceStatus) addInitiator(i *initiator.Status) {
	f.State, f.Reason, f.WaitingSeconds = string(i.State), i.Error, i.DisconnectedSeconds
	f.Paths = i.Paths
	if s := i.Security; s != nil {
		f.Security = s.Cipher
	}
	switch k := i.Quarantine; {
	case k == nil || k.Pools+k.Requests == 0:
	case k.Pools == 0:
		f.Quarantine = fmt.Sprintf("%d requests", k.Requests)
	default:
		f.Quarantine = fmt.Sprintf("%s, %d requests", config.Size(k.Bytes), k.Requests)
	}
}

// overVIA returns the exports as initiators see them.
func (p *processStatus) overVIA(by byExport) []faceStatus {
	var faces []faceStatus
	for _, t := range p.Targets {
		for _, x := range t.Exports {
			f := faceStatus{
				Export: x.Name, Size: x.Size, Face: "via+" + t.Provider, State: string(initiator.StateConnected),
				Connections: x.Connections, InFlight: x.InFlight, ExportCounts: x.Stats, Throttled: by.throttled[x.Name], Places: []string{},
			}
			if t.Security != nil {
				f.Security = t.Security.Cipher
			}
			f.addDisk(by.disks[x.Name])
			if t.Draining {
				f.State = stateDraining
			}
			if e := by.served[x.Name]; e != nil {
				for _, u := range e.URIs {
					if strings.HasPrefix(u, f.Face+":") {
						f.Places = append(f.Places, u)
					}
				}
			}
			faces = append(faces, f)
		}
	}
	return faces
}

// healthy reports whether the disk answers requests.
func (f *faceStatus) healthy() bool {
	return f.State != string(initiator.StateWaiting) && f.State != string(initiator.StateFailed)
}
