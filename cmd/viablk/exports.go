package main

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target/backend"
)

// disk is an export with its open device.
type disk struct {
	config.Export
	device block.Device
}

// isReadOnly reports whether clients may not write to the disk.
func (d disk) isReadOnly() bool {
	return d.ReadOnly || d.device.Info().Features&block.ReadOnly != 0
}

// openDisks opens the disks of the exports. The caller closes them.
func openDisks(e config.Effective) ([]disk, error) {
	var disks []disk
	for _, x := range e.Config.Target.Exports {
		device, err := backend.Open(x.Backend, backend.Options{ReadOnly: x.ReadOnly})
		if err != nil {
			err = fmt.Errorf("export %q: %w", x.Name, err)
			if errors.Is(err, backend.ErrUsage) && originOf(e, "target.exports") == config.FromFlag {
				err = &exit{exitUsage, err}
			}
			return nil, errors.Join(err, closeDisks(disks))
		}
		disks = append(disks, disk{x, device})
	}
	return disks, nil
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

// originOf returns where the value of a key came from.
func originOf(e config.Effective, key string) config.Origin {
	for _, s := range e.Settings {
		if s.Key == key {
			return s.Origin
		}
	}
	return config.FromDefault
}

// nbdExports returns the disks as NBD serves them.
func nbdExports(disks []disk) (nbd.Exports, error) {
	var exports []nbd.Export
	for _, d := range disks {
		exports = append(exports, nbd.Export{
			Name: d.Name, Description: d.Description, Device: d.device,
			ReadOnly: d.ReadOnly, Default: d.Default,
		})
	}
	return nbd.NewExports(exports...)
}

// nbdLimits returns the limits of NBD serving. There zero stands for the default
// and a negative duration for none.
func nbdLimits(c config.NBD) nbd.Limits {
	l := nbd.Limits{
		Handshake:   c.HandshakeTimeout,
		Progress:    c.ProgressTimeout,
		Spin:        c.Spin,
		Connections: c.Connections,
		Options:     c.Options,
		Depth:       c.Depth,
	}
	if l.Spin == 0 {
		l.Spin = -1
	}
	return l
}
