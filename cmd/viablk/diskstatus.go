package main

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbdclient"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/reserve"
)

// diskStatus is a disk of a target: who it is, and who has it open.
type diskStatus struct {
	Name       string           `json:"name"`    // of the export
	Backend    string           `json:"backend"` // the kind
	UUID       string           `json:"uuid"`
	Persistent bool             `json:"persistent"`        // the UUID is kept with the disk
	Generation uint64           `json:"writer_generation"` // advances with each other writer
	Rule       reserve.Rule     `json:"reservation"`
	Clients    []reserve.Client `json:"clients"` // over VIA and NBD

	OldestRequest float64 `json:"oldest_request_seconds"` // in the disk, of all clients

	// Of a disk of another server, which may be away.
	State          initiator.State `json:"state,omitempty"`
	Reason         string          `json:"reason,omitempty"` // why it is not connected
	WaitingSeconds float64         `json:"waiting_seconds,omitempty"`

	// Of a disk with checksums.
	CorruptBlocks *uint64              `json:"corrupt_blocks,omitempty"` // reads that met one
	Scrub         *backend.ScrubStatus `json:"scrub,omitempty"`
}

// diskReports returns the state of those disks that this process reserves.
func diskReports(disks []disk) (reports []diskStatus) {
	for _, d := range disks {
		if d.reservations == nil {
			continue
		}
		id := d.reservations.Identity()
		kind, _, _ := strings.Cut(d.Backend, ":")
		d.reservations.Overdue() // the disk may hold up the goroutine that would log it
		r := diskStatus{
			Name: d.Name, Backend: kind, UUID: block.FormatUUID(id.UUID()), Persistent: id.Persistent(), Generation: id.Writer().Generation,
			Rule: d.reservations.Rule(), Clients: d.reservations.Clients(), OldestRequest: d.reservations.Oldest().Seconds(),
		}
		r.addState(backend.Innermost(d.opened))
		if n, ok := backend.CorruptBlocks(d.opened); ok {
			r.CorruptBlocks = &n
		}
		if s, ok := backend.ScrubOf(d.opened); ok {
			r.Scrub = &s
		}
		reports = append(reports, r)
	}
	return reports
}

// addState adds the state of a disk that another server has.
func (r *diskStatus) addState(d block.Device) {
	switch remote := d.(type) {
	case interface{ State() nbdclient.State }:
		now := remote.State()
		var away time.Duration
		r.State, r.Reason, away = serverStateOf(&now)
		r.WaitingSeconds = away.Seconds()
	case interface{ Revoked() error }: // an image that another client took
		if r.State = initiator.StateConnected; remote.Revoked() != nil {
			r.State, r.Reason = initiator.StateFailed, remote.Revoked().Error()
		}
	}
}

// servedDisk is a disk and the process of this host that serves it.
type servedDisk struct {
	PID int `json:"pid"`
	diskStatus
}

// servedDisks returns an export as the processes see it that serve it: over VIA
// the target with an identity, over NBD what listens at its URI.
func servedDisks(processes []processStatus, identity string, e export) (found []servedDisk) {
	u, err := config.ParseURI(e.URI)
	if err != nil {
		return nil
	}
	for i := range processes {
		p := &processes[i]
		for _, d := range p.Disks {
			if d.Name == e.Name && (u.VIA() && p.hasTarget(identity) || !u.VIA() && p.servesNBD(u, e.Name)) {
				found = append(found, servedDisk{p.PID, d})
			}
		}
	}
	return found
}

// hasTarget reports whether a VIA target of the process has an identity.
func (p *processStatus) hasTarget(identity string) bool {
	for _, t := range p.Targets {
		if t.ID == identity {
			return true
		}
	}
	return false
}

// servesNBD reports whether the process serves an export where u leads to.
func (p *processStatus) servesNBD(u config.URI, name string) bool {
	network, address := u.Network()
	for _, e := range p.Exports {
		if e.Name == name && slices.ContainsFunc(e.URIs, func(text string) bool {
			other, err := config.ParseURI(text)
			if err != nil || other.VIA() {
				return false
			}
			n, a := other.Network()
			return n == network && a == address
		}) {
			return true
		}
	}
	return false
}

// identityRows says who a disk is, and who has it open.
func identityRows(e export, served []servedDisk) (rows [][]string) {
	uuid := e.UUID
	if uuid == "" && len(served) > 0 {
		uuid = served[0].UUID
	}
	if uuid != "" {
		rows = append(rows, []string{"uuid", uuid})
	}
	for _, d := range served {
		rows = append(rows, []string{"uuid kept", strconv.FormatBool(d.Persistent)}, []string{"reservation", string(d.Rule)})
		for _, c := range d.Clients {
			rows = append(rows, []string{"client", c.Name + ", " + c.Mode})
		}
	}
	return rows
}
