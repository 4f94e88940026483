package attack

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/internal/seal"
)

// clientNames is a device that notes for whom its queues are opened.
type clientNames struct {
	block.Device
	mu  sync.Mutex
	all []string
}

// NewQueueFor implements [block.Shared].
func (d *clientNames) NewQueueFor(client string, depth int) (block.Queue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, client)
	return d.NewQueue(depth)
}

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer].
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// has reports whether a text is in it.
func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), text)
}

// count returns how many lines there are.
func (l *lines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), "\n")
}

// as returns the security of an initiator with the certificate of a name.
func (s *scene) as(name string) func() (handshake.Config, error) {
	return func() (handshake.Config, error) {
		c, err := pki.ClientConfig(filepath.Join(s.folder, name), "localhost", true)
		return handshake.Config{TLS: c}, err
	}
}

// TestLimitsOfIdentities: all sessions of a certificate, from wherever they
// come, share the limits of one client and its lines in the log; another
// certificate of the same host has its own.
func TestLimitsOfIdentities(t *testing.T) {
	s := newScene(t, testbed.Fabrics["roce"], newAttacker(func(channel, []byte) {}), true, seal.Limits{})
	testbed.Must(t, pki.Issue(filepath.Join(s.folder, "ca"), pki.Client, []string{"bob"}, filepath.Join(s.folder, "bob"), certificateLife))
	s.stop()
	log, clients := &lines{}, &clientNames{Device: s.cfg.Exports[0].Device}
	quiet := s.cfg.Log
	s.cfg.Log, s.cfg.Exports[0].Device = slog.New(slog.NewTextHandler(log, nil)), clients
	s.start(t)
	dial := func(name string, write bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d, err := initiator.Dial(ctx, initiator.Config{NIC: s.nic, Host: s.host, Export: exportName, Log: quiet, Security: s.as(name)})
		testbed.Must(t, err)
		if write {
			_, err = d.WriteAt(make([]byte, 512), 0)
			testbed.Must(t, err)
		}
		testbed.Must(t, d.Close())
		waitFor(t, "end of the session", func() bool { return s.server.Status().Sessions == 0 })
	}
	for _, name := range []string{"alice", "alice", "bob"} {
		dial(name, true)
	}
	clients.mu.Lock()
	if want := []string{"certificate alice", "certificate alice", "certificate bob"}; !slices.Equal(clients.all, want) {
		t.Errorf("the clients are %q, not %q", clients.all, want)
	}
	clients.mu.Unlock()

	// A login is a line at least.
	const logins, burst = 60, 32
	began, before := time.Now(), log.count()
	for range logins {
		dial("alice", false)
	}
	if n, most := log.count()-before, burst+2+int(time.Since(began)/time.Second); n > most || n == 0 {
		t.Errorf("%d lines of %d logins, at most %d are allowed", n, logins, most)
	}
	before = log.count()
	dial("bob", false)
	if log.count() == before {
		t.Error("no line of another identity")
	}
}
