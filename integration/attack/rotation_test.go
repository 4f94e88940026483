package attack

import (
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/internal/seal"
)

// Generations of 1 MiB end under load at both ends, all the time, and no
// request fails, no connection ends, and nothing is found forged.
func TestGenerationsEndUnderLoad(t *testing.T) {
	for name, f := range fabrics {
		t.Run(name, func(t *testing.T) {
			var generations sync.Map
			limits := seal.Limits{Blocks: 1 << 16, Capsules: 100, Observer: func(key [8]byte, _ [12]byte) { generations.Store(key, true) }}
			s := newScene(t, f, newAttacker(func(channel, []byte) {}), true, limits)
			d := s.dial(t)
			var wg sync.WaitGroup
			for worker := range 3 {
				wg.Go(func() {
					b, got := testbed.RandomBytes(3<<20), make([]byte, 3<<20)
					at := int64(worker) * diskSize / 4
					for i := range 100 {
						n := sizes[i%len(sizes)]
						if _, err := d.WriteAt(b[:n], at); err != nil {
							t.Errorf("write: %v", err)
						}
						if _, err := d.ReadAt(got[:n], at); err != nil || string(got[:n]) != string(b[:n]) {
							t.Errorf("read: %v", err)
						}
					}
				})
			}
			wg.Wait()
			keys := 0
			generations.Range(func(any, any) bool { keys++; return true })
			st, served := d.Status(), s.server.Status().Stats
			if st.Stats.Forged+served.Forged+st.Stats.Reconnects+st.SessionLosses != 0 || keys < 100 {
				t.Errorf("%d keys, %+v, %d forged at the target", keys, st, served.Forged)
			}
			testbed.Must(t, d.Close())
		})
	}
}

// A client whose certificate is revoked is out when the target has read the
// list; its requests wait, and other clients do not notice.
func TestRevocationAmidSessions(t *testing.T) {
	s := newScene(t, fabrics["shm"], newAttacker(func(channel, []byte) {}), true, seal.Limits{})
	at := func(name string) string { return filepath.Join(s.folder, name) }
	testbed.Must(t, pki.Issue(at("ca"), pki.Client, []string{"bob"}, at("bob"), certificateLife))
	certificates, err := pki.NewServerCertificates(at("server"), true)
	testbed.Must(t, err)
	s.stop()
	s.cfg.Security = &handshake.Guard{TLS: certificates.Config()}
	s.start(t)
	alice := s.dial(t)
	bob, err := initiator.Dial(t.Context(), initiator.Config{
		NIC: s.nic, Host: s.host, Export: exportName, ReadOnly: true, Log: slog.New(slog.DiscardHandler), LossTimeout: initiator.Forever,
		Security: func() (handshake.Config, error) {
			c, err := pki.ClientConfig(at("bob"), "localhost", true)
			return handshake.Config{TLS: c}, err
		},
	})
	testbed.Must(t, err)
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for b := make([]byte, 4096); !stop.Load(); {
			if _, err := bob.ReadAt(b, 0); err != nil {
				t.Errorf("bob: %v", err)
				return
			}
		}
	}()
	_, err = pki.Revoke(at("ca"), "alice", certificateLife)
	testbed.Must(t, err)
	testbed.Must(t, pki.GiveList(at("ca"), at("server")))
	testbed.Must(t, certificates.Reload())
	waitFor(t, "refusal of alice", func() bool {
		st := alice.Status()
		return !st.Connected && st.Error != "" && st.State == initiator.StateWaiting
	})
	stop.Store(true)
	<-ended
	if st := bob.Status(); !st.Connected || st.SessionLosses+st.Stats.Reconnects != 0 {
		t.Errorf("bob noticed: %+v", st)
	}
	testbed.Must(t, bob.Close())
	_ = alice.Close() // its session is lost
}
