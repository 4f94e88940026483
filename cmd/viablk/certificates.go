package main

import (
	"context"
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
	read   func() error
	verify func() int // ends who is not valid any more, and counts them; may be nil
}

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
		s.reload, s.hourly = func(context.Context) error { return c.reload() }, func() { _ = c.reload() } // it logs
	}
}

// reload reads the certificates again, and ends the connections of peers whose
// certificates are not valid any more. An error is logged.
func (c *certificates) reload() error {
	if len(c.used) == 0 {
		c.log.Info("there are no certificates to read again", "event", "certificates_none")
		return nil
	}
	var failed *usedCertificates
	var err error
	ended := 0
	for i := range c.used {
		u := &c.used[i]
		if e := c.contain(u.read); e != nil {
			failed, err = u, e
		}
		if e := c.contain(func() error { ended += u.check(); return nil }); e != nil {
			failed, err = u, e
		}
		_ = c.contain(func() error { c.warn(u.folder); return nil })
	}
	for _, f := range c.then {
		_ = c.contain(func() error { f(); return nil })
	}
	c.reloads.count(failed == nil)
	if failed != nil {
		c.log.Error("certificates not read again: those from before stay", "event", "certificates_kept", "folder", failed.folder, "error", err, "connections_ended", ended)
		return fmt.Errorf("certificates in %q: %w", failed.folder, err)
	}
	c.log.Info("certificates read again", "event", "certificates_read", "connections_ended", ended)
	return nil
}

// check ends who is not valid any more: time passes for certificates from
// before, too.
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
