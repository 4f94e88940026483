package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/reserve"
	"github.com/viablk/viablk/via/shm"
)

// exportSet is the disks that a target exports. Reload replaces them by those
// of the configuration as it is then; calls of the status socket add, alter and
// remove single ones. A disk goes through these states:
//
//	opened ─▶ exported ─▶ retired: no client gets it ─▶ closed when none has it
type exportSet struct {
	log     *slog.Logger
	load    func() (config.Effective, error)  // the configuration as it is now
	check   func(config.Config, []disk) error // what listeners and disks allow together
	held    *backend.Held                     // what the disks have open
	level   *slog.LevelVar                    // of the log
	sockets *shm.Sockets                      // of shared memory; nil listens at none
	overNBD *nbd.ExportTable
	overVIA viaServers
	ender   *nbd.Server // ends NBD clients

	closing sync.WaitGroup // of disks that no client has any more

	// changing holds an element during a change. It is no mutex: a change opens
	// disks, and others that wait for it give up with their context.
	changing chan struct{}
	frozen   bool                             // it holds that of keep; of the goroutine that calls keep and close
	inEffect atomic.Pointer[config.Effective] // a change replaces it
	ending   <-chan struct{}                  // closed when the process drains: no change begins then

	mu sync.Mutex
	// +checklocks:mu
	disks []disk // in the order of the configuration; the slice is not changed
	// +checklocks:mu
	retired []*retiredDisk // that clients still have
}

// retiredDisk is a disk that is not exported any more.
type retiredDisk struct {
	disk
	closed chan struct{} // closed when the disk is
}

// newExportSet returns the set of the disks of a configuration. The caller sets
// what serves them.
func newExportSet(log *slog.Logger, e config.Effective, disks []disk, ending <-chan struct{}) *exportSet {
	s := &exportSet{log: log, changing: make(chan struct{}, 1), disks: disks, ending: ending}
	s.inEffect.Store(&e)
	return s
}

// errChanging is why a change does not begin.
var errChanging = errors.New("another change of the exports is not done yet")

// begin begins a change, one at a time. The caller calls end after it.
func (s *exportSet) begin(ctx context.Context) (end func(), err error) {
	select {
	case <-s.ending:
		return nil, errDraining
	default:
	}
	select {
	case s.changing <- struct{}{}:
		return func() { <-s.changing }, nil
	case <-s.ending:
		return nil, errDraining
	case <-ctx.Done():
		return nil, errChanging
	}
}

// current returns the disks that are exported. The caller does not change the
// slice.
func (s *exportSet) current() []disk {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disks
}

// reload exports what the configuration says now, or returns an error and
// changes nothing.
func (s *exportSet) reload(ctx context.Context) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	e, err := s.load()
	if err != nil {
		return err
	}
	next := s.inEffect.Load().Config
	next.Target.Exports = e.Config.Target.Exports
	if len(next.Target.Exports) == 0 {
		return errors.New("target.exports: nothing to export")
	}
	from := slices.IndexFunc(e.Settings, func(x config.Setting) bool { return x.Key == exportsKey })
	added, removed, err := s.apply(next, e.Settings[from])
	if err != nil {
		return err
	}
	s.log.Info("configuration read again", "event", "configuration_read", "exports", len(next.Target.Exports), "added", added, "removed", len(removed))
	if e.Config.Target.Exports = next.Target.Exports; !reflect.DeepEqual(e.Config, next) {
		s.log.Warn("settings other than exports have changed: they take effect at the next start", "event", "configuration_waits")
	}
	return nil
}

// exportsKey is the key of the exports in a configuration.
const exportsKey = "target.exports"

// apply exports the disks of a configuration, whose exports come from what a
// setting says, or returns an error and changes nothing. It returns the number
// of disks that it opened and those that clients still have or that close now.
// A change calls it.
func (s *exportSet) apply(next config.Config, from config.Setting) (added int, removed []*retiredDisk, err error) {
	effective := config.Effective{Config: next, Settings: settingsOf(next, s.inEffect.Load().Settings, from)}
	if err := effective.Validate(checkBackend); err != nil {
		return 0, nil, err
	}
	before := s.current()
	disks, opened, err := s.merge(before, next)
	if err != nil {
		return 0, nil, err
	}
	if err = s.check(next, disks); err != nil {
		return 0, nil, errors.Join(err, closeDisks(opened))
	}
	if err = s.publish(before, disks); err != nil {
		for _, d := range opened {
			s.retire(d) // a client may have it already
		}
		return 0, nil, err
	}
	s.mu.Lock()
	s.disks = disks
	s.mu.Unlock()
	s.inEffect.Store(&effective)
	for _, d := range before {
		if !slices.ContainsFunc(disks, d.same) {
			removed = append(removed, s.retire(d))
		}
	}
	return len(opened), removed, nil
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
	errFixed     = errors.New("only description, default, clients, clients_read_only, limits and session_limits change while it is exported: remove it, and add it again")
	errUnlimited = errors.New("limits change while it is exported if it has some: remove it, and add it again with limits")
)

