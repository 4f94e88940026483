package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/viablk/viablk/config"
)

// errNoExport is that no export has the name.
var errNoExport = errors.New("there is no such export")

// conflictError is why a change that is right in itself cannot be made now.
type conflictError struct{ text string }

func (e *conflictError) Error() string { return e.text }

func conflict(format string, arguments ...any) error {
	return &conflictError{fmt.Sprintf(format, arguments...)}
}

// find returns the place of an export in the configuration in effect, or -1. A
// change calls it.
func (s *exportSet) find(name string) int {
	return slices.IndexFunc(s.inEffect.Load().Config.Target.Exports, func(x config.Export) bool { return x.Name == name })
}

// withExports returns the configuration in effect with other exports. A change
// calls it.
func (s *exportSet) withExports(exports []config.Export) config.Config {
	next := s.inEffect.Load().Config
	next.Target.Exports = exports
	return next
}

// byAdmin is where exports come from that calls of the status socket changed.
var byAdmin = config.Setting{Key: exportsKey, Origin: config.FromAdmin}

// add exports another disk. It reports false if the same export is there.
func (s *exportSet) add(ctx context.Context, x config.Export) (added bool, err error) {
	end, err := s.begin(ctx)
	if err != nil {
		return false, err
	}
	defer end()
	if i := s.find(x.Name); i >= 0 {
		if reflect.DeepEqual(s.inEffect.Load().Config.Target.Exports[i], x) {
			return false, nil
		}
		return false, conflict("export %q exists, with other settings", x.Name)
	}
	if r := s.retiredAs(x.Name); r != nil {
		return false, conflict("export %q was removed and %s: wait, or remove it with force", x.Name, r.holders())
	}
	if _, _, err := s.apply(s.withExports(append(slices.Clone(s.inEffect.Load().Config.Target.Exports), x)), byAdmin); err != nil {
		return false, err
	}
	s.log.Info("export added", "event", "export_added", "export", x.Name, "backend", x.Backend)
	return true, nil
}

// removal is how the clients of an export end that is removed.
type removal struct {
	drain time.Duration // for requests in flight; 0: an export with clients stays
	force bool          // cut off what is in flight then
}

// Times of a removal beyond its drain.
const (
	cutTime   = 5 * time.Second // for the end of clients whose requests are cut off
	closeTime = 5 * time.Second // for the disk
)

// remove removes an export and returns when its disk is closed. An export that
// was removed before, and that clients still have, is drained again.
func (s *exportSet) remove(ctx context.Context, name string, how removal) error {
	r, err := s.withdraw(ctx, name, how)
	if err != nil {
		return err
	}
	if how.drain > 0 {
		err = r.await(ctx, s.drain, how.drain)
	}
	if err == nil && how.force {
		err = r.await(ctx, s.cut, cutTime)
	}
	if err == nil && len(r.reservations.Clients()) == 0 {
		err = r.await(ctx, func(*retiredDisk) {}, closeTime)
	}
	if err != nil {
		return err
	}
	if r.isClosed() {
		return nil
	}
	return conflict("export %q is removed, and %s: no other client gets it", name, r.holders())
}

// withdraw takes an export out of those that clients get. Without a drain or
// force it has no client.
func (s *exportSet) withdraw(ctx context.Context, name string, how removal) (*retiredDisk, error) {
	end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	i := s.find(name)
	if i < 0 {
		if r := s.retiredAs(name); r != nil {
			return r, nil
		}
		return nil, errNoExport
	}
	if how.drain == 0 && !how.force {
		d := s.current()[i]
		if clients := d.reservations.Clients(); len(clients) > 0 {
			return nil, conflict("export %q is in use by %s: give a drain time, or force", name, strings.Join(clientNames(clients), ", "))
		}
	}
	_, removed, err := s.apply(s.withExports(slices.Delete(slices.Clone(s.inEffect.Load().Config.Target.Exports), i, i+1)), byAdmin)
	if err != nil {
		return nil, err
	}
	return removed[0], nil
}

// retiredAs returns the disk of a removed export that clients still have, or
// nil.
func (s *exportSet) retiredAs(name string) *retiredDisk {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.retired, func(r *retiredDisk) bool { return r.Name == name }); i >= 0 {
		return s.retired[i]
	}
	return nil
}

// endPoll is how often clients are ended that came during the removal.
const endPoll = 100 * time.Millisecond

// await ends the clients of a disk and waits until it is closed, or the time is
// over, which is no error.
func (r *retiredDisk) await(ctx context.Context, end func(*retiredDisk), limit time.Duration) error {
	over := time.NewTimer(limit)
	defer over.Stop()
	again := time.NewTicker(endPoll)
	defer again.Stop()
	for !r.isClosed() {
		end(r)
		select {
		case <-r.closed:
			return nil
		case <-over.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
	return nil
}

func (r *retiredDisk) isClosed() bool {
	select {
	case <-r.closed:
		return true
	default:
		return false
	}
}

// holders says who has the disk.
func (r *retiredDisk) holders() string {
	names := clientNames(r.reservations.Clients())
	if len(names) == 0 {
		return "its disk closes"
	}
	return strings.Join(names, ", ") + " still has it"
}

// drain has the clients of a disk end when their requests are answered.
func (s *exportSet) drain(r *retiredDisk) {
	for _, v := range s.overVIA {
		v.server.DrainDisk(r.reservations)
	}
	s.ender.EndExport(r.device, false)
}

// cut ends the clients of a disk at once.
func (s *exportSet) cut(r *retiredDisk) {
	for _, v := range s.overVIA {
		v.server.CutDisk(r.reservations)
	}
	s.ender.EndExport(r.device, true)
}
