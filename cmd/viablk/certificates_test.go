package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/pki"
)

// A process warns of what ends soon, and ends peers whose certificates expired
// even if it cannot read others.
func TestCertificatesReadAgain(t *testing.T) {
	ca, soon, late := t.TempDir(), t.TempDir(), t.TempDir()
	for _, err := range []error{
		pki.Init(ca, "test authority", 1000*day),
		pki.Issue(ca, pki.Server, []string{"storage"}, soon, 5*day),
		pki.Issue(ca, pki.Server, []string{"storage"}, late, 100*day),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	c := &certificates{log: slog.New(slog.NewTextHandler(&log, nil))}
	c.reload()
	if !strings.Contains(log.String(), "no certificates to read again") {
		t.Errorf("got %s", log.String())
	}
	log.Reset()
	var unreadable error
	published := 0
	c.use(usedCertificates{late, func() (func(), error) { return nil, unreadable }, func() int { return 2 }})
	if log.Len() > 0 {
		t.Errorf("a certificate that is good for long: %s", log.String())
	}
	c.use(usedCertificates{soon, func() (func(), error) { return func() { published++ }, nil }, func() int { return 3 }})
	until := time.Now().Add(5 * day).UTC().Format(time.DateOnly)
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") ||
		!strings.Contains(got, "file=server-cert.pem until="+until) || !strings.Contains(got, soon) {
		t.Errorf("a certificate that ends soon: %s", got)
	}
	log.Reset()
	c.reload()
	if got := log.String(); !strings.Contains(got, "certificates read again\" event=certificates_read connections_ended=5") || strings.Contains(got, "level=ERROR") || published != 1 {
		t.Errorf("published %d times, got %s", published, got)
	}
	log.Reset()
	unreadable = errors.New("no such key")
	c.reload()
	if got := log.String(); !strings.Contains(got, "those from before stay\" event=certificates_kept folder="+late+" error=\"no such key\" connections_ended=5") || published != 1 {
		t.Errorf("published %d times, got %s", published, got)
	}
	log.Reset()
	_, before := c.metrics()
	if before.Failed != 1 || before.Succeeded != 1 {
		t.Errorf("counted %+v", before)
	}
	ended := 0
	c.used[0].verify = func() int { ended++; return 1 }
	if err := c.finish(errors.New("exports that cannot be opened")); err != nil || ended != 1 || strings.Contains(log.String(), "event=certificates_") {
		t.Errorf("a reload that its exports refuse: %v, ended %d, %s", err, ended, log.String())
	}
	if _, now := c.metrics(); now != before {
		t.Errorf("it counts: %+v", now)
	}
	s := &service{}
	c.attach(s)
	if s.reload == nil || s.hourly == nil {
		t.Error("the service does not reload")
	}
	s.reloads.count(false)
	if got := s.failedReload(); !strings.HasPrefix(got, "configuration not read again at ") || !strings.Contains(got, "; certificates not read again at ") {
		t.Errorf("of two failed reloads it says %q", got)
	}
	log.Reset()
	if s.hourly(); published != 2 || !strings.Contains(log.String(), "event=certificates_kept folder="+late) {
		t.Errorf("beside a folder that cannot be read another one is published %d times, got %s", published, log.String())
	}
	unreadable = nil
	s.hourly() // does not read the configuration
	if got := s.failedReload(); !strings.HasPrefix(got, "configuration") || strings.Contains(got, "certificates") {
		t.Errorf("after the certificates were read it says %q", got)
	}
	if s.reloads.count(true); s.failedReload() != "" {
		t.Errorf("after all was read it says %q", s.failedReload())
	}
	s = &service{}
	(&certificates{}).attach(s)
	if s.reload != nil || s.hourly != nil {
		t.Error("the service reloads nothing")
	}
}

// A panic while certificates are read or verified keeps neither the service
// from going on nor the other certificates from being read.
func TestPanicWhileCertificatesAreRead(t *testing.T) {
	var log strings.Builder
	c := &certificates{log: slog.New(slog.NewTextHandler(&log, nil))}
	steps := ""
	for _, name := range []string{"a", "b"} {
		c.use(usedCertificates{t.TempDir(), func() (func(), error) {
			steps += "read " + name + ","
			if name == "a" {
				panic("planted in read")
			}
			return func() { steps += "publish," }, nil
		}, func() int {
			steps += "verify " + name + ","
			if name == "a" {
				panic("planted in verify")
			}
			return 2
		}})
	}
	c.then = append(c.then, func() { panic("planted in then") }, func() { steps += "then" })
	before := contain.Count()
	c.reload()
	if want := "read a,read b,verify a,verify b,then"; steps != want || contain.Count() != before+3 {
		t.Errorf("steps %q, want %q", steps, want)
	}
	if got := log.String(); strings.Count(got, "panic: the certificates are not all read again") != 3 || !strings.Contains(got, "those from before stay") ||
		!strings.Contains(got, "connections_ended=2") || !strings.Contains(got, "TestPanicWhileCertificatesAreRead") {
		t.Errorf("log %s", got)
	}
}
