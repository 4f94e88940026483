package initiator_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/target"
)

// rekeys returns how many rekeys both ends of the only session have seen.
func rekeys(r *remote, d *initiator.Device) uint64 {
	ours, theirs := d.Status().Security, r.server.Status().Security.Sessions
	if len(theirs) != 1 {
		return 0
	}
	return min(ours.Rekeys, theirs[0].Rekeys)
}

// unharmed requires that no connection was lost.
func unharmed(t *testing.T, r *remote, d *initiator.Device) {
	t.Helper()
	st, served := d.Status(), r.server.Status().Stats
	if !st.Connected || st.SessionLosses+st.Stats.Reconnects+st.Stats.Forged+served.Forged != 0 {
		t.Errorf("%+v, forged at the target %d", st, served.Forged)
	}
}

// TestRekeyAfterDay: a session has other keys after a day, and not before.
func TestRekeyAfterDay(t *testing.T) {
	clock := &laterClock{Scheduler: sched.Real}
	r := newSealedRemote(t, target.Config{Scheduler: clock, KeepAlive: 300 * time.Millisecond}, "memory:16MiB")
	d := r.dial(t, "a", func(c *initiator.Config) { c.Scheduler = clock })
	q := open(t, d, 4)
	before := d.Status().Security.Renewed
	for _, step := range []time.Duration{23 * time.Hour, 61 * time.Minute} {
		clock.ahead.Add(int64(step))
		for range 2 { // the sleep is that of the real clock
			d.CheckCertificates()
			waitFor(t, "a check of the clock", d.Checked)
		}
		submit(t, q, request(block.Write, 0, 64<<10))
		wantAll(t, q, 1, 0)
	}
	waitFor(t, "the rekey", func() bool { return rekeys(r, d) == 1 })
	if after := d.Status().Security.Renewed.Sub(before); after < 24*time.Hour {
		t.Errorf("a rekey after %v", after)
	}
	unharmed(t, r, d)
}

