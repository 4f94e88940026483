package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
)

// copyReport says what copying and registering cost on this machine over a
// provider, and what the processes of this user here make of it.
type copyReport struct {
	Calibration regcache.Calibration `json:"calibration"`
	Write       regcache.Boundary    `json:"write_boundary"` // bytes, at the start of a device
	Read        regcache.Boundary    `json:"read_boundary"`
	Refused     string               `json:"refused,omitempty"` // why nothing can be registered
	HugePages   string               `json:"huge_pages"`
	Attached    []attachedCopy       `json:"attached"` // processes that have the export
	Served      []servedCopy         `json:"served"`   // the process that serves it
}

// attachedCopy is what a process that has the export attached has done.
type attachedCopy struct {
	PID     int                  `json:"pid"`
	Copy    initiator.CopyStatus `json:"copy"`
	Choice  regcache.ChoiceStats `json:"choice"`
	Bounced uint64               `json:"bytes_bounced"`     // copied, all in all
	Network []networkReport      `json:"network,omitempty"` // all of the process's, over RoCE

	Security *initiator.SecurityStatus `json:"security,omitempty"`
}

// servedCopy is what the target has done.
type servedCopy struct {
	PID     int                   `json:"pid"`
	Copy    *target.CopyStatus    `json:"copy,omitempty"`    // of all its mapped files
	Mapping *target.MappingStatus `json:"mapping,omitempty"` // if the export is one
}

// newCopyReport says what processes here make of an export of a target, and
// with measure what its provider costs. It is nil for NBD.
func newCopyReport(processes []processStatus, identity string, e export, measure bool) (*copyReport, error) {
	u, err := config.ParseURI(e.URI)
	if err != nil || !u.VIA() {
		return nil, err
	}
	r := &copyReport{Attached: []attachedCopy{}, Served: []servedCopy{}}
	if measure {
		if err := r.calibrate(u); regcache.CannotRegister(err) {
			r.Refused = err.Error()
		} else if err != nil {
			return nil, err
		}
	}
	for _, p := range processes {
		r.add(p, identity, e.Name)
	}
	return r, nil
}

// add adds what a process says of an export of a target. Other targets may have
// exports of the same name.
func (r *copyReport) add(p processStatus, identity, name string) {
	for _, i := range p.Initiators {
		if i.Target == identity && i.Export == name {
			r.Attached = append(r.Attached, attachedCopy{p.PID, i.Copy, i.Stats.Choice, i.Stats.BytesBounced, p.Network, i.Security})
		}
	}
	for _, t := range p.Targets {
		if t.ID != identity {
			continue
		}
		for _, x := range t.Exports {
			if x.Name == name {
				r.Served = append(r.Served, servedCopy{p.PID, t.Copy, x.Mapping})
			}
		}
	}
}

// calibrate measures the provider of u with memory of its own.
func (r *copyReport) calibrate(u config.URI) (err error) {
	nic, err := openNIC(u, slog.New(slog.DiscardHandler), nil, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	tag, err := nic.CreatePtag()
	if err != nil {
		return err
	}
	if r.Calibration, err = regcache.Calibrate(nic, tag); err != nil {
		return err
	}
	cache, err := regcache.New(nic, regcache.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cache.Close()) }()
	if _, err := cache.NewArena(4 * cache.Granule()); err != nil { // huge pages fit in
		return err
	}
	r.Write, r.Read = regcache.NewCopyPolicy(cache, regcache.CopyAuto, r.Calibration).Boundaries()
	r.HugePages = cache.Stats().HugePages
	return nil
}

// rows describes what copies cost line by line.
func (r *copyReport) rows() [][]string {
	line := func(l regcache.Line) string { return fmt.Sprintf("%.2f us + %.3f ns/B", l.Fixed/1e3, l.PerByte) }
	rows := [][]string{
		{"register", line(r.Calibration.Register)},
		{"deregister", line(r.Calibration.Deregister)},
		{"copy, warm", line(r.Calibration.CopyWarm)},
		{"copy, cold", line(r.Calibration.CopyCold)},
		{"huge pages", r.HugePages},
	}
	for _, d := range []struct {
		op block.Op
		b  regcache.Boundary
	}{{block.Write, r.Write}, {block.Read, r.Read}} {
		rows = append(rows, []string{
			fmt.Sprintf("zero-copy %v", d.op),
			boundaryText(d.b),
		})
	}
	if r.Refused != "" {
		rows = [][]string{{"register", "no: " + r.Refused}}
	}
	for _, s := range r.Served {
		if s.Mapping != nil {
			rows = append(rows, []string{"mapped reads", mappingText(s.Mapping)})
		}
	}
	return rows
}

// attachedRows describes the processes that have the export attached.
func (r *copyReport) attachedRows() (rows [][]string) {
	if r == nil {
		return nil
	}
	for _, a := range r.Attached {
		rows = append(rows, []string{fmt.Sprintf("process %d, security", a.PID), attachedSecurity(a.Security)})
		for _, row := range networkRows(a.Network) {
			rows = append(rows, []string{fmt.Sprintf("process %d, %s", a.PID, row[0]), row[1]})
		}
	}
	return rows
}

// mappingText says what became of reads of a mapped file.
func mappingText(w *target.MappingStatus) string {
	if w.Off != "" {
		return "copied: " + w.Off
	}
	c := &w.Choice
	return fmt.Sprintf("%d zero-copy (%s); copied: %d not resident, %d across windows, %d at first use, %d registered but small, %d would not pay, %d refused",
		c.Hits+c.Misses-c.Refusals, config.Size(c.BytesZeroCopied),
		w.NotResident, w.CrossesGranule, c.FirstMisses, c.HitsCopied, c.Declined, c.Refusals)
}

// boundaryText says from which size on memory moves without a copy: memory
// whose registration is cached, and other memory.
func boundaryText(b regcache.Boundary) string {
	from := func(n int) string {
		if n == 0 {
			return "never"
		}
		return "from " + config.Size(n).String()
	}
	return fmt.Sprintf("cached: %s; first use: %s", from(b.Hit), from(b.FirstMiss))
}
