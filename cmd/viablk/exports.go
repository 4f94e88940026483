package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/limit"
	"github.com/viablk/viablk/target/reserve"
)

// disk is an export with its open device.
type disk struct {
	config.Export
	device block.Device
	limits *limit.Export // the device, if it is limited; else nil
	opened block.Device  // as its backend opened it; nil of a remote disk

	// reservations are those of every face of the target. It is nil of a remote
	// disk, which its target reserves.
	reservations *reserve.Disk
}

// isReadOnly reports whether clients may not write to the disk.
func (d disk) isReadOnly() bool {
	return d.ReadOnly || !d.takesWrites()
}

// takesWrites reports whether the open disk does, whatever its export says.
func (d disk) takesWrites() bool { return d.device.Info().Features&block.ReadOnly == 0 }

// stateFolder returns where identities of disks are kept that have no extended
// attributes, or "" if the user has no such place.
func stateFolder(configured string) string {
	home, _ := os.UserHomeDir()
	for _, place := range []struct{ base, below string }{
		{configured, ""},
		{os.Getenv("STATE_DIRECTORY"), ""},
		{map[bool]string{true: "/var/lib"}[os.Geteuid() == 0], "viablk"},
		{os.Getenv("XDG_STATE_HOME"), "viablk"},
		{home, ".local/state/viablk"},
	} {
		if place.base != "" {
			base, _, _ := strings.Cut(place.base, ":") // systemd lists several
			return filepath.Join(base, place.below, "identity")
		}
	}
	return ""
}

// openDisks opens the disks of the exports. The caller closes them.
func openDisks(e config.Effective, held *backend.Held, wait time.Duration, log *slog.Logger) ([]disk, error) {
	var disks []disk
	state := stateFolder(e.Config.Target.StateFolder)
	for _, x := range e.Config.Target.Exports {
		d, err := openDisk(x, state, held, wait, &e.Config, log)
		if err != nil {
			if errors.Is(err, backend.ErrLocked) {
				err = sameBacking(err, x, disks)
			}
			err = fmt.Errorf("export %q: %w", x.Name, err)
			if errors.Is(err, backend.ErrUsage) && e.Origin(exportsKey) == config.FromFlag {
				err = &exit{exitUsage, err}
			}
			return nil, errors.Join(err, closeDisks(disks))
		}
		disks = append(disks, d)
	}
	return disks, nil
}

// sameBacking returns what to say of a file that is in use, if it is that of a
// disk of this process.
func sameBacking(err error, x config.Export, disks []disk) error {
	path := func(x config.Export) string {
		name, _, _ := strings.Cut(x.Backend, "?")
		_, rest, found := strings.Cut(name, ":")
		if !found {
			return name
		}
		return rest
	}
	for _, d := range disks {
		if path(d.Export) == path(x) {
			return fmt.Errorf("%w: its backing file is that of export %q: add readonly=1 to both, or leave one out", backend.ErrUsage, d.Name)
		}
	}
	return err
}

// openDisk opens the disk of an export. The caller closes it.
func openDisk(x config.Export, state string, held *backend.Held, wait time.Duration, c *config.Config, log *slog.Logger) (disk, error) {
	device, err := backend.Open(x.Backend, backend.Options{
		ReadOnly: x.ReadOnly, StateFolder: state, Held: held, Export: x.Name, LockWait: wait, Log: log.With("export", x.Name), NBD: parseNBD(c.Insecure),
	})
	if err != nil {
		return disk{}, err
	}
	adjusted, err := block.Adjust(device, adjustments(x))
	if err != nil {
		return disk{}, errors.Join(&exit{exitUsage, err}, device.Close())
	}
	d, err := limitDisk(x, adjusted)
	if err != nil {
		return disk{}, errors.Join(&exit{exitUsage, err}, adjusted.Close())
	}
	d.opened, d.reservations = device, reserve.New(d.device, nil)
	d.reservations.Limit(x.Name, c.Target.IOTimeout, log)
	return d, nil
}

