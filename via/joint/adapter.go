package joint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/viablk/viablk/via"
)

// member is the open device of a part.
type member struct {
	name string
	via.Adapter
}

// adapter is the devices of all parts.
type adapter struct {
	parts  []member
	mapper via.Adapter // of arenas; nil: any part can
	limits via.Limits
	names  names
}

// Limits returns what all parts can do.
func (a *adapter) Limits() via.Limits { return a.limits }

// MapArena maps memory that every part can expose.
func (a *adapter) MapArena(size int) (via.ArenaMemory, error) {
	if a.mapper != nil {
		return a.mapper.MapArena(size)
	}
	return a.parts[0].MapArena(size)
}

// Register names a region and makes it known to all parts, or to none.
func (a *adapter) Register(m *via.Memory) error {
	h, err := a.names.draw()
	if err != nil {
		return err
	}
	m.Name(h)
	for i := range a.parts {
		err := a.parts[i].Register(m)
		if err == nil {
			continue
		}
		for _, p := range a.parts[:i] {
			err = errors.Join(err, p.Deregister(m))
		}
		a.names.free(h)
		return a.of(i, err)
	}
	return nil
}

// of says which part has an error.
func (a *adapter) of(part int, err error) error { return fmt.Errorf("%s: %w", a.parts[part].name, err) }

// each calls f for every part, whatever the errors of those before, and joins
// these.
func (a *adapter) each(f func(via.Adapter) error) error {
	var all error
	for i := range a.parts {
		if err := f(a.parts[i].Adapter); err != nil {
			all = errors.Join(all, a.of(i, err))
		}
	}
	return all
}

// Update applies changed attributes at all parts.
func (a *adapter) Update(m *via.Memory) error {
	return a.each(func(p via.Adapter) error { return p.Update(m) })
}

// Deregister withdraws a region from all parts.
func (a *adapter) Deregister(m *via.Memory) error { return a.DeregisterAll([]*via.Memory{m}) }

// DeregisterAll withdraws regions from all parts, with one wait at those that
// can. Their names are free when no part knows them any more.
func (a *adapter) DeregisterAll(list []*via.Memory) error {
	err := a.each(func(p via.Adapter) error {
		if b, ok := p.(via.BatchDeregisterer); ok {
			return b.DeregisterAll(list)
		}
		var all error
		for _, m := range list {
			all = errors.Join(all, p.Deregister(m))
		}
		return all
	})
	for _, m := range list {
		a.names.free(m.Handle())
	}
	return err
}

// Accessed reports whether a peer of any part may be inside an access.
func (a *adapter) Accessed(m *via.Memory) bool {
	return slices.ContainsFunc(a.parts, func(p member) bool { return p.Accessed(m) })
}

// DiscoverHosts returns the hosts of all parts, if each has discovery: who does
// not find a host there would believe that nothing listens.
func (a *adapter) DiscoverHosts(ctx context.Context, hops int) ([]via.DiscoveredHost, error) {
	var all []via.DiscoveredHost
	for i, p := range a.parts {
		d, ok := p.Adapter.(via.Discoverer)
		if !ok {
			return nil, fmt.Errorf("%s has no discovery: %w", p.name, via.ErrNotSupported)
		}
		found, err := d.DiscoverHosts(ctx, hops)
		if err != nil {
			return nil, a.of(i, err)
		}
		for _, h := range found {
			h.Host = Host(p.name, h.Host)
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(x, y via.DiscoveredHost) int { return strings.Compare(x.Host, y.Host) })
	return all, nil
}

// Close closes all devices.
func (a *adapter) Close() error { return a.each(via.Adapter.Close) }
