package attack

import (
	"bytes"
	"flag"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/internal/seal"
)

var (
	rotationTime  = flag.Duration("attack.rotation", 0, "how long TestRotation lasts on each fabric; 0: as long as it takes to see what it has to")
	rotationEvery = flag.Duration("attack.rekey", 30*time.Millisecond, "how often TestRotation has a session get other keys")
)

// Under load, at both ends and all the time, generations of 1 MiB end and
// rekeys give the session other keys. No request fails, no connection ends, and
// nothing is found forged.
func TestRotation(t *testing.T) {
	for name, f := range testbed.Fabrics {
		t.Run(name, func(t *testing.T) {
			var keys atomic.Int64
			var seen sync.Map
			limits := seal.Limits{Blocks: 1 << 16, Capsules: 100, Observer: func(key [8]byte, _ [12]byte) {
				if _, known := seen.LoadOrStore(key, true); !known {
					keys.Add(1)
				}
			}}
			s := newScene(t, f, newAttacker(func(channel, []byte) {}), true, limits)
			s.rekey = *rotationEvery
			s.lengthenKeepAlive(t)
			d := s.dial(t)
			began := time.Now()
			enough := func() bool {
				if *rotationTime > 0 {
					return time.Since(began) >= *rotationTime
				}
				return keys.Load() >= 100 && d.Status().Security.Rekeys >= 10
			}
			var requests, longest atomic.Int64
			timed := func(f func() (int, error)) error {
				start := time.Now()
				_, err := f()
				for spent := int64(time.Since(start)); ; {
					if before := longest.Load(); spent <= before || longest.CompareAndSwap(before, spent) {
						break
					}
				}
				requests.Add(1)
				return err
			}
			var wg sync.WaitGroup
			for worker := range 3 {
				wg.Go(func() {
					b, got := testbed.RandomBytes(3<<20), make([]byte, 3<<20)
					at := int64(worker) * diskSize / 4
					for i := 0; (i < len(sizes) || !enough()) && !t.Failed(); i++ {
						n := sizes[i%len(sizes)]
						b[i%n]++
						if err := timed(func() (int, error) { return d.WriteAt(b[:n], at) }); err != nil {
							t.Errorf("write: %v", err)
						}
						if err := timed(func() (int, error) { return d.ReadAt(got[:n], at) }); err != nil || !bytes.Equal(got[:n], b[:n]) {
							t.Errorf("read: %v", err)
						}
					}
				})
			}
			wg.Wait()
			st, served := d.Status(), s.server.Status().Stats
			if st.Stats.Forged+served.Forged+st.Stats.Reconnects+st.SessionLosses != 0 || st.Security.Rekeys == 0 {
				t.Errorf("%+v, %d forged at the target", st, served.Forged)
			}
			t.Logf("%d requests, %d rekeys, %d keys in %v; the longest request spent %v",
				requests.Load(), st.Security.Rekeys, keys.Load(), time.Since(began).Round(time.Millisecond), time.Duration(longest.Load()))
			testbed.Must(t, d.Close())
		})
	}
}

// A client whose certificate is revoked is out when the target has read the
// list; its requests wait. The others get new keys, for the target has another
// certificate too, and do not notice.
func TestReloadUnderLoad(t *testing.T) {
	for name, f := range testbed.Fabrics {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, f, newAttacker(func(channel, []byte) {}), true, seal.Limits{})
			s.lengthenKeepAlive(t)
			at := func(name string) string { return filepath.Join(s.folder, name) }
			alice := s.dial(t)
			others := map[string]*initiator.Device{}
			for _, name := range []string{"bob", "carol"} {
				testbed.Must(t, pki.Issue(at("ca"), pki.Client, []string{name}, at(name), certificateLife))
				var err error
				others[name], err = initiator.Dial(t.Context(), initiator.Config{
					NIC: s.nic, Host: s.host, Export: exportName, ReadOnly: true, Log: slog.New(slog.DiscardHandler), LossTimeout: initiator.Forever,
					Security: func() (handshake.Config, error) {
						c, err := pki.ClientConfig(at(name), "localhost", true)
						return handshake.Config{TLS: c}, err
					},
				})
				testbed.Must(t, err)
			}
			var stop atomic.Bool
			var wg sync.WaitGroup
			for name, d := range others {
				wg.Go(func() {
					for b := make([]byte, 64<<10); !stop.Load(); {
						if _, err := d.ReadAt(b, 0); err != nil {
							t.Errorf("%s: %v", name, err)
							return
						}
					}
				})
			}
			_, err := pki.Revoke(at("ca"), "alice", certificateLife)
			testbed.Must(t, err)
			testbed.Must(t, pki.GiveList(at("ca"), at("server")))
			_, err = pki.Renew(at("ca"), at("server"), true, certificateLife)
			testbed.Must(t, err)
			testbed.Must(t, s.certificates.Reload())
			if n := s.server.VerifyInitiators(s.certificates.Verify); n != 1 {
				t.Errorf("%d sessions were ended", n)
			}
			s.server.Rekey()
			waitFor(t, "refusal of alice", func() bool {
				st := alice.Status()
				return !st.Connected && st.Error != "" && st.State == initiator.StateWaiting
			})
			waitFor(t, "new keys of the others", func() bool {
				return others["bob"].Status().Security.Rekeys == 1 && others["carol"].Status().Security.Rekeys == 1
			})
			stop.Store(true)
			wg.Wait()
			for name, d := range others {
				if st := d.Status(); !st.Connected || st.SessionLosses+st.Stats.Reconnects != 0 {
					t.Errorf("%s noticed: %+v", name, st)
				}
				testbed.Must(t, d.Close())
			}
			_ = alice.Close() // its session is lost
		})
	}
}
