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
	"time"

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

// reload exports what the configuration says now, and has besides, which may be
// nil, read what takes effect with it. All of it is read, opened and checked
// before any takes effect; with an error nothing does.
func (s *exportSet) reload(ctx context.Context, besides func() (publish func(), err error)) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	e, err := s.load()
	publish := func() {}
	if besides != nil {
		read, refused := besides()
		publish, err = read, errors.Join(err, refused)
	}
	if err != nil {
		return err
	}
	next := s.inEffect.Load().Config
	next.Target.Exports = e.Config.Target.Exports
	if len(next.Target.Exports) == 0 {
		return errors.New("target.exports: nothing to export")
	}
	from := slices.IndexFunc(e.Settings, func(x config.Setting) bool { return x.Key == exportsKey })
	p, err := s.prepare(next, e.Settings[from])
	if err != nil {
		return err
	}
	// The lists of clients come first: who authenticates by the certificates of
	// before meanwhile is verified again.
	added, removed := p.publish()
	publish()
	s.log.Info("configuration read again", "event", "configuration_read", "exports", len(next.Target.Exports), "added", added, "removed", len(removed))
	if e.Config.Target.Exports = next.Target.Exports; !reflect.DeepEqual(e.Config, next) {
		s.log.Warn("settings other than exports have changed: they take effect at the next start", "event", "configuration_waits")
	}
	return nil
}

// exportsKey is the key of the exports in a configuration.
const exportsKey = "target.exports"

// apply exports the disks of a configuration, or returns an error and changes
// nothing, see prepare and publish.
func (s *exportSet) apply(next config.Config, from config.Setting) (added int, removed []*retiredDisk, err error) {
	p, err := s.prepare(next, from)
	if err != nil {
		return 0, nil, err
	}
	added, removed = p.publish()
	return added, removed, nil
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

// close closes the disks, of which no client has any, within a time. No change
// begins any more; of one that does not end the disks stay open.
func (s *exportSet) close(limit time.Duration) error {
	if !s.frozen {
		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		defer cancel()
		select {
		case s.changing <- struct{}{}: // for good
		case <-ctx.Done():
			return fmt.Errorf("close the disks: %w", errChanging)
		}
	}
	var calls []diskCall
	for _, d := range s.current() {
		calls = append(calls, diskCall{d.Name, func() error { return closeDisks([]disk{d}) }})
	}
	s.mu.Lock()
	for _, r := range s.retired {
		calls = append(calls, diskCall{r.Name, func() error { s.closing.Wait(); return nil }})
	}
	s.mu.Unlock()
	return doWithin(limit, "close the disks", calls, func() {})
}