// TestQueuesAfterRekeys: each queue goes on with other keys: one that is busy,
// one that was idle for several rekeys, and one that is opened later.
func TestQueuesAfterRekeys(t *testing.T) {
	clock := &laterClock{Scheduler: sched.Real}
	r := newSealedRemote(t, target.Config{Scheduler: clock, KeepAlive: 300 * time.Millisecond}, fileSpec(t, 16<<20))
	d := r.dial(t, "a", func(c *initiator.Config) {
		lasting(initiator.Forever)(c)
		c.Scheduler, c.RekeyInterval = clock, 10*time.Minute
	})
	before := d.Status().Security
	if before.Rekeys != 0 || before.Renewed.IsZero() {
		t.Errorf("%+v", before)
	}
	busy, idle := open(t, d, 4), open(t, d, 4)
	data := bytes.Repeat([]byte("keys"), 16<<10)
	move := func(q *initiator.Queue) {
		t.Helper()
		for _, n := range []int64{512, 64 << 10} {
			w, x := &block.Request{Op: block.Write, Length: n, Data: data[:n]}, request(block.Read, 0, n)
			submit(t, q, w)
			wantAll(t, q, 1, 0)
			submit(t, q, x)
			wantAll(t, q, 1, 0)
			if !bytes.Equal(x.Data, data[:n]) {
				t.Fatal("other data than was written")
			}
		}
	}
	move(idle)
	for n := range uint64(3) {
		clock.ahead.Add(int64(10 * time.Minute))
		d.CheckCertificates() // the sleep is that of the real clock
		waitFor(t, "the rekey", func() bool { move(busy); return rekeys(r, d) == n+1 })
	}
	move(idle)
	move(open(t, d, 4))
	unharmed(t, r, d)
	waitFor(t, "the generation in the status", func() bool { move(busy); return d.Status().Security.Generation == 4 })
	if after := d.Status().Security; !after.Renewed.After(before.Renewed) || after.Serial != before.Serial {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

// renew replaces a certificate by one of the same name.
func renew(t *testing.T, folder, name string, role pki.Role, names ...string) {
	t.Helper()
	must(t, os.RemoveAll(filepath.Join(folder, name)))
	must(t, pki.Issue(filepath.Join(folder, "ca"), role, names, filepath.Join(folder, name), validity))
}

// serving is a remote whose target reads its certificates again.
func serving(t *testing.T) (*remote, *pki.ServerCertificates) {
	t.Helper()
	r := newSealedRemote(t, target.Config{KeepAlive: 150 * time.Millisecond}, fileSpec(t, 16<<20))
	certificates, err := pki.NewServerCertificates(filepath.Join(r.folder, "target"), true)
	must(t, err)
	r.stop()
	r.cfg.Security = &handshake.Guard{TLS: certificates.Config()}
	r.start(t)
	return r, certificates
}

// TestRenewedCertificates: when either end has a new certificate, a session
// goes on with it, and no connection ends.
func TestRenewedCertificates(t *testing.T) {
	r, certificates := serving(t)
	d := r.dial(t, "a", lasting(initiator.Forever))
	q := open(t, d, 4)
	first, theirs := d.Status().Security.Serial, r.server.Status().Security.Sessions[0].Serial

	renew(t, r.folder, "target", pki.Server, targetName)
	must(t, certificates.Reload())
	r.server.Rekey()
	waitFor(t, "a rekey that the target asks for", func() bool { return rekeys(r, d) == 1 })
	if d.Status().Security.Serial == first {
		t.Error("the initiator knows the certificate of before")
	}

	renew(t, r.folder, "alice", pki.Client, "alice")
	d.CheckCertificates()
	waitFor(t, "a rekey of the initiator", func() bool { return rekeys(r, d) == 2 })
	if r.server.Status().Security.Sessions[0].Serial == theirs {
		t.Error("the target knows the certificate of before")
	}
	d.CheckCertificates() // nothing is new
	submit(t, q, request(block.Write, 0, 64<<10))
	wantAll(t, q, 1, 0)
	if n := rekeys(r, d); n != 2 {
		t.Errorf("%d rekeys", n)
	}

	var last string
	for range 5 { // also amid the rekey before
		renew(t, r.folder, "target", pki.Server, targetName)
		must(t, certificates.Reload())
		r.server.Rekey()
		shown, err := x509.ParseCertificate(certificates.Shown())
		must(t, err)
		last = fmt.Sprintf("%x", shown.SerialNumber)
	}
	waitFor(t, "the last certificate", func() bool { return d.Status().Security.Serial == last })
	unharmed(t, r, d)
}

// TestRefusedRekey: a rekey in which either end shows a certificate that the
// other does not take ends the session, and requests wait for a better one.
func TestRefusedRekey(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, r *remote, certificates *pki.ServerCertificates)
		mend  func(t *testing.T, r *remote, certificates *pki.ServerCertificates)
		text  string
	}{
		"initiator of another authority": {
			func(t *testing.T, r *remote, _ *pki.ServerCertificates) {
				replace(t, r.folder, "alice", filepath.Join(certificates(t, "alice"), "alice"), "client")
			},
			func(t *testing.T, r *remote, _ *pki.ServerCertificates) {
				renew(t, r.folder, "alice", pki.Client, "alice")
			}, "refused",
		},
		"initiator of another name": {
			func(t *testing.T, r *remote, _ *pki.ServerCertificates) {
				renew(t, r.folder, "alice", pki.Client, "bob")
			}, nil, "",
		},
		"target of another authority": {
			func(t *testing.T, r *remote, certs *pki.ServerCertificates) {
				replace(t, r.folder, "target", filepath.Join(certificates(t), "target"), "server")
				must(t, certs.Reload())
				r.server.Rekey()
			},
			func(t *testing.T, r *remote, certs *pki.ServerCertificates) {
				renew(t, r.folder, "target", pki.Server, targetName)
				must(t, certs.Reload())
			}, "unknown authority",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, certs := serving(t)
			d := r.dial(t, "a", lasting(initiator.Forever))
			q := open(t, d, 4)
			c.spoil(t, r, certs)
			d.CheckCertificates()
			waitFor(t, "the end of the session", func() bool {
				q.Reap(nil)
				st := d.Status()
				if st.Security.Rekeys != 0 {
					t.Fatal("the rekey was accepted")
				}
				return st.SessionLosses == 1
			})
			x := request(block.Write, 0, 4096)
			submit(t, q, x)
			if c.mend != nil {
				waitFor(t, "the refusal", func() bool {
					q.Reap(nil)
					st := d.Status()
					return st.State == initiator.StateWaiting && strings.Contains(st.Error, c.text)
				})
				c.mend(t, r, certs)
			}
			wantAll(t, q, 1, 0)
			if n := r.server.Status().Security.Sessions; len(n) != 1 {
				t.Errorf("%d sessions", len(n))
			}
		})
	}
}

