package attack

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// loginHeads returns how a login and the answer that grants it begin, by what
// they are: opcode, flags, status and the magic.
func loginHeads(t testing.TB) map[string][]byte {
	t.Helper()
	heads := map[string][]byte{}
	for what, m := range map[string]wire.Message{"login": &wire.LoginRequest{}, "answer to a login": &wire.LoginResponse{}} {
		b := make([]byte, wire.MaxControlSize)
		_, err := m.Encode(b)
		testbed.Must(t, err)
		heads[what] = b[:8]
	}
	return heads
}

// TestNoLoginInClear: an initiator with certificates whose handshake fails, for
// whatever reason, sends no login, nor does the target answer one.
func TestNoLoginInClear(t *testing.T) {
	at := func(s *scene, name string) string { return filepath.Join(s.folder, name) }
	replace := func(t *testing.T, s *scene, name, file, from string) {
		b, err := os.ReadFile(from)
		testbed.Must(t, err)
		testbed.Must(t, os.WriteFile(filepath.Join(at(s, name), file), b, 0o600))
	}
	// other has the initiator, or the target, show a certificate of another
	// authority.
	other := func(name, kind string) func(*testing.T, *scene) string {
		return func(t *testing.T, s *scene) string {
			folder := filepath.Join(testbed.Certificates(t, "alice"), name)
			for _, part := range []string{"cert", "key"} {
				replace(t, s, name, kind+"-"+part+".pem", filepath.Join(folder, kind+"-"+part+".pem"))
			}
			return "localhost"
		}
	}
	// use has an end show a certificate that is for the other end.
	use := func(name, kind, from, of string) func(*testing.T, *scene) string {
		return func(t *testing.T, s *scene) string {
			for _, part := range []string{"cert", "key"} {
				replace(t, s, name, kind+"-"+part+".pem", filepath.Join(at(s, from), of+"-"+part+".pem"))
			}
			return "localhost"
		}
	}
	for name, spoil := range map[string]func(*testing.T, *scene) string{ // returns the name of the target
		"another authority of the initiator": other("alice", "client"),
		"another authority of the target":    other("server", "server"),
		"certificate of a target":            use("alice", "client", "server", "server"),
		"certificate of an initiator":        use("server", "server", "alice", "client"),
		"another name":                       func(*testing.T, *scene) string { return "elsewhere" },
		"revoked initiator": func(t *testing.T, s *scene) string {
			_, err := pki.Revoke(at(s, "ca"), "alice", certificateLife)
			testbed.Must(t, err)
			testbed.Must(t, pki.GiveList(at(s, "ca"), at(s, "server")))
			return "localhost"
		},
		"revoked target": func(t *testing.T, s *scene) string {
			_, err := pki.Revoke(at(s, "ca"), "localhost", certificateLife)
			testbed.Must(t, err)
			testbed.Must(t, pki.GiveList(at(s, "ca"), at(s, "alice")))
			return "localhost"
		},
		"target in clear": nil,
	} {
		t.Run(name, func(t *testing.T) {
			secrets := newSearch(t)
			s := newScene(t, testbed.Fabrics["shm"], newAttacker(secrets.see), spoil != nil, seal.Limits{})
			host := "localhost"
			if spoil != nil {
				host = spoil(t, s)
				testbed.Must(t, s.certificates.Reload())
			} else {
				s.folder = testbed.Certificates(t, "alice")
			}
			cfg := initiator.Config{NIC: s.nic, Host: s.host, Export: exportName, Log: s.cfg.Log, Security: func() (handshake.Config, error) {
				c, err := pki.ClientConfig(at(s, "alice"), host, true)
				return handshake.Config{TLS: c}, err
			}}
			var refused *initiator.SecurityError
			if _, err := initiator.Dial(context.Background(), cfg); !errors.As(err, &refused) {
				t.Errorf("dial: %v", err)
			}
			s.stop() // nothing travels any more
			if len(secrets.found) != 0 || secrets.bytes[messages] == 0 {
				t.Errorf("%v in %d bytes of messages", secrets.found, secrets.bytes[messages])
			}
		})
	}
}

// damagedHandshakes are what a man in the middle does to a message of the
// handshake. Each returns whether the message is one of those.
var damagedHandshakes = map[string]func(m *wire.Auth) bool{
	"methods offered": func(m *wire.Auth) bool { m.Methods = wire.AuthPSK; return !m.Answer },
	"method chosen":   func(m *wire.Auth) bool { m.Methods = wire.AuthPSK; return m.Answer },
	"seals offered":   func(m *wire.Auth) bool { m.Seals = 0x80; return !m.Answer },
	"seal chosen":     func(m *wire.Auth) bool { m.Seals = 0x80; return m.Answer },
	"version":         func(m *wire.Auth) bool { m.Version++; return !m.Answer },
	"nonce of the initiator": func(m *wire.Auth) bool {
		m.Nonce[7] ^= 1
		return !m.Answer && m.Kind == wire.AuthHello
	},
	"nonce of the target": func(m *wire.Auth) bool { m.Nonce[7] ^= 1; return m.Answer },
	"flight of the initiator": func(m *wire.Auth) bool {
		clear(m.Data)
		return !m.Answer && len(m.Data) > 0
	},
	"flight of the target": func(m *wire.Auth) bool { clear(m.Data); return m.Answer && len(m.Data) > 0 },
	"said to be over": func(m *wire.Auth) bool {
		m.Status, m.Last = wire.StatusOK, true
		return m.Answer
	},
}

// TestNoLoginInClearAmidDamage: an initiator whose handshake an attacker
// changes has no session, and neither end says in clear what only a session is
// to say. Messages have the checksum of what they became.
func TestNoLoginInClearAmidDamage(t *testing.T) {
	for name, damage := range damagedHandshakes {
		t.Run(name, func(t *testing.T) {
			secrets := newSearch(t)
			a := newAttacker(secrets.see)
			var damaged atomic.Int64
			a.change = func(c channel, w *via.Work) {
				if c != messages || len(w.Segments) == 0 {
					return
				}
				var m wire.Auth
				b := w.Segments[0].Bytes
				if m.Decode(b) != nil || !damage(&m) {
					return
				}
				if n, err := m.Encode(b); err != nil || n != len(b) {
					t.Errorf("a damaged message of %d bytes has %d, %v", len(b), n, err)
				}
				damaged.Add(1)
			}
			s := newScene(t, testbed.Fabrics["shm"], a, true, seal.Limits{})
			cfg := initiator.Config{NIC: s.nic, Host: s.host, Export: exportName, Log: s.cfg.Log, Security: s.security}
			if d, err := initiator.Dial(t.Context(), cfg); err == nil {
				t.Errorf("a session with %+v", d.Status().Security)
				testbed.Must(t, d.Close())
			}
			s.stop() // nothing travels any more
			if len(secrets.found) != 0 || damaged.Load() == 0 {
				t.Errorf("%v, %d damaged messages", secrets.found, damaged.Load())
			}
		})
	}
}
