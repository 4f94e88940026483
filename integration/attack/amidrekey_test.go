package attack

import (
	"bytes"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/seal"
)

// holder holds a handshake until requests have gone on meanwhile.
type holder struct {
	on             atomic.Bool
	requests, held atomic.Int64
	stuck          atomic.Bool
}

// requestsAmidHold are how many requests end while a handshake is held: more
// than can have been on their way when it began.
const requestsAmidHold = 100

func (h *holder) hold() {
	if !h.on.Load() {
		return
	}
	from := h.requests.Load()
	for end := time.Now().Add(30 * time.Second); h.requests.Load() < from+requestsAmidHold; time.Sleep(time.Millisecond) {
		if !h.on.Load() {
			return
		}
		if time.Now().After(end) {
			h.stuck.Store(true)
			return
		}
	}
	h.held.Add(1)
}

// Queues do not wait for a rekey: however long either end takes for the
// handshake, here until a hundred further requests have ended, requests go on,
// and then with the new keys.
func TestRequestsGoOnAmidRekeys(t *testing.T) {
	for name, f := range testbed.Fabrics {
		for end, hold := range map[string]func(*scene, *holder){
			"initiator": func(s *scene, h *holder) {
				read := s.secure
				s.secure = func() (handshake.Config, error) {
					h.hold()
					return read()
				}
			},
			"target": func(s *scene, h *holder) {
				c := s.certificates.Config()
				verify := c.VerifyConnection
				c.VerifyConnection = func(state tls.ConnectionState) error {
					h.hold()
					return verify(state)
				}
				s.cfg.Security = &handshake.Guard{TLS: c}
			},
		} {
			t.Run(name+" "+end, func(t *testing.T) {
				var h holder
				s := newScene(t, f, newAttacker(func(channel, []byte) {}), true, seal.Limits{})
				s.rekey = 10 * time.Millisecond
				hold(s, &h)
				s.lengthenKeepAlive(t)
				d := s.dial(t)
				h.on.Store(true)
				runAmidRekeys(t, d, &h)
				st := d.Status()
				if st.Stats.Forged+st.Stats.Reconnects+st.SessionLosses != 0 || st.Security.Rekeys < 3 {
					t.Errorf("%+v", st)
				}
				testbed.Must(t, d.Close())
			})
		}
	}
}

// runAmidRekeys writes and reads until four handshakes were held.
func runAmidRekeys(t *testing.T, d *initiator.Device, h *holder) {
	var wg sync.WaitGroup
	for worker := range 2 {
		wg.Go(func() {
			b, got := testbed.RandomBytes(8192), make([]byte, 8192)
			for at := int64(worker) * diskSize / 2; h.held.Load() < 4 && !h.stuck.Load() && !t.Failed(); h.requests.Add(2) {
				b[0]++
				if _, err := d.WriteAt(b, at); err != nil {
					t.Errorf("write: %v", err)
				}
				if _, err := d.ReadAt(got, at); err != nil || !bytes.Equal(got, b) {
					t.Errorf("read: %v", err)
				}
			}
		})
	}
	wg.Wait()
	h.on.Store(false)
	if h.stuck.Load() {
		t.Errorf("a handshake was held, and requests did not go on")
	}
}