// replace has the folder of an end show the certificate of another authority.
func replace(t *testing.T, folder, name, other, role string) {
	t.Helper()
	for _, file := range []string{role + "-cert.pem", role + "-key.pem"} {
		b, err := os.ReadFile(filepath.Join(other, file))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(folder, name, file), b, 0o600))
	}
}

// TestDismissal: an initiator whose certificate is not valid any more is told
// to go before its session ends, and returns at once to be refused.
func TestDismissal(t *testing.T) {
	for name, end := range map[string]func(*remote, *pki.ServerCertificates){
		"at the reload": func(r *remote, certs *pki.ServerCertificates) { r.server.VerifyInitiators(certs.Verify) },
		"by a panic": func(r *remote, _ *pki.ServerCertificates) {
			r.server.VerifyInitiators(func([]*x509.Certificate) error { panic("planted in verify") })
		},
		"by the session": func(*remote, *pki.ServerCertificates) {},
	} {
		t.Run(name, func(t *testing.T) {
			r, certs := serving(t)
			var log lines
			d := r.dial(t, "a", func(c *initiator.Config) {
				lasting(initiator.Forever)(c)
				c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			})
			_, err := pki.Revoke(filepath.Join(r.folder, "ca"), "alice", validity)
			must(t, err)
			must(t, pki.GiveList(filepath.Join(r.folder, "ca"), filepath.Join(r.folder, "target")))
			must(t, certs.Reload())
			end(r, certs)
			waitFor(t, "the refusal", func() bool {
				st := d.Status()
				return st.State == initiator.StateWaiting && strings.Contains(st.Error, "refused")
			})
			if !strings.Contains(log.text(), "the target asks to go") {
				t.Errorf("the target did not ask to go:\n%s", log.text())
			}
			if n := len(r.server.Status().Security.Sessions); n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
}

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestRevokedTarget: an initiator ends the session when it has read that its
// target is revoked, or when the target's certificate has expired.
func TestRevokedTarget(t *testing.T) {
	clock := &laterClock{Scheduler: sched.Real}
	for name, check := range map[string]func(*initiator.Device){
		"revoked":             (*initiator.Device).CheckCertificates,
		"revoked, by an hour": func(*initiator.Device) { clock.ahead.Add(int64(time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := serving(t)
			d := r.dial(t, "a", func(c *initiator.Config) {
				lasting(initiator.Forever)(c)
				c.Scheduler = clock
			})
			_, err := pki.Revoke(filepath.Join(r.folder, "ca"), targetName, validity)
			must(t, err)
			must(t, pki.GiveList(filepath.Join(r.folder, "ca"), filepath.Join(r.folder, "alice")))
			check(d)
			waitFor(t, "the refusal", func() bool {
				st := d.Status()
				return st.State == initiator.StateWaiting && strings.Contains(st.Error, "revoked")
			})
		})
	}
	t.Run("expired", func(t *testing.T) {
		clock := &laterClock{Scheduler: sched.Real}
		r, _ := serving(t)
		d := r.dial(t, "a", func(c *initiator.Config) { c.Scheduler = clock })
		clock.ahead.Store(int64(validity))
		d.CheckCertificates()
		<-d.Done()
		var refused *initiator.SecurityError
		if err := d.Err(); !errors.As(err, &refused) || !strings.Contains(err.Error(), "expired") {
			t.Errorf("the session ended with %v", err)
		}
	})
}
