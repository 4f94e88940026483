package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/metrics"
	"github.com/viablk/viablk/internal/pki"
)

// certificates are those of a process, which it reads again while it serves: at
// SIGHUP, and each hour, so that what expires takes effect.
type certificates struct {
	log  *slog.Logger
	used []usedCertificates
	then []func() // called when they were read

	mu sync.Mutex
	// +checklocks:mu
	ends map[string]metrics.Certificate // by path

	reloads reloadCounter
}

// metrics returns when the certificates end and how often they were read again.
func (c *certificates) metrics() ([]metrics.Certificate, metrics.Reloads) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.ends)), c.reloads.read()
}

// usedCertificates are those of one folder in one role.
type usedCertificates struct {
	folder string

	// read reads the folder again and changes nothing. The process uses what it
	// read from publish on, which cannot fail and may be nil.
	read func() (publish func(), err error)

	verify func() int // ends who is not valid any more, and counts them; may be nil
}

// certificatesError is why the certificates of a folder are not read again.
type certificatesError struct {
	folder string
	err    error
}

func (e *certificatesError) Error() string {
	return fmt.Sprintf("certificates in %q: %v", e.folder, e.err)
}

func (e *certificatesError) Unwrap() error { return e.err }

// use adds certificates, and warns of those that are not good for long.
func (c *certificates) use(u usedCertificates) {
	c.used = append(c.used, u)
	c.warn(u.folder)
}

// attach has a service reload the certificates. Without any SIGHUP does what it
// does otherwise.
func (c *certificates) attach(s *service) {
	s.again.Store(c)
	if len(c.used) > 0 {
		s.reload, s.hourly = func(context.Context) error { return c.reload() }, c.readEach
	}
}

// reload reads the certificates again, all of them or none, and ends the
// connections of peers whose certificates are not valid any more. An error is
// logged.
func (c *certificates) reload() error {
	publish, err := c.load()
	if err == nil {
		publish()
	}
	return errors.Join(err, c.finish(err))
}

// readEach reads the certificates again, each folder independently: what one of
// them revokes does not wait for another one. It logs errors.
func (c *certificates) readEach() {
	var errs []error
	for i := range c.used {
		publish, err := c.loadFolders(c.used[i : i+1])
		if err == nil {
			publish()
		}
		errs = append(errs, err)
	}
	_ = c.finish(errors.Join(errs...))
}

// load reads the certificates again and changes nothing. The function that it
// returns has the process use all that was read, and cannot fail. The error has
// a *certificatesError for each folder that cannot be read. The caller calls
// finish.
func (c *certificates) load() (publish func(), err error) { return c.loadFolders(c.used) }

func (c *certificates) loadFolders(used []usedCertificates) (publish func(), err error) {
	var all []func()
	var errs []error
	for i := range used {
		u := &used[i]
		err := c.contain(func() error {
			one, err := u.read()
			if one != nil {
				all = append(all, one)
			}
			return err
		})
		if err != nil {
			errs = append(errs, &certificatesError{u.folder, err})
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return func() {
		for _, one := range all {
			one()
		}
	}, nil
}

// finish ends the connections of peers whose certificates are not valid: time
// passes also for certificates that stay. It counts and logs a reload with the
// error refused, unless certificates are not to blame for that, and returns why
// a peer was not verified.
func (c *certificates) finish(refused error) error {
	if len(c.used) == 0 {
		c.log.Info("there are no certificates to read again", "event", "certificates_none")
		return nil
	}
	var errs []error
	ended := 0
	for i := range c.used {
		u := &c.used[i]
		if err := c.contain(func() error { ended += u.check(); return nil }); err != nil {
			errs = append(errs, &certificatesError{u.folder, err})
		}
		_ = c.contain(func() error { c.warn(u.folder); return nil })
	}
	for _, f := range c.then {
		_ = c.contain(func() error { f(); return nil })
	}
	bad := certificatesErrors(refused)
	if len(bad) > 0 || refused == nil {
		c.reloads.count(refused == nil && len(errs) == 0)
	}
	for _, b := range bad {
		c.log.Error("certificates not read again: those from before stay", "event", "certificates_kept", "folder", b.folder, "error", b.err, "connections_ended", ended)
	}
	if refused == nil {
		c.log.Info("certificates read again", "event", "certificates_read", "connections_ended", ended)
	}
	return errors.Join(errs...)
}

// certificatesErrors returns those errors of a reload that are of a folder.
func certificatesErrors(err error) (all []*certificatesError) {
	switch e := err.(type) {
	case *certificatesError:
		return []*certificatesError{e}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, certificatesErrors(one)...)
		}
	case interface{ Unwrap() error }:
		return certificatesErrors(e.Unwrap())
	}
	return all
}

// check ends who is not valid any more.
func (u *usedCertificates) check() int {
	if u.verify == nil {
		return 0
	}
	return u.verify()
}

// contain runs a step of reload and returns its panic, which it logs, as an
// error: certificates that cannot be read end no service, and the other steps
// follow.
func (c *certificates) contain(step func() error) error {
	return contain.Call(c.log, "panic: the certificates are not all read again", step)
}

// warn logs what in a folder has ended, or ends soon.
func (c *certificates) warn(folder string) {
	found := pki.Check(folder, soonDays*day)
	c.mu.Lock()
	for _, f := range found {
		if c.ends == nil {
			c.ends = make(map[string]metrics.Certificate)
		}
		if !f.Until.IsZero() {
			c.ends[filepath.Join(folder, f.What)] = metrics.Certificate{File: f.What, Until: f.Until}
		}
	}
	c.mu.Unlock()
	for _, f := range found {
		if !f.Until.IsZero() && time.Until(f.Until) < soonDays*day {
			c.log.Warn("renew it in time: peers refuse it then", "event", "certificate_expires", "folder", folder, "file", f.What, "until", f.Until.Format(time.RFC3339))
		}
	}
}
