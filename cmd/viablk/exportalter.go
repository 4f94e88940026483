package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/target/backend"
)

// changedExport is an export after a change: the answer of PATCH /v1/exports.
type changedExport struct {
	config.Export
	Size int64 `json:"size"` // bytes
}

// alter changes settings and the size of an export by a patch, all of it or
// nothing, and returns what they are then.
func (s *exportSet) alter(ctx context.Context, name string, patch []byte) (changedExport, error) {
	end, err := s.begin(ctx)
	if err != nil {
		return changedExport{}, err
	}
	defer end()
	i := s.find(name)
	if i < 0 {
		return changedExport{}, errNoExport
	}
	before, d := s.inEffect.Load().Config.Target.Exports[i], s.current()[i]
	c, err := before.Change(patch)
	if err == nil {
		err = d.checkChange(c)
	}
	if err == nil {
		err = s.change(i, d, c)
	}
	if err != nil {
		return changedExport{}, err
	}
	return changedExport{c.Export, d.device.Info().Size}, nil
}

// checkChange returns why a change that is right in itself cannot be made.
func (d disk) checkChange(c config.Change) error {
	switch {
	case c.Name != d.Name:
		return conflict("the name of export %q does not change: remove it, and add another", d.Name)
	case c.Writable && !d.takesWrites():
		return conflict("export %q stays read-only: %v", d.Name, errUnwritten)
	}
	return nil
}

// change makes a change of the disk at a place of the configuration. The size
// is last of what may fail: it cannot be taken back.
func (s *exportSet) change(place int, d disk, c config.Change) error {
	grow, err := d.prepareSize(int64(c.Size))
	if err != nil {
		return config.SizeError(err.Error())
	}
	var p *preparedExports // nil: no setting changes
	exports := slices.Clone(s.inEffect.Load().Config.Target.Exports)
	if !reflect.DeepEqual(c.Export, exports[place]) {
		exports[place] = c.Export
		p, err = s.prepare(s.withExports(exports), byAdmin)
	}
	switch {
	case errors.Is(err, errFixed), errors.Is(err, errUnlimited):
		return conflict("%v", err)
	case err != nil:
		return err
	case p == nil && grow == nil:
		return nil
	}
	if grow != nil {
		if err := grow(); err != nil {
			return errors.Join(config.SizeError(err.Error()), p.discard())
		}
	}
	if p != nil {
		p.publish()
	}
	s.log.Info("export changed", "event", "export_changed", "export", d.Name, "size", d.device.Info().Size)
	return nil
}

// prepareSize returns what makes the disk as large as that, nil if it is or if
// the size is 0, or why it cannot become so.
func (d disk) prepareSize(size int64) (grow func() error, err error) {
	info := d.device.Info()
	if size == 0 || size == info.Size {
		return nil, nil
	}
	if least := int64(max(info.MinimumBlock, 1)); size%least != 0 {
		return nil, fmt.Errorf("%d bytes are not a multiple of the export's block of %d", size, least)
	}
	return backend.PrepareGrow(d.opened, size)
}
