package attack

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
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
