package initiator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Errors of changes to the hosts of a target.
var (
	ErrHostKnown   = errors.New("the host is in use already")
	ErrHostUnknown = errors.New("the host is not in use")
	ErrHosts       = fmt.Errorf("a target has %d hosts at most", maxPaths)
	ErrLastPath    = errors.New("no other path is up")
	ErrNoPaths     = errors.New("several hosts of a target need a loss timeout: requests wait while they move to another path")
)

// hosts are the host addresses of a target, by the number of the path to each.
// All sessions of a device use them. Methods are safe for concurrent use.
type hosts struct {
	mu sync.Mutex
	// +checklocks:mu
	names [maxPaths]string // "": none
}

// newHosts returns those of a configuration, which has no more than maxPaths.
func newHosts(first string, others []string) *hosts {
	h := new(hosts)
	h.mu.Lock()
	defer h.mu.Unlock()
	copy(h.names[:], append([]string{first}, others...))
	return h
}

// list returns the hosts by the numbers of their paths, "" where there is none.
func (h *hosts) list() [maxPaths]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.names
}

// several reports whether there are two or more.
func (h *hosts) several() bool {
	names := h.list()
	n := 0
	for _, name := range names {
		if name != "" {
			n++
		}
	}
	return n > 1
}

// add adds a host with the lowest number that is free.
func (h *hosts) add(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Contains(h.names[:], name) {
		return ErrHostKnown
	}
	id := slices.Index(h.names[:], "")
	if id < 0 {
		return ErrHosts
	}
	h.names[id] = name
	return nil
}

// remove removes a host, if another one is there.
func (h *hosts) remove(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := slices.Index(h.names[:], name)
	if id < 0 {
		return ErrHostUnknown
	}
	if !slices.ContainsFunc(h.names[:], func(other string) bool { return other != "" && other != name }) {
		return ErrLastPath
	}
	h.names[id] = ""
	return nil
}

// AddHost adds a host address of the target: the device connects a path to it,
// and keeps on trying if that fails. With PathFailOver, whose order is that of
// Status, it may become the first. Errors are ErrHostKnown, ErrHosts, and
// ErrNoPaths for a device without a loss timeout.
func (d *Device) AddHost(host string) error {
	if host == "" || d.reconnector == nil {
		return ErrNoPaths
	}
	if err := d.cfg.targets.add(host); err != nil {
		return err
	}
	d.session().keepPaths() // a session that replaces it has the host from the start
	return nil
}

// RemoveHost removes a host address of the target. Requests of its path move to
// another one, as when it is lost. Once RemoveHost has returned without an
// error, the device has no connection to the host and makes none. Errors are
// ErrHostUnknown, ErrLastPath if only this path is up or no other host is
// known, and the cause of a context that ends: the host leaves all the same.
func (d *Device) RemoveHost(ctx context.Context, host string) error {
	s := d.session()
	names := d.cfg.targets.list()
	id := slices.Index(names[:], host)
	if host == "" || id < 0 {
		return ErrHostUnknown
	}
	if p := s.at(uint16(id)); p != nil && p.up() && s.choose(uint16(id)) == nil {
		return ErrLastPath
	}
	if err := d.cfg.targets.remove(host); err != nil {
		return err
	}
	for {
		left := s.keepPaths()
		if k := left[id]; k != nil {
			d.cfg.Scheduler.Wait(ctx, -1, k.ended)
			if !k.ended.IsSet() {
				return context.Cause(ctx)
			}
		}
		if s == d.session() {
			return nil
		}
		s = d.session() // it may have read the hosts before
	}
}