// with returns the disk under other settings. Only those that concern clients
// can change while it is open.
func (d disk) with(x config.Export) (disk, error) {
	if reflect.DeepEqual(d.Export, x) {
		return d, nil
	}
	fixed := x
	fixed.Description, fixed.Default, fixed.Clients, fixed.ClientsReadOnly = d.Description, d.Default, d.Clients, d.ClientsReadOnly
	fixed.Limits, fixed.SessionLimits = d.Limits, d.SessionLimits
	switch {
	case !reflect.DeepEqual(d.Export, fixed):
		return d, errFixed
	case d.limits == nil && (x.Limits.Limited() || x.SessionLimits.Limited()):
		return d, errUnlimited
	}
	d.Export = x
	return d, nil
}

// publish has all servers export the disks, or those of before.
func (s *exportSet) publish(before, disks []disk) error {
	err := s.setExports(disks)
	if err != nil {
		_ = s.setExports(before) // they were exported already
	}
	return err
}

func (s *exportSet) setExports(disks []disk) error {
	exports, err := nbdExports(disks)
	if err != nil {
		return err
	}
	if err := errors.Join(s.overNBD.Set(exports...), s.overVIA.setExports(disks)); err != nil {
		return err
	}
	for _, d := range disks {
		if d.limits == nil {
			continue
		}
		if err := d.limits.SetRates(rates(d.Limits), rates(d.SessionLimits)); err != nil {
			return err
		}
	}
	return nil
}

// retire has no further client get a disk, nor a successor its memory, stops
// its scrub, and closes it when no client has it.
func (s *exportSet) retire(d disk) *retiredDisk {
	s.held.RetireMemory(d.Name)
	_, _ = backend.StopScrub(d.opened) // of a disk without checksums none runs
	r := &retiredDisk{d, make(chan struct{})}
	s.mu.Lock()
	s.retired = append(s.retired, r)
	s.mu.Unlock()
	clients := d.reservations.Retire(func() {
		s.closing.Go(func() { // the last client does not wait for the disk
			s.finish(r)
		})
	})
	if len(clients) > 0 {
		s.log.Warn("export removed: it stays open until its clients leave", "event", "export_removed", "export", d.Name, "clients", clientNames(clients))
	}
	return r
}

// finish closes a disk that no client has.
func (s *exportSet) finish(r *retiredDisk) {
	err := s.closeRetired(r.disk)
	s.mu.Lock()
	s.retired = slices.DeleteFunc(s.retired, func(other *retiredDisk) bool { return other == r })
	s.mu.Unlock()
	close(r.closed)
	if err != nil {
		s.log.Error("removed export not closed", "event", "release_failed", "export", r.Name, "error", err)
		return
	}
	s.log.Info("removed export closed", "event", "export_closed", "export", r.Name)
}

func clientNames(clients []reserve.Client) (names []string) {
	for _, c := range clients {
		names = append(names, c.Name)
	}
	return names
}

// closeRetired closes a disk that no client has.
func (s *exportSet) closeRetired(d disk) error {
	for _, v := range s.overVIA {
		if err := v.server.Forget(d.reservations); err != nil {
			return err // its memory is in use: it stays open
		}
	}
	return d.device.Close()
}

// close closes the disks, of which no client has any. No change begins any
// more; of one that does not end the disks stay open.
func (s *exportSet) close() error {
	if !s.frozen {
		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		defer cancel()
		select {
		case s.changing <- struct{}{}: // for good
		case <-ctx.Done():
			return fmt.Errorf("close the disks: %w", errChanging)
		}
	}
	err := closeDisks(s.current())
	s.closing.Wait()
	return err
}
