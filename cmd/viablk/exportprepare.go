package main

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/viablk/viablk/config"
)

// preparedExports are the disks of a configuration, open and checked, which no
// client gets yet. The caller of prepare calls publish or discard, once.
type preparedExports struct {
	set           *exportSet
	effective     config.Effective
	before, disks []disk
	opened        []disk   // of disks
	refusing      []disk   // of disks, that admit no writers from now on
	publishers    []func() // of the servers and limits; they cannot fail
}

// prepare opens and checks the disks of a configuration, whose exports come
// from what a setting says, or returns an error and changes nothing. A change
// calls it.
func (s *exportSet) prepare(next config.Config, from config.Setting) (*preparedExports, error) {
	p := &preparedExports{set: s, before: s.current()}
	p.effective = config.Effective{Config: next, Settings: settingsOf(next, s.inEffect.Load().Settings, from)}
	if err := p.effective.Validate(checkBackend); err != nil {
		return nil, err
	}
	var err error
	if p.disks, p.opened, err = s.merge(p.before, next); err != nil {
		return nil, err
	}
	if err = s.check(next, p.disks); err == nil {
		err = p.prepareServers()
	}
	if err == nil {
		err = p.refuseWriters()
	}
	if err != nil {
		return nil, errors.Join(err, p.discard())
	}
	return p, nil
}

// prepareServers has all servers, and the limits, check what they will serve.
func (p *preparedExports) prepareServers() error {
	exports, err := nbdExports(p.disks)
	if err != nil {
		return err
	}
	overNBD, err := p.set.overNBD.Prepare(exports...)
	if err != nil {
		return err
	}
	overVIA, err := p.set.overVIA.prepareExports(p.disks)
	if err != nil {
		return err
	}
	p.publishers = append(overVIA, overNBD)
	for _, d := range p.disks {
		if d.limits == nil {
			continue
		}
		limits, err := d.limits.PrepareRates(rates(d.Limits), rates(d.SessionLimits))
		if err != nil {
			return fmt.Errorf("export %q: %w", d.Name, err)
		}
		p.publishers = append(p.publishers, limits)
	}
	return nil
}

// refuseWriters has disks that become read-only admit no writers, or returns
// which clients write. A client that opens one meanwhile has an answer that
// holds under the configuration of before, too.
func (p *preparedExports) refuseWriters() error {
	for _, d := range p.disks {
		i := slices.IndexFunc(p.before, d.same)
		if i < 0 || !d.ReadOnly || p.before[i].ReadOnly {
			continue
		}
		if err := d.reservations.RefuseWriters(); err != nil {
			return conflict("export %q does not become read-only: %v", d.Name, err)
		}
		p.refusing = append(p.refusing, d)
	}
	return nil
}

// publish exports the disks. It cannot fail. It returns the number of disks
// that it opened and those that clients still have or that close now.
func (p *preparedExports) publish() (added int, removed []*retiredDisk) {
	s := p.set
	for _, publish := range p.publishers {
		publish()
	}
	s.mu.Lock()
	s.disks = p.disks
	s.mu.Unlock()
	s.inEffect.Store(&p.effective)
	for _, d := range p.disks {
		if !d.ReadOnly {
			d.reservations.AdmitWriters()
		}
	}
	for _, d := range p.before {
		if !slices.ContainsFunc(p.disks, d.same) {
			removed = append(removed, s.retire(d))
		}
	}
	return len(p.opened), removed
}

// discard closes what was opened, and admits writers again. Of nil it does
// nothing.
func (p *preparedExports) discard() error {
	if p == nil {
		return nil
	}
	for _, d := range p.refusing {
		d.reservations.AdmitWriters()
	}
	return closeDisks(p.opened)
}

// settingsOf returns the settings of a configuration: with the origins that
// they had before, and the exports with another one.
func settingsOf(c config.Config, before []config.Setting, exports config.Setting) []config.Setting {
	settings := c.Settings()
	for i := range settings {
		from := before[i] // of the same keys
		if settings[i].Key == exportsKey {
			from = exports
		}
		settings[i].Origin, settings[i].Source, settings[i].Elements = from.Origin, from.Source, from.Elements
	}
	return settings
}

// same reports whether two exports are of one open disk.
func (d disk) same(other disk) bool { return d.reservations == other.reservations }

// merge returns the disks of a configuration: those that are open already, with
// the lists of clients that it has now, and others, which it opens.
func (s *exportSet) merge(before []disk, c config.Config) (disks, opened []disk, err error) {
	state := stateFolder(c.Target.StateFolder)
	for _, x := range c.Target.Exports {
		var d disk
		if i := slices.IndexFunc(before, func(d disk) bool { return d.Name == x.Name }); i >= 0 {
			d, err = before[i].with(x)
		} else if d, err = openDisk(x, state, s.held, 0, &c, s.log); err == nil {
			opened = append(opened, d)
		}
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("export %q: %w", x.Name, err), closeDisks(opened))
		}
		disks = append(disks, d)
	}
	return disks, opened, nil
}

// Why settings of an open disk stay.
var (
	errFixed     = errors.New("only description, default, read_only, clients, clients_read_only, limits and session_limits change while it is exported: remove it, and add it again")
	errUnlimited = errors.New("limits change while it is exported if it has some: remove it, and add it again with limits")
	errUnwritten = errors.New("its disk was opened for reading only: remove it, and add it again without read_only")
)

// with returns the disk under other settings. Only those that concern clients
// can change while it is open.
func (d disk) with(x config.Export) (disk, error) {
	if reflect.DeepEqual(d.Export, x) {
		return d, nil
	}
	fixed := x
	fixed.Description, fixed.Default, fixed.Clients, fixed.ClientsReadOnly = d.Description, d.Default, d.Clients, d.ClientsReadOnly
	fixed.Limits, fixed.SessionLimits, fixed.ReadOnly = d.Limits, d.SessionLimits, d.ReadOnly
	switch {
	case !reflect.DeepEqual(d.Export, fixed):
		return d, errFixed
	case d.limits == nil && (x.Limits.Limited() || x.SessionLimits.Limited()):
		return d, errUnlimited
	case d.ReadOnly && !x.ReadOnly && !d.takesWrites():
		return d, errUnwritten
	}
	d.Export = x
	return d, nil
}