// limitDisk returns the disk of an export, behind its limits if it has any.
func limitDisk(x config.Export, device block.Device) (disk, error) {
	if !x.Limits.Limited() && !x.SessionLimits.Limited() {
		return disk{Export: x, device: device}, nil
	}
	limits, err := limit.NewExport(device, rates(x.Limits), rates(x.SessionLimits))
	if err != nil {
		return disk{}, err
	}
	return disk{Export: x, device: limits, limits: limits}, nil
}

func rates(l config.Limits) limit.Rates {
	return limit.Rates{Requests: int64(l.IOPS), Bytes: int64(l.Bandwidth), Burst: l.Burst}
}

// limitStatus is an export with limits, and what they did.
type limitStatus struct {
	Export string `json:"export"`
	limit.Status
}

// limitReports returns the state of the limits of those disks that have any.
func limitReports(disks []disk) (reports []limitStatus) {
	for _, d := range disks {
		if d.limits != nil {
			reports = append(reports, limitStatus{d.Name, d.limits.Status()})
		}
	}
	return reports
}

// adjustments returns what the configuration says of a disk.
func adjustments(x config.Export) block.Adjustments {
	return block.Adjustments{
		MinimumBlock:   uint32(x.MinimumBlock),
		PreferredBlock: uint32(x.PreferredBlock),
		MaximumPayload: uint32(x.MaximumPayload),
		Rotational:     x.Rotational,
		MultiConn:      x.MultiConn,
	}
}

// closeDisks closes the disks; what they have not written yet they write now.
func closeDisks(disks []disk) error {
	var errs []error
	for _, d := range disks {
		if err := d.device.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close export %q: %w", d.Name, err))
		}
	}
	return errors.Join(errs...)
}

// nbdExports returns the disks as NBD serves them.
func nbdExports(disks []disk) (exports []nbd.Export, err error) {
	for _, d := range disks {
		rights, err := d.Rights()
		if err != nil {
			return nil, err
		}
		x := nbd.Export{
			Name: d.Name, Description: d.Description, Device: d.device,
			ReadOnly: d.ReadOnly, Default: d.Default, Rights: rights,
		}
		if d.reservations != nil {
			x.Reserve = d.reserveNBD
		}
		exports = append(exports, x)
	}
	return exports, nil
}

// reserveNBD reserves the disk for an NBD connection.
func (d disk) reserveNBD(client string, readOnly bool, end func(by string)) (nbd.Reservation, error) {
	r, err := d.reservations.NBD(client, readOnly || d.isReadOnly(), end)
	if err != nil {
		return nil, err // an interface without a value, not one of no reservation
	}
	return r, nil
}

// nbdLimits returns the limits of NBD serving. There zero stands for the
// default and a negative duration for none.
func nbdLimits(c config.NBD) nbd.Limits {
	l := nbd.Limits{
		Handshake:   c.HandshakeTimeout,
		Progress:    c.ProgressTimeout,
		BusyPoll:    c.BusyPoll,
		Connections: c.Connections,
		Handshakes:  c.Handshakes,
		Options:     c.Options,
		Depth:       c.Depth,

		ConnectionsPerAddress: c.ConnectionsPerAddress,
	}
	if l.BusyPoll == 0 {
		l.BusyPoll = -1
	}
	return l
}

// guestsOf returns the local users that lists of clients name: sockets are open
// to them.
func guestsOf(disks []disk) []uint32 {
	uids, _ := config.Guests(exportsOf(disks))
	return uids
}

// warnUnknown warns of users on lists of clients that this host does not have.
func warnUnknown(disks []disk, log *slog.Logger) {
	if _, unknown := config.Guests(exportsOf(disks)); len(unknown) > 0 {
		log.Warn("this host has no such users, whom lists of clients name", "event", "users_unknown", "users", unknown)
	}
}

func exportsOf(disks []disk) []config.Export {
	var exports []config.Export
	for _, d := range disks {
		exports = append(exports, d.Export)
	}
	return exports
}
